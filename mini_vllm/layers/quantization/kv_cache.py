"""The KV cache in eight bits: what a slot holds, how many bytes that is, and attention over it.

Mirrors `vllm/model_executor/layers/quantization/kv_cache.py:18 BaseKVCacheMethod` (one scale for K and one
for V, a layer), `vllm/v1/kv_cache_interface.py:32 KVQuantMode` and what backends do around a cache of codes.
`EngineConfig.kv_cache_dtype` chooses:

    auto                    float32, as the model computes
    fp8, fp8_e4m3           E4M3 codes of `k / k_scale` and `v / v_scale`; past 448 they are cut off
    fp8_e5m2                the same in E5M2
    int8_per_token_head     integers, with a float32 scale of its own for each token and KV head
    fp8_per_token_head      the same in E4M3

K and V are encoded when they are written and decoded when they are read; a product of codes there is none.
On a GPU the kernel decodes a tile in registers, here the blocks of a step are decoded in one go, into a
small cache in float32 that any backend can attend over.

Left out: float16 and bfloat16, nvfp4 and turboquant; scales that the first batch sets
(`calculate_kv_scales`, deprecated at the pin); layers that are spared (`kv_cache_dtype_skip_layers`);
queries in fp8, which FlashAttention 3 wants beside such a cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention.backend import Array, AttentionBackend
from mini_vllm.attention.metadata import AttentionMetadata
from mini_vllm.attention.paged import PagedAttention
from mini_vllm.config.model import LlamaConfig
from mini_vllm.layers.quantization.float_formats import E4M3, E5M2, FloatFormat
from mini_vllm.utils.memory import allocate_zeros

Codes = NDArray[np.uint8]

SMALLEST_SCALE = np.float32(1e-6)
SCALE_BYTES = 4


class PerTensor:
    """Codes of `x / scale`, with one scale for a whole layer's K, another for its V
    (`vllm/model_executor/layers/quantization/kv_cache.py:18 BaseKVCacheMethod`)."""

    scale_bytes = 0

    def __init__(self, fmt: FloatFormat) -> None:
        self.fmt = fmt

    def encode(self, x: Array, scale: float) -> Codes:
        """float32 `[..., D]` to codes `[..., D]`, saturating."""
        return self.fmt.encode(x / np.float32(scale))

    def decode(self, codes: Codes, scale: float) -> Array:
        """Codes `[..., D]` to float32 `[..., D]`."""
        return self.fmt.decode(codes) * np.float32(scale)


class PerTokenHead:
    """Codes of `x / scale`, with a scale for each vector: its largest number becomes the largest code
    (`vllm/v1/attention/ops/triton_reshape_and_cache_flash.py:139 _reshape_cache_per_token_head`).

    The scale, a float32, lies behind the codes. vLLM makes the last axis of its cache longer for it, too
    (`vllm/v1/attention/backends/triton_attn.py:313 TritonAttentionBackend.get_kv_cache_shape`).
    """

    scale_bytes = SCALE_BYTES

    def __init__(self, fmt: FloatFormat | None) -> None:
        self.fmt = fmt
        self.largest = np.float32(127 if fmt is None else fmt.max)

    def encode(self, x: Array, scale: float) -> Codes:
        """float32 `[..., D]` to bytes `[..., D + 4]`; the layer's `scale` is not used."""
        own = np.abs(x).max(axis=-1, keepdims=True) / self.largest
        own = np.maximum(own, SMALLEST_SCALE)
        scaled = x * (1 / own)
        # To integers toward zero: vLLM's kernel stores a float into an int8 tensor, and that cuts.
        codes = self.fmt.encode(scaled) if self.fmt else scaled.astype(np.int8).view(np.uint8)
        return np.concatenate([codes, own.view(np.uint8)], axis=-1)

    def decode(self, codes: Codes, scale: float) -> Array:
        """Bytes `[..., D + 4]` to float32 `[..., D]`."""
        own = np.ascontiguousarray(codes[..., -SCALE_BYTES:]).view(np.float32)
        codes = codes[..., :-SCALE_BYTES]
        numbers: Array = self.fmt.decode(codes) if self.fmt else codes.view(np.int8)
        return numbers * own


FORMATS: dict[str, PerTensor | PerTokenHead] = {
    "fp8": PerTensor(E4M3),
    "fp8_e4m3": PerTensor(E4M3),
    "fp8_e5m2": PerTensor(E5M2),
    "int8_per_token_head": PerTokenHead(None),
    "fp8_per_token_head": PerTokenHead(E4M3),
}
"""By `EngineConfig.kv_cache_dtype`; `auto` has none."""


def page_size_bytes(model: LlamaConfig, block_size: int, kv_cache_dtype: str = "auto") -> int:
    """Bytes of a block in all layers: its tokens' K and V, and the scales that lie among them. (Where layers
    form groups a block has fewer: `KVCacheConfig.block_bytes`.)

    Source: `vllm/v1/kv_cache_interface.py:152 AttentionSpec.page_size_bytes`, times the layers.
    """
    head = 4 * model.head_dim
    if kv_cache_dtype != "auto":
        head = model.head_dim + FORMATS[kv_cache_dtype].scale_bytes
    return 2 * model.num_hidden_layers * block_size * model.num_key_value_heads * head


class QuantizedKVCache:
    """One layer's cache of codes.

    Attributes:
        data: uint8 `[num_blocks, block_size, 2, num_kv_heads, D]`, K before V as in `PagedAttention`; where
            scales lie in it, the last axis has 4 bytes more.
        scales: `k_scale` and `v_scale`, what K and V are divided by.

    Raises ValueError for a scale that is not a positive number.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        kv_cache_dtype: str,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
    ) -> None:
        for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
            if not 0 < scale < np.inf:
                raise ValueError(f"{name} must be above 0 and finite, got {scale}")
        self.format = FORMATS[kv_cache_dtype]
        self.data = allocate_zeros((*shape[:-1], shape[-1] + self.format.scale_bytes), np.uint8)
        self.scales = (k_scale, v_scale)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Where the codes lie; graphs ask for that (`cudagraph/graph.py`)."""
        return self.data.__array_interface__

    def write(self, key: Array, value: Array, slot_mapping: NDArray[np.int64]) -> None:
        """As `reshape_and_cache`: each token's K and V, float32 `[n, num_kv_heads, D]`, to its slot."""
        block_id, offset = np.divmod(slot_mapping, self.data.shape[1])
        for i, x in enumerate((key, value)):
            self.data[block_id, offset, i] = self.format.encode(x, self.scales[i])

    def read(self, block_ids: NDArray[np.integer[Any]]) -> Array:
        """These blocks in float32, `[len(block_ids), block_size, 2, num_kv_heads, D]`."""
        codes = self.data[block_ids]
        k, v = (self.format.decode(codes[:, :, i], self.scales[i]) for i in (0, 1))
        return np.stack([k, v], axis=2)


@dataclass
class Step:
    """What a step's layers share: the blocks that it reads, and the metadata that numbers them anew."""

    block_ids: NDArray[np.integer[Any]]
    attn_metadata: AttentionMetadata


def make_step(md: AttentionMetadata) -> Step:
    """The blocks of a step's requests, each once however many share it, and tables into that list."""
    past_end = np.arange(md.block_table.shape[1]) * md.block_size >= md.seq_lens[:, None]
    table = np.where(past_end, md.block_table[:, :1], md.block_table)
    block_ids, numbers = np.unique(table, return_inverse=True)
    renumbered = numbers.reshape(table.shape).astype(np.int32)
    nothing = md.slot_mapping[:0]
    return Step(block_ids, replace(md, block_table=renumbered, slot_mapping=nothing, plan=None))


class QuantizedAttention:
    """A backend over a cache of codes: write codes, decode the step's blocks, let `inner` attend.

    Args:
        inner: it attends to float32, and need not know of any of this. Asked without keys, it writes none.
    """

    def __init__(self, inner: AttentionBackend) -> None:
        self.inner = inner

    def get_kv_cache_shape(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        """`PagedAttention`'s shape. Raises ValueError where `inner` wants another."""
        sizes = (num_blocks, block_size, num_kv_heads, head_size)
        shape = PagedAttention.get_kv_cache_shape(*sizes)
        if tuple(self.inner.get_kv_cache_shape(*sizes)) != shape:
            raise ValueError(
                f"kv_cache_dtype: a cache of codes is {list(shape)}, and "
                f"{type(self.inner).__name__} wants {list(self.inner.get_kv_cache_shape(*sizes))}"
            )
        return shape

    def forward(
        self,
        query: Array,
        key: Array,
        value: Array,
        kv_cache: Any,
        attn_metadata: AttentionMetadata,
    ) -> Array:
        """As `PagedAttention.forward`, with a `QuantizedKVCache`."""
        kv_cache.write(key, value, attn_metadata.slot_mapping)
        step = attn_metadata.plan
        if not isinstance(step, Step):
            step = attn_metadata.plan = make_step(attn_metadata)
        small = kv_cache.read(step.block_ids)
        return self.inner.forward(query, key[:0], value[:0], small, step.attn_metadata)
