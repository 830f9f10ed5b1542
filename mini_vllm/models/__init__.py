"""One file a model architecture. Mirrors `vllm/model_executor/models/`."""
