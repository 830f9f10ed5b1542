"""The core's loop and the front ends around it: text in, text out. Mirrors `vllm/v1/engine/`."""
