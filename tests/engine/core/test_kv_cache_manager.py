"""The KV cache manager: prefix hits, what an allocation needs, what it publishes, how it frees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.utils.math import cdiv

SIZE = 4


def make(num_blocks: int = 11, caching: bool = True, max_model_len: int = 64) -> KVCacheManager:
    return KVCacheManager(num_blocks, SIZE, max_model_len, caching)


def make_request(request_id: str, prompt: Iterable[int], **more: Any) -> Request:
    salt = more.pop("cache_salt", None)
    params = SamplingParams(**({"max_tokens": 16} | more))
    return Request(request_id, list(prompt), params, block_size=SIZE, cache_salt=salt)


def admit(
    manager: KVCacheManager, request: Request, num_tokens: int | None = None, gate: bool = False
) -> list[int] | None:
    """What the scheduler does for a waiting request; its table, or None if it does not fit."""
    hits, num_hit_tokens = manager.get_computed_blocks(request)
    new = request.num_tokens - num_hit_tokens if num_tokens is None else num_tokens
    blocks = manager.allocate_slots(request, new, num_hit_tokens, hits, gate)
    if blocks is None:
        return None
    request.num_computed_tokens = num_hit_tokens + new
    return manager.get_block_ids(request.request_id)[0]


def free_ids(manager: KVCacheManager) -> list[int]:
    return [block.block_id for block in manager.block_pool.free_block_queue]


def snapshot(manager: KVCacheManager) -> object:
    pool = manager.block_pool
    return (
        free_ids(manager),
        [(block.ref_cnt, block.block_hash) for block in pool.blocks],
        {i: [block.block_id for block in blocks] for i, blocks in manager.req_to_blocks.items()},
        dict(manager.num_cached_block),
        [(key, block.block_id) for key, block in pool.cached_block_hash_to_block.items()],
    )


def test_cdiv_rounds_up() -> None:
    assert [cdiv(n, 4) for n in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]


# -- prefix hits ----------------------------------------------------------------------------------


def test_hits_are_whole_blocks() -> None:
    manager = make()
    admit(manager, make_request("a", range(10)))
    hits, num_tokens = manager.get_computed_blocks(make_request("b", [*range(10), 99]))
    assert (hits.get_block_ids(), num_tokens) == (([1, 2],), 8)


def test_hits_an_aligned_duplicate_recomputes_one_whole_block() -> None:
    """One token at least must be computed, for its logits; hits being whole blocks, a block is."""
    manager = make()
    admit(manager, make_request("a", range(12)))
    hits, num_tokens = manager.get_computed_blocks(make_request("b", range(12)))
    assert (hits.get_block_ids(), num_tokens) == (([1, 2],), 8)


def test_hits_a_duplicate_of_one_block_hits_nothing() -> None:
    manager = make()
    admit(manager, make_request("a", range(4)))
    hits, num_tokens = manager.get_computed_blocks(make_request("b", range(4)))
    assert (hits.get_block_ids(), num_tokens) == (([],), 0)


def test_hits_one_token_more_makes_the_last_block_a_hit() -> None:
    manager = make()
    admit(manager, make_request("a", range(12)))
    hits, num_tokens = manager.get_computed_blocks(make_request("b", range(13)))
    assert (hits.get_block_ids(), num_tokens) == (([1, 2, 3],), 12)


def test_hits_end_at_the_first_miss() -> None:
    manager = make()
    admit(manager, make_request("a", range(12)))
    fork = [*range(4), 90, 91, 92, 93, *range(8, 12), 0]
    hits, num_tokens = manager.get_computed_blocks(make_request("b", fork))
    assert (hits.get_block_ids(), num_tokens) == (([1],), 4)


def test_hits_count_outputs_of_a_resumed_request_too() -> None:
    manager = make()
    a = make_request("a", range(6))
    admit(manager, a)
    for token in (6, 7, 8):
        a.append_output_token_ids(token)
        manager.allocate_slots(a, 1)
        a.num_computed_tokens += 1
    manager.free(a)
    a.num_computed_tokens = 0
    hits, num_tokens = manager.get_computed_blocks(a)
    assert (hits.get_block_ids(), num_tokens) == (([1, 2],), 8)


def test_hits_none_with_caching_off() -> None:
    manager = make(caching=False)
    admit(manager, make_request("a", range(12)))
    assert manager.get_computed_blocks(make_request("b", range(13)))[1] == 0
    assert len(manager.block_pool.cached_block_hash_to_block) == 0


def test_hits_none_for_a_request_that_wants_prompt_logprobs() -> None:
    manager = make()
    admit(manager, make_request("a", range(12)))
    assert manager.get_computed_blocks(make_request("b", range(13), prompt_logprobs=1))[1] == 0


def test_hits_none_across_salts() -> None:
    manager = make()
    admit(manager, make_request("a", range(12), cache_salt="x"))
    for salt, tokens in (("y", 0), (None, 0), ("x", 12)):
        request = make_request("b", range(13), cache_salt=salt)
        assert manager.get_computed_blocks(request)[1] == tokens


def test_hits_reserve_nothing() -> None:
    manager = make()
    a = make_request("a", range(12))
    admit(manager, a)
    manager.free(a)
    before = snapshot(manager)
    manager.get_computed_blocks(make_request("b", range(13)))
    assert snapshot(manager) == before


# -- allocation -----------------------------------------------------------------------------------


def test_allocation_takes_as_many_blocks_as_the_tokens_fill() -> None:
    manager = make()
    a = make_request("a", range(9))
    blocks = manager.allocate_slots(a, 9)
    assert blocks is not None
    assert blocks.get_block_ids() == ([1, 2, 3],)


def test_allocation_within_the_last_block_takes_nothing() -> None:
    manager = make()
    a = make_request("a", range(9))
    assert admit(manager, a) == [1, 2, 3]
    for token in (9, 10, 11):
        a.append_output_token_ids(token)
        blocks = manager.allocate_slots(a, 1)
        assert blocks is not None
        assert blocks.get_block_ids() == ([],)
        a.num_computed_tokens += 1
    a.append_output_token_ids(12)
    blocks = manager.allocate_slots(a, 1)
    assert blocks is not None
    assert blocks.get_block_ids() == ([4],)
    assert manager.get_block_ids("a") == ([1, 2, 3, 4],)


@pytest.mark.parametrize("bad", [0, -3])
def test_allocation_of_no_tokens_is_a_value_error(bad: int) -> None:
    with pytest.raises(ValueError, match=f"num_new_tokens must be greater than 0, got {bad}"):
        make().allocate_slots(make_request("a", range(9)), bad)


def test_allocation_never_reaches_past_max_model_len() -> None:
    manager = make(max_model_len=10)
    a = make_request("a", range(9))
    manager.allocate_slots(a, 20)
    assert manager.get_block_ids("a") == ([1, 2, 3],)


def test_allocation_that_does_not_fit_returns_none_and_changes_nothing() -> None:
    manager = make(num_blocks=6)
    a = make_request("a", range(8))
    admit(manager, a)
    manager.free(a)
    admit(manager, make_request("b", range(50, 62)))  # blocks 3, 4, 5; a's two are free
    before = snapshot(manager)
    assert admit(manager, make_request("c", [*range(8), *range(70, 75)])) is None
    assert snapshot(manager) == before
    assert admit(manager, make_request("d", range(80, 92))) is None
    assert snapshot(manager) == before


def test_allocation_counts_free_hits_as_needed_and_hits_in_use_as_not() -> None:
    """3 blocks are free and 2 of them are hits: 2 new ones do not fit, though 3 are free."""
    manager = make(num_blocks=6)
    a = make_request("a", range(8))
    admit(manager, a)
    admit(manager, make_request("b", range(50, 58)))
    wanted = [*range(8), *range(70, 76)]  # two hits and two more
    manager.free(a)
    assert manager.block_pool.get_num_free_blocks() == 3
    assert admit(manager, make_request("c", wanted)) is None
    assert admit(manager, make_request("d", wanted[:11])) == [1, 2, 5]

    in_use = make(num_blocks=6)
    admit(in_use, make_request("a", range(8)))
    assert in_use.block_pool.get_num_free_blocks() == 3
    assert admit(in_use, make_request("c", wanted)) == [1, 2, 3, 4]


def test_allocation_touches_hits_before_it_takes_new_blocks() -> None:
    """The hits stand at the front of the free queue: taken first, they would be evicted."""
    manager = make(num_blocks=5)
    a = make_request("a", range(8))
    admit(manager, a)
    admit(manager, make_request("b", range(50, 54)))
    manager.free(a)
    manager.block_pool.free_block_queue.append(manager.block_pool.free_block_queue.popleft())
    assert free_ids(manager) == [2, 1, 4]
    assert admit(manager, make_request("c", range(9))) == [1, 2, 4]
    manager.check_invariants()


def test_gate_a_chunk_that_would_fit_waits_for_room_for_the_whole_sequence() -> None:
    manager = make(num_blocks=4)
    long = make_request("a", range(16))
    before = snapshot(manager)
    assert admit(manager, long, num_tokens=4, gate=True) is None
    assert snapshot(manager) == before
    assert admit(manager, long, num_tokens=4, gate=False) == [1]


def test_gate_takes_only_what_the_chunk_needs() -> None:
    manager = make(num_blocks=5)
    assert admit(manager, make_request("a", range(16)), num_tokens=4, gate=True) == [1]


def test_gate_counts_hits_in_use_as_had_and_free_hits_as_needed() -> None:
    manager = make(num_blocks=6)
    a = make_request("a", range(8))
    admit(manager, a)
    five = [*range(8), *range(30, 42)]  # five blocks, two of them hits
    assert admit(manager, make_request("b", five), num_tokens=1, gate=True) == [1, 2, 3]
    manager.free(a)

    manager = make(num_blocks=6)
    admit(manager, a := make_request("a", range(8)))
    manager.free(a)
    assert admit(manager, make_request("b", [*five, 42]), num_tokens=1, gate=True) is None
    assert admit(manager, make_request("b", five), num_tokens=1, gate=True) == [1, 2, 3]


def test_gate_looks_at_the_current_sequence_not_at_max_tokens() -> None:
    manager = make(num_blocks=4)
    request = make_request("a", range(12), max_tokens=50)
    assert admit(manager, request, gate=True) == [1, 2, 3]


# -- publication ----------------------------------------------------------------------------------


def test_published_at_allocation_before_anything_is_computed() -> None:
    manager = make()
    a = make_request("a", range(9))
    manager.allocate_slots(a, 9)
    assert manager.get_computed_blocks(make_request("b", range(9)))[0].get_block_ids() == ([1, 2],)


def test_published_only_what_this_chunk_fills() -> None:
    manager = make()
    a = make_request("a", range(12))
    admit(manager, a, num_tokens=7)
    assert manager.get_computed_blocks(make_request("b", range(13)))[1] == 4
    manager.allocate_slots(a, 1)
    assert manager.get_computed_blocks(make_request("b", range(13)))[1] == 8


def test_published_when_a_decode_fills_the_block() -> None:
    manager = make()
    a = make_request("a", range(7))
    admit(manager, a)
    follower = make_request("b", [*range(7), 55, 1])
    a.append_output_token_ids(55)
    assert manager.get_computed_blocks(follower)[1] == 4
    manager.allocate_slots(a, 1)
    assert manager.get_computed_blocks(follower)[1] == 8


def test_published_duplicates_keep_their_own_blocks() -> None:
    """Two requests fill the same content at once: two blocks, one hash, tables unchanged."""
    manager = make()
    a, b = make_request("a", range(8)), make_request("b", range(8))
    assert admit(manager, a) == [1, 2]
    assert admit(manager, b) == [1, 3]
    blocks = manager.block_pool.blocks
    assert blocks[2].block_hash == blocks[3].block_hash
    assert manager.get_computed_blocks(make_request("c", range(9)))[0].get_block_ids() == ([1, 2],)
    manager.check_invariants()


def test_published_nothing_with_caching_off() -> None:
    manager = make(caching=False)
    admit(manager, make_request("a", range(9)))
    assert all(block.block_hash is None for block in manager.block_pool.blocks)
    assert manager.num_cached_block == {}


# -- freeing --------------------------------------------------------------------------------------


def test_free_gives_the_tail_back_first() -> None:
    manager = make(num_blocks=6)
    a = make_request("a", range(12))
    admit(manager, a)
    manager.free(a)
    assert free_ids(manager) == [4, 5, 3, 2, 1]
    assert manager.get_block_ids("a") == ([],)
    assert manager.req_to_blocks == {}


def test_free_of_a_shared_prefix_keeps_it_until_the_last_holder_goes() -> None:
    manager = make(num_blocks=6)
    a, b = make_request("a", range(9)), make_request("b", range(10))
    assert admit(manager, a) == [1, 2, 3]
    assert admit(manager, b) == [1, 2, 4]
    manager.free(a)
    assert free_ids(manager) == [5, 3]
    manager.free(b)
    assert free_ids(manager) == [5, 3, 4, 2, 1]
    manager.check_invariants()


def test_free_twice_or_of_a_stranger_does_nothing() -> None:
    manager = make()
    a = make_request("a", range(9))
    admit(manager, a)
    manager.free(a)
    before = snapshot(manager)
    manager.free(a)
    manager.free(make_request("never seen", range(9)))
    assert snapshot(manager) == before


def test_free_blocks_can_be_revived_until_they_are_taken() -> None:
    manager = make(num_blocks=4)
    a = make_request("a", range(12))
    admit(manager, a)
    manager.free(a)
    assert admit(manager, make_request("b", range(12))) == [1, 2, 3]
    assert manager.block_pool.get_num_free_blocks() == 0
    manager.check_invariants()


# -- the rest -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "max_model_len", "blocks"),
    [
        (8, 1, 64, 2),  # the one sampled token is never computed
        (8, 2, 64, 3),
        (4, 1, 64, 1),
        (10, 500, 20, 5),  # cut off at 20 tokens, of which 19 are computed
        (10, 500, 21, 5),
        (10, 500, 22, 6),
    ],
)
def test_max_blocks_needed_is_what_the_longest_life_takes(
    prompt: int, max_tokens: int, max_model_len: int, blocks: int
) -> None:
    manager = make(max_model_len=max_model_len)
    request = make_request("a", range(prompt), max_tokens=max_tokens)
    assert manager.max_blocks_needed(request) == blocks


def test_a_given_pool_is_used() -> None:
    pool = BlockPool(5)
    manager = KVCacheManager(999, SIZE, 64, True, pool)
    admit(manager, make_request("a", range(5)))
    assert manager.block_pool is pool
    assert pool.get_num_free_blocks() == 2
    assert manager.usage == 0.5


def test_reset_forgets_prefixes_but_not_while_somebody_runs() -> None:
    manager = make()
    a = make_request("a", range(9))
    admit(manager, a)
    assert manager.reset_prefix_cache() is False
    manager.free(a)
    assert manager.reset_prefix_cache() is True
    assert manager.get_computed_blocks(make_request("b", range(9)))[1] == 0


@pytest.mark.parametrize(
    ("message", "spoil"),
    [
        ("holds a block twice", lambda m, t: t.append(t[0])),
        ("holds the null block", lambda m, t: t.append(m.block_pool.null_block)),
        ("leak: .* held by 0 tables", lambda m, t: t.pop()),
        ("I3: published without a hash", lambda m, t: m.num_cached_block.update(a=3)),
        ("I3: hashed but not full", lambda m, t: m.num_cached_block.update(a=1)),
        (
            "I3: shared but not full and published",
            lambda m, t: (m.req_to_blocks.update(b=[t[2]]), m.block_pool.touch([t[2]])),
        ),
    ],
)
def test_check_names_what_is_wrong(message: str, spoil: Any) -> None:
    manager = make()
    admit(manager, make_request("a", range(9)))
    manager.check_invariants()
    spoil(manager, manager.req_to_blocks["a"])
    with pytest.raises(AssertionError, match=message):
        manager.check_invariants()
