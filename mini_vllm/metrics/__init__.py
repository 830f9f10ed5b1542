"""What is counted, and how it is read. Mirrors `vllm/v1/metrics/`."""
