"""What models are built of. Mirrors `vllm/model_executor/layers/`."""
