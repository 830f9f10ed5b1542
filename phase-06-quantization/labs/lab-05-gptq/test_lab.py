"""Lab 06-05: what an error costs, what makes up for it, and a whole layer rounded so."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Two weights by hand, a diagonal H, who makes up for whom, and a large layer's H."""
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
        "bytes of H": (
            [822_083_584],
            "How many numbers are in H, and of how many bytes is each?",
        ),
    }
    assert said.keys() == facts.keys(), f"four questions, {sorted(facts)}; yours: {sorted(said)}"
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact, 1e-6)
        assert not wrong, f"{name}: {wrong}. {ask}"


def test_the_grid_is_as_it_was_given(lab: ModuleType) -> None:
    """16 codes, and a row of zeros; the other tests count on it."""
    scale = lab.choose_scale(np.array([[-15.0, 3.0], [0.0, 0.0]]))
    assert scale.tolist() == [[2], [1]], f"given: 15 / 7.5, and 1 for zeros; yours {scale.tolist()}"
    codes = lab.to_codes(np.array([[-90.0, 90.0, -5.0]]), scale[:1])
    assert codes.tolist() == [[-8, 7, -2]], f"given: -8, 7 and, a tie, -2; yours {codes.tolist()}"


# ---- what an error costs -------------------------------------------------------------------------


def test_the_hessian(lab: ModuleType) -> None:
    """2/n XᵀX: by hand, and in float64 for float32 inputs."""
    x = np.array([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]], np.float32)
    got = lab.hessian(x)
    want = np.array([[10.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 0.0]])
    looks = (
        support.looks_like(
            np.asarray(got),
            {
                "XᵀX, not yet a mean": want,
                "XᵀX / n: the second derivative of a square has a 2": want / 2,
                "X Xᵀ, tokens by tokens": np.array([[5.0, 3.0], [3.0, 9.0]]),
            },
        )
        if not support.close(got, want)
        else ""
    )
    assert support.close(got, want), (
        f"two tokens, (1, 2, 0) and (3, 0, 0): H is 2/2 XᵀX = {want.tolist()}, yours "
        f"{np.round(got, 3).tolist()}.{looks}"
    )
    thrice = lab.hessian(np.vstack([x, x, x]))
    assert support.close(thrice, want), (
        "the same tokens three times over have the same mean, and so the same H; yours is "
        f"{thrice[0, 0]:.4g} and not 10 in its first entry"
    )
    assert got.dtype == np.float64, f"float64 whatever x is, yours {got.dtype}"
    wide = np.full((50_000, 1), np.float32(1 + 2**-12))
    exact = 2 * (1 + 2.0**-12) ** 2
    assert abs(lab.hessian(wide)[0, 0] - exact) < 1e-9, (
        f"50,000 float32 tokens of 1 + 2^-12: H is {exact:.9f}, yours {lab.hessian(wide)[0, 0]:.9f}. Widen x "
        "before the product: a sum in float32 loses its tail"
    )


def test_the_error_of_the_outputs(lab: ModuleType) -> None:
    """From H alone, what one would measure with the inputs."""
    weight, x = support.real_layer("1.self_attn.k_proj")
    h = 2 / len(x) * (x.T @ x)
    change = support.nearest(weight, 32) - weight
    measured = ((x @ change.T) ** 2).sum(axis=1).mean()
    got = lab.output_error(change, h)
    assert abs(got / measured - 1) < 1e-9, (
        f"a real layer, rounded: over {len(x)} tokens its outputs are off by {measured:.6g} (squares, mean "
        f"over the tokens, summed over the outputs); yours {got:.6g}, {got / measured:.3g} times that"
    )


def test_damping(lab: ModuleType) -> None:
    """A share of the mean of the diagonal, and 1 for a dead input; H itself stays."""
    h = np.array([[4.0, 1.0, 0.0], [1.0, 8.0, 0.0], [0.0, 0.0, 0.0]])
    before = h.copy()
    got = lab.damped(h, 0.1)
    want = np.array([[4.4, 1.0, 0.0], [1.0, 8.4, 0.0], [0.0, 0.0, 1.0]])
    assert np.array_equal(h, before), "H is the caller's; return a new one"
    assert got[2, 2] == 1, (
        f"input 2 was always 0, so its entry becomes 1; yours is {got[2, 2]:.4g}. Its column is 0 anyway, "
        "and 1 keeps H's inverse apart from it"
    )
    assert support.close(got, want), (
        f"diagonal 4, 8, 0, so the mean is 4, and a tenth of it is 0.4: {want.tolist()}, yours "
        f"{np.round(got, 4).tolist()}"
    )
    louder = lab.damped(100 * before[:2, :2], 0.1)
    assert support.close(louder, 100 * lab.damped(before[:2, :2], 0.1)), (
        "a hundred times H gets a hundred times the damping: it is a share, and inputs may be of any size"
    )


# ---- what makes up for it ------------------------------------------------------------------------


def test_compensation_by_hand(lab: ModuleType) -> None:
    """Two inputs that are equal, that are opposite, and that have nothing to do with each other."""
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
    """The error's slope is 0 in every direction that is left."""
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


def test_one_factor_for_all_inverses(lab: ModuleType) -> None:
    """Row j of U against the first row of the inverse of what is left of H."""
    for seed, columns in ((0, 1), (1, 5), (2, 12)):
        _, h = support.made_up(seed, 1, columns)
        u = lab.factor(h)
        assert np.shape(u) == h.shape, f"U has H's shape {h.shape}, yours {np.shape(u)}"
        below = np.abs(np.tril(u, -1)).max()
        assert below < 1e-12, (
            f"U is upper triangular, and yours has up to {below:.2g} below the diagonal"
        )
        assert (np.diag(u) > 0).all(), f"its diagonal is above 0, yours {np.diag(u).round(3)}"
        for j in range(columns):
            inverse = np.linalg.inv(h[j:, j:])
            got, want = u[j, j:] / u[j, j], inverse[0] / inverse[0, 0]
            assert support.close(got, want), (
                f"{columns} inputs, row {j}: U[j, j:] / U[j, j] is {np.round(got[:4], 4)}, of the inverse of "
                f"h[{j}:, {j}:] it is {np.round(want[:4], 4)}. numpy's cholesky(A) gives L with "
                "A = L @ L.T; which A, and what must U be?"
            )
        assert support.close(u.T @ u, np.linalg.inv(h)), (
            f"{columns} inputs: the rows have the right directions, and U.T @ U is not the inverse of h; its "
            f"first entry is {(u.T @ u)[0, 0]:.4g} and not {np.linalg.inv(h)[0, 0]:.4g}. Leave U undivided"
        )


# ---- a whole layer -------------------------------------------------------------------------------


def agree(got: np.ndarray, want: np.ndarray) -> float:
    """Share of equal codes."""
    return float((np.asarray(got) == want).mean())


def test_nothing_to_make_up_with(lab: ModuleType) -> None:
    """A diagonal H: the codes are the nearest ones, in every group."""
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
    """Codes and scales of a loop that inverts what is left of H anew for each column."""
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
    """The first group's errors move the second before its scale is chosen."""
    weight, h = support.made_up(11, rows=4, columns=16)
    _, scale = support.slow(weight, support.with_damp(h, 0.01), 8)
    got = lab.gptq(weight, h, 8).scale
    start = support.step_of(weight[:, 8:])[:, 0]
    looks = " Those are of the weights as they came." if support.close(got[:, 1], start) else ""
    assert support.close(got[:, 1], scale[:, 1]), (
        f"the second group's steps are {np.round(scale[:, 1], 4)}, yours {np.round(got[:, 1], 4)}.{looks}"
    )


def test_loud_inputs_first(lab: ModuleType) -> None:
    """act_order is the same loop on reordered columns, and everything comes back in the weight's order."""
    weight, h = support.made_up(5, rows=4, columns=16)
    loud = np.random.default_rng(1).uniform(0.3, 3, 16)
    h = h * loud * loud[:, None]
    order = np.argsort(-np.diag(h))
    codes, scale = support.slow(
        weight[:, order], support.with_damp(h, 0.01)[np.ix_(order, order)], 8
    )
    place = np.argsort(order)
    got = lab.gptq(weight, h, 8, act_order=True)
    in_turn = np.array_equal(got.codes, codes)
    assert not in_turn, (
        "the codes stand in the order in which they were made: put each back into its column"
    )
    rising = np.argsort(np.diag(h))
    other, _ = support.slow(
        weight[:, rising], support.with_damp(h, 0.01)[np.ix_(rising, rising)], 8
    )
    assert not np.array_equal(got.codes, other[:, np.argsort(rising)]), (
        "the quietest input came first. The first columns have most others to make up for them, so the "
        "loudest go first"
    )
    assert np.array_equal(got.codes, codes[:, place]), (
        f"{100 * agree(got.codes, codes[:, place]):.0f} % of the codes are those of the slow form on columns "
        f"in the order {order.tolist()}, put back"
    )
    assert support.close(got.scale, scale), (
        "groups are stretches of that order, and so are their scales"
    )
    assert list(got.g_idx) == (place // 8).tolist(), (
        f"column j is of the group that it was rounded in: {(place // 8).tolist()}, yours {list(got.g_idx)}"
    )


def test_an_input_that_is_always_zero(lab: ModuleType) -> None:
    """Its column becomes 0 before a scale is chosen, it comes last, and no NaN comes of it."""
    weight, h = support.made_up(7, rows=3, columns=8)
    h[2] = h[:, 2] = 0
    with np.errstate(all="ignore"):
        for act_order in (False, True):
            got = lab.gptq(weight, h, 8, act_order=act_order).weight()
            assert np.isfinite(got).all(), (
                f"act_order={act_order}: {np.isnan(got).sum()} weights are NaN"
            )
            assert not got[:, 2].any(), (
                f"input 2 was always 0, so its column is set to 0 (act_order={act_order}); yours "
                f"{got[:, 2].round(3)}"
            )
        # A huge weight that no input ever reaches, and inputs so quiet that 1 would be the loudest.
        huge = weight.copy()
        huge[:, 2] = 1000
        for act_order in (False, True):
            got, want = (lab.gptq(w, h / 1000, 4, act_order=act_order) for w in (huge, weight))
            assert support.close(got.scale, want.scale), (
                f"act_order={act_order}: the weights of input 2 were never used, and they have changed a "
                "scale. Set them to 0 before the first scale is chosen"
            )
        quiet = lab.gptq(weight, h / 1000, 4, act_order=True)
        assert quiet.g_idx[2] == 1, (
            "input 2 has 0 in H's diagonal, so it comes last, in the second group of 4. Take the order from "
            "h as it came: once damped, a dead input has a 1 there"
        )


def test_fewer_tokens_than_inputs(lab: ModuleType) -> None:
    """20 tokens say nothing about some directions of 48 inputs: H has no inverse but for the damping."""
    weight, h = support.made_up(8, rows=4, columns=48, tokens=20)
    try:
        got = lab.gptq(weight, h, 16).weight()
    except np.linalg.LinAlgError as error:
        raise AssertionError(f"damp H before it is inverted: {error}") from error
    assert np.isfinite(got).all(), f"{np.isnan(got).sum()} weights are NaN"
    far = np.abs(got - weight).max()
    assert far < 10, (
        f"weights moved by up to {far:.3g}: an H that is not damped enough has a huge inverse"
    )


def test_nothing_is_written_over(lab: ModuleType) -> None:
    """Weight and H are the caller's, dead inputs or not."""
    weight, h = support.made_up(9, rows=3, columns=8)
    h[1] = h[:, 1] = 0
    copies = weight.copy(), h.copy()
    lab.gptq(weight, h, 4, act_order=True)
    lab.gptq(weight, h, 4)
    for name, now, then in zip(("weight", "h"), (weight, h), copies, strict=True):
        assert np.array_equal(now, then), f"`{name}` was changed; work on a copy"


@pytest.mark.parametrize("name", ["0.self_attn.q_proj", "1.self_attn.k_proj"])
def test_a_real_layer_loses_less(lab: ModuleType, name: str) -> None:
    """Layers of the shipped model, in groups of 32: against round-to-nearest, and on tokens not looked at."""
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
