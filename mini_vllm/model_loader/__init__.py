"""A Hugging Face checkpoint folder, read and checked."""

from mini_vllm.config.model import CheckpointError, LlamaConfig
from mini_vllm.model_loader.drafter import load_eagle, load_eagle_config
from mini_vllm.model_loader.loader import (
    check_weights,
    expected_tensors,
    get_model,
    load_config,
    load_default_sampling_params,
    load_model,
    load_weights,
    read_json,
)
from mini_vllm.model_loader.names import find_model

__all__ = [
    "CheckpointError",
    "LlamaConfig",
    "check_weights",
    "expected_tensors",
    "find_model",
    "get_model",
    "load_config",
    "load_default_sampling_params",
    "load_eagle",
    "load_eagle_config",
    "load_model",
    "load_weights",
    "read_json",
]
