"""Lab 07-03: the list, the room for it, the assignment without a list, and the product that reads both."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """The predictions are about a list, and what padding costs Ilse's model and one of 128 experts."""
    facts = {
        "list": ([1, 2, 5, 6, 0, 4, 3, 6], "Which pairs has expert 0, and how many rows are a block?"),
        "fewest and most rows": (
            [128, 240], "How much can eight experts pad, and how many whole blocks can that be?",
        ),
        "padding, in per cent": (
            [75, 0, 93.75, 75], "How many pairs has an expert, and how many rows are computed for them?",
        ),
        "largest batch without a list": ([1, 4, 8], "How many pairs has a token?"),
        "rows for one token": (32, "How many blocks are there, and how many rows has each?"),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"five questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact, 0.5 if name.startswith("padding") else 0)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- the room ------------------------------------------------------------------------------------


def test_the_room_is_a_bound_that_needs_no_count(lab: ModuleType) -> None:
    """The room is a bound that needs no count, and fewer pairs than experts need less of it."""
    for pairs, experts, block, want in (
        (128, 8, 16, 248), (6, 8, 16, 96), (8, 8, 16, 128), (9, 8, 16, 129), (100, 64, 1, 100),
    ):  # fmt: skip
        got = lab.longest_list(pairs, experts, block)
        assert got == want, (
            f"{pairs} pairs, {experts} experts, blocks of {block}: room for {want}, not {got}. How many "
            "experts can have a pair, and what does each pad at most?"
        )


# ---- the list ------------------------------------------------------------------------------------


def test_pairs_are_sorted_by_expert_in_whole_blocks(lab: ModuleType) -> None:
    """The pairs of three tokens, two experts each, are sorted by expert into whole blocks of two."""
    ids = np.array([[2, 0], [0, 3], [2, 1]], np.int32)
    pairs, experts, used = lab.align(ids, 2, 4)
    assert used == 8, f"four experts with 2, 1, 2 and 1 pairs fill 8 rows, not {used}"
    assert np.asarray(pairs)[:8].tolist() == [1, 2, 5, 6, 0, 4, 3, 6], (
        "experts 2 0, 0 3, 2 1 in blocks of two: [1, 2, 5, 6, 0, 4, 3, 6], not "
        f"{np.asarray(pairs)[:8].tolist()}"
    )
    assert np.asarray(experts)[:4].tolist() == [0, 1, 2, 3], (
        f"the four blocks have experts [0, 1, 2, 3], not {np.asarray(experts)[:4].tolist()}"
    )
    assert (np.asarray(pairs).dtype, np.asarray(experts).dtype) == (np.int32, np.int32), (
        "both lists are int32"
    )


def test_an_expert_without_tokens_takes_no_block(lab: ModuleType) -> None:
    """An expert without tokens takes no block, and one with a block and a bit takes two."""
    ids = np.array([[3], [3], [1], [3], [3], [3]], np.int32)
    pairs, experts, used = lab.align(ids, 4, 4)
    assert used == 12, (
        f"experts 1 and 3 of four have 1 and 5 pairs: 12 rows in blocks of 4, not {used}"
    )
    assert np.asarray(experts)[:3].tolist() == [1, 3, 3], (
        f"three blocks, of experts [1, 3, 3], not {np.asarray(experts)[:3].tolist()}"
    )
    assert np.asarray(pairs)[:12].tolist() == [2, 6, 6, 6, 0, 1, 3, 4, 5, 6, 6, 6], (
        "six pairs, so padding is 6: [2, 6, 6, 6, 0, 1, 3, 4, 5, 6, 6, 6], not "
        f"{np.asarray(pairs)[:12].tolist()}"
    )


def test_what_lies_behind_the_last_block(lab: ModuleType) -> None:
    """Room behind the last block holds no pair and no expert: it was made for the worst case."""
    ids = np.array([[0, 1]] * 5, np.int32)
    pairs, experts, used = lab.align(ids, 4, 4)
    room = 10 + 4 * 3
    assert np.shape(pairs) == (room,), f"10 pairs have room for {room}, not {np.shape(pairs)}"
    assert np.shape(experts) == (6,), (
        f"a room of 22 is 6 blocks of 4, the last in part, not {np.shape(experts)}"
    )
    rest = np.asarray(pairs)[used:].tolist()
    assert set(rest) == {10}, (
        f"behind row {used} there is only pair 10, which does not exist, not {rest}"
    )
    rest = np.asarray(experts)[used // 4 :].tolist()
    assert set(rest) == {-1}, f"behind block {used // 4} the expert is -1, not {rest}"


def test_random_lists(lab: ModuleType) -> None:
    """The list is right for 300 random batches with any number of experts, some without tokens."""
    for ids, block, num_experts in support.cases(300, seed=1):
        pairs, experts, used = lab.align(ids, block, num_experts)
        want_pairs, want_experts = support.want_list(ids, block, num_experts)
        case = f"{ids.shape[0]} tokens, {ids.shape[1]} of {num_experts} experts, blocks of {block}"
        assert used == len(want_pairs), f"{case}: {len(want_pairs)} rows are used, not {used}"
        wrong = np.flatnonzero(np.asarray(pairs)[:used] != want_pairs)
        assert not wrong.size, (
            f"{case}: row {wrong[0]} is pair {want_pairs[wrong[0]]}, not {int(pairs[wrong[0]])}"
        )
        got = np.asarray(experts)[: len(want_experts)].tolist()
        assert got == want_experts, f"{case}: blocks of experts {want_experts}, not {got}"


# ---- without a list ------------------------------------------------------------------------------


def test_a_small_batch_has_no_list(lab: ModuleType) -> None:
    """A batch has no list if four times its pairs are at most the experts: 4 tokens with 8 of 128, not 5."""
    for tokens, top_k, experts, alone in (
        (1, 2, 8, True), (2, 2, 8, False), (4, 8, 128, True), (5, 8, 128, False), (8, 8, 256, True),
    ):  # fmt: skip
        ids = support.choose(tokens, top_k, experts, np.random.RandomState(2))
        pairs, of_blocks, used = lab.assign(ids, 16, experts)
        case = f"{tokens} tokens with {top_k} of {experts} experts"
        assert (pairs is None) == alone, f"{case}: {'no list' if alone else 'a list'}"
        assert np.asarray(of_blocks).dtype == np.int32, (
            f"{case}: the blocks' experts are int32, not {np.asarray(of_blocks).dtype}"
        )
        if alone:
            assert np.asarray(of_blocks).tolist() == ids.ravel().tolist(), (
                f"{case}: block b has the expert of pair b, {ids.ravel().tolist()}, not "
                f"{np.asarray(of_blocks).tolist()}"
            )
            assert used == tokens * top_k * 16, (
                f"{case}: {tokens * top_k} blocks of 16 rows are {tokens * top_k * 16}, not {used}"
            )
        else:
            want = support.want_list(ids, 16, experts)[0]
            assert used == len(want), f"{case}: {len(want)} rows are used, not {used}"


# ---- the product ---------------------------------------------------------------------------------

PRODUCTS = [(7, 2, 4, 4), (33, 2, 8, 16), (1, 2, 8, 16), (3, 4, 64, 16), (20, 1, 3, 8)]


@pytest.mark.parametrize(("tokens", "top_k", "experts", "block"), PRODUCTS)
def test_each_pair_gets_its_experts_product(
    lab: ModuleType, tokens: int, top_k: int, experts: int, block: int
) -> None:
    """Each pair gets its expert's product, whether x has a row per token or a row per pair."""
    rng = np.random.RandomState(3)
    ids = support.choose(tokens, top_k, experts, rng)
    w = rng.standard_normal((experts, 12, 20)).astype(np.float32)
    listed = lab.assign(ids, block, experts)
    for name, rows, per_row in (("first", tokens, top_k), ("second", tokens * top_k, 1)):
        x = rng.standard_normal((rows, 20)).astype(np.float32)
        got = lab.gather_gemm(x, w, *listed, block, ids.size, per_row)
        assert got.shape == (ids.size, 12), (
            f"{ids.size} pairs give [{ids.size}, 12], not {list(got.shape)}"
        )
        assert got.dtype == np.float32, f"products are float32, not {got.dtype}"
        of_pairs = np.repeat(x, per_row, axis=0).astype(np.float64)
        want = np.einsum("pk,pnk->pn", of_pairs, w[ids.ravel()])
        wrong = np.flatnonzero(~(np.abs(got - want).max(1) < 1e-4))
        assert not wrong.size, (
            f"the {name} product of a layer, {tokens} tokens with {top_k} of {experts} experts, blocks of "
            f"{block}: {wrong.size} of {ids.size} pairs are wrong, the first is pair {wrong[0]}, of expert "
            f"{ids.ravel()[wrong[0]]}"
        )


def test_a_block_reads_its_expert_once(lab: ModuleType) -> None:
    """An expert is read once per block that it has, and no block behind the last one is read."""
    ids = np.array([[0, 3]] * 9 + [[3, 5]], np.int32)
    w = support.Experts(np.ones((8, 4, 6), np.float32))
    x = np.ones((10, 6), np.float32)
    lab.gather_gemm(x, w, *lab.assign(ids, 4, 8), 4, 20, 2)
    want = {0: 3, 3: 3, 5: 1}
    assert dict(w.reads) == want, (
        f"experts 0, 3 and 5 have 9, 10 and 1 pairs, in blocks of 4: reads by expert are {want}, not "
        f"{dict(sorted(w.reads.items()))}"
    )
