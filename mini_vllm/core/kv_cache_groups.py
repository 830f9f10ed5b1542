"""From a model's layers to KV cache groups, and to the pool that they share.

Mirrors the other half of `vllm/v1/core/kv_cache_utils.py` (`get_kv_cache_groups` 1618).

Blocks of all groups come from one pool, so a block must be of one size for all: every group has as many
layers as any other, or fewer. A model with 2 layers of full attention and 4 with a window has three groups
of 2. The memory of a block is that of 2 layers, and the groups share it: where the first layer of one group
keeps block 7, the first layers of the others keep none.
"""

from __future__ import annotations

from mini_vllm.config.model import LlamaConfig
from mini_vllm.core.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)
from mini_vllm.utils.math import cdiv


def get_kv_cache_specs(config: LlamaConfig, block_size: int) -> dict[str, KVCacheSpec]:
    """What each layer keeps, by vLLM's name of its attention, in the order of the layers."""
    sizes = block_size, config.num_key_value_heads, config.head_dim
    return {
        f"model.layers.{i}.self_attn.attn": FullAttentionSpec(*sizes)
        if window is None
        else SlidingWindowSpec(*sizes, sliding_window=window)
        for i, window in enumerate(config.sliding_windows)
    }


def get_kv_cache_groups(kv_cache_spec: dict[str, KVCacheSpec]) -> list[KVCacheGroupSpec]:
    """Split the layers into groups: by kind, and a kind of many layers into several.

    A group has as many layers as the rarest kind. If the most frequent kind is less than one and a half times
    as frequent, it gives the size, and a smaller group leaves memory unused: that wastes less than another
    group would. Layers of a kind are dealt out in turn.

    Source: `vllm/v1/core/kv_cache_utils.py:1057 _get_kv_cache_groups_uniform_page_size`.
    """
    same_type_layers: dict[KVCacheSpec, list[str]] = {}
    for layer_name, kv_spec in kv_cache_spec.items():
        same_type_layers.setdefault(kv_spec, []).append(layer_name)
    counts = [len(layers) for layers in same_type_layers.values()]
    group_size = min(counts)
    if max(counts) < min(counts) * 1.5:
        group_size = max(counts)
    groups: list[KVCacheGroupSpec] = []
    for kv_spec, layers in same_type_layers.items():
        num_groups = cdiv(len(layers), group_size)
        groups += [KVCacheGroupSpec(layers[i::num_groups], kv_spec) for i in range(num_groups)]
    return groups


def get_kv_cache_config(config: LlamaConfig, block_size: int, num_blocks: int) -> KVCacheConfig:
    """The pool of `num_blocks` blocks for a model's layers."""
    return KVCacheConfig(num_blocks, get_kv_cache_groups(get_kv_cache_specs(config, block_size)))


def get_places_of_layers(kv_cache_groups: list[KVCacheGroupSpec]) -> list[tuple[int, int]]:
    """For each layer, in the model's order, its group and which of the group's layers it is."""
    places = {
        extract_layer_index(name): (group_id, index)
        for group_id, group in enumerate(kv_cache_groups)
        for index, name in enumerate(group.layer_names)
    }
    return [places[layer] for layer in sorted(places)]


def extract_layer_index(layer_name: str) -> int:
    """`model.layers.7.self_attn.attn` to 7
    (`vllm/model_executor/models/utils.py:738 extract_layer_index`)."""
    return next(int(part) for part in layer_name.split(".") if part.isdigit())


def block_bytes(config: LlamaConfig, block_size: int, kv_cache_dtype: str = "auto") -> int:
    """Bytes of one block of the pool, in all layers that it serves."""
    pool = get_kv_cache_config(config, block_size, 1)
    if kv_cache_dtype == "auto" or not pool.is_plain:
        return pool.block_bytes
    from mini_vllm.layers.quantization.kv_cache import page_size_bytes

    return page_size_bytes(config, block_size, kv_cache_dtype)
