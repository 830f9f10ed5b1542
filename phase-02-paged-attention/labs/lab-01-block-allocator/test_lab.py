"""Lab 02-01: the free queue and the pool, call by call."""

from __future__ import annotations

import random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mini_vllm.core.kv_cache_utils import KVCacheBlock


def queue_of(lab: ModuleType, n: int) -> tuple[Any, list[KVCacheBlock]]:
    """A queue of blocks 0 to n-1, and the blocks."""
    blocks = [KVCacheBlock(i) for i in range(n)]
    return lab.FreeKVCacheBlockQueue(blocks), blocks


def ids(queue: Any) -> list[int]:
    """The block ids from the front to the back; asserts that the way back tells the same."""
    forward, backward = [], []
    block = queue.fake_free_list_head.next_free_block
    while block is not None and block.block_id >= 0 and len(forward) < 1000:
        forward.append(block.block_id)
        block = block.next_free_block
    assert block is queue.fake_free_list_tail, (
        f"from the front, next_free_block leads through {forward[:8]} and never to the tail sentinel: "
        "an operation left a link on the wrong block"
    )
    block = queue.fake_free_list_tail.prev_free_block
    while block is not None and block.block_id >= 0 and len(backward) < 1000:
        backward.append(block.block_id)
        block = block.prev_free_block
    assert backward[::-1] == forward, (
        f"forward the queue reads {forward[:8]}, backward {backward[::-1][:8]}: next_free_block and "
        "prev_free_block must change together"
    )
    assert queue.num_free_blocks == len(forward), (
        f"num_free_blocks says {queue.num_free_blocks}, {len(forward)} blocks are in the queue"
    )
    return forward


def pool_of(lab: ModuleType, n: int = 10) -> Any:
    return lab.BlockPool(n)


def request(*hashes: str) -> Any:
    """What the pool needs of a request: the hashes of its blocks."""
    return SimpleNamespace(block_hashes=[name.encode() for name in hashes])


def publish(pool: Any, *hashes: str) -> list[KVCacheBlock]:
    """New blocks, published under these names."""
    blocks: list[KVCacheBlock] = pool.get_new_blocks(len(hashes))
    pool.cache_full_blocks(request(*hashes), blocks, 0, len(hashes))
    return blocks


def found(pool: Any, name: str) -> int | None:
    block = pool.get_cached_block(name.encode())
    return None if block is None else int(block.block_id)


# ---- the queue -----------------------------------------------------------------------------------


def test_popleft_n_takes_from_the_front(lab: ModuleType) -> None:
    """popleft_n takes the block that has been free longest first, and its blocks leave without links."""
    queue, _ = queue_of(lab, 5)
    taken = queue.popleft_n(3)
    assert [b.block_id for b in taken] == [0, 1, 2], (
        f"the front is 0, so popleft_n(3) of 0 1 2 3 4 is [0, 1, 2], "
        f"yours took {[b.block_id for b in taken]}"
    )
    assert ids(queue) == [3, 4], f"3 and 4 were not asked for and stay, yours leaves {ids(queue)}"
    assert all(b.prev_free_block is None and b.next_free_block is None for b in taken), (
        "a block that has left the queue keeps no links: remove() takes a link for a sign that it is free"
    )
    assert queue.popleft_n(0) == [], "none asked for, none taken"
    assert [b.block_id for b in queue.popleft_n(2)] == [3, 4], "the rest, down to the last block"
    assert ids(queue) == [], f"all five were taken, the queue still reads {ids(queue)}"


@pytest.mark.parametrize(("at", "left"), [(0, [1, 2, 3]), (2, [0, 1, 3]), (3, [0, 1, 2])])
def test_remove_takes_a_block_out_of_any_place(lab: ModuleType, at: int, left: list[int]) -> None:
    """remove() takes out the first, a middle or the last block: the sentinels make this one case."""
    queue, blocks = queue_of(lab, 4)
    queue.remove(blocks[at])
    assert ids(queue) == left, f"without block {at} the queue reads {left}, yours {ids(queue)}"
    assert (blocks[at].prev_free_block, blocks[at].next_free_block) == (None, None), (
        "the removed block keeps no links"
    )
    queue.append_n([blocks[at]])
    assert ids(queue) == [*left, at], "a removed block can come back, at the back"


def test_remove_of_the_only_block(lab: ModuleType) -> None:
    """Removing the only block leaves two linked sentinels, ready for the next block."""
    queue, (block,) = queue_of(lab, 1)
    queue.remove(block)
    assert ids(queue) == [], f"its only block was removed, the queue reads {ids(queue)}"
    queue.append_n([block])
    assert ids(queue) == [0], f"and it came back, the queue reads {ids(queue)}"


def test_remove_of_a_block_that_is_not_free_is_refused(lab: ModuleType) -> None:
    """remove() refuses a block that is not free; it would unlink others or count one too few."""
    queue, blocks = queue_of(lab, 3)
    queue.popleft_n(1)
    for block in (blocks[0], KVCacheBlock(9)):
        with pytest.raises(RuntimeError):
            queue.remove(block)
    assert ids(queue) == [1, 2], "a refused removal changes nothing"


class Steps(KVCacheBlock):
    """A block that counts how often anybody follows its link."""

    __slots__ = ("_next",)
    taken = 0

    @property
    def next_free_block(self) -> KVCacheBlock | None:  # type: ignore[override]
        Steps.taken += 1
        return getattr(self, "_next", None)

    @next_free_block.setter
    def next_free_block(self, block: KVCacheBlock | None) -> None:
        self._next = block


def test_neither_end_nor_middle_is_walked_to(lab: ModuleType) -> None:
    """Taking a block from the middle or the front costs the same in a queue of 300 as in one of 3."""
    blocks = [Steps(i) for i in range(300)]
    queue = lab.FreeKVCacheBlockQueue(blocks)
    Steps.taken = 0
    queue.remove(blocks[200])
    assert Steps.taken < 10, (
        f"removing one block of 300 followed {Steps.taken} links: the block knows its two neighbours, "
        "nobody has to look for it"
    )
    Steps.taken = 0
    queue.popleft_n(1)
    assert Steps.taken < 10, (
        f"taking one block from the front of 299 followed {Steps.taken} links: the first stands behind "
        "the head sentinel"
    )


# ---- the pool ------------------------------------------------------------------------------------


def test_new_blocks_come_from_the_front(lab: ModuleType) -> None:
    """New blocks come from the front with one holder each; block 0 is never given out."""
    pool = pool_of(lab)
    blocks = pool.get_new_blocks(3)
    assert [b.block_id for b in blocks] == [1, 2, 3], (
        f"of a fresh pool the first three are 1, 2, 3 (0 is the null block), "
        f"yours gave {[b.block_id for b in blocks]}"
    )
    assert [b.ref_cnt for b in blocks] == [1, 1, 1], "whoever asked for them holds them: ref_cnt 1"
    assert (pool.get_num_free_blocks(), round(pool.get_usage(), 3)) == (6, 0.333), (
        f"9 of 10 blocks are usable and 3 are in use: 6 free, usage 0.333; yours says "
        f"{pool.get_num_free_blocks()} and {pool.get_usage():.3f}"
    )
    pool.check_invariants()


def test_more_than_there_is_is_refused_whole(lab: ModuleType) -> None:
    """Asking for too many blocks raises ValueError and takes none: the scheduler goes on with the rest."""
    pool = pool_of(lab, 5)
    pool.get_new_blocks(2)
    pool.free_blocks(publish(pool, "a"))
    with pytest.raises(ValueError, match=r"\b3\b"):
        pool.get_new_blocks(3)
    assert found(pool, "a") == 3, (
        "a refused call evicts nothing: ask whether it fits before you begin"
    )
    assert pool.get_num_free_blocks() == 2, (
        f"a refused call takes nothing: 2 blocks were free, {pool.get_num_free_blocks()} are now"
    )
    pool.check_invariants()


def test_freed_blocks_join_the_back_in_the_order_given(lab: ModuleType) -> None:
    """Freed blocks join the back in the order given, so the caller decides what is evicted first."""
    pool = pool_of(lab, 6)
    blocks = pool.get_new_blocks(3)
    pool.free_blocks(reversed(blocks))
    assert ids(pool.free_block_queue) == [4, 5, 3, 2, 1], (
        f"4 and 5 were free before, then come 3 2 1, as they were given: "
        f"yours is {ids(pool.free_block_queue)}. (They may come as an iterator: read it once)"
    )
    pool.check_invariants()


def test_a_shared_block_stays_until_its_last_holder_goes(lab: ModuleType) -> None:
    """When one of two holders leaves, the block is not free: the other still reads its KV."""
    pool = pool_of(lab, 4)
    (block,) = pool.get_new_blocks(1)
    pool.touch([block])
    assert block.ref_cnt == 2, f"two hold it now, ref_cnt says {block.ref_cnt}"
    pool.free_blocks([block])
    assert 1 not in ids(pool.free_block_queue), (
        "one of two holders left and the block is in the free queue: the next request will overwrite "
        "what the other one still reads"
    )
    pool.free_blocks([block])
    assert ids(pool.free_block_queue) == [2, 3, 1], "its last holder has left: now it is free"
    pool.check_invariants()


def test_a_freed_block_can_still_be_found(lab: ModuleType) -> None:
    """A freed block can still be found; it is evicted only when it is given out again."""
    pool = pool_of(lab)
    pool.free_blocks(publish(pool, "a"))
    assert found(pool, "a") == 1, (
        "the block is free, yet its KV is as it was: whoever comes with the same tokens can have it. "
        "free_blocks must not drop the hash"
    )
    pool.check_invariants()


def test_a_found_block_comes_back_to_life(lab: ModuleType) -> None:
    """touch takes a found block out of the middle of the free queue, and the block keeps its hash."""
    pool = pool_of(lab, 5)
    pool.free_blocks(publish(pool, "a", "b"))
    block = pool.get_cached_block(b"a")
    pool.touch([block])
    assert ids(pool.free_block_queue) == [3, 4, 2], (
        "block 1 was free and has a holder now, so it leaves the queue (I1): otherwise it is given "
        "to the next request, while this one still reads it"
    )
    assert (block.ref_cnt, block.block_hash) == (1, b"a"), (
        "the newcomer holds it alone, and the next one with these tokens can find it, too"
    )
    pool.check_invariants()


def test_a_block_is_evicted_when_it_is_given_away(lab: ModuleType) -> None:
    """A block is evicted only when it is given out; until then it is a cache that costs nothing."""
    pool = pool_of(lab, 4)
    pool.free_blocks(publish(pool, "a", "b", "c"))
    assert [found(pool, name) for name in "abc"] == [1, 2, 3], (
        "three freed blocks, nobody has taken one: all three can be found"
    )
    (block,) = pool.get_new_blocks(1)
    assert [found(pool, name) for name in "abc"] == [None, 2, 3], (
        "block 1 was given to somebody who will write other tokens into it: "
        "whoever looks for 'a' must not find it"
    )
    assert block.block_hash is None, "and the block must not carry the old hash into its new life"
    pool.check_invariants()


def test_two_blocks_with_one_content_are_two(lab: ModuleType) -> None:
    """Evicting one of two blocks with the same content leaves the other findable."""
    pool = pool_of(lab)
    for number in (1, 2, 3):
        (block,) = publish(pool, "a")
        assert block.block_id == number, "a fresh block each time, 1, 2, 3"
    assert len(list(pool.cached_block_hash_to_block.items())) == 3, (
        "three blocks were published under one hash, and the index holds "
        f"{len(list(pool.cached_block_hash_to_block.items()))}: equal contents are no reason to leave one out"
    )
    assert found(pool, "a") == 1, "of three equal blocks the one that was published first is found"
    for evicted, left in ((2, 1), (1, 3)):
        pool.evict_blocks({evicted})
        assert found(pool, "a") == left, (
            f"block {evicted} was evicted, and block {left} holds the same content and is still good. "
            "Take exactly the block that is evicted out of the index: pop(hash, block_id)"
        )
    pool.check_invariants()


def test_the_null_block_is_never_free(lab: ModuleType) -> None:
    """The null block may be in tables, but it stays out of the free queue, whatever its count."""
    pool = pool_of(lab, 4)
    pool.touch([pool.null_block])
    pool.free_blocks([pool.null_block])
    assert ids(pool.free_block_queue) == [1, 2, 3], (
        "the null block is in the free queue, so somebody will be given it: free_blocks must leave it out"
    )


def test_a_thousand_random_calls(lab: ModuleType) -> None:
    """After each of a thousand random calls, queue and index agree with a plain list and sets of names."""
    rng = random.Random(5)
    pool = pool_of(lab, 12)
    free = list(range(1, 12))
    held: list[KVCacheBlock] = []  # one entry for each holder
    names: dict[int, str] = {}
    for step in range(1000):
        move = rng.choice(("get", "free", "free", "touch"))
        if move == "get" and free:
            n = rng.randint(1, min(3, len(free)))
            got = pool.get_new_blocks(n)
            wanted, free = free[:n], free[n:]
            assert [b.block_id for b in got] == wanted, f"call {step}: from the front, {wanted}"
            for block in got:
                names.pop(block.block_id, None)
            held += got
            if rng.random() < 0.7:
                new = [f"{step}.{i}" for i in range(n)]
                pool.cache_full_blocks(request(*new), got, 0, n)
                names.update(zip(wanted, new, strict=True))
        elif move == "touch" and names:
            block = pool.blocks[rng.choice(sorted(names))]
            pool.touch([block])
            held.append(block)
            if block.block_id in free:
                free.remove(block.block_id)
        elif move == "free" and held:
            block = held.pop(rng.randrange(len(held)))
            pool.free_blocks([block])
            if block not in held:
                free.append(block.block_id)
        assert ids(pool.free_block_queue) == free, (
            f"after call {step} ({move}) the free queue should read {free}, and reads "
            f"{ids(pool.free_block_queue)}"
        )
        pool.check_invariants()
    named = {b.block_id: b.block_hash.decode() for b in pool.blocks if b.block_hash}
    assert named == names, (
        "after a thousand calls the blocks carry other hashes than they were published under and not "
        f"evicted since: {dict(named.items() ^ names.items())}"
    )
