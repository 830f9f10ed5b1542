"""Faults of vLLM's, each shown by a command: those of docs/FOUND_IN_VLLM.md that the fuzz does not show."""
