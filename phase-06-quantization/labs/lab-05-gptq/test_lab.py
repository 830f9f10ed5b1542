"""Lab 06-05: what an error costs, what makes up for it, and a whole layer rounded so."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your predictions hold: two weights by hand, a diagonal H, and which columns compensate."""
    said = lab.predictions()
    facts = {
        "two equal inputs": (
            [0.8, 0.2],
            "To what is each 0.4 rounded, and what does the second become when it takes over what the first "
            "has lost?",
        ),
        "codes that differ": (
            [0],
            "If no two inputs go together, what can another weight make up for?",
        ),
        "columns that make up": (
            [127, 0],
            "Which columns are not rounded yet when the first is, and which when the last is?",
        ),
    }
    assert said.keys() == facts.keys(), f"three questions, {sorted(facts)}; yours: {sorted(said)}"
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact, 1e-6)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- what an error costs -------------------------------------------------------------------------


def test_the_error_of_the_outputs(lab: ModuleType) -> None:
    """The error computed from H alone is the one measured with the inputs."""
    weight, x = support.real_layer("1.self_attn.k_proj")
    h = 2 / len(x) * (x.T @ x)
    change = support.nearest(weight, 32) - weight
    measured = ((x @ change.T) ** 2).sum(axis=1).mean()
    got = lab.output_error(change, h)
    assert abs(got / measured - 1) < 1e-9, (
        f"a real layer, rounded: over {len(x)} tokens its outputs are off by {measured:.6g} (squares, mean "
        f"over the tokens, summed over the outputs); yours {got:.6g}, {got / measured:.3g} times that"
    )


# ---- what makes up for it ------------------------------------------------------------------------


def test_compensation_by_hand(lab: ModuleType) -> None:
    """The compensation is right for two inputs that are equal, opposite or unrelated."""
    for together, want in ((0.5, 0.5), (-0.5, -0.5), (0.0, 0.0)):
        h = np.array([[1.0, together], [together, 1.0]])
        got = lab.compensation(np.array([0.4, -0.2]), np.linalg.inv(h))
        assert np.shape(got) == (2, 1), (
            f"errors of 2 rows, 2 inputs: [2, 1] comes back, for the column that is left, not {np.shape(got)}"
        )
        expected = np.array([[0.4], [-0.2]]) * want
        assert support.close(got + 1, expected + 1), (
            f"H = {h.tolist()}, errors 0.4 and -0.2: the other column gets {want} of each, "
            f"{expected.ravel().tolist()}; yours {np.round(got, 4).ravel().tolist()}. Minimise "
            "output_error over the second weight, on paper: error = before - after"
        )


def test_no_other_change_does_better(lab: ModuleType) -> None:
    """After compensation the error's slope is 0 in every free direction."""
    for seed in range(4):
        weight, h = support.made_up(seed, rows=3, columns=7)
        error = weight[:, 0]
        got = lab.compensation(error, np.linalg.inv(h))
        change = np.hstack([-error[:, None], got])
        slope = change @ h
        assert np.abs(slope[:, 1:]).max() < 1e-9 * np.abs(slope).max(), (
            f"draw {seed}: the outputs change by `change @ x`, and some step of the other 6 columns makes "
            f"them change less: the slope there is up to {np.abs(slope[:, 1:]).max():.2g}"
        )


# ---- a whole layer -------------------------------------------------------------------------------


def agree(got: np.ndarray, want: np.ndarray) -> float:
    """Share of equal codes."""
    return float((np.asarray(got) == want).mean())


def test_nothing_to_make_up_with(lab: ModuleType) -> None:
    """With a diagonal H the codes are the nearest ones, in every group."""
    rng = np.random.default_rng(0)
    weight, h = rng.normal(size=(6, 32)), np.diag(rng.uniform(0.1, 9, 32))
    for group_size in (8, 16, 32):
        got = lab.gptq(weight, h, group_size)
        assert np.shape(got.scale) == (6, 32 // group_size), (
            f"32 columns in groups of {group_size}: scales [6, {32 // group_size}], yours "
            f"{np.shape(got.scale)}"
        )
        assert got.g_idx.tolist() == [j // group_size for j in range(32)], (
            f"in order, column j is of group j // {group_size}; yours {got.g_idx.tolist()}"
        )
        assert support.close(got.weight(), support.nearest(weight, group_size)), (
            f"group size {group_size}: no input goes with another, so nothing can be made up for, and each "
            "weight rounds to its nearest code, with the scale of its group"
        )


@pytest.mark.parametrize("group_size", [24, 8], ids=["a scale a row", "groups of 8"])
def test_it_is_the_slow_form(lab: ModuleType, group_size: int) -> None:
    """Codes and scales equal those of a slow loop that inverts the rest of H for each column."""
    for seed, damp in ((0, None), (1, None), (2, 0.3)):
        weight, h = support.made_up(seed, rows=5, columns=24)
        codes, scale = support.slow(weight, support.with_damp(h, damp or 0.01), group_size)
        got = lab.gptq(weight, h, group_size, **({"damp": damp} if damp else {}))
        assert np.issubdtype(got.codes.dtype, np.integer), (
            f"codes are integers, yours {got.codes.dtype}"
        )
        nearest = np.rint(
            support.nearest(weight, group_size) / np.repeat(scale, group_size, axis=1)
        )
        looks = " They are those of round-to-nearest." if agree(got.codes, nearest) > 0.99 else ""
        same = agree(got.codes, codes)
        first = np.flatnonzero((np.asarray(got.codes) != codes).any(axis=0))
        assert same == 1, (
            f"draw {seed}, 24 columns, groups of {group_size}, damp {damp or 0.01}: {100 * same:.0f} % of "
            f"the codes are those of the slow form; column {first[0]} is the first with another.{looks}"
        )
        assert support.close(got.scale, scale), (
            f"draw {seed}, group size {group_size}: the codes are right, and the scales are not: "
            f"{np.round(got.scale[0], 4)} and not {np.round(scale[0], 4)} in row 0"
        )


def test_a_group_is_scaled_for_what_it_has_become(lab: ModuleType) -> None:
    """The first group's errors move the second group before its scale is chosen."""
    weight, h = support.made_up(11, rows=4, columns=16)
    _, scale = support.slow(weight, support.with_damp(h, 0.01), 8)
    got = lab.gptq(weight, h, 8).scale
    start = support.step_of(weight[:, 8:])[:, 0]
    looks = " Those are of the weights as they came." if support.close(got[:, 1], start) else ""
    assert support.close(got[:, 1], scale[:, 1]), (
        f"the second group's steps are {np.round(scale[:, 1], 4)}, yours {np.round(got[:, 1], 4)}.{looks}"
    )


@pytest.mark.parametrize("name", ["0.self_attn.q_proj", "1.self_attn.k_proj"])
def test_a_real_layer_loses_less(lab: ModuleType, name: str) -> None:
    """Layers of the shipped model lose less than with round-to-nearest, on tokens not calibrated on, too."""
    weight, x = support.real_layer(name)
    seen, new = x[::2], x[1::2]
    h = 2 / len(seen) * (seen.T @ seen)
    plain = support.nearest(weight, 32)
    for act_order in (False, True):
        got = lab.gptq(weight, h, 32, act_order=act_order).weight()
        for what, rows in (("tokens that H is made of", seen), ("other tokens", new)):
            mine, theirs = (((rows @ (w - weight).T) ** 2).sum() for w in (got, plain))
            assert mine < 0.8 * theirs, (
                f"layer {name}, act_order={act_order}, {what}: the outputs' error is {mine / theirs:.2f} of "
                "round-to-nearest's; the reference stays below 0.8"
            )
