"""Faults of vLLM's, each shown by a command: the ones of FOUND_IN_VLLM.md that the fuzz does not show."""
