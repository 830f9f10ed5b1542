"""What an engine tells other machines. Mirrors the part of `vllm/distributed/` about the prefix cache."""
