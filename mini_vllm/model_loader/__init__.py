"""A Hugging Face checkpoint folder, read and checked."""

from mini_vllm.config.checks import CheckpointError
from mini_vllm.config.model import LlamaConfig
from mini_vllm.model_loader.loader import (
    check_weights,
    expected_tensors,
    get_model,
    load_config,
    load_default_sampling_params,
    load_model,
    load_weights,
)
from mini_vllm.model_loader.names import find_model
from mini_vllm.model_loader.weight_utils import read_json

__all__ = [
    "CheckpointError",
    "LlamaConfig",
    "check_weights",
    "expected_tensors",
    "find_model",
    "get_model",
    "load_config",
    "load_default_sampling_params",
    "load_model",
    "load_weights",
    "read_json",
]
