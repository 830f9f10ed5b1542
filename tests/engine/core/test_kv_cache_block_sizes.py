"""KV cache groups whose blocks differ in size: where a hit can end, what is published, what is held."""

from __future__ import annotations

import pytest

from mini_vllm.core.event_block_pool import EventBlockPool
from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager
from mini_vllm.core.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)
from mini_vllm.core.kv_cache_utils import BlockHash, BlockHashListWithBlockSize
from mini_vllm.core.request import Request
from mini_vllm.distributed.kv_events import BlockStored
from mini_vllm.sampling_params import SamplingParams

PROMPT = list(range(3, 43))


def window(block_size: int, tokens: int) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size, sliding_window=tokens)


def manager_of(*specs: KVCacheSpec, events: bool = False) -> HybridKVCacheManager:
    groups = [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)]
    pool = EventBlockPool(64, block_size=2) if events else None
    return HybridKVCacheManager(KVCacheConfig(64, groups), 64, 64, block_pool=pool)


def compute(manager: HybridKVCacheManager, request_id: str, num_tokens: int) -> Request:
    """A request for the first tokens of PROMPT, computed in one step."""
    params = SamplingParams(max_tokens=20)
    size = manager.block_size
    request = Request(request_id, PROMPT[:num_tokens], params, block_size=size)
    hits, num_hit = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, num_tokens - num_hit, num_hit, hits)
    request.num_computed_tokens = num_tokens
    manager.check_invariants()
    return request


def find(manager: HybridKVCacheManager, num_tokens: int) -> int:
    request = Request(
        "finds", PROMPT[:num_tokens], SamplingParams(max_tokens=2), block_size=manager.block_size
    )
    return manager.get_computed_blocks(request)[1]


def test_a_larger_blocks_hash_is_the_hashes_of_the_smaller_ones() -> None:
    small = [BlockHash(bytes([65 + i])) for i in range(7)]
    large = BlockHashListWithBlockSize(small, 3)
    assert list(large) == [b"ABC", b"DEF"], "the seventh fills none"
    assert (len(large), large[1], large[-1], large[1:]) == (2, b"DEF", b"DEF", [b"DEF"])
    with pytest.raises(IndexError):
        large[2]


def test_requests_are_hashed_in_what_divides_all_blocks() -> None:
    coordinator = manager_of(FullAttentionSpec(6), window(4, 5)).coordinator
    assert (coordinator.block_size, coordinator.lcm_block_size) == (2, 12)


def test_each_group_counts_in_its_own_blocks() -> None:
    manager = manager_of(FullAttentionSpec(8), window(2, 64))
    compute(manager, "a", 21)
    assert manager.get_block_ids("a") == ([1, 2, 3], list(range(4, 15)))
    params = SamplingParams(max_tokens=3)
    request = Request("b", PROMPT[:21], params, block_size=2)
    assert manager.max_blocks_needed(request) == 3 + 12, "23 tokens get slots, the last needs none"


@pytest.mark.parametrize(("num_tokens", "found"), [(8, 0), (9, 8), (16, 8), (17, 16), (25, 16)])
def test_a_hit_ends_where_a_block_ends_in_every_group(num_tokens: int, found: int) -> None:
    """20 tokens: two blocks of 8, ten of 2."""
    manager = manager_of(FullAttentionSpec(8), window(2, 64))
    compute(manager, "a", 20)
    assert find(manager, num_tokens) == found


def test_only_blocks_that_can_serve_a_hit_are_published() -> None:
    """A window of 4 needs two blocks of 2 before such a place, of the four that lie between two of them."""
    manager = manager_of(FullAttentionSpec(8), window(2, 4))
    compute(manager, "a", 21)
    full, sliding = (manager.coordinator.get_blocks("a")[i] for i in (0, 1))
    assert [block.block_hash is not None for block in full] == [True, True, False]
    at = [i for i, block in enumerate(sliding) if block.block_hash is not None]
    assert at == [2, 3, 6, 7], "tokens 16 to 19 lie beyond the last place"
    assert find(manager, 21) == 16


def test_a_window_is_searched_from_such_a_place() -> None:
    """Block 6 of the window is lost: 16 tokens are no hit, and 8 are."""
    manager = manager_of(FullAttentionSpec(8), window(2, 4))
    compute(manager, "a", 21)
    manager.evict_blocks({manager.coordinator.get_blocks("a")[1][6].block_id})
    assert find(manager, 21) == 8


def test_an_event_names_the_groups_block_size() -> None:
    manager = manager_of(FullAttentionSpec(8), window(2, 4), events=True)
    compute(manager, "a", 21)
    stored = [e for e in manager.block_pool.take_events() if isinstance(e, BlockStored)]
    assert [(e.group_idx, e.block_size, len(e.block_hashes)) for e in stored] == [
        (0, 8, 2),
        (1, 2, 4),
    ]
    assert [e.token_ids for e in stored] == [PROMPT[:16], PROMPT[:16]]
