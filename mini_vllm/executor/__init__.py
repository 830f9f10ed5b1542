"""What runs the worker, and when its result is there. Mirrors `vllm/v1/executor/`."""
