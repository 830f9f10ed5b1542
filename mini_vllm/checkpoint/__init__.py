"""A Hugging Face Llama checkpoint folder, read and checked."""

from mini_vllm.checkpoint.loader import (
    LlamaConfig,
    check_weights,
    expected_tensors,
    load_config,
    load_default_sampling_params,
    load_model,
    load_weights,
    read_json,
)
from mini_vllm.checkpoint.safetensors_file import CheckpointError

__all__ = [
    "CheckpointError",
    "LlamaConfig",
    "check_weights",
    "expected_tensors",
    "load_config",
    "load_default_sampling_params",
    "load_model",
    "load_weights",
    "read_json",
]
