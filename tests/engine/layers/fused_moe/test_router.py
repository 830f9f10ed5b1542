"""Routers: who is taken, what the weights sum to, groups before experts."""

from __future__ import annotations

import numpy as np
import pytest

from mini_vllm.layers.fused_moe.router import fused_topk, grouped_topk


def logits(n: int = 200, num_experts: int = 12, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, num_experts)).astype(np.float32)


@pytest.mark.parametrize("renormalize", [True, False])
def test_the_best_are_taken_the_largest_first(renormalize: bool) -> None:
    x = logits()
    weights, ids = fused_topk(x, 3, renormalize)
    assert weights.dtype == np.float32
    assert (np.sort(ids, axis=1) == np.sort(np.argpartition(-x, 3, axis=1)[:, :3], axis=1)).all()
    assert (np.diff(weights, axis=1) <= 0).all()


def test_weights_sum_to_1_only_where_they_are_renormalised() -> None:
    x = logits()
    assert np.allclose(fused_topk(x, 3, True)[0].sum(axis=1), 1, atol=1e-6)
    assert (fused_topk(x, 3, False)[0].sum(axis=1) < 0.999).all()
    assert np.allclose(fused_topk(x, 12, False)[0].sum(axis=1), 1, atol=1e-6)


def test_renormalising_is_a_softmax_of_those_taken() -> None:
    """So whether softmax or choice comes first does not matter: what differs is the sum."""
    x = logits()
    weights, ids = fused_topk(x, 3, True)
    taken = np.exp(np.take_along_axis(x, ids, axis=1))
    assert np.allclose(weights, taken / taken.sum(axis=1, keepdims=True), atol=1e-6)


def test_of_equal_experts_the_first_is_taken() -> None:
    x = np.zeros((1, 6), np.float32)
    x[0, 5] = 1
    assert fused_topk(x, 3, True)[1].tolist() == [[5, 0, 1]]


def test_large_logits_do_not_overflow() -> None:
    with np.errstate(all="raise", under="ignore"):
        weights, ids = fused_topk(np.array([[1e4, -1e4, 1e4 - 4]], np.float32), 2, False)
    assert ids.tolist() == [[0, 2]]
    assert np.allclose(weights, [[1 / (1 + np.exp(-4)), 1 / (1 + np.exp(4))]])


def grouped_by_hand(row: np.ndarray, k: int, groups: int, chosen: int) -> set[int]:
    size = len(row) // groups
    best = sorted(range(groups), key=lambda g: -row[g * size : (g + 1) * size].max())[:chosen]
    members = [e for g in best for e in range(g * size, (g + 1) * size)]
    return set(sorted(members, key=lambda e: -row[e])[:k])


@pytest.mark.parametrize("scoring_func", ["softmax", "sigmoid"])
def test_groups_are_chosen_before_experts(scoring_func: str) -> None:
    x = logits()
    _, ids = grouped_topk(x, 3, False, 4, 2, scoring_func)
    for row, taken in zip(x, ids, strict=True):
        assert set(taken.tolist()) == grouped_by_hand(row, 3, 4, 2)
    # The best three of all are not always in the best two groups.
    assert (np.sort(ids, axis=1) != np.sort(fused_topk(x, 3, False)[1], axis=1)).any()


def test_one_group_is_no_group() -> None:
    ours, plain = grouped_topk(logits(), 3, True, 1, 1), fused_topk(logits(), 3, True)
    assert (ours[1] == plain[1]).all()
    assert np.allclose(ours[0], plain[0])


def test_a_bias_moves_the_choice_and_not_the_weights() -> None:
    x = np.zeros((1, 4), np.float32)
    bias = np.array([0, 0, 0, 1], np.float32)
    weights, ids = grouped_topk(x, 1, False, 2, 1, "sigmoid", 2.0, bias)
    assert ids.tolist() == [[3]]
    assert weights.tolist() == [[1.0]]  # 2 times sigmoid(0), without the bias


def test_with_a_bias_a_group_is_as_good_as_its_best_two() -> None:
    x = np.array([[3, -9, 2, 2]], np.float32)
    assert grouped_topk(x, 1, False, 2, 1, "sigmoid")[1].tolist() == [[0]]
    even = np.zeros(4, np.float32)
    _, ids = grouped_topk(x, 2, False, 2, 1, "sigmoid", e_score_correction_bias=even)
    assert ids.tolist() == [[2, 3]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((2, True, 5, 1), r"num_expert_group \(5\) must divide the 12 experts"),
        ((2, True, 4, 5), r"topk_group \(5\)"),
        ((4, True, 4, 1), r"topk \(4\)"),
        ((2, True, 4, 2, "tanh"), "scoring_func .* 'tanh'"),
    ],
)
def test_what_cannot_be_routed_is_refused(arguments: tuple[object, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        grouped_topk(logits(), *arguments)  # type: ignore[arg-type]
