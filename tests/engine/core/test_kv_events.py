"""KV cache events: who follows them knows at any time what the prefix cache holds."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from mini_vllm import SamplingParams
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.event_block_pool import EventBlockPool, maybe_convert_block_hash
from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager
from mini_vllm.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.kv_cache_utils import BlockHash, get_block_hash, get_group_id
from mini_vllm.core.request import Request
from mini_vllm.distributed.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
    KVEventBatch,
)
from mini_vllm.engine.parts import EngineParts
from tests.engine.helpers.engine.engine_helpers import make_engine, random_model, run
from tests.engine.models.test_window_models import model_of

SIZE = 4
SPECS = (
    FullAttentionSpec(SIZE),
    SlidingWindowSpec(SIZE, sliding_window=6),
    ChunkedLocalAttentionSpec(SIZE, attention_chunk_size=8),
)


def make_manager(num_blocks: int = 6) -> KVCacheManager:
    return KVCacheManager(num_blocks, SIZE, 64, True, EventBlockPool(num_blocks, True, SIZE))


def make_hybrid(num_blocks: int = 60) -> HybridKVCacheManager:
    groups = [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(SPECS)]
    pool = EventBlockPool(num_blocks, True, SIZE)
    return HybridKVCacheManager(KVCacheConfig(num_blocks, groups), 64, 64, True, pool)


def make_request(request_id: str, tokens: range, cache_salt: str | None = None) -> Request:
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    return Request(request_id, list(tokens), params, 0.0, cache_salt=cache_salt, block_size=SIZE)


def external(hashes: list[BlockHash]) -> list[int]:
    return [maybe_convert_block_hash(one) for one in hashes]


class Follower:
    """Keeps count of the blocks stored, as a router outside would."""

    def __init__(self) -> None:
        self.stored: Counter[tuple[int | None, Any]] = Counter()
        self.batches: list[KVEventBatch] = []

    def __call__(self, batch: KVEventBatch) -> None:
        self.batches.append(batch)
        self.take(batch.events)

    def take(self, events: list[KVCacheEvent]) -> None:
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.stored.clear()
                continue
            assert isinstance(event, BlockStored | BlockRemoved)
            keys = [(event.group_idx, one) for one in event.block_hashes]
            if isinstance(event, BlockStored):
                self.stored.update(keys)
            else:
                assert not Counter(keys) - self.stored, "removed what was not stored"
                self.stored -= Counter(keys)

    def agrees_with(self, pool: BlockPool, groups: bool) -> bool:
        index: Counter[tuple[int | None, Any]] = Counter()
        for key, _ in pool.cached_block_hash_to_block.items():
            block_hash = get_block_hash(key) if groups else key
            group_id = get_group_id(key) if groups else 0
            index[group_id, maybe_convert_block_hash(block_hash)] += 1
        return index == self.stored


# -- the events -------------------------------------------------------------------------------------


def test_a_run_of_blocks_is_one_event() -> None:
    manager, request = make_manager(), make_request("a", range(10))
    assert manager.allocate_slots(request, 10) is not None
    assert manager.take_events() == [
        BlockStored(
            block_hashes=external(request.block_hashes),
            parent_block_hash=None,
            token_ids=list(range(8)),
            block_size=SIZE,
            lora_id=None,
            medium="GPU",
            lora_name=None,
            extra_keys=[None, None],
            group_idx=0,
            kv_cache_spec_kind="full_attention",
            kv_cache_spec_sliding_window=None,
        )
    ]
    assert manager.take_events() == [], "taken is taken"


def test_a_block_that_follows_names_its_parent_and_only_the_first_the_salt() -> None:
    manager, request = make_manager(), make_request("a", range(12), cache_salt="pepper")
    manager.allocate_slots(request, 6)
    request.num_computed_tokens = 6
    manager.allocate_slots(request, 6)
    first, second = manager.take_events()
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    one, two, three = external(request.block_hashes)
    assert (first.block_hashes, first.extra_keys) == ([one], [("pepper",)])
    assert (second.block_hashes, second.extra_keys) == ([two, three], [None, None])
    assert second.parent_block_hash == one
    assert second.token_ids == list(range(4, 12))


def test_blocks_taken_for_others_are_removed_one_by_one_and_a_reset_is_one_event() -> None:
    manager, request = make_manager(num_blocks=4), make_request("a", range(12))
    manager.allocate_slots(request, 12)
    manager.free(request)
    manager.take_events()
    other = make_request("b", range(100, 109))
    manager.allocate_slots(other, 9)
    one, two, three = external(request.block_hashes)
    *removed, stored = manager.take_events()
    assert removed == [BlockRemoved([h], "GPU", 0) for h in (three, two, one)], "the tail first"
    assert isinstance(stored, BlockStored)
    assert not manager.reset_prefix_cache(), "refused while a request holds blocks"
    assert manager.take_events() == []
    manager.free(other)
    assert manager.reset_prefix_cache()
    assert manager.take_events() == [AllBlocksCleared()]


def test_every_group_has_its_number_its_kind_and_its_window() -> None:
    manager, request = make_hybrid(), make_request("a", range(8))
    manager.allocate_slots(request, 8)
    events = [e for e in manager.take_events() if isinstance(e, BlockStored)]
    assert [
        (e.group_idx, e.kv_cache_spec_kind, e.kv_cache_spec_sliding_window) for e in events
    ] == [
        (0, "full_attention", None),
        (1, "sliding_window", 6),
        (2, "chunked_local_attention", None),
    ]
    assert {tuple(e.block_hashes) for e in events} == {tuple(external(request.block_hashes))}


def test_removed_blocks_of_groups_name_hash_and_group() -> None:
    manager, request = make_hybrid(), make_request("a", range(8))
    follower = Follower()
    manager.allocate_slots(request, 8)
    follower.take(manager.take_events())
    (block, _) = manager.coordinator.single_type_managers[1].req_to_blocks["a"]
    manager.evict_blocks({block.block_id})
    events = manager.take_events()
    assert events == [BlockRemoved(external(request.block_hashes[:1]), "GPU", 1)]
    follower.take(events)
    assert follower.agrees_with(manager.block_pool, groups=True)


def test_a_group_that_the_manager_does_not_know_is_left_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    manager = make_manager()
    pool = manager.block_pool
    assert isinstance(pool, EventBlockPool)
    event = BlockStored([1], None, [1, 2, 3, 4], SIZE, None, None, None, group_idx=1)
    pool.kv_event_queue.append(event)
    with caplog.at_level(logging.WARNING):
        assert manager.take_events() == [event]
    assert event.kv_cache_spec_kind is None
    assert "Group index `1` not in KV cache metadata" in caplog.text


def test_the_pool_without_events_has_none() -> None:
    manager, request = KVCacheManager(6, SIZE, 64), make_request("a", range(10))
    manager.allocate_slots(request, 10)
    assert manager.take_events() == []


# -- from the engine --------------------------------------------------------------------------------


PROMPTS = [[5 + i % 3] * (6 + i) + list(range(3, 3 + i)) for i in range(12)]
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.0)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_follower_knows_the_index(async_scheduling: bool) -> None:
    follower = Follower()
    settings: dict[str, Any] = {
        "block_size": SIZE, "num_gpu_blocks": 16, "max_num_seqs": 4, "async_scheduling": async_scheduling,
    }  # fmt: skip
    model = random_model()
    engine = make_engine(model, EngineParts(kv_event_publisher=follower), **settings)
    tokens = run(engine, PROMPTS, PARAMS)
    kinds = {type(event) for batch in follower.batches for event in batch.events}
    assert kinds == {BlockStored, BlockRemoved}, "the pool is small enough to evict"
    assert all(batch.events for batch in follower.batches), "nothing happened, nothing is sent"
    assert follower.agrees_with(engine.engine_core.kv_cache_manager.block_pool, groups=False)
    assert tokens == run(make_engine(model, **settings), PROMPTS, PARAMS)


def test_a_follower_knows_the_index_of_a_model_with_windows() -> None:
    follower = Follower()
    engine = make_engine(
        model_of("gemma3"), EngineParts(kv_event_publisher=follower), block_size=SIZE, num_gpu_blocks=40,
        max_num_seqs=3,
    )  # fmt: skip
    run(engine, PROMPTS, PARAMS)
    assert follower.agrees_with(engine.engine_core.kv_cache_manager.block_pool, groups=True)


def test_without_a_publisher_the_plain_pool_runs() -> None:
    engine = make_engine(num_gpu_blocks=20)
    assert type(engine.engine_core.kv_cache_manager.block_pool) is BlockPool
    assert engine.engine_core.scheduler.kv_event_publisher is None


def test_anothers_block_pool_makes_no_events() -> None:
    class Learners(BlockPool):
        pass

    parts = replace(EngineParts(kv_event_publisher=Follower()), block_pool=Learners)
    with pytest.raises(ValueError, match=r"kv_event_publisher.*Learners"):
        make_engine(parts=parts, num_gpu_blocks=20)
