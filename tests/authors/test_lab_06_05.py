"""Lab 06-05: H, its factor, and the order of a layer's columns, as the lab gives them."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module

LAB = ROOT / "phase-06-quantization/labs/lab-05-gptq"
support = load_module(LAB / "support.py", "test_lab_06_05_support")


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    """What the starter gives, on what the solution writes."""
    starter = load_module(LAB / "starter.py", "test_lab_06_05_starter")
    solution = load_module(LAB / "solution.py", "test_lab_06_05_solution")
    starter.compensation = solution.compensation  # type: ignore[attr-defined]
    starter.round_columns = solution.round_columns  # type: ignore[attr-defined]
    return starter


def agree(got: np.ndarray, want: np.ndarray) -> float:
    """Share of equal codes."""
    return float((np.asarray(got) == want).mean())


def test_the_grid_is_as_it_was_given(lab: ModuleType) -> None:
    """16 codes, and a row of zeros; the other tests count on it."""
    scale = lab.choose_scale(np.array([[-15.0, 3.0], [0.0, 0.0]]))
    assert scale.tolist() == [[2], [1]], f"given: 15 / 7.5, and 1 for zeros; yours {scale.tolist()}"
    codes = lab.to_codes(np.array([[-90.0, 90.0, -5.0]]), scale[:1])
    assert codes.tolist() == [[-8, 7, -2]], f"given: -8, 7 and, a tie, -2; yours {codes.tolist()}"


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
