"""A Hugging Face Llama checkpoint folder, read and checked."""

from mini_vllm.checkpoint.loader import (
    check_weights,
    expected_tensors,
    get_model,
    load_config,
    load_default_sampling_params,
    load_model,
    load_weights,
    read_json,
)
from mini_vllm.llama_config import CheckpointError, LlamaConfig

__all__ = [
    "CheckpointError",
    "LlamaConfig",
    "check_weights",
    "expected_tensors",
    "get_model",
    "load_config",
    "load_default_sampling_params",
    "load_model",
    "load_weights",
    "read_json",
]
