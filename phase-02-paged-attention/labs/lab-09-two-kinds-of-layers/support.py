"""Lab 02-09: the scene, and mini_vllm's KV cache manager on the learner's two classes."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any
from unittest.mock import patch

from mini_vllm.core import single_type_kv_cache_manager as of_one_type
from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager
from mini_vllm.core.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)
from mini_vllm.core.request import Request
from mini_vllm.sampling_params import SamplingParams

BLOCK = 4
ADA = list(range(100, 128))
STRANGER = list(range(8))


def specs_of(windows: Sequence[int]) -> list[KVCacheSpec]:
    """A spec for each window; 0 is full attention."""
    return [
        SlidingWindowSpec(BLOCK, sliding_window=window) if window else FullAttentionSpec(BLOCK)
        for window in windows
    ]


def put_in(manager: HybridKVCacheManager, lab: ModuleType) -> HybridKVCacheManager:
    """Give the manager the learner's coordinator, and that one the learner's manager for windows."""
    config = manager.kv_cache_config
    sizes = manager.max_model_len, manager.max_num_batched_tokens
    with patch.dict(of_one_type.SPEC_MANAGER_MAP, {SlidingWindowSpec: lab.SlidingWindowManager}):
        manager.coordinator = lab.HybridKVCacheCoordinator(config, *sizes, manager.block_pool)
    return manager


def make(lab: ModuleType | None, *windows: int, num_blocks: int = 16) -> HybridKVCacheManager:
    """A manager for one group a window, on the learner's classes; None: on mini_vllm's."""
    groups = [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs_of(windows))]
    manager = HybridKVCacheManager(KVCacheConfig(num_blocks, groups), 256, 8)
    return manager if lab is None else put_in(manager, lab)


def ask(name: str, prompt: Sequence[int]) -> Request:
    return Request(name, list(prompt), SamplingParams(max_tokens=9), block_size=BLOCK)


def compute(manager: HybridKVCacheManager, request: Request, num_tokens: int) -> None:
    """One step, which computes so many tokens of a request; its hits first, if it is new."""
    hits, found = None, 0
    if not request.num_computed_tokens:
        hits, found = manager.get_computed_blocks(request)
    got = manager.allocate_slots(request, num_tokens, found, hits)
    assert got is not None, f"{request.request_id} was refused, and its blocks are there"
    request.num_computed_tokens += found + num_tokens


def free_ids(manager: HybridKVCacheManager) -> list[int]:
    return [block.block_id for block in manager.block_pool.free_block_queue]


def tables(manager: HybridKVCacheManager, name: str) -> list[list[int]]:
    return [list(table) for table in manager.get_block_ids(name)]


def publish(
    manager: HybridKVCacheManager, prompt: Sequence[int], there: Sequence[Sequence[int]]
) -> Request:
    """Put blocks of a prompt into the cache, free: of each group those at these positions."""
    pool, request = manager.block_pool, ask("published", prompt)
    for group_id, positions in enumerate(there):
        blocks = pool.get_new_blocks(len(request.block_hashes))
        pool.cache_full_blocks_of_group(
            request, blocks, 0, len(blocks), group_id, request.block_hashes
        )
        gone = [block for i, block in enumerate(blocks) if i not in positions]
        pool.evict_blocks({block.block_id for block in gone})
        pool.free_blocks(reversed(blocks))
    return request


def what_happens(lab: ModuleType | None) -> dict[str, Any]:
    """Play the scene of starter.py; the answers, by their names in `predictions`."""
    manager = make(lab, 0, 6)
    happened: dict[str, Any] = {}
    ada = ask("ada", ADA)
    for step, num_tokens in enumerate((8, 8, 8, 4), 1):
        compute(manager, ada, num_tokens)
        if step >= 3:
            happened[f"window table after step {step}"] = tables(manager, "ada")[1]
    happened["free queue after step 4"] = free_ids(manager)
    manager.free(ada)
    stranger = ask("stranger", STRANGER)
    compute(manager, stranger, len(STRANGER))
    happened["blocks of the stranger"] = [
        block for table in tables(manager, "stranger") for block in table
    ]
    manager.free(stranger)
    for shared in (12, 20, 24):
        prompt = [*ADA[:shared], 1, 2]
        found = manager.get_computed_blocks(ask("next", prompt))[1]
        happened[f"found with {shared} tokens in common"] = found
    happened["found by ada herself"] = manager.get_computed_blocks(ask("ada again", ADA))[1]
    return happened
