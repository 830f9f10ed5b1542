"""Citations of vLLM and of `mini_vllm`, and the tables that lay the two side by side."""
