"""Several KV cache groups: how layers form them, what a window keeps, and what all groups can reuse."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mini_vllm.config.gemma3 import FULL, SLIDING, Gemma3Config
from mini_vllm.config.model import LlamaConfig
from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager
from mini_vllm.core.kv_cache_groups import (
    block_bytes,
    get_kv_cache_config,
    get_kv_cache_groups,
)
from mini_vllm.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)
from mini_vllm.core.kv_cache_utils import (
    BlockHash,
    get_block_hash,
    get_group_id,
    make_block_hash_with_group_id,
)
from mini_vllm.core.request import Request
from mini_vllm.layers.quantization.kv_cache import page_size_bytes
from mini_vllm.sampling_params import SamplingParams

SIZE = 4


def window(tokens: int) -> SlidingWindowSpec:
    return SlidingWindowSpec(SIZE, sliding_window=tokens)


def chunks(tokens: int) -> ChunkedLocalAttentionSpec:
    return ChunkedLocalAttentionSpec(SIZE, attention_chunk_size=tokens)


def manager_of(
    *specs: KVCacheSpec, num_blocks: int = 40, budget: int = 64, caching: bool = True
) -> HybridKVCacheManager:
    groups = [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)]
    return HybridKVCacheManager(KVCacheConfig(num_blocks, groups), 64, budget, caching)


def make_request(request_id: str, tokens: Iterable[int]) -> Request:
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    return Request(request_id, list(tokens), params, arrival_time=0.0, block_size=SIZE)


def compute(
    manager: HybridKVCacheManager, request: Request, num_tokens: int
) -> tuple[object, object]:
    """Admit it or go on with it, as a scheduler would: what it hit, and its tables then."""
    new = not request.num_computed_tokens
    hits, num_hit = manager.get_computed_blocks(request) if new else (None, 0)
    found = manager.allocate_slots(request, num_tokens, num_hit, hits)
    assert found is not None
    request.num_computed_tokens += num_hit + num_tokens
    manager.check_invariants()
    return num_hit, manager.get_block_ids(request.request_id)


# -- groups -----------------------------------------------------------------------------------------


def names(*kinds: tuple[KVCacheSpec, int]) -> dict[str, KVCacheSpec]:
    specs = [spec for spec, count in kinds for _ in range(count)]
    return {f"{i}": spec for i, spec in enumerate(specs)}


@pytest.mark.parametrize(
    ("full", "sliding", "sizes"),
    [
        (4, 0, [4]),
        (0, 3, [3]),
        (2, 4, [2, 2, 2]),
        (2, 2, [2, 2]),
        (4, 5, [4, 5]),
        (2, 3, [2, 2, 1]),
    ],
)
def test_a_group_is_as_large_as_the_rarest_kind_unless_the_other_is_hardly_more(
    full: int, sliding: int, sizes: list[int]
) -> None:
    groups = get_kv_cache_groups(names((FullAttentionSpec(SIZE), full), (window(8), sliding)))
    assert [len(group.layer_names) for group in groups] == sizes


def test_layers_of_a_kind_are_dealt_out_in_turn() -> None:
    groups = get_kv_cache_groups(names((FullAttentionSpec(SIZE), 2), (window(8), 4)))
    assert [group.layer_names for group in groups] == [["0", "1"], ["2", "4"], ["3", "5"]]


def test_a_block_costs_as_many_layers_as_the_largest_group_has() -> None:
    kinds = (SLIDING, FULL, SLIDING) * 2
    gemma = Gemma3Config(num_hidden_layers=6, layer_types=kinds, sliding_window=8)
    one_layer = 2 * SIZE * gemma.num_key_value_heads * gemma.head_dim * 4
    assert block_bytes(gemma, SIZE) == 2 * one_layer, "three groups of two layers"
    pool = get_kv_cache_config(gemma, SIZE, 10)
    assert not pool.is_plain
    layers = [[int(name.split(".")[2]) for name in g.layer_names] for g in pool.kv_cache_groups]
    assert layers == [[0, 3], [2, 5], [1, 4]]


def test_one_group_of_full_attention_is_plain_and_its_block_has_all_layers() -> None:
    llama = LlamaConfig(num_hidden_layers=3)
    assert get_kv_cache_config(llama, SIZE, 10).is_plain
    assert block_bytes(llama, SIZE) == page_size_bytes(llama, SIZE)


def test_a_key_is_a_hash_and_a_group() -> None:
    key = make_block_hash_with_group_id(BlockHash(b"h" * 32), 3)
    assert (get_block_hash(key), get_group_id(key), len(key)) == (b"h" * 32, 3, 36)


def test_beside_chunks_blocks_of_another_size_are_refused_as_in_vllm() -> None:
    """There an assertion fails at the first look-up; without prefix caching nobody looks up."""
    specs = FullAttentionSpec(8), chunks(8)
    with pytest.raises(
        ValueError, match=r"differ in size cannot stand beside chunked .*: \[8, 4\]"
    ):
        manager_of(*specs)
    assert manager_of(*specs, caching=False).coordinator.lcm_block_size == 8


# -- what a window keeps ----------------------------------------------------------------------------


def test_blocks_that_no_token_will_see_again_are_given_back() -> None:
    manager = manager_of(FullAttentionSpec(SIZE), window(8))
    request = make_request("a", range(30))
    assert compute(manager, request, 12) == (0, ([1, 2, 3], [4, 5, 6]))
    # Position 12 sees 5 to 12: token 4 is hidden, its block is not.
    assert compute(manager, request, 4) == (0, ([1, 2, 3, 7], [0, 5, 6, 8]))
    # Position 16 sees 9 to 16: block 5, positions 4 to 7, goes, and comes last of the free.
    assert compute(manager, request, 4)[1] == ([1, 2, 3, 7, 9], [0, 0, 6, 8, 10])
    free = [block.block_id for block in manager.block_pool.free_block_queue]
    assert free[-2:] == [4, 5]


def test_several_blocks_go_latest_first() -> None:
    manager = manager_of(window(1), caching=False)
    request = make_request("a", range(30))
    compute(manager, request, 12)
    assert compute(manager, request, 1)[1] == ([0, 0, 0, 4],)
    free = [block.block_id for block in manager.block_pool.free_block_queue]
    assert free[-3:] == [3, 2, 1]


def test_what_was_given_back_is_taken_first_where_nothing_else_is_free() -> None:
    manager = manager_of(window(5), num_blocks=5, caching=False)
    request = make_request("a", range(40))
    assert compute(manager, request, 16)[1] == ([1, 2, 3, 4],)
    assert compute(manager, request, 8)[1] == ([0, 0, 0, 4, 3, 2],)


def test_blocks_are_given_back_even_where_the_step_then_does_not_fit() -> None:
    manager = manager_of(FullAttentionSpec(SIZE), window(4), num_blocks=9)
    request = make_request("a", range(40))
    compute(manager, request, 16)
    assert manager.allocate_slots(request, 20) is None
    assert manager.get_block_ids("a") == ([1, 2, 3, 4], [0, 0, 0, 8])
    manager.check_invariants()


def test_chunks_go_when_they_are_over() -> None:
    manager = manager_of(chunks(8), caching=False)
    request = make_request("a", range(30))
    compute(manager, request, 7)
    assert compute(manager, request, 1)[1] == ([1, 2],)
    assert compute(manager, request, 1)[1] == ([0, 0, 3],)


# -- what can be reused -----------------------------------------------------------------------------


def test_a_window_needs_only_what_it_will_read() -> None:
    manager = manager_of(window(6))
    first = make_request("a", range(16))
    compute(manager, first, 16)
    manager.free(first)
    manager.block_pool.evict_blocks({1, 2})
    again = make_request("b", [*range(16), 99])
    # Position 16 sees 11 to 16: blocks 3 and 4.
    assert compute(manager, again, 1) == (16, ([0, 0, 3, 4, 5],))


def test_a_gap_in_the_window_is_a_miss_and_the_search_goes_on_to_the_left() -> None:
    manager = manager_of(window(6))
    first = make_request("a", range(20))
    compute(manager, first, 20)
    manager.free(first)
    manager.block_pool.evict_blocks({4})
    hits, num_tokens = manager.get_computed_blocks(make_request("b", [*range(20), 99]))
    assert (hits.get_block_ids(), num_tokens) == (([0, 2, 3],), 12)


def test_a_short_run_serves_only_at_the_beginning() -> None:
    manager = manager_of(window(20))
    first = make_request("a", range(20))
    compute(manager, first, 20)
    manager.free(first)
    manager.block_pool.evict_blocks({3})
    hits, num_tokens = manager.get_computed_blocks(make_request("b", [*range(20), 99]))
    assert (hits.get_block_ids(), num_tokens) == (([1, 2],), 8)


def test_all_groups_must_have_it() -> None:
    manager = manager_of(FullAttentionSpec(SIZE), window(6))
    first = make_request("a", range(20))
    assert compute(manager, first, 20)[1] == ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])
    manager.free(first)
    again = make_request("b", [*range(20), 99])
    assert manager.get_computed_blocks(again)[1] == 20
    manager.block_pool.evict_blocks({10})  # the window's last
    hits, num_tokens = manager.get_computed_blocks(again)
    assert (hits.get_block_ids(), num_tokens) == (([1, 2, 3, 4], [0, 0, 8, 9]), 16)
    manager.block_pool.evict_blocks(
        {3}
    )  # full attention's third: 8 tokens, and the window's second
    hits, num_tokens = manager.get_computed_blocks(again)
    assert (hits.get_block_ids(), num_tokens) == (([1, 2], [6, 7]), 8)


def test_two_windows_agree_on_a_length_that_both_have() -> None:
    """The longer window's hit is not always one of the shorter: it is looked for until both agree."""
    manager = manager_of(window(5), window(9))
    first = make_request("a", range(24))
    assert compute(manager, first, 24)[1] == ([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12])
    manager.free(first)
    manager.block_pool.evict_blocks({12, 4, 5})
    hits, num_tokens = manager.get_computed_blocks(make_request("b", [*range(24), 99]))
    assert (hits.get_block_ids(), num_tokens) == (([0, 0, 3], [0, 8, 9]), 12)


def test_groups_of_one_kind_are_looked_up_together() -> None:
    manager = manager_of(FullAttentionSpec(SIZE), window(5), window(5))
    first = make_request("a", range(12))
    assert compute(manager, first, 12)[1] == ([1, 2, 3], [4, 5, 6], [7, 8, 9])
    manager.free(first)
    manager.block_pool.evict_blocks({9})
    hits, num_tokens = manager.get_computed_blocks(make_request("b", [*range(12), 99]))
    assert (hits.get_block_ids(), num_tokens) == (([1, 2], [0, 5], [0, 8]), 8)


def test_a_block_given_back_can_still_be_hit() -> None:
    manager = manager_of(window(4))
    first = make_request("a", range(20))
    compute(manager, first, 12)
    compute(manager, first, 4)
    assert manager.get_block_ids("a") == ([0, 0, 3, 4],)
    other = make_request("b", [*range(8), 99, 98])
    assert compute(manager, other, 2) == (8, ([0, 2, 5],))


def test_a_chunk_that_is_over_counts_as_a_hit_whoever_holds_it() -> None:
    manager = manager_of(chunks(8))
    request = make_request("a", range(20))
    hits, num_tokens = manager.get_computed_blocks(request)
    assert (hits.get_block_ids(), num_tokens) == (([0, 0, 0, 0],), 16)


def test_a_chunk_that_is_no_whole_blocks_is_found_in_part() -> None:
    """As in vLLM: token 6 comes next, and of its chunk, 0 to 7, there is nothing."""
    manager = manager_of(ChunkedLocalAttentionSpec(3, attention_chunk_size=8))
    request = Request("a", list(range(9)), SamplingParams(), arrival_time=0.0, block_size=3)
    hits, num_tokens = manager.get_computed_blocks(request)
    assert (hits.get_block_ids(), num_tokens) == (([0, 0],), 6)


# -- how much is needed -----------------------------------------------------------------------------


def test_admission_counts_what_a_window_holds_at_most() -> None:
    """A window of 8 and steps of 8 tokens: 15 at once, so 4 blocks, and one more where none begins with a
    block. Of 60 tokens full attention keeps 15 blocks."""
    assert window(8).max_admission_blocks_per_request(8, 64) == 5
    for num_blocks, fits in ((21, True), (20, False)):
        manager = manager_of(FullAttentionSpec(SIZE), window(8), num_blocks=num_blocks, budget=8)
        request = make_request("a", range(60))
        found = manager.allocate_slots(request, 8, full_sequence_must_fit=True)
        assert (found is not None) == fits


def test_the_most_that_a_request_needs_is_counted_the_same_way() -> None:
    manager = manager_of(FullAttentionSpec(SIZE), window(8), chunks(8), budget=8)
    assert manager.max_blocks_needed(make_request("a", range(40))) == 15 + 5 + 4
    assert manager.max_blocks_needed(make_request("a", range(2))) == 6 + 5 + 4


def test_without_prefix_caching_windows_still_give_back() -> None:
    manager = manager_of(FullAttentionSpec(SIZE), window(4), caching=False)
    request = make_request("a", range(30))
    assert compute(manager, request, 12) == (0, ([1, 2, 3], [4, 5, 6]))
    assert compute(manager, request, 4)[1] == ([1, 2, 3, 7], [0, 0, 6, 8])
    manager.free(request)
    manager.check_invariants()
    assert manager.usage == 0


def test_no_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="greater than 0, got 0"):
        manager_of(window(4)).allocate_slots(make_request("a", [1]), 0)
