"""Lab 06-03: a product of 8-bit integers, what a loud channel does to it, and where the loudness can go."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your predictions hold: a code, a scale and a planted factor."""
    said = lab.predictions()
    facts = {
        "code of a quiet channel": (
            [1],
            "How large is a step, and how many of them is 0.4?",
        ),
        "s, input, weight": (
            [16, 4, 4],
            "Which power of either goes into s, and which of the two is divided by s?",
        ),
        "planted again": (
            [64, 64],
            "By how much does the input's part of s grow, and by how much the weight's?",
        ),
    }
    assert said.keys() == facts.keys(), f"three questions, {sorted(facts)}; yours: {sorted(said)}"
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact, 1e-6)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- a product of integers -----------------------------------------------------------------------


def test_codes_of_a_token(lab: ModuleType) -> None:
    """A token's codes are right by hand: its own scale, ties to even, both ends of the grid, all zeros."""
    x = np.array([[127.0, -127.0, 0.5, 1.5, -2.5], [0.0, 252.0, 1.0, 3.0, -254.0], [0.0] * 5])
    before = x.copy()
    with np.errstate(all="ignore"):
        codes, scale = lab.quantize_activations(x)
    assert np.array_equal(x, before), "x is the caller's; you have changed it"
    assert np.shape(scale) == (3, 1), (
        f"three tokens have three scales, [3, 1]; yours {np.shape(scale)}. A scale for each channel "
        "could not be taken out of the sum over channels"
    )
    assert np.allclose(scale[:, 0], [1, 2, 1]), (
        f"largest magnitudes 127, 254 (of -254) and 0: scales 1, 2, and 1 for a token of zeros; yours "
        f"{np.round(scale[:, 0], 4)}"
    )
    assert np.issubdtype(codes.dtype, np.integer), f"codes are integers, yours {codes.dtype}"
    want = [[127, -127, 0, 2, -2], [0, 126, 0, 2, -127], [0] * 5]
    assert np.array_equal(codes, want), (
        f"0.5, 1.5 and -2.5 steps are ties and go to the even codes 0, 2, -2: {want}, yours {codes.tolist()}"
    )


def test_a_loud_token_is_no_trouble(lab: ModuleType) -> None:
    """Each token has its own scale, so a token 1,000 times as large changes no other."""
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(4, 32)), rng.normal(size=(3, 32))
    louder = x * np.array([1, 1000, 1, 1])[:, None]
    alone, together = lab.w8a8(x, weight), lab.w8a8(louder, weight)
    assert support.close(together[[0, 2, 3]], alone[[0, 2, 3]], 1e-6), (
        "token 1 became 1,000 times as loud, and the outputs of the others have changed: a scale for each "
        "token, not one for all"
    )
    assert support.close(together[1], 1000 * alone[1], 1e-6), (
        "and its own outputs are 1,000 times what they were"
    )


def test_the_weight_has_a_scale_for_each_output(lab: ModuleType) -> None:
    """One large row of the weight leaves the other rows' codes alone; a row of zeros has the scale 1."""
    weight = np.random.default_rng(1).normal(size=(3, 16))
    weight[1] *= 500
    before = weight.copy()
    codes, scale = lab.quantize_weight(weight)
    assert np.shape(scale) == (3, 1), f"three outputs, scales [3, 1]; yours {np.shape(scale)}"
    assert (np.abs(codes).max(axis=1) == 127).all(), (
        f"each row's largest magnitude has the code 127: yours reach {np.abs(codes).max(axis=1).tolist()}"
    )
    assert np.array_equal(weight, before), "the weight is the caller's; you have changed it"
    want = support.reference_scale(weight)
    assert support.close(scale, want, 1e-6), (
        f"a row's scale is its largest magnitude over 127, {np.round(want[:, 0], 4)}; yours "
        f"{np.round(scale[:, 0], 4)}"
    )
    weight[2] = 0
    with np.errstate(all="ignore"):
        codes, scale = lab.quantize_weight(weight)
    assert [scale[2, 0], *codes[2]] == [1] + [0] * 16, (
        f"output 2 has only zeros for weights: scale 1 and codes 0, as for a token of zeros; yours "
        f"{scale[2, 0]} and {codes[2, :3].tolist()} ..."
    )


def test_the_product(lab: ModuleType) -> None:
    """Both scales are applied once to every output; without outliers the product is off by a percent."""
    rng = np.random.default_rng(2)
    for n, columns, out in ((1, 8, 3), (5, 64, 2), (3, 200, 7)):
        x, weight = rng.normal(size=(n, columns)) * 3, rng.normal(size=(out, columns)) / 7
        got, true = lab.w8a8(x, weight), x @ weight.T
        assert np.shape(got) == true.shape, f"[{n}, {out}] comes out, yours {np.shape(got)}"
        x_step, w_step = support.reference_scale(x), support.reference_scale(weight)
        want = (np.rint(x / x_step) * x_step) @ (np.rint(weight / w_step) * w_step).T
        off = np.abs(got - true).max() / np.abs(true).max()
        assert support.close(got, want, 1e-6), (
            f"{n} tokens, {columns} inputs: yours is off by {off:.2g} of the largest output, and rounded "
            f"inputs times rounded weights by {np.abs(want - true).max() / np.abs(true).max():.2g}. Each sum "
            "is multiplied with its token's scale and with its output's scale"
        )


def test_integers_are_added_exactly(lab: ModuleType) -> None:
    """A sum of 16,384 products of codes stays exact, though int8, int16 and float32 cannot hold it."""
    rng = np.random.default_rng(3)
    x = rng.integers(64, 128, size=(4, 16_384)).astype(np.float32)
    weight = rng.integers(64, 128, size=(6, 16_384)).astype(np.float32)
    x[:, 0] = weight[:, 0] = 127  # so each scale is 1, and an output is the sum itself
    want = x.astype(np.float64) @ weight.T.astype(np.float64)
    got = np.asarray(lab.w8a8(x, weight))
    # The sum may be given back in float32; only adding up in it is refused.
    wrong = np.argwhere(got.astype(np.float32) != want.astype(np.float32))
    said = "some of 24 sums of 16,384 products are off by units: added up in float32, which ends at 2^24"
    if len(wrong) and not np.abs(got - want).max() < 1e-5 * want.max():
        first = tuple(wrong[0])
        said = (
            f"{len(wrong)} of 24 sums of 16,384 products are not exact, the first {want[first]:,.0f}, yours "
            f"{got[first]:,.0f}. int8 or int16 wrapped around, and int32 would hold it; or a scale is not "
            "largest / 127"
        )
    assert not len(wrong), said


# ---- a loud channel ------------------------------------------------------------------------------


def test_a_loud_channel_is_trouble(lab: ModuleType) -> None:
    """A planted channel raises the error from below 2 % to above 10 %: small channels lose their codes."""
    of = support.block(1, "attn")
    true = [of.x @ w.T for w in of.weights]
    tame = support.error(lab, of.norm, of.weights, of.normed, true)
    loud, moved = lab.plant(of.norm, of.weights, [5, 77], 64)
    naive = support.error(lab, loud, moved, of.normed, true)
    assert tame < 0.02, (
        f"as it comes, the layer's outputs are off by {tame:.1%}; the reference by 0.7 %"
    )
    assert naive > 0.1, (
        f"two channels 64 times as loud, and the outputs are off by {naive:.1%} only; the reference by "
        "10.3 %. A scale for each token has to reach its loudest channel"
    )


# ---- where the loudness can go -------------------------------------------------------------------


def test_scales_by_hand(lab: ModuleType) -> None:
    """The scales follow the formula, at both ends of alpha, one s for all weights, 1 for dead channels."""
    absmax_x = np.array([64.0, 4.0, 0.0, 9.0])
    weights = [np.array([[0.25, -1, 1, 0], [0.1, 0.5, 1, 0]]), np.array([[-0.1, -4, 1, 0]])]
    copies = absmax_x.copy(), [w.copy() for w in weights]
    for alpha, want in ((0.5, [16, 1, 1, 1]), (1.0, [64, 4, 1, 1]), (0.0, [4, 0.25, 1, 1])):
        with np.errstate(all="ignore"):
            got = lab.smoothing_scales(absmax_x, weights, alpha)
        kept = np.array_equal(absmax_x, copies[0]) and all(map(np.array_equal, weights, copies[1]))
        assert kept, "absmax_x and the weights are the caller's; you have changed one"
        assert np.shape(got) == (4,), f"one s for each channel, [4]; yours {np.shape(got)}"
        assert np.allclose(got[2:], 1), (
            f"channel 2 has no input and channel 3 no weight: s = 1 there, yours {got[2:]}"
        )
        assert np.allclose(got[:2], want[:2]), (
            f"alpha {alpha}, inputs up to 64 and 4, columns up to 0.25 and 4 (of -4) over both weights: s = "
            f"{want[:2]}, yours {np.round(got[:2], 4).tolist()}"
        )
    assert np.allclose(lab.smoothing_scales(absmax_x, weights), [16, 1, 1, 1]), (
        "alpha is 0.5 if none is given"
    )


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.8, 1.0])
def test_smoothing_changes_no_output(lab: ModuleType, alpha: float) -> None:
    """Before anything is rounded, a smoothed layer is the same layer, to the last digits of float64."""
    for which in ("attn", "mlp"):
        of = support.block(2, which)
        copies = of.norm.copy(), [w.copy() for w in of.weights]
        norm, weights = lab.smooth(of.norm, of.weights, of.absmax, alpha)
        assert np.array_equal(of.norm, copies[0]), "the norm is the caller's; you have changed it"
        assert all(map(np.array_equal, of.weights, copies[1])), (
            "the weights are the caller's; you changed one"
        )
        assert len(weights) == len(of.weights), f"{len(of.weights)} weights, yours {len(weights)}"
        for i, (before, after) in enumerate(zip(of.weights, weights, strict=True)):
            true, got = of.x @ before.T, (of.normed * norm) @ after.T
            off = np.abs(got - true).max() / np.abs(true).max()
            assert off < 1e-12, (
                f"{which}, weight {i}, alpha {alpha}: the outputs are off by {off:.2g} before anything is "
                "rounded. The norm is divided by s, each column is multiplied, and all weights share s"
            )


def test_the_loudness_has_moved(lab: ModuleType) -> None:
    """With alpha 0.5 a channel's input and weight become equally large; with 1 all inputs do."""
    of = support.block(1, "mlp")
    for alpha in (0.5, 1.0):
        norm, weights = lab.smooth(of.norm, of.weights, of.absmax, alpha)
        if alpha == 0.5:
            assert support.close(norm, lab.smooth(of.norm, of.weights, of.absmax)[0]), (
                "smooth takes alpha 0.5, too, if none is given"
            )
        absmax_x = of.absmax * np.asarray(norm) / of.norm
        absmax_w = np.max([np.abs(w).max(axis=0) for w in weights], axis=0)
        one, other, what = (
            (absmax_x, absmax_w, "the largest input of each channel is its largest weight")
            if alpha == 0.5
            else (absmax_x, np.ones_like(absmax_x), "the largest input of each channel is 1")
        )
        assert np.allclose(one, other), (
            f"alpha {alpha}: {what}; in channel 0 yours has {one[0]:.4g} and {other[0]:.4g}"
        )


@pytest.mark.parametrize("which", ["attn", "mlp"])
def test_smoothing_saves_the_quiet_channels(lab: ModuleType, which: str) -> None:
    """With planted outliers, a smoothed layer is as good on new texts as one without outliers."""
    of = support.block(1, which)
    true = [of.x @ w.T for w in of.weights]
    tame = support.error(lab, of.norm, of.weights, of.normed, true)
    loud, moved = lab.plant(of.norm, of.weights, [5, 77], 64)
    absmax = of.absmax * np.asarray(loud) / of.norm
    naive = support.error(lab, loud, moved, of.normed, true)
    norm, weights = lab.smooth(loud, moved, absmax)
    smoothed = support.error(lab, norm, weights, of.normed, true)
    assert smoothed < naive / 5, (
        f"{which}: outputs are off by {naive:.1%} with two loud channels, by {smoothed:.1%} smoothed, and by "
        f"{tame:.1%} without any"
    )
    assert smoothed < 1.5 * tame, (
        f"{which}: smoothed the outputs are off by {smoothed:.2%}, without outliers by {tame:.2%}; the "
        "reference comes to about the same"
    )


def test_a_planted_factor_comes_out_whole(lab: ModuleType) -> None:
    """Smoothing ends at the same layer with and without planting, whatever alpha and factor are."""
    of = support.block(0, "attn")
    for alpha, factor in ((0.5, 64), (0.25, 1024), (0.9, 8)):
        loud, moved = lab.plant(of.norm, of.weights, [3], factor)
        norm, weights = lab.smooth(loud, moved, of.absmax * np.asarray(loud) / of.norm, alpha)
        want_norm, want = lab.smooth(of.norm, of.weights, of.absmax, alpha)
        same = support.close(norm, want_norm) and all(map(support.close, weights, want))
        assert same, (
            f"alpha {alpha}, channel 3 planted {factor} times as loud: norm {np.asarray(norm)[3]:.4g} there, "
            f"and {np.asarray(want_norm)[3]:.4g} where nothing was planted"
        )


def test_a_tame_layer_stays_as_good(lab: ModuleType) -> None:
    """A layer without outliers is not made much worse by smoothing."""
    for layer in (0, 3):
        of = support.block(layer, "mlp")
        true = [of.x @ w.T for w in of.weights]
        tame = support.error(lab, of.norm, of.weights, of.normed, true)
        norm, weights = lab.smooth(of.norm, of.weights, of.absmax)
        smoothed = support.error(lab, norm, weights, of.normed, true)
        assert 0.5 * tame < smoothed < 1.5 * tame, (
            f"layer {layer}: off by {tame:.2%} as it comes, and by {smoothed:.2%} smoothed"
        )
