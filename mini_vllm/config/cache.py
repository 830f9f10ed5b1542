"""The KV cache's settings.

Mirrors `vllm/config/cache.py`. Left out: other hashes, Mamba's states, offloading.
`num_gpu_blocks` keeps its name although the blocks are in ordinary memory here; so does vLLM's CPU backend.
"""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.config.checks import check_flag, check_integer, check_one_of

DEFAULT_KV_CACHE_BYTES = 128 * 1024**2
KV_CACHE_DTYPES = (
    "auto", "fp8", "fp8_e4m3", "fp8_e5m2", "int8_per_token_head", "fp8_per_token_head",
)  # fmt: skip


@dataclass(frozen=True)
class CacheConfig:
    """How large the KV cache is, and how it is kept.

    Attributes:
        block_size: tokens in a KV block (`vllm/config/cache.py:45 CacheConfig.DEFAULT_BLOCK_SIZE`: 16).
        num_gpu_blocks: blocks in the pool, the null block included. None: as many as
            `kv_cache_memory_bytes` holds, decided when the model is known.
        kv_cache_memory_bytes: memory for the KV cache, used only if `num_gpu_blocks` is None. A page of
            it becomes resident when a block is first written, and the free queue goes once round the
            pool before a block is used again: a server grows by all of it, and then no more. None:
            128 MiB, or what one request of `max_model_len` needs if that is more, up to a quarter of the
            memory that is free.
        kv_cache_dtype: how K and V are kept (`vllm/config/cache.py:18`): `auto` in float32, `fp8` and
            `fp8_e4m3` as E4M3, `fp8_e5m2`, and with a scale for each token and head `int8_per_token_head`
            and `fp8_per_token_head` (`layers/quantization/kv_cache.py`). Only `auto` with torch and Triton.
        enable_prefix_caching: reuse the KV of equal prefixes.
    """

    block_size: int = 16
    num_gpu_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    enable_prefix_caching: bool = True

    def _check_cache(self) -> None:
        check_integer("block_size", self.block_size, 1)
        if self.kv_cache_memory_bytes is not None:
            check_integer("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1, 2**63 - 1)
        if self.num_gpu_blocks is not None:
            check_integer("num_gpu_blocks", self.num_gpu_blocks, 2)
        check_flag("enable_prefix_caching", self.enable_prefix_caching)
        check_one_of("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
