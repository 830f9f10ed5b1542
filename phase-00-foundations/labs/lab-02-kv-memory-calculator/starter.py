"""Lab 00-02: a KV cache calculator that agrees with vLLM. Your work: the seven functions at the end.

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

# -- Given: the plumbing. Nothing to do here.

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


# -- Your work.


def kv_bytes_per_token(config: Mapping[str, Any], kv_cache_dtype: str = "auto") -> int:
    """Bytes that one token keeps in the KV cache: all layers together.

    With ordinary attention each layer stores a K and a V vector for each KV head. With MLA (DeepSeek's
    multi-head latent attention; such a file has `kv_lora_rank`) each layer stores one vector for all
    heads, of `kv_lora_rank + qk_rope_head_dim` numbers, from which K and V are both made.

    What a `config.json` may leave out:

    - `head_dim`, or it is null: then it is `hidden_size // num_attention_heads`. Where the file
      has it, it counts, whatever that quotient is.
    - `num_key_value_heads`: then every attention head has its own K and V.
    - `kv_lora_rank`, or it is null: no MLA.

    Args:
        config: the content of a `config.json`.
        kv_cache_dtype: a key of `DTYPE_BYTES`, or "auto": what `checkpoint_dtype` says. (vLLM's
            own "auto" runs a float32 checkpoint in half precision unless told otherwise.)
    """
    raise NotImplementedError


def kv_cache_budget(
    total_gib: float,
    weights_gib: float,
    other_gib: float = 0.0,
    gpu_memory_utilization: float = 0.92,
) -> int:
    """Bytes that vLLM leaves for the KV cache on a GPU: what it may use, less what else it needs.

    It may use `gpu_memory_utilization` of the whole memory, rounded up to a byte
    (`vllm/v1/worker/utils.py:403 request_memory`). Weights, and `other_gib` (activations, CUDA graphs,
    libraries), come out of that share: their sum, rounded up to a byte. If nothing is left, the
    result is 0, not a negative number.

    Args:
        total_gib: memory of the GPU, in GiB.
        weights_gib: memory of the weights, in GiB.
        other_gib: whatever else the process takes, in GiB.
        gpu_memory_utilization: between 0 and 1; vLLM's default (`vllm/config/cache.py:66`).

    Returns:
        A whole number of bytes.
    """
    raise NotImplementedError


def blocks_for(num_tokens: int, block_size: int = 16) -> int:
    """Blocks that hold `num_tokens` tokens of one request. A block that is begun is taken whole."""
    raise NotImplementedError


def num_kv_blocks(
    budget: int, config: Mapping[str, Any], block_size: int = 16, kv_cache_dtype: str = "auto"
) -> int:
    """Blocks that a budget of bytes holds: what vLLM reports as `num_gpu_blocks`.

    A block holds `block_size` tokens in every layer. Half a block is no block; a negative budget
    holds none.
    """
    raise NotImplementedError


def reported_concurrency(num_blocks: int, max_model_len: int, block_size: int = 16) -> float:
    """The x in vLLM's line `Maximum concurrency for L tokens per request: x`.

    All blocks of the pool, divided by the blocks that one request of `max_model_len` tokens takes. Not
    rounded: 1.5 requests are 1.5.
    """
    raise NotImplementedError


def reported_tokens(num_blocks: int, max_model_len: int, block_size: int = 16) -> int:
    """The N in vLLM's line `GPU KV cache size: N tokens`.

    vLLM counts this back from the line above: so many full requests, of so many tokens each, rounded
    down. It is less than `num_blocks * block_size` where the last block of a request stays part empty.
    """
    raise NotImplementedError


def requests_at_once(num_blocks: int, num_tokens: int, block_size: int = 16) -> int:
    """How many requests with `num_tokens` tokens each in the cache really fit at the same time.

    Not the reported number: vLLM keeps the pool's first block, the null block, for itself
    (`vllm/v1/core/block_pool.py:176`), and a request fits whole or not at all. A pool without any
    block serves no request.

    Args:
        num_blocks: all blocks of the pool, the null block among them.
        num_tokens: at least 1.
    """
    raise NotImplementedError
