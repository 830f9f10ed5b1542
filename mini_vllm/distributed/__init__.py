"""What ranks say to each other, and what an engine tells other machines. Mirrors `vllm/distributed/`."""
