"""Small things that any room may use. Mirrors `vllm/utils/`."""
