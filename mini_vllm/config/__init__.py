"""Settings of the engine, and of a model. Mirrors `vllm/config/`."""
