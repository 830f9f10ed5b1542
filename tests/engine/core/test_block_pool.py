"""The free queue, the hash index, the block pool."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from mini_vllm.core.block_pool import BlockHashToBlockMap, BlockPool
from mini_vllm.core.kv_cache_utils import (
    BlockHash,
    FreeKVCacheBlockQueue,
    KVCacheBlock,
)


def ids(blocks: Any) -> list[int]:
    return [block.block_id for block in blocks]


def queue_of(n: int) -> tuple[FreeKVCacheBlockQueue, list[KVCacheBlock]]:
    blocks = [KVCacheBlock(i) for i in range(n)]
    return FreeKVCacheBlockQueue(blocks), blocks


# -- the free queue -------------------------------------------------------------------------------


def test_queue_gives_blocks_in_the_order_it_got_them() -> None:
    queue, _ = queue_of(5)
    assert [queue.popleft().block_id for _ in range(2)] == [0, 1]
    assert ids(queue.popleft_n(3)) == [2, 3, 4]
    assert queue.num_free_blocks == 0


def test_queue_pop_from_empty_is_a_value_error() -> None:
    queue, _ = queue_of(0)
    with pytest.raises(ValueError, match=r"(?i)no free block"):
        queue.popleft()


def test_queue_pop_of_more_than_it_has_changes_nothing() -> None:
    queue, _ = queue_of(2)
    with pytest.raises(AssertionError, match=r"3 .*2"):
        queue.popleft_n(3)
    assert ids(queue) == [0, 1]
    assert queue.num_free_blocks == 2


def test_queue_pop_of_none_is_an_empty_list() -> None:
    queue, _ = queue_of(2)
    assert queue.popleft_n(0) == []
    assert ids(queue) == [0, 1]


@pytest.mark.parametrize("position", [0, 2, 4])
def test_queue_remove_takes_a_block_from_front_middle_and_back(position: int) -> None:
    queue, blocks = queue_of(5)
    queue.remove(blocks[position])
    assert ids(queue) == [i for i in range(5) if i != position]
    assert queue.num_free_blocks == 4
    queue.append(blocks[position])
    assert ids(queue)[-1] == position


def test_queue_remove_of_a_block_that_is_out_is_a_runtime_error() -> None:
    queue, blocks = queue_of(3)
    queue.remove(blocks[1])
    with pytest.raises(RuntimeError, match="not free"):
        queue.remove(blocks[1])
    with pytest.raises(RuntimeError, match="not free"):
        queue.remove(queue.popleft())
    assert ids(queue) == [2]


def test_queue_taken_blocks_hold_no_links() -> None:
    queue, blocks = queue_of(4)
    taken = [*queue.popleft_n(2), blocks[3]]
    queue.remove(blocks[3])
    for block in taken:
        assert block.prev_free_block is None
        assert block.next_free_block is None


def test_queue_append_n_keeps_the_order_and_takes_nothing_for_an_answer() -> None:
    queue, _ = queue_of(2)
    queue.append_n([])
    assert ids(queue) == [0, 1]
    taken = queue.popleft_n(2)
    queue.append_n(taken[::-1])
    assert ids(queue) == [1, 0]


def test_queue_reads_the_same_in_both_directions() -> None:
    queue, blocks = queue_of(6)
    queue.remove(blocks[2])
    queue.popleft()
    queue.append(blocks[2])
    backwards = []
    block = queue.fake_free_list_tail.prev_free_block
    while block is not None and block is not queue.fake_free_list_head:
        backwards.append(block.block_id)
        block = block.prev_free_block
    assert backwards[::-1] == ids(queue) == [1, 3, 4, 5, 2]


def test_queue_behaves_as_a_deque_over_ten_thousand_random_operations() -> None:
    queue, blocks = queue_of(50)
    model, out = deque(range(50)), list[int]()
    rng = random.Random(0)
    for _ in range(10_000):
        kind = rng.randrange(3)
        if kind == 0:
            n = rng.randint(0, min(3, len(model)))
            popped = [model.popleft() for _ in range(n)]
            assert ids(queue.popleft_n(n)) == popped
            out += popped
        elif kind == 1 and model:
            chosen = rng.choice(model)
            model.remove(chosen)
            queue.remove(blocks[chosen])
            out.append(chosen)
        elif kind == 2 and out:
            rng.shuffle(out)
            back = [out.pop() for _ in range(rng.randint(1, min(3, len(out))))]
            queue.append_n([blocks[i] for i in back])
            model.extend(back)
        assert queue.num_free_blocks == len(model)
    assert ids(queue) == list(model)


# -- the hash index -------------------------------------------------------------------------------

A, B = BlockHash(b"a" * 32), BlockHash(b"b" * 32)


def test_index_misses_are_none() -> None:
    index = BlockHashToBlockMap()
    assert index.get_one_block(A) is None
    assert index.pop(A, 1) is None
    assert len(index) == 0


def test_index_keeps_duplicates_and_finds_the_one_published_first() -> None:
    index = BlockHashToBlockMap()
    first, second, third = (KVCacheBlock(i) for i in (7, 3, 5))
    for block in (first, second, third):
        index.insert(A, block)
    assert index.get_one_block(A) is first
    assert len(index) == 1
    assert [(key, block.block_id) for key, block in index.items()] == [(A, 7), (A, 3), (A, 5)]
    assert index.pop(A, 7) is first
    assert index.get_one_block(A) is second


def test_index_pop_takes_only_the_block_it_names() -> None:
    index = BlockHashToBlockMap()
    block = KVCacheBlock(1)
    index.insert(A, block)
    assert index.pop(A, 2) is None
    assert index.pop(B, 1) is None
    assert index.get_one_block(A) is block
    assert index.pop(A, 1) is block
    assert index.get_one_block(A) is None


def test_index_forgets_the_key_with_its_last_block() -> None:
    index = BlockHashToBlockMap()
    for i in (1, 2):
        index.insert(A, KVCacheBlock(i))
    assert index.pop(A, 9) is None
    index.pop(A, 1)
    index.pop(A, 2)
    assert len(index) == 0
    assert index.get_one_block(A) is None


# -- the pool -------------------------------------------------------------------------------------


def holder(*hashes: BlockHash) -> Any:
    """As much of a request as `cache_full_blocks` reads."""
    return SimpleNamespace(block_hashes=list(hashes))


@pytest.mark.parametrize("bad", [0, -1, 2.5, None, "8"])
def test_pool_refuses_a_size_that_is_no_positive_integer(bad: Any) -> None:
    with pytest.raises(ValueError, match="num_gpu_blocks must be a positive integer, got"):
        BlockPool(bad)


def test_pool_keeps_block_0_back_as_the_null_block() -> None:
    pool = BlockPool(4)
    assert pool.get_num_free_blocks() == 3
    assert ids(pool.get_new_blocks(3)) == [1, 2, 3]
    assert pool.null_block.block_id == 0
    assert pool.null_block.is_null


def test_pool_short_of_blocks_raises_and_changes_nothing() -> None:
    pool = BlockPool(4)
    pool.get_new_blocks(1)
    with pytest.raises(ValueError, match="Cannot get 3 free blocks: 2 are free"):
        pool.get_new_blocks(3)
    assert ids(pool.free_block_queue) == [2, 3]
    pool.check_invariants()


def test_pool_reference_counts_decide_when_a_block_is_free() -> None:
    pool = BlockPool(4)
    (block,) = pool.get_new_blocks(1)
    pool.touch([block])
    assert block.ref_cnt == 2
    pool.free_blocks([block])
    assert pool.get_num_free_blocks() == 2
    pool.free_blocks([block])
    assert pool.get_num_free_blocks() == 3
    assert ids(pool.free_block_queue) == [2, 3, 1]
    pool.check_invariants()


def test_pool_freed_blocks_queue_in_the_order_given() -> None:
    pool = BlockPool(5)
    taken = pool.get_new_blocks(3)
    pool.free_blocks(reversed(taken))
    assert ids(pool.free_block_queue) == [4, 3, 2, 1]


def test_pool_never_frees_the_null_block() -> None:
    pool = BlockPool(3)
    pool.touch([pool.null_block])
    pool.free_blocks([pool.null_block])
    assert ids(pool.free_block_queue) == [1, 2]
    pool.check_invariants()


def test_pool_eviction_is_lazy_a_freed_block_is_found_until_it_is_given_away() -> None:
    pool = BlockPool(3)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(holder(A, B), blocks, 0, 2)
    pool.free_blocks(reversed(blocks))
    assert pool.get_cached_block(A) is blocks[0]
    assert pool.get_cached_block(B) is blocks[1]
    assert pool.get_new_blocks(1) == [blocks[1]]
    assert pool.get_cached_block(A) is blocks[0]
    assert pool.get_cached_block(B) is None
    assert blocks[1].block_hash is None
    pool.check_invariants()


def test_pool_touch_revives_a_free_block_from_the_middle_of_the_queue() -> None:
    pool = BlockPool(6)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(holder(A, B), blocks, 0, 2)
    pool.free_blocks(reversed(blocks))
    assert ids(pool.free_block_queue) == [3, 4, 5, 2, 1]
    pool.touch([blocks[1]])
    assert ids(pool.free_block_queue) == [3, 4, 5, 1]
    assert blocks[1].ref_cnt == 1
    assert blocks[1].block_hash == B
    pool.check_invariants()


def test_pool_duplicates_stand_in_for_one_another() -> None:
    """Two requests filled the same content: when one block is evicted the other still answers."""
    pool = BlockPool(3)
    (first,), (second,) = pool.get_new_blocks(1), pool.get_new_blocks(1)
    pool.cache_full_blocks(holder(A), [first], 0, 1)
    pool.cache_full_blocks(holder(A), [second], 0, 1)
    assert pool.get_cached_block(A) is first
    pool.free_blocks([first])
    assert pool.get_new_blocks(1) == [first]
    assert pool.get_cached_block(A) is second
    pool.check_invariants()


def test_pool_publishes_only_the_range_it_is_told() -> None:
    pool = BlockPool(4)
    blocks = pool.get_new_blocks(3)
    pool.cache_full_blocks(holder(A, B), blocks, 0, 1)
    assert [block.block_hash for block in blocks] == [A, None, None]
    pool.cache_full_blocks(holder(A, B), blocks, 1, 2)
    assert [block.block_hash for block in blocks] == [A, B, None]


def test_pool_refuses_to_publish_what_is_not_full_or_published_already() -> None:
    pool = BlockPool(4)
    blocks = pool.get_new_blocks(2)
    with pytest.raises(AssertionError, match="I3"):
        pool.cache_full_blocks(holder(A), blocks, 0, 2)
    pool.cache_full_blocks(holder(A), blocks, 0, 1)
    with pytest.raises(AssertionError, match="block 1 is published already"):
        pool.cache_full_blocks(holder(A), blocks, 0, 1)


def test_pool_reset_is_refused_while_a_block_is_in_use() -> None:
    pool = BlockPool(3)
    blocks = pool.get_new_blocks(1)
    pool.cache_full_blocks(holder(A), blocks, 0, 1)
    assert pool.reset_prefix_cache() is False
    assert pool.get_cached_block(A) is blocks[0]
    pool.free_blocks(blocks)
    assert pool.reset_prefix_cache() is True
    assert pool.get_cached_block(A) is None
    assert blocks[0].block_hash is None
    pool.check_invariants()


def test_pool_usage_counts_the_usable_blocks_only() -> None:
    pool = BlockPool(5)
    assert pool.get_usage() == 0.0
    blocks = pool.get_new_blocks(3)
    assert pool.get_usage() == 0.75
    pool.get_new_blocks(1)
    assert pool.get_usage() == 1.0
    pool.free_blocks(blocks)
    assert pool.get_usage() == 0.25
    assert BlockPool(1).get_usage() == 0.0


@pytest.mark.parametrize(
    ("rule", "spoil"),
    [
        ("I1", lambda pool, block: setattr(block, "ref_cnt", 0)),
        ("I1", lambda pool, block: pool.free_block_queue.append(block)),
        ("I1", lambda pool, block: setattr(pool.free_block_queue, "num_free_blocks", 9)),
        ("I1", lambda pool, block: pool.free_block_queue.append(pool.null_block)),
        ("I4", lambda pool, block: setattr(block, "block_hash", None)),
        ("I4", lambda pool, block: setattr(block, "block_hash", B)),
        ("I4", lambda pool, block: pool.cached_block_hash_to_block.pop(A, block.block_id)),
        ("I4", lambda pool, block: pool.cached_block_hash_to_block.insert(B, pool.blocks[2])),
    ],
)
def test_pool_check_names_the_invariant_that_is_broken(rule: str, spoil: Any) -> None:
    pool = BlockPool(4)
    (block,) = pool.get_new_blocks(1)
    pool.cache_full_blocks(holder(A), [block], 0, 1)
    pool.check_invariants()
    spoil(pool, block)
    with pytest.raises(AssertionError, match=rule):
        pool.check_invariants()
