"""Settings that need more memory than there is, found before anything is allocated.

Mirrors `vllm/v1/core/kv_cache_utils.py:794 check_enough_kv_cache_memory`. Allocating and seeing will not
do: Linux hands out memory that it does not have, and ends the process when it is touched.
"""

from __future__ import annotations

from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.config.model import LlamaConfig
from mini_vllm.core.kv_cache_groups import block_bytes
from mini_vllm.utils.memory import machine_memory
from mini_vllm.utils.untrusted import shorten_repr

_BYTES_A_BLOCK = 200
"""About what Python keeps of one block: the object, its place in the pool's list."""


def check_memory(config: ResolvedConfig, model: LlamaConfig, drafter_block_bytes: int = 0) -> None:
    """Raises ValueError naming the setting that asks for the most, if they ask for too much.

    Args:
        config: the engine's.
        model: what one rank has of it.
        drafter_block_bytes: what a drafter's layers keep of a block.
    """
    bytes_per_block = (
        block_bytes(model, config.block_size, config.kv_cache_dtype) + drafter_block_bytes
    )
    ranks = config.world_size
    row = 4 * config.max_model_len + 4 * -(-config.max_model_len // config.block_size) + 100
    needs = {
        "num_gpu_blocks": config.num_gpu_blocks * (bytes_per_block * ranks + _BYTES_A_BLOCK),
        "max_num_seqs": config.max_num_seqs * row * ranks,
        "max_num_batched_tokens": 4 * config.token_budget,
    }
    if config.cudagraph_mode != "NONE" and config.cudagraph_capture_sizes is not None:
        # The pool of the graphs' outputs, by the largest size: some arrays as wide as these.
        of_mlp, of_heads = (
            3 * model.intermediate_size,
            2 * model.num_attention_heads * model.head_dim,
        )
        largest = max(
            size for size in config.cudagraph_capture_sizes if size <= config.token_budget
        )
        needs["cudagraph_capture_sizes"] = 4 * largest * (3 * model.hidden_size + of_mlp + of_heads)
    total, there = sum(needs.values()), machine_memory()
    if total <= there:
        return
    name = max(needs, key=lambda key: needs[key])
    value = config.token_budget if name == "max_num_batched_tokens" else getattr(config, name)
    beside = {
        "num_gpu_blocks": f" of {config.block_size} tokens (block_size)",
        "max_num_seqs": f" of up to {config.max_model_len} tokens (max_model_len)",
        "max_num_batched_tokens": "",
        "cudagraph_capture_sizes": "",
    }[name]
    raise ValueError(
        f"{name} ({shorten_repr(value)}){beside} needs {needs[name] / 1024**3:,.1f} GiB of memory, and "
        "there are "
        f"{there / 1024**3:,.1f} GiB"
    )
