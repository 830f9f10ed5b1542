"""Lab 04-07: find where two runs part, and sum in an order that no neighbour changes."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
bits = support.bits


def numbers(seed: int, *shape: int, loud: float = 1.0) -> Any:
    """float32 in any size from 1e-3 to 1e3, so that the order of a sum shows in its bits."""
    rng = np.random.default_rng(seed)
    size = 10.0 ** rng.uniform(-3, 3, shape)
    return (loud * size * rng.choice([-1.0, 1.0], shape)).astype(np.float32)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your ten predictions agree with what was measured in `mini_vllm` and in real vLLM."""
    said, want = lab.predictions(), support.answers(lab)
    assert set(said) == set(want), f"the names are {sorted(want)}, not {sorted(said)}"
    ask = {
        "float32": "How near must two logits be, that noise of this size turns them round?",
        "VLLM_BATCH_INVARIANT=1 on a CPU": "Which kernels does it put in place, and has a CPU any of them?",
        "first part in vLLM on a CPU": "Which parts take each row by itself, and which choose their order by "
        "the shape of the batch?",
        "segments, 16 who decode": "How many programs are there uncut, and up to how many does vLLM cut?",
        "segments, 17 who decode": "How many programs are there uncut, and up to how many does vLLM cut?",
        "keys in turn, 4000 tokens, beside 16": "How many requests decode, and are her keys cut then?",
    }
    for name, answer in want.items():
        wrong = wrong_in(said[name], answer)
        assert not wrong, (
            f"{name}: {wrong}. {ask.get(name, 'Does it change the order in which a sum is made?')}"
        )


# -- Where they part.


def stages(*pairs: tuple[str, list[float]]) -> list[tuple[str, Any]]:
    return [(name, np.array(values, np.float32)) for name, values in pairs]


def test_the_first_difference_and_not_the_largest(lab: ModuleType) -> None:
    """A difference grows on its way, so the part where it begins is the one to name."""
    alone = stages(("norm", [1, 2]), ("qkv", [1, 2, 3, 4]), ("mlp", [1, 2]), ("logits", [5, 6]))
    step = float(np.nextafter(np.float32(3), np.float32(4)))
    beside = stages(("norm", [1, 2]), ("qkv", [1, 2, step, 4]), ("mlp", [1, 7]), ("logits", [0, 9]))
    got = lab.first_difference(alone, beside)
    assert got is not None, "qkv, mlp and logits differ, and you found nothing"
    assert (got.stage, got.index) == ("qkv", 1), (
        f"the runs part at qkv, which is number 1 of the list, and you say {got.stage}, number {got.index}"
    )
    assert got.most_ulps == 1, f"3 became the next number, so it is 1 step, not {got.most_ulps}"
    assert got.share == 0.25, f"1 of 4 numbers differs, which is a share of 0.25, not {got.share}"


def test_equal_is_equal_to_the_bit(lab: ModuleType) -> None:
    """A relative tolerance of 1e-5 hides exactly what this lab looks for."""
    a = numbers(1, 64)
    b = a.copy()
    b[[3, 9]] = np.nextafter(np.nextafter(b[[3, 9]], np.float32(np.inf)), np.float32(np.inf))
    got = lab.first_difference([("x", a)], [("x", b)])
    assert got is not None, (
        "two of 64 numbers are two float32 steps away, and you call that the same"
    )
    assert (got.most_ulps, got.share) == (2, 2 / 64), (
        f"two of 64 numbers differ by 2 steps: (2, {2 / 64}), not {(got.most_ulps, got.share)}"
    )


def test_no_difference_is_none(lab: ModuleType) -> None:
    """Equal runs give None, even where one has 0.0 and the other -0.0."""
    a = stages(("x", [0.0, 1.0]), ("y", [2.0]))
    b = stages(("x", [-0.0, 1.0]), ("y", [2.0]))
    got = lab.first_difference(a, b)
    assert got is None, f"the runs are equal, so return None, not {got}"


# -- The near tie.


def test_noise_moves_both(lab: ModuleType) -> None:
    """The winner may fall while the other rises, so a flip takes half of the margin."""
    logits = np.array([1.0, 2.0, -5.0], np.float32)
    for noise, want in ((0.25, False), (0.5 - 2.0**-30, False), (0.625, True), (2.0, True)):
        got = bool(lab.can_flip(logits, noise))
        assert got == want, (
            f"logits {logits.tolist()}, and each moves by at most {noise}: a flip is "
            f"{'possible' if want else 'impossible'}. In float64, the winner may fall by {noise}, and the "
            f"other rise by it"
        )


def test_without_noise_nothing_flips(lab: ModuleType) -> None:
    """Where no logit moves, the winner stays, however near the next one is."""
    for logits in ([1.0, 2.0], [2.0, 1.0], [3.0, 3.0000002], [-1.0, -5.0, 0.0]):
        got = bool(lab.can_flip(np.array(logits, np.float32), 0.0))
        assert not got, f"logits {logits} and no noise: nothing moves, so nothing flips"


def test_a_tie_goes_to_the_lower_id(lab: ModuleType) -> None:
    """`argmax` takes the first of equals: at exactly half of the margin, only a lower id wins."""
    for logits, want in (([2.0, 1.0], False), ([1.0, 2.0], True), ([1.0, 1.0], False)):
        noise = (max(logits) - min(logits)) / 2
        got = bool(lab.can_flip(np.array(logits, np.float32), noise))
        assert got == want, (
            f"logits {logits} and noise {noise}: in the worst case they become equal, and argmax takes the "
            f"lower id of equals, so a flip is {'possible' if want else 'impossible'}"
        )


def test_the_runner_up_need_not_be_alone(lab: ModuleType) -> None:
    """Of several tokens that tie for second place, any may win."""
    logits = np.array([0.0, 3.0, 2.0, 2.0], np.float32)
    assert lab.can_flip(logits, 0.51), (
        "noise 0.51 lets 3.0 fall below either of the two 2.0, so a flip is possible"
    )
    assert not lab.can_flip(logits, 0.5), (
        "at noise 0.5 both come to 2.5, and the lower id is the winner's"
    )


# -- Sums.


LENGTHS = [1, 2, 3, 5, 8, 31, 32, 33, 100, 384]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_sum_is_the_sum(lab: ModuleType, length: int) -> None:
    """`fixed_sum` is close to float64: a good order costs no accuracy."""
    terms = numbers(length, 7, length)
    got = support.expect_array(lab.fixed_sum(terms), (7,), f"fixed_sum of [7, {length}]")
    exact = np.array([math.fsum(row) for row in terms.astype(np.float64).tolist()])
    error = np.abs(got - exact).max()
    allowed = 2.0**-24 * length * np.abs(terms).sum(axis=-1).max()
    assert error <= allowed, (
        f"{length} terms: off by {error:.1e}, where rounding explains {allowed:.1e}"
    )


def test_no_terms_are_zero(lab: ModuleType) -> None:
    """A sum of no terms has a value, too."""
    got = support.expect_array(
        lab.fixed_sum(np.zeros((3, 0), np.float32)), (3,), "fixed_sum of [3, 0]"
    )
    assert got.tolist() == [0, 0, 0], f"a sum of no terms is 0, not {got.tolist()}"


@pytest.mark.parametrize("length", LENGTHS)
def test_a_sum_knows_only_its_terms(lab: ModuleType, length: int) -> None:
    """A sum has the same bits alone, in a batch, at any place, and however the array lies in memory."""
    terms = numbers(length, 40, length)
    want = [bits(lab.fixed_sum(row)) for row in terms]
    ways = {
        "in a batch of 40": lab.fixed_sum(terms),
        "in a batch that lies column by column": lab.fixed_sum(np.asfortranarray(terms)),
        "in the middle axis of a larger array": lab.fixed_sum(np.stack([terms, terms])[1]),
        "as every second term of an array": lab.fixed_sum(np.repeat(terms, 2, axis=1)[:, ::2]),
        "in batches of 3": np.concatenate(
            [lab.fixed_sum(terms[i : i + 3]) for i in range(0, 40, 3)]
        ),
    }
    for way, got in ways.items():
        differ = [i for i in range(40) if bits(got[i]) != want[i]]
        assert not differ, (
            f"{length} terms, {way}: {len(differ)} of 40 sums have other bits than alone, row {differ[0]} "
            f"for instance. "
            "numpy's own sum picks its order by the layout and the shape"
        )


def test_zeros_behind_change_nothing(lab: ModuleType) -> None:
    """A longer array whose further terms are 0 has the same sum, to the bit, because hidden keys are
    such zeros.
    """
    for length in (4, 37, 200):
        terms = numbers(2, 5, length)
        want = bits(lab.fixed_sum(terms))
        for more in (1, 3, 27, 28, 100):
            longer = np.concatenate([terms, np.zeros((5, more), np.float32)], axis=1)
            assert bits(lab.fixed_sum(longer)) == want, (
                f"{length} terms, and {more} zeros behind them: other bits. Where a sum is cut must be "
                f"counted from its first term, not from its last one or its length"
            )


def test_more_bits_are_not_an_order(lab: ModuleType) -> None:
    """If terms need more bits than float64 has, a wide accumulator rounds as well, only later."""
    terms = numbers(3, 24, 96, loud=1.0)
    terms[:, ::3] *= np.float32(2.0**60)
    terms[:, 1::3] = -terms[:, ::3]
    terms = np.random.default_rng(3).permuted(terms, axis=1)
    alone = [bits(lab.fixed_sum(row)) for row in terms]
    for way, got in (("in a batch", terms), ("column by column", np.asfortranarray(terms))):
        sums = lab.fixed_sum(got)
        differ = sum(bits(total) != one for total, one in zip(sums, alone, strict=True))
        assert not differ, (
            f"{way}: {differ} of 24 sums have other bits than alone, where large terms cancel. float64 "
            f"makes the "
            "noise smaller; it does not say who is added to whom"
        )


# -- Rows.


SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 32, 40]


def test_linear_is_the_product(lab: ModuleType) -> None:
    """`linear` gives `x @ weight`, within the rounding of float32."""
    for n, size, out in ((1, 5, 3), (3, 128, 7), (2, 384, 4)):
        x, weight = numbers(n, n, size), numbers(size, size, out)
        got = support.expect_array(
            lab.linear(x, weight), (n, out), f"linear of [{n}, {size}] and [{size}, {out}]"
        )
        exact = x.astype(np.float64) @ weight
        scale = np.abs(x.astype(np.float64)) @ np.abs(weight)
        error = float((np.abs(got - exact) / scale).max())
        assert error < 1e-5, f"[{n}, {size}] by [{size}, {out}]: off by {error:.1e} of the terms"


@pytest.mark.parametrize("size", [3, 37, 128])
def test_a_row_of_a_product_knows_no_batch(lab: ModuleType, size: int) -> None:
    """A row of a product has the same bits alone and among 40, whatever their number and its place."""
    x, weight = numbers(size, 40, size), numbers(size + 1, size, 6)
    alone = [bits(lab.linear(row[None], weight)[0]) for row in x]
    for n in SIZES:
        got = lab.linear(x[:n], weight)
        differ = [i for i in range(n) if bits(got[i]) != alone[i]]
        assert not differ, (
            f"{size} terms a sum, {n} rows: {len(differ)} rows have other bits than alone, the first is "
            f"row {differ[0]}"
        )
    for way, got in (
        ("in reverse", lab.linear(x[::-1], weight)[::-1]),
        ("column by column in memory", lab.linear(np.asfortranarray(x), weight)),
    ):
        differ = [i for i in range(40) if bits(got[i]) != alone[i]]
        assert not differ, (
            f"{size} terms a sum, the rows {way}: {len(differ)} have other bits than alone"
        )


def test_a_product_in_more_bits_is_not_safe(lab: ModuleType) -> None:
    """Large terms that cancel show the order of a sum in a float64 accumulator, too."""
    x, weight = numbers(11, 40, 129), numbers(12, 129, 6)
    x[:, ::3] *= np.float32(2.0**60)
    x[:, 1::3] = -x[:, ::3]
    weight[1::3] = weight[::3]
    alone = [bits(lab.linear(row[None], weight)[0]) for row in x]
    got = lab.linear(x, weight)
    differ = [i for i in range(40) if bits(got[i]) != alone[i]]
    assert not differ, (
        f"40 rows whose large terms cancel: {len(differ)} have other bits than alone. float64 makes the "
        f"noise smaller; it does not say who is added to whom"
    )


def test_neighbours_may_hold_anything(lab: ModuleType) -> None:
    """NaN, infinity and huge numbers in the other rows stay there."""
    x, weight = numbers(5, 9, 33), numbers(6, 33, 4)
    want = bits(lab.linear(x, weight)[4])
    for bad in (np.nan, np.inf, 3e38):
        dirty = np.full_like(x, bad)
        dirty[4] = x[4]
        with np.errstate(all="ignore"):
            got = lab.linear(dirty, weight)[4]
        assert bits(got) == want, f"row 4 of 9 has other bits where its neighbours hold {bad}"


def test_a_norm_knows_no_batch(lab: ModuleType) -> None:
    """A row of a norm has the same bits alone and among others."""
    x, weight = numbers(9, 40, 100), numbers(10, 100)
    alone = [bits(lab.rms_norm(row[None], weight, 1e-5)[0]) for row in x]
    for rows in (*(x[:n] for n in SIZES), np.asfortranarray(x)):
        n, lies = len(rows), "row by row" if rows.flags.c_contiguous else "column by column"
        got = lab.rms_norm(rows, weight, 1e-5)
        differ = [i for i in range(n) if bits(got[i]) != alone[i]]
        assert not differ, (
            f"{n} rows, {lies} in memory: {len(differ)} have other bits than alone, the first is row "
            f"{differ[0]}"
        )
