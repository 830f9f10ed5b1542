"""Lab 06-01: the step, the codes, the way back, and a layer that keeps nothing else."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)


def f32(rows: Any) -> np.ndarray:
    """Weights or scales that are read-only: a function that writes into them raises an error."""
    return support.read_only(np.array(rows, np.float32))


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your predictions hold: three about the grid, two about Noor's card."""
    linears, weights = 6_979_321_856, 7_241_732_096
    rows = 32 * (4096 + 1024 + 1024 + 4096 + 14336 + 14336 + 4096)
    num_bytes = linears + 2 * rows + 2 * (weights - linears)
    embedding = 2 * 32_000 * 4096
    facts = {
        "codes of a small row": (3, "How large is a step, and to which codes are -1 and 1 rounded?"),
        "codes of -0.9, 0.005, 1.0": (
            [-115, 1, 127], "How many steps is each of the three, and which is the largest code?",
        ),
        "127.5 without the clip": (
            -128, "To which integer is it rounded, and has that a place in 8 bits?",
        ),
        "gigabytes": (
            round(num_bytes / 1e9, 2), "What takes one byte, and what two? How many rows have a scale?",
        ),
        "milliseconds": (
            round((num_bytes - embedding) / 300e9 * 1e3, 1),
            "Which bytes are read for a token, and how many per millisecond?",
        ),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"five questions; these stand in one of the README and your answers only: {apart}"
    )
    near = {"gigabytes": 0.011, "milliseconds": 0.11}
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact, near.get(name, 0))
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- the grid ------------------------------------------------------------------------------------


def test_a_step_is_the_largest_magnitude_over_half_the_range(lab: ModuleType) -> None:
    """Each row, or the whole matrix, gets a float32 scale from its largest magnitude, whatever the sign."""
    weight = f32([[0.5, -2.55, 1.0], [0.1, 0.2, 0.255], [-0.001, 0.0, 0.0], [0.0, 1e-6, 0.0]])
    by_row = [[0.02], [0.002], [0.001 / 127.5], [1e-6 / 127.5]]
    for strategy, want in (("channel", by_row), ("tensor", [[0.02]])):
        got = lab.choose_scale(weight, strategy)
        assert np.shape(got) == np.shape(want), (
            f"strategy {strategy!r}: scales of a weight [4, 3] are {np.shape(want)}, not {np.shape(got)}"
        )
        assert got.dtype == np.float32, f"scales are float32, not {got.dtype}"
        assert np.allclose(got, want, rtol=1e-6, atol=0), (
            f"strategy {strategy!r}: the largest magnitude over 127.5 is {np.ravel(want).tolist()}; yours is "
            f"{np.ravel(got).tolist()}"
        )


def test_zeros_stay_zeros(lab: ModuleType) -> None:
    """A pruned row of zeros still gets a step above 0, or else 0 is divided by 0."""
    weight = f32([[0, 0], [1, -1]])
    scale = lab.choose_scale(weight, "channel")
    assert scale[0, 0] == np.finfo(np.float32).eps, (
        f"the scale of a row of zeros is float32's epsilon, 1.19e-07, not {scale[0, 0]}"
    )
    with np.errstate(all="raise"):
        got = lab.fake_quantize(weight, "channel")
    assert got[0].tolist() == [0, 0], f"a row of zeros comes back as {got[0].tolist()}"
    tiny = lab.choose_scale(f32([[1e-45, 0]]), "tensor")[0, 0]
    assert tiny == np.finfo(np.float32).eps, (
        f"1e-45 over 127.5 is 0 in float32, so that step is epsilon, too, not {tiny}: the step "
        "is asked, not the row"
    )


def test_what_no_step_reaches_is_refused(lab: ModuleType) -> None:
    """An infinite or NaN weight raises a ValueError, and the message says which."""
    for bad, word in ((np.nan, "nan"), (np.inf, "inf"), (-np.inf, "inf")):
        with pytest.raises(ValueError) as refused:
            lab.choose_scale(f32([[1, bad]]), "channel")
        assert word in str(refused.value).lower(), (
            f"the message about a weight of {bad} names it; yours is {str(refused.value)!r}"
        )


def test_a_strategy_that_nobody_knows_is_refused(lab: ModuleType) -> None:
    """An unknown strategy raises a ValueError with its name; it is not taken for a known one."""
    with pytest.raises(ValueError) as refused:
        lab.choose_scale(f32([[1, 2]]), "group")
    assert "group" in str(refused.value), (
        f"the message about the strategy 'group' names it; yours is {str(refused.value)!r}"
    )


def test_codes_are_the_nearest_step_and_a_tie_goes_to_the_even_one(lab: ModuleType) -> None:
    """Weights are rounded, not cut; a tie of 0.5 goes to 0 and 1.5 to 2, as compressed-tensors rounds."""
    weight = f32([[0.5, 1.5, 2.5, -0.5, -1.5, 0.9, -0.9, 126.4]])
    got = lab.quantize(weight, f32([[1]]))
    assert got.dtype == np.int8, f"codes are int8, not {got.dtype}"
    assert got.tolist() == [[0, 2, 2, 0, -2, 1, -1, 126]], (
        f"with steps of 1, {weight[0].tolist()} are [0, 2, 2, 0, -2, 1, -1, 126], not {got[0].tolist()}"
    )
    got = lab.quantize(f32([[45.5, -101.5]]), f32([[7]]))[0].tolist()
    assert got == [6, -14], (
        f"with steps of 7, 45.5 and -101.5 are 6.5 and -14.5 steps, so 6 and -14, not {got}: 1/7 is rounded "
        "itself, so divide by the step"
    )


def test_the_largest_weight_does_not_start_over(lab: ModuleType) -> None:
    """A weight of 127.5 steps rounds to 128, which a cast to int8 turns into -128: clip before the cast."""
    weight = f32([[127.5, -127.5, 32]]) / 64
    scale = lab.choose_scale(weight, "channel")
    got = lab.quantize(weight, scale)[0].tolist()
    assert got == [127, -128, 32], (
        f"127.5, -127.5 and 32 steps are the codes 127, -128 and 32, not {got}: the range goes from -128 to "
        "127, and what lies above is held there"
    )
    far = lab.quantize(f32([[500, -500]]), f32([[1]]))[0].tolist()
    assert far == [127, -128], f"500 and -500 steps are held at 127 and -128, not {far}"


def test_the_way_back_is_codes_times_steps(lab: ModuleType) -> None:
    """Dequantised weights are float32, per row or for all; -128 times a scale is not computed in 8 bits."""
    codes = np.array([[-128, 127], [1, -2]], np.int8)
    for scale, want in (([[0.5], [3]], [[-64, 63.5], [3, -6]]), ([[2]], [[-256, 254], [2, -4]])):
        got = lab.dequantize(codes, f32(scale))
        assert got.dtype == np.float32, f"weights are float32, not {got.dtype}"
        assert got.tolist() == want, (
            f"{codes.tolist()} in steps of {scale} are {want}, not {got.tolist()}"
        )


# ---- what it costs -------------------------------------------------------------------------------


def test_no_weight_moves_by_more_than_half_a_step(lab: ModuleType) -> None:
    """No weight moves by more than half of its strategy's step, up to float32 rounding."""
    weight = support.matrix()
    for strategy in ("channel", "tensor"):
        scale = lab.choose_scale(weight, strategy)
        got = lab.fake_quantize(weight, strategy)
        assert got.dtype == np.float32, f"fake-quantised weights are float32, not {got.dtype}"
        moved = np.abs(got - weight) / scale
        assert moved.max() <= 0.5001, (
            f"strategy {strategy!r}: a weight lies {moved.max():.3f} steps from where it was"
        )


def test_roundtrip_error_small(lab: ModuleType) -> None:
    """On rows of roughly normal weights the error is below one per cent of the whole."""
    weight = support.matrix()
    error = support.relative_error(lab.fake_quantize(weight, "channel"), weight)
    assert 0.001 < error < 0.01, f"the error is {error:.2%} of the weights; 0.1 to 1 % is right"


def test_per_channel_beats_per_tensor_on_outlier(lab: ModuleType) -> None:
    """With one step for all, a row a hundred times as large all but erases the other rows."""
    weight = support.matrix().copy()
    weight[7] *= 100
    others = np.arange(len(weight)) != 7
    by_row = support.relative_error(lab.fake_quantize(weight, "channel")[others], weight[others])
    for_all = support.relative_error(lab.fake_quantize(weight, "tensor")[others], weight[others])
    assert by_row < 0.01, (
        f"with a step a row the other rows lose {by_row:.2%}; nothing of row 7 is theirs"
    )
    assert for_all > 0.2, (
        f"with one step for all the other rows lose {for_all:.2%}; row 7 sets it, so over 20 % is right"
    )


# ---- the layer -----------------------------------------------------------------------------------


def test_the_layer_keeps_codes_and_scales_alone(lab: ModuleType) -> None:
    """The layer keeps int8 codes `[out, in]` and a float32 scale per row, and no float weight."""
    weight = support.matrix(24, 64)
    layer = support.layer(lab, weight)
    scale = lab.choose_scale(weight, "channel")
    assert layer.qweight.dtype == np.int8, f"qweight is int8, not {layer.qweight.dtype}"
    codes = lab.quantize(weight, scale)
    assert layer.qweight.shape == codes.shape, (
        f"qweight is [out, in], {list(codes.shape)}, not {list(layer.qweight.shape)}"
    )
    apart = int((layer.qweight != codes).sum())
    assert apart == 0, (
        f"qweight is what quantize makes of the weight, with a scale for each row; {apart:,} of "
        f"{codes.size:,} codes differ"
    )
    found = layer.weight_scale
    assert (found.shape, found.dtype) == (scale.shape, scale.dtype), (
        f"weight_scale is float32 [out, 1], [24, 1] here, not {found.dtype} {list(found.shape)}"
    )
    assert np.array_equal(found, scale), "weight_scale is what choose_scale says of the rows"
    kept = [name for name, value in vars(layer).items() if getattr(value, "size", 0) == weight.size]
    assert kept == ["qweight"], (
        f"arrays as large as the weight that the layer still holds: {kept}. Only qweight may be one"
    )


def test_memory_saving_about_4x(lab: ModuleType) -> None:
    """The storage is one byte per weight and four per row, all of it counted."""
    layer = support.layer(lab, support.matrix(100, 100))
    got = lab.storage_bytes(layer)
    assert got == 10_400, (
        f"100 rows of 100 weights are 10,000 codes of a byte and 100 scales of four: 10,400 bytes instead of "
        f"40,000; you count {got}"
    )


@pytest.mark.parametrize("n", [1, 5, 24])
def test_quant_linear_matches_fp_matmul(lab: ModuleType, n: int) -> None:
    """The layer gives the fake-quantised weights' product, and within a per cent the float weights'."""
    weight = support.matrix(24, 128)
    x = np.random.default_rng(n).standard_normal((n, 128)).astype(np.float32)
    got = lab.Int8LinearMethod().apply(support.layer(lab, weight), x)
    assert got.shape == (n, 24), f"{n} rows times 24 outputs are [{n}, 24], not {list(got.shape)}"
    assert got.dtype == np.float32, f"the product is float32, not {got.dtype}"
    exact = x.astype(np.float64) @ lab.fake_quantize(weight, "channel").astype(np.float64).T
    error = support.relative_error(got, exact)
    assert error < 1e-5, (
        f"the product differs from x @ fake_quantize(weight).T by {error:.2%}: is each column multiplied by "
        "its own row's scale?"
    )
    error = support.relative_error(got, x @ weight.T)
    assert error < 0.01, f"the product differs from the float one by {error:.2%}"


def test_the_engine_speaks_through_your_linears(lab: ModuleType) -> None:
    """With your method in all its layers, the shipped model gives the right logits and text."""
    method = lab.Int8LinearMethod()
    model = support.model(method)
    sizes = [(linear.output_size, linear.input_size) for linear in support.linears(model)]
    num_bytes = sum(lab.storage_bytes(linear) for linear in support.linears(model))
    want = sum(out * (size + 4) for out, size in sizes)
    assert num_bytes == want, f"its linears take {want:,} bytes, not {num_bytes:,}"
    said, plain = (
        support.say(model, "The KV cache", 8),
        support.say(support.model(None), "The KV cache", 8),
    )
    assert said == plain, f"in int8 it goes on {said!r}, in float32 {plain!r}"
