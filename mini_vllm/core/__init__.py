"""The heart: requests, the KV cache's blocks, and the scheduler in `core/sched`. Mirrors `vllm/v1/core/`."""
