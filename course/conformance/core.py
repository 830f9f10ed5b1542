"""vLLM's signatures over the heart of `mini_vllm`: requests, block hashes, block pool and manager.

Each class or function here takes what vLLM's of the same name takes. It hands on what the engine has, says
`Missing` to what it has not, and gives answers in vLLM's forms: a tuple with one run of blocks per KV cache
group, where the engine's manager of one group has no tuple. Nothing here decides anything.

A model with one group of full attention gets `KVCacheManager`, as in the engine, and any other
`HybridKVCacheManager`. Keys of the hash index carry the group's id with the second, and none with the first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import vllm.v1.core.kv_cache_utils as v_utils
from vllm.v1.core.kv_cache_manager import KVCacheBlocks as TheirBlocks

import mini_vllm.core.block_pool as m_pool
import mini_vllm.core.event_block_pool as m_events
import mini_vllm.core.hybrid_kv_cache_manager as m_hybrid
import mini_vllm.core.kv_cache_interface as m_interface
import mini_vllm.core.kv_cache_manager as m_manager
import mini_vllm.core.kv_cache_utils as m_utils
import mini_vllm.core.request as m_request
from course.conformance.grammars import StructuredOutputRequest
from course.conformance.groups import kv_cache_config as our_groups
from course.conformance.missing import Missing, refuse
from mini_vllm.lora.lora_model import LoRAModel
from mini_vllm.lora.request import LoadedLoRARequest

# -- block hashes -----------------------------------------------------------------------------------


def init_none_hash(hash_fn: Callable[[Any], bytes]) -> None:
    m_utils.init_none_hash(hash_fn)
    v_utils.NONE_HASH = m_utils.NONE_HASH  # where tests look for it


def hash_block_tokens(
    hash_function: Callable[[Any], bytes],
    parent_block_hash: Any,
    curr_block_token_ids: Any,
    extra_keys: Any = None,
) -> Any:
    return m_utils.hash_block_tokens(
        parent_block_hash, curr_block_token_ids, extra_keys, hash_function
    )


def generate_block_hash_extra_keys(
    request: Any, start_token_idx: int, end_token_idx: int, start_mm_idx: int
) -> tuple[Any, int]:
    return m_utils.generate_block_hash_extra_keys(request, start_token_idx), start_mm_idx


class BlockHasher:
    """`get_request_block_hasher`, which remembers the block size that the engine's request wants too."""

    def __init__(self, block_size: int, caching_hash_fn: Callable[[Any], bytes]) -> None:
        self.block_size = block_size
        self._hash = m_utils.get_request_block_hasher(block_size, caching_hash_fn)

    def __call__(self, request: m_request.Request) -> list[m_utils.BlockHash]:
        return self._hash(request)


# A key without a group's id is the hash itself, and both of vLLM's hash functions give as many bytes.
_HASH_BYTES = 32


def get_block_hash(key: Any) -> Any:
    return m_utils.get_block_hash(key) if len(key) > _HASH_BYTES else key


def get_group_id(key: Any) -> int:
    return m_utils.get_group_id(key) if len(key) > _HASH_BYTES else 0


# -- requests ---------------------------------------------------------------------------------------


class Request(m_request.Request):
    """The engine's request, made with vLLM's arguments."""

    client_index = 0
    resumable = has_encoder_inputs = False
    pooling_params = prompt_embeds = None

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int] | None,
        sampling_params: Any,
        pooling_params: Any = None,
        client_index: int = 0,
        arrival_time: float | None = None,
        prompt_embeds: Any = None,
        prompt_is_token_ids: Any = None,
        mm_features: Any = None,
        lora_request: Any = None,
        cache_salt: str | None = None,
        priority: int = 0,
        trace_headers: Any = None,
        block_hasher: BlockHasher | None = None,
        resumable: bool = False,
        **rest: Any,
    ) -> None:
        refuse(
            multi__modal_inputs=mm_features,
            pooling=pooling_params,
            prompt_embeddings=prompt_embeds is not None,
            streaming_input=resumable,
        )
        refuse(empty_prompts=not prompt_token_ids)
        assert prompt_token_ids is not None
        self.mm_features: list[Any] = []
        super().__init__(
            request_id,
            prompt_token_ids,
            sampling_params,
            arrival_time,
            priority,
            cache_salt,
            None if block_hasher is None else block_hasher.block_size,
            block_hasher,
            lora_request=lora_request,
        )
        if (rule := sampling_params.structured_outputs) is not None:
            # The engine's core does this when the request comes in; vLLM's request itself.
            self.structured_output_request = StructuredOutputRequest(rule)
            self.status = m_request.RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR

    @property
    def lora_request(self) -> Any:
        return self._lora_request

    @lora_request.setter
    def lora_request(self, lora_request: Any) -> None:
        """Takes vLLM's, too: an adapter whose weights no test of these looks at."""
        if lora_request is not None and not isinstance(lora_request, LoadedLoRARequest):
            name, number, path = (
                lora_request.lora_name,
                lora_request.lora_int_id,
                lora_request.lora_path,
            )
            model = LoRAModel(1, {}, name.encode())
            lora_request = LoadedLoRARequest(name, number, path, model=model)
        self._lora_request = lora_request

    @property
    def use_structured_output(self) -> bool:
        return self.structured_output_request is not None

    @property
    def _all_token_ids(self) -> list[int]:
        return self.all_token_ids

    @_all_token_ids.setter
    def _all_token_ids(self, token_ids: Any) -> None:
        self.all_token_ids = list(token_ids)

    @property
    def _output_token_ids(self) -> list[int]:
        return self.output_token_ids

    def append_output_token_ids(self, token_ids: int | list[int]) -> None:
        for token_id in [token_ids] if isinstance(token_ids, int) else token_ids:
            super().append_output_token_ids(token_id)


# -- pool and manager -------------------------------------------------------------------------------


class _BlockPool(m_pool.BlockPool):
    """The engine's pool, whose managers pass neither groups nor vLLM's other arguments.

    A test that does speaks of groups; only beside a manager that has none are its groups dropped.
    """

    has_groups = True
    hash_block_size = 16

    def get_cached_block(self, block_hash: Any, kv_cache_group_ids: Any = None) -> Any:
        if kv_cache_group_ids is None:
            return super().get_cached_block(block_hash)
        if self.has_groups:
            return super().get_cached_blocks(block_hash, kv_cache_group_ids)
        found = super().get_cached_block(block_hash)
        return None if found is None else [found]

    def cache_full_blocks(
        self,
        request: Any,
        blocks: Any,
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int | None = None,
        kv_cache_group_id: int | None = None,
        block_mask: Any = None,
    ) -> None:
        run = request, blocks, num_cached_blocks, num_full_blocks
        if kv_cache_group_id is None or not self.has_groups:
            super().cache_full_blocks(*run)
            return
        hashes = request.block_hashes
        if block_size is not None and block_size != self.hash_block_size:
            hashes = m_utils.BlockHashListWithBlockSize(hashes, block_size // self.hash_block_size)
        super().cache_full_blocks_of_group(*run, kv_cache_group_id, hashes, block_mask)


class _EventBlockPool(_BlockPool, m_events.EventBlockPool):
    """The engine's pool that keeps events."""


def BlockPool(
    num_gpu_blocks: int,
    enable_caching: bool,
    hash_block_size: int = 16,
    enable_kv_cache_events: bool = False,
    metrics_collector: Any = None,
) -> _BlockPool:
    refuse(block_lifetime_metrics=metrics_collector is not None)
    pool = _BlockPool(num_gpu_blocks, enable_caching)
    if enable_kv_cache_events:
        pool = _EventBlockPool(num_gpu_blocks, enable_caching, hash_block_size)
    pool.hash_block_size = hash_block_size
    return pool


class InnerManager(m_manager.KVCacheManager):
    """The engine's manager of one group, with the inner parts of vLLM's at which tests look."""

    @property
    def coordinator(self) -> Any:
        tables = defaultdict(list, self.req_to_blocks)
        single = SimpleNamespace(req_to_blocks=tables, num_cached_block=self.num_cached_block)
        return SimpleNamespace(single_type_managers=[single], block_pool=self.block_pool)


def make_manager(
    config: m_interface.KVCacheConfig,
    max_model_len: int,
    max_num_batched_tokens: int | None,
    enable_caching: bool,
    block_pool: _BlockPool,
    use_eagle: bool = False,
) -> m_manager.KVCacheManager:
    """The manager that the engine takes for these groups."""
    block_pool.has_groups = not config.is_plain
    if config.is_plain:
        block_size = config.kv_cache_groups[0].kv_cache_spec.block_size
        return InnerManager(0, block_size, max_model_len, enable_caching, block_pool, use_eagle)
    return m_hybrid.HybridKVCacheManager(
        config, max_model_len, max_num_batched_tokens, enable_caching, block_pool, use_eagle
    )


def hash_size(config: m_interface.KVCacheConfig) -> int:
    """Tokens in the blocks that requests are hashed in."""
    return math.gcd(*(group.kv_cache_spec.block_size for group in config.kv_cache_groups))


class KVCacheManager:
    def __init__(
        self,
        kv_cache_config: Any,
        max_model_len: int,
        hash_block_size: int,
        max_num_batched_tokens: int | None = None,
        enable_caching: bool = True,
        use_eagle: bool = False,
        log_stats: bool = False,
        enable_kv_cache_events: bool = False,
        dcp_world_size: int = 1,
        pcp_world_size: int = 1,
        metrics_collector: Any = None,
    ) -> None:
        refuse(context_parallelism=dcp_world_size > 1 or pcp_world_size > 1)
        config = our_groups(kv_cache_config)
        block_size = hash_size(config)
        refuse(hashes_finer_than_a_block=hash_block_size != block_size)
        self.block_pool = BlockPool(
            kv_cache_config.num_blocks,
            enable_caching,
            hash_block_size,
            enable_kv_cache_events,
            metrics_collector,
        )
        self.enable_caching, self.log_stats = enable_caching, log_stats
        self.ours = make_manager(
            config,
            max_model_len,
            max_num_batched_tokens,
            enable_caching,
            self.block_pool,
            use_eagle,
        )
        self.is_plain = config.is_plain
        self.empty_kv_cache_blocks = TheirBlocks(tuple(() for _ in config.kv_cache_groups))

    def __getattr__(
        self, name: str
    ) -> Any:  # free, get_block_ids, usage and others that are the same
        return getattr(self.__dict__["ours"], name)

    @property
    def prefix_cache_stats(self) -> Any:
        return self.ours.prefix_cache_stats if self.log_stats else None

    def _as_theirs(self, blocks: m_manager.KVCacheBlocks) -> Any:
        if not blocks.blocks:
            return self.empty_kv_cache_blocks
        return TheirBlocks((blocks.blocks,) if self.is_plain else blocks.blocks)

    def _as_ours(self, blocks: Any) -> m_manager.KVCacheBlocks | None:
        if self.is_plain:
            return blocks and (m_manager.KVCacheBlocks(blocks.blocks[0]) or None)
        return blocks and m_hybrid.HybridKVCacheBlocks(blocks.blocks)

    def new_step_starts(self) -> None:
        """Nothing: vLLM's tells its managers of Mamba."""

    def get_computed_blocks(self, request: Any) -> tuple[Any, int]:
        blocks, num_computed_tokens = self.ours.get_computed_blocks(request)
        return self._as_theirs(blocks), num_computed_tokens

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
    ) -> Any:
        refuse(
            KV_connector=num_external_computed_tokens or delay_cache_blocks,
            multi__modal_inputs=num_encoder_tokens,
        )
        hits = self._as_ours(new_computed_blocks)
        blocks = self.ours.allocate_slots(
            request,
            num_new_tokens,
            num_new_computed_tokens,
            hits,
            full_sequence_must_fit,
            num_lookahead_tokens,
        )
        return None if blocks is None else self._as_theirs(blocks)

    def get_blocks(self, request_id: str) -> Any:
        return self._as_theirs(self.ours.get_blocks(request_id))

    def get_num_common_prefix_blocks(self, request_id: str) -> list[int]:
        raise Missing("cascade attention")
