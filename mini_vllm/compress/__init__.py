"""Makes quantised checkpoints: what llm-compressor is to vLLM."""
