"""A mixture of experts. Mirrors `vllm/model_executor/layers/fused_moe/`."""
