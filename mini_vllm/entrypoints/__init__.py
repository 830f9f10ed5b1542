"""The doors: `LLM`, the command line, the server. Mirrors `vllm/entrypoints/`."""
