"""Lab 06-04: measure what a quantised model has lost, what it takes up, and judge what was measured."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your predictions agree with what was measured and counted."""
    said, want = lab.predictions(), support.answers()
    apart = sorted(set(said) ^ set(want))
    assert not apart, f"these stand in one of the README and your answers only: {apart}"
    for name, (answer, ask) in want.items():
        wrong = wrong_in(said[name], answer)
        assert not wrong, f"{name}: {wrong}. {ask}"


# -- Quality.

EVEN = np.log(np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.1, 0.1, 0.8]], np.float32))


def test_a_row_is_about_the_next_token(lab: ModuleType) -> None:
    """Row i is compared with ids[i + 1]; the last row has no answer, and no row predicts the first token."""
    nats, tokens = lab.surprise(EVEN, [2, 0, 1])
    assert tokens == 2, f"three tokens, two of them predicted, not {tokens}"
    assert nats == pytest.approx(2 * math.log(2)), (
        f"ids 2 0 1: row 0 gives token 0 a half, row 1 gives token 1 a half, so 1.386 nats, not {nats:.3f}"
    )


def test_the_last_row_may_be_missing(lab: ModuleType) -> None:
    """vLLM reports one row fewer than mini_vllm, and the surprise is the same."""
    whole, cut = lab.surprise(EVEN, [2, 0, 1]), lab.surprise(EVEN[:2], [2, 0, 1])
    assert cut == whole, f"with the last row {whole}, without it {cut}"


def test_a_guess_among_n_has_perplexity_n(lab: ModuleType) -> None:
    """A model that finds all n tokens equally likely has perplexity n."""
    even = np.full((5, 264), -math.log(264), np.float32)
    got = lab.perplexity([(even, [1, 2, 3, 4, 5])])
    assert got == pytest.approx(264, rel=1e-5), f"264 tokens, equally likely: 264, not {got:.2f}"


def test_every_token_counts_once(lab: ModuleType) -> None:
    """A document of one predicted token weighs less than one of two."""
    got = lab.perplexity([(EVEN, [2, 0, 1]), (EVEN, [0, 1])])
    want = 2 ** (2 / 3) * 4 ** (1 / 3)
    assert got == pytest.approx(want), (
        f"three tokens, surprised by 1, 1 and 2 bits: 2^(4/3) = {want:.4f}, not {got:.4f}"
    )


def test_kl_by_hand(lab: ModuleType) -> None:
    """The KL of two rows, one of them equal, is their mean, weighted by the reference's probabilities."""
    p = np.log(np.array([[0.5, 0.5], [0.75, 0.25]], np.float32))
    q = np.log(np.array([[0.5, 0.5], [0.25, 0.75]], np.float32))
    want = (0.75 * math.log(3) - 0.25 * math.log(3)) / 2
    got = lab.kl_divergence(p, q)
    assert got == pytest.approx(want), (
        f"0 nats in one row and 0.549 in the other: {want:.4f}, not {got:.4f}"
    )


def test_kl_has_a_direction(lab: ModuleType) -> None:
    """KL counts the tokens that the reference finds likely."""
    p = np.log(np.array([[0.98, 0.01, 0.01]], np.float32))
    q = np.log(np.array([[0.4, 0.4, 0.2]], np.float32))
    forth, back = lab.kl_divergence(p, q), lab.kl_divergence(q, p)
    assert forth == pytest.approx(0.8112, abs=1e-3), (
        f"from a sure reference to a doubtful model: 0.811, not {forth:.3f}; {back:.3f} the other way"
    )


def test_kl_of_itself_is_nothing(lab: ModuleType) -> None:
    """The KL of a model from itself is 0, and from any other it is more, in each of 20 draws."""
    for seed in range(20):
        p, q = (support.drawn_logprobs(7, 30, 2 * seed + i) for i in range(2))
        assert lab.kl_divergence(p, p) == 0, "a model has no distance from itself"
        got = lab.kl_divergence(p, q)
        assert got > 0, f"two different models, and a distance of {got}"


def test_logarithms_stay_logarithms(lab: ModuleType) -> None:
    """KL stays finite when a model gives a likely token a probability too small for a float."""
    p = np.log(np.array([[0.5, 0.5]], np.float32))
    q = np.array([[0.0, -120.0]], np.float32)  # exp(-120) is 0 in float32
    want = 60 - math.log(2)
    got = lab.kl_divergence(p, q)
    assert got == pytest.approx(want), (
        f"a half against 1 and a half against exp(-120): {want:.2f} nats, not {got:.2f}; log p and "
        "log q are given, and what goes through exp and back has lost the small ones"
    )


def test_what_comes_behind_a_difference_does_not_count(lab: ModuleType) -> None:
    """Tokens that happen to be equal after the first difference do not count."""
    got = lab.tokens_in_common([5, 6, 7, 8, 9], [5, 6, 1, 8, 9])
    assert got == 2, f"they part at the third token: 2, not {got}"
    assert lab.tokens_in_common([4, 5], [4, 5]) == 2, "two texts that never part have all in common"
    assert lab.tokens_in_common([4, 5, 6], [4, 5]) == 2, "a text that ends has its tokens in common"
    assert lab.tokens_in_common([1, 2], [2, 2]) == 0, (
        "two texts that part at once have nothing in common"
    )


# -- Judging.


def test_the_edge_of_the_trade_off(lab: ModuleType) -> None:
    """A larger method is beaten if it is worse or only as good, but not if it is better."""
    points = {
        "a": (10.0, 3.0),
        "b": (20.0, 1.0),
        "c": (20.0, 2.0),
        "d": (30.0, 4.0),
        "e": (5.0, 9.0),
        "f": (11.0, 3.0),
        "g": (15.0, 2.5),
    }
    got = set(lab.not_beaten(points))
    assert got == {"a", "b", "e", "g"}, (
        f"c, d and f are beaten, a, b, e and g are not; you keep {sorted(got)}"
    )


def test_equals_do_not_beat_each_other(lab: ModuleType) -> None:
    """Two methods of the same size and loss do not beat each other."""
    got = set(lab.not_beaten({"a": (1.0, 1.0), "b": (1.0, 1.0), "c": (1.0, 2.0)}))
    assert got == {"a", "b"}, (
        f"a and b are the same, c is as large and worse; you keep {sorted(got)}"
    )


def test_a_round_has_its_own_ratio(lab: ModuleType) -> None:
    """Each round has its own ratio, so a round in which the machine was busy slows both sides alike."""
    got = lab.speedup([(2.0, 1.0), (30.0, 10.0), (1.5, 1.5)])
    assert tuple(got) == (1.0, 2.0, 3.0), f"ratios 2, 3 and 1: (1, 2, 3), not {tuple(got)}"


def test_one_bad_round_does_not_decide(lab: ModuleType) -> None:
    """The middle ratio is the median, not the mean, so one bad round does not decide."""
    _, middle, _ = lab.speedup([(1.0, 1.0), (1.1, 1.0), (100.0, 1.0)])
    assert middle == pytest.approx(1.1), (
        f"ratios 1, 1.1 and 100: the middle is 1.1, not {middle:.2f}"
    )
    _, middle, _ = lab.speedup([(4.0, 1.0), (1.0, 1.0), (2.0, 1.0), (1.5, 1.0)])
    assert middle == pytest.approx(1.75), (
        f"ratios 1, 1.5, 2 and 4 have two in the middle: halfway, 1.75, not {middle:.2f}"
    )
