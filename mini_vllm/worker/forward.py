"""Where a step's arrays meet the model: the KV cache arrays, the forward pass, the logits.

What runs a model differs by its arrays and by whether a step is launched kernel by kernel or replayed as a
graph, and by nothing else. So the one model runner holds one of four of these: `NumpyForward` here,
`graph_forward.py`, and for torch `gpu/forward.py` and `gpu/cudagraph.py`. Upstream's runner has these
methods itself (`vllm/v1/worker/gpu_model_runner.py:3668 GPUModelRunner._model_forward`,
`initialize_kv_cache_tensors`); what chooses graphs is a component of its second runner
(`vllm/v1/worker/gpu/cudagraph_utils.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention import AttentionMetadata
from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.core.kv_cache_groups import get_places_of_layers
from mini_vllm.core.kv_cache_interface import KVCacheConfig
from mini_vllm.models.interfaces_base import ModelForTextGeneration
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.outputs import CUDAGraphStat
from mini_vllm.utils.memory import allocate_zeros
from mini_vllm.utils.threads import shared_products

if TYPE_CHECKING:
    from mini_vllm.attention.backend import Array

Ints = NDArray[np.integer[Any]]
Cache = TypeVar("Cache")


class ModelForward(Protocol):
    """What the model runner asks of it.

    Attributes:
        kv_caches: one a layer; layers of different groups may share an array.
        stat: how the last forward pass ran, where there are graphs.
    """

    kv_caches: list[Any]
    stat: CUDAGraphStat | None

    def step(self) -> AbstractContextManager[Any]:
        """What surrounds the computing of a step: threads, no gradients."""
        ...

    def run(
        self,
        input_ids: Ints,
        positions: Ints,
        attn_metadata: AttentionMetadata,
        aux_hidden_states: list[Any] | None = None,
    ) -> Any:
        """Hidden states of the step's tokens, in the model's own kind of array, good until the next pass.

        Args:
            input_ids, positions: `[num_tokens]`.
            attn_metadata: the step's.
            aux_hidden_states: takes those that `model.aux_hidden_state_layers` names.
        """
        ...

    def compute_logits(self, hidden_states: Any, rows: Ints) -> Array:
        """float32 `[len(rows), vocab_size]`, for these rows of `run`'s result."""
        ...

    def to_numpy(self, hidden_states: Any) -> Array:
        """The same in float32 on the host, for a drafter that reads them."""
        ...


def with_kv_cache_dtype(
    model: ModelForTextGeneration, kv_cache_dtype: str
) -> ModelForTextGeneration:
    """The model, attending over a cache of such numbers. The caller's own may still run over a plain one."""
    if kv_cache_dtype != "auto":
        from mini_vllm.layers.quantization.kv_cache import QuantizedAttention

        model = copy.copy(model)
        model.attention = QuantizedAttention(model.attention)
    return model


def kv_cache_shape(
    model: ModelForTextGeneration, num_blocks: int, block_size: int
) -> tuple[int, ...]:
    """Shape of one layer's cache, as the model's attention wants it."""
    config = model.config
    shape: tuple[int, ...] = model.attention.get_kv_cache_shape(
        num_blocks, block_size, config.num_key_value_heads, config.head_dim
    )
    return shape


def share_arrays(kv_cache_config: KVCacheConfig, make: Callable[[int], Cache]) -> list[Cache]:
    """Each layer's cache, of as many arrays as the largest group has layers: the first layers of all groups
    use the first one (`vllm/v1/core/kv_cache_utils.py:1302 in get_kv_cache_config_from_groups`).

    Args:
        make: makes the array with this number; of a plain model that is the layer's.
    """
    arrays = [make(i) for i in range(kv_cache_config.group_size)]
    return [arrays[index] for _, index in get_places_of_layers(kv_cache_config.kv_cache_groups)]


def allocate_kv_caches(
    model: ModelForTextGeneration,
    shape: tuple[int, ...],
    kv_cache_dtype: str,
    kv_cache_config: KVCacheConfig,
) -> list[Any]:
    """One cache a layer, of zeros. Raises MemoryError where there is no room."""
    if kv_cache_dtype != "auto":
        from mini_vllm.layers.quantization.kv_cache import QuantizedKVCache

        layers = [layer.self_attn for layer in model.layers]
        return [QuantizedKVCache(shape, kv_cache_dtype, at.k_scale, at.v_scale) for at in layers]
    return share_arrays(kv_cache_config, lambda _: allocate_zeros(shape, np.float32))


class NumpyForward:
    """The numpy model, called as it is.

    Args:
        model: its attention backend decides the layout of the KV cache.
        config: the engine's.
        kv_cache_config: the model's groups.

    Raises MemoryError where there is no room for the KV cache.
    """

    stat: CUDAGraphStat | None = None

    def __init__(
        self, model: LlamaForCausalLM, config: ResolvedConfig, kv_cache_config: KVCacheConfig
    ) -> None:
        self.model = model
        shape = kv_cache_shape(model, config.num_gpu_blocks, config.block_size)
        self.kv_caches = allocate_kv_caches(model, shape, config.kv_cache_dtype, kv_cache_config)

    def step(self) -> AbstractContextManager[Any]:
        return shared_products()

    def run(
        self,
        input_ids: Ints,
        positions: Ints,
        attn_metadata: AttentionMetadata,
        aux_hidden_states: list[Any] | None = None,
    ) -> Array:
        caches = self.kv_caches
        if aux_hidden_states is None:
            return self.model.forward(input_ids, positions, caches, attn_metadata)
        return self.model.forward(input_ids, positions, caches, attn_metadata, aux_hidden_states)

    def compute_logits(self, hidden_states: Array, rows: Ints) -> Array:
        return self.model.compute_logits(hidden_states[rows])

    def to_numpy(self, hidden_states: Array) -> Array:
        return hidden_states
