"""Lab 00-02: a KV cache calculator that agrees with vLLM.

A budget of memory goes in, a number of requests comes out:

    config.json -> bytes per token -> blocks in the budget -> requests at once

All memory is in bytes, except where a name ends in `_gib` (1 GiB = 1024**3 bytes).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mini_vllm.model_loader import LlamaConfig, expected_tensors

GIB = 1024**3

# -- Given: the plumbing.

DTYPE_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}
"""Bytes of one number, by the names that vLLM's `kv_cache_dtype` and `dtype` take."""

CONFIGS = Path(__file__).resolve().parent / "configs"


def read_config(name: str) -> dict[str, Any]:
    """A Hugging Face `config.json` as a dict: `llama-3-8b` for a file in `configs/`, or a path."""
    path = CONFIGS / f"{name}.json"
    if not path.is_file():
        path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(
            f"no config {name!r} in {CONFIGS}, and no such file; this module must stand beside configs/"
        )
    return dict(json.loads(path.read_text(encoding="utf-8")))


def checkpoint_dtype(config: Mapping[str, Any]) -> str:
    """The type that the weights were saved in. Newer files say `dtype`, older ones `torch_dtype`."""
    return str(config.get("dtype") or config.get("torch_dtype"))


def weight_bytes(config: Mapping[str, Any]) -> int:
    """Bytes of all weights of a Llama model, in the type they were saved in."""
    shapes = expected_tensors(LlamaConfig.from_dict(config)).values()
    return sum(math.prod(shape) for shape in shapes) * DTYPE_BYTES[checkpoint_dtype(config)]


# -- The solution.


def kv_bytes_per_token(config: Mapping[str, Any], kv_cache_dtype: str = "auto") -> int:
    """Layers times the numbers that one layer stores, times their size."""
    if config.get("kv_lora_rank") is not None:
        numbers = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    else:
        heads = config["num_attention_heads"]
        head_dim = config.get("head_dim") or config["hidden_size"] // heads
        numbers = 2 * config.get("num_key_value_heads", heads) * head_dim
    dtype = checkpoint_dtype(config) if kv_cache_dtype == "auto" else kv_cache_dtype
    return int(config["num_hidden_layers"] * numbers * DTYPE_BYTES[dtype])


def kv_cache_budget(
    total_gib: float,
    weights_gib: float,
    other_gib: float = 0.0,
    gpu_memory_utilization: float = 0.92,
) -> int:
    """The share of the memory that vLLM may use, less weights and the rest; at least 0."""
    requested = math.ceil(total_gib * GIB * gpu_memory_utilization)
    return max(0, requested - math.ceil((weights_gib + other_gib) * GIB))


def blocks_for(num_tokens: int, block_size: int = 16) -> int:
    """`num_tokens / block_size`, rounded up."""
    return -(-num_tokens // block_size)


def num_kv_blocks(
    budget: int, config: Mapping[str, Any], block_size: int = 16, kv_cache_dtype: str = "auto"
) -> int:
    """The budget over the bytes of one block, rounded down; at least 0."""
    return max(0, budget // (block_size * kv_bytes_per_token(config, kv_cache_dtype)))


def reported_concurrency(num_blocks: int, max_model_len: int, block_size: int = 16) -> float:
    """All blocks over the blocks of one full-length request."""
    return num_blocks / blocks_for(max_model_len, block_size)


def reported_tokens(num_blocks: int, max_model_len: int, block_size: int = 16) -> int:
    """The reported concurrency times `max_model_len`, rounded down."""
    return int(reported_concurrency(num_blocks, max_model_len, block_size) * max_model_len)


def requests_at_once(num_blocks: int, num_tokens: int, block_size: int = 16) -> int:
    """Whole requests in what the null block leaves."""
    return max(0, num_blocks - 1) // blocks_for(num_tokens, block_size)
