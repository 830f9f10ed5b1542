"""Lab 02-01: joining the free queue and publishing, which the lab gives, held here."""

from __future__ import annotations

from types import ModuleType

import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module
from mini_vllm.core.kv_cache_utils import KVCacheBlock

LAB = ROOT / "phase-02-paged-attention/labs/lab-01-block-allocator"
tests = load_module(LAB / "test_lab.py", "test_lab_02_01_tests")
queue_of, ids, pool_of, request, found = (
    tests.queue_of, tests.ids, tests.pool_of, tests.request, tests.found,
)  # fmt: skip


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "solution.py", "test_lab_02_01_solution")


def test_append_n_keeps_the_order_behind_what_is_there(lab: ModuleType) -> None:
    """Two times append_n: the second group stands behind the first, each in its order."""
    queue, _ = queue_of(lab, 3)
    assert ids(queue) == [0, 1, 2], f"blocks 0 1 2 were appended, the queue reads {ids(queue)}"
    queue.append_n([KVCacheBlock(8), KVCacheBlock(7)])
    assert ids(queue) == [0, 1, 2, 8, 7], (
        f"8 and 7 join the back in that order: 0 1 2 8 7, yours reads {ids(queue)}"
    )
    queue.append_n([])
    assert ids(queue) == [0, 1, 2, 8, 7], "append_n of nothing changes nothing"


def test_publishing_takes_the_full_blocks_that_are_new(lab: ModuleType) -> None:
    """Of a table, blocks[num_cached : num_full], each under its own hash."""
    pool = pool_of(lab)
    blocks = pool.get_new_blocks(4)
    pool.cache_full_blocks(request("a", "b", "c"), blocks, 0, 1)
    assert [found(pool, name) for name in "abc"] == [1, None, None], (
        f"one block is full: blocks 1, nothing and nothing can be found under a, b and c; with yours "
        f"{[found(pool, name) for name in 'abc']}"
    )
    pool.cache_full_blocks(request("a", "b", "c"), blocks, 1, 3)
    assert [found(pool, name) for name in "abc"] == [1, 2, 3], (
        "the second call publishes blocks 1 and 2 of the table, no more and no fewer"
    )
    assert [b.block_hash for b in blocks] == [b"a", b"b", b"c", None], (
        "I4: block and index must agree, so the block is given the hash that it is indexed under"
    )
    pool.evict_blocks({1})
    pool.cache_full_blocks(request("a", "b", "c", "d"), blocks, 3, 4)
    assert [found(pool, name) for name in "abcd"] == [None, 2, 3, 4], (
        "somebody had block 1 taken out of the index, and publishing block 4 put it back: begin at "
        "num_cached_blocks"
    )
    pool.check_invariants()
