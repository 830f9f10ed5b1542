"""Phase 06: GPTQ, AWQ and SmoothQuant against their papers' definitions and on the shipped model's layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from mini_vllm.compress.awq import awq, awq_scales
from mini_vllm.compress.evaluate import logprobs
from mini_vllm.compress.fold import all_folds, norm_folds
from mini_vllm.compress.gptq import gptq
from mini_vllm.compress.smoothquant import smooth, smoothing_scales
from mini_vllm.layers.quantization.grid import QuantArgs, round_to_nearest
from mini_vllm.model_loader import expected_tensors
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.utils.blas import blas_threads
from tests.engine.helpers.engine.engine_helpers import SMALL
from tests.engine.helpers.quantization.quantization_methods import CONFIG, inputs, weights

CHANNEL = QuantArgs(4, strategy="channel")
GROUP = QuantArgs(4, strategy="group", group_size=32)
ZERO_POINTS = replace(GROUP, symmetric=False)
Q, K, DOWN = (f"model.layers.1.{p}_proj" for p in ("self_attn.q", "self_attn.k", "mlp.down"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Products are small here, and on a busy machine a second thread costs more than it gives."""
    with blas_threads(1):
        yield


def correlated(rng: np.random.Generator, columns: int) -> np.ndarray:
    """A Hessian of inputs that go together in part."""
    x = rng.normal(size=(4 * columns, columns)) @ rng.normal(size=(columns, columns))
    return 2 / len(x) * x.T @ x


# ---- GPTQ ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [CHANNEL, GROUP, ZERO_POINTS], ids=["channel", "group", "zero"])
def test_gptq_without_correlation_rounds_to_nearest(args: QuantArgs) -> None:
    """Where no two inputs go together, no column can make up for another: a diagonal H changes nothing."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(6, 64)).astype(np.float32)
    plain = round_to_nearest(weight, args)
    made = gptq(weight, np.diag(rng.uniform(0.1, 9, 64)), args)
    assert np.array_equal(made.codes, plain.codes)
    assert np.array_equal(made.scale, plain.scale)
    assert (made.zero_point is None) == args.symmetric
    assert args.symmetric or np.array_equal(made.zero_point, plain.zero_point)


def test_gptq_is_optimal_brain_surgery() -> None:
    """The codes of the plain form: after each column the inverse of what is left of H, from scratch."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        weight = rng.normal(size=(5, 24)).astype(np.float32)
        hessian = correlated(rng, 24)
        damped = hessian + 0.01 * np.diag(hessian).mean() * np.eye(24)
        rest = weight.astype(np.float64)
        scale = round_to_nearest(weight, CHANNEL).scale.astype(np.float64)
        codes = np.empty((5, 24))
        for j in range(24):
            codes[:, j] = np.clip(np.rint(rest[:, j] / scale[:, 0]), -8, 7)
            error = rest[:, j] - codes[:, j] * scale[:, 0]
            inverse = np.linalg.inv(damped[j:, j:])
            rest[:, j:] -= np.outer(error / inverse[0, 0], inverse[0])
        assert np.array_equal(gptq(weight, hessian, CHANNEL).codes, codes), seed


def test_the_second_of_two_equal_inputs_makes_up() -> None:
    """Two inputs that are nearly the same: what the first weight loses the second gets."""
    weight = np.array([[0.4, 0.4, 7.5]], np.float32)  # a step of 1
    plain = round_to_nearest(weight, CHANNEL)
    assert plain.dequantize()[0, :2].tolist() == [0, 0]
    hessian = np.array([[1, 0.999, 0], [0.999, 1, 0], [0, 0, 1]])
    made = gptq(weight, hessian, CHANNEL, damp=0)
    assert made.dequantize()[0, :2].tolist() == [0, 1]  # 0.8 together


@pytest.mark.parametrize("args", [CHANNEL, GROUP, ZERO_POINTS], ids=["channel", "group", "zero"])
@pytest.mark.parametrize("desc_act", [False, True])
def test_gptq_beats_round_to_nearest_on_a_real_layer(args: QuantArgs, desc_act: bool) -> None:
    """The outputs of a layer of the shipped model change less, in the mean over its inputs."""
    weight, seen = weights()[f"{K}.weight"], inputs()[K]
    made = gptq(weight, seen.hessian, args, desc_act=desc_act)
    error = seen.error(made.dequantize() - weight)
    assert error < 0.8 * seen.error(round_to_nearest(weight, args).dequantize() - weight)


def test_act_order_is_gptq_on_reordered_columns() -> None:
    """Loud inputs first; codes come back in the weight's order, and `g_idx` says whose scale is whose."""
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(4, 64)).astype(np.float32)
    hessian = correlated(rng, 64)
    order = np.argsort(-np.diag(hessian))
    made = gptq(weight, hessian, GROUP, desc_act=True)
    sorted_columns = gptq(weight[:, order], hessian[np.ix_(order, order)], GROUP)
    assert np.array_equal(made.codes[:, order], sorted_columns.codes)
    assert made.g_idx is not None
    assert made.g_idx[order].tolist() == [0] * 32 + [1] * 32
    assert np.array_equal(made.dequantize()[:, order], sorted_columns.dequantize())
    assert sorted_columns.g_idx is None


def test_the_size_of_the_hessian_does_not_matter() -> None:
    """2/n XᵀX or the plain sum: the same codes. Neither argument is changed."""
    rng = np.random.default_rng(4)
    weight, hessian = rng.normal(size=(3, 32)), correlated(rng, 32)
    copies = weight.copy(), hessian.copy()
    made = gptq(weight, hessian, GROUP)
    assert np.array_equal(made.codes, gptq(weight, 1024 * hessian, GROUP).codes)
    assert np.array_equal(weight, copies[0])
    assert np.array_equal(hessian, copies[1])


def test_an_input_that_is_always_zero() -> None:
    """It tells nothing and does nothing: its column becomes 0, the others are as without it."""
    rng = np.random.default_rng(5)
    weight, hessian = rng.normal(size=(3, 8)), correlated(rng, 8)
    weight[:, 4] = 0.01
    hessian[4] = hessian[:, 4] = 0
    made = gptq(weight, hessian, CHANNEL)
    assert not made.codes[:, 4].any()
    few = np.delete(np.arange(8), 4)
    # damp is a share of the mean of the diagonal, where a dead input counts 1.
    damp = 0.01 * (np.diag(hessian).sum() + 1) / 8
    alone = hessian[np.ix_(few, few)] + damp * np.eye(7)
    assert np.array_equal(made.codes[:, few], gptq(weight[:, few], alone, CHANNEL, damp=0).codes)


def test_what_gptq_refuses() -> None:
    """Each with the value and the rule."""
    weight, hessian = np.ones((2, 8)), np.eye(8)
    for says, call in (
        ("got shape", lambda: gptq(weight, np.eye(4), CHANNEL)),
        ("damp", lambda: gptq(weight, hessian, CHANNEL, damp=-1)),
        ("damp 0", lambda: gptq(weight, np.ones((8, 8)), CHANNEL, damp=0)),
        ("group_size 3", lambda: gptq(weight, hessian, replace(GROUP, group_size=3))),
        ("'tensor'", lambda: gptq(weight, hessian, QuantArgs(4))),
        ("'float'", lambda: gptq(weight, hessian, QuantArgs(8, "float", strategy="channel"))),
    ):
        with pytest.raises(ValueError, match=says):
            call()


# ---- scales that move ----------------------------------------------------------------------------


def test_a_fold_moves_a_scale_without_loss() -> None:
    """Powers of two: norms, v, up and what follows them change, the product of both stays, bit for bit."""
    from tests.engine.helpers.quantization.quantization_methods import held_out, with_weights

    rng = np.random.default_rng(0)
    tensors = weights()
    for fold in all_folds(CONFIG):
        size = tensors[f"{fold.linears[0]}.weight"].shape[1]
        tensors = fold.apply(tensors, fold.share(2.0 ** rng.integers(-1, 2, size)))
    changed = {name for name in tensors if not np.array_equal(tensors[name], weights()[name])}
    assert len(changed) == 4 * 9  # two norms and seven linear layers each
    ids = held_out()[0]
    before, after = logprobs(with_weights(weights()), ids), logprobs(with_weights(tensors), ids)
    assert np.abs(after - before).max() < 1e-4


def test_a_fold_divides_the_bias_of_its_source() -> None:
    """v and up may have one, and what they hand on is all divided; those of q and k stay."""
    config = replace(SMALL, attention_bias=True, mlp_bias=True)
    rng = np.random.default_rng(0)
    plain = {
        name: rng.normal(0, 0.5, shape).astype(np.float32)
        for name, shape in expected_tensors(config).items()
    }
    folded = plain
    for fold in all_folds(config):
        size = folded[f"{fold.linears[0]}.weight"].shape[1]
        folded = fold.apply(folded, fold.share(2.0 ** rng.integers(-1, 2, size)))
    biases = {name for name in plain if name.endswith(".bias")}
    changed = {name for name in biases if not np.array_equal(plain[name], folded[name])}
    assert {name.split(".")[-2] for name in changed} == {"v_proj", "up_proj"}
    ids = [5, 9, 11, 40, 3]
    before, after = (logprobs(LlamaForCausalLM(config, each), ids) for each in (plain, folded))
    assert np.abs(after - before).max() < 1e-4


def test_query_heads_of_a_group_share_their_scales() -> None:
    """`o_proj` has a channel for each query head, `v_proj` a row for each KV head."""
    fold = next(f for f in all_folds(CONFIG) if f.source == "model.layers.0.self_attn.v_proj")
    assert (fold.group, fold.head_dim) == (2, 32)
    shared = fold.share(np.arange(128.0)).reshape(2, 2, 32)
    assert np.array_equal(shared[:, 0], shared[:, 1])
    assert shared[0, 0, 0] == 16  # of channels 0 and 32
    before = weights()
    after = fold.apply(before, shared.reshape(-1) + 1)
    rows = before["model.layers.0.self_attn.v_proj.weight"] / after[f"{fold.source}.weight"]
    assert np.allclose(rows[:, 0], shared[:, 0].reshape(-1) + 1)


# ---- AWQ -----------------------------------------------------------------------------------------


def test_awq_scales() -> None:
    """A power of the mean magnitude, as loud up as down; nothing for ratio 0."""
    loudness = np.array([1.0, 4.0, 16.0])
    assert awq_scales(loudness, 0).tolist() == [1, 1, 1]
    assert awq_scales(loudness, 0.5).tolist() == [0.5, 1, 2]
    assert np.isfinite(awq_scales(np.array([0.0, 1.0]), 0.5)).all()


def test_awq_never_does_worse_than_rounding() -> None:
    """Ratio 0 is in the grid, so the error that it searches is at most that of round-to-nearest."""
    made = awq(CONFIG, weights(), inputs(), ZERO_POINTS, grid=3)
    assert made.ratios.keys() == {fold.source for fold in all_folds(CONFIG)}
    better = 0
    for fold in all_folds(CONFIG):
        seen = inputs()[fold.linears[0]]
        s = awq_scales(fold.share(seen.absmean), made.ratios[fold.source]).astype(np.float32)
        plain = found = 0.0
        for name in fold.linears:
            weight = weights()[f"{name}.weight"]
            plain += seen.error(round_to_nearest(weight, ZERO_POINTS).dequantize() - weight)
            found += seen.error(round_to_nearest(weight * s, ZERO_POINTS).dequantize() / s - weight)
        assert found <= plain, fold.source
        better += made.ratios[fold.source] > 0
    assert better >= 12  # of 16
    s = awq_scales(inputs()[Q].absmean, made.ratios["model.layers.1.input_layernorm"])
    assert np.allclose(made.weights[f"{Q}.weight"], weights()[f"{Q}.weight"] * s)


# ---- SmoothQuant ---------------------------------------------------------------------------------


def test_smoothing_scales_by_hand() -> None:
    """Equation 4, its ends, and channels without input or weight."""
    x, w = np.array([8.0, 2.0]), np.array([0.5, 2.0])
    assert smoothing_scales(x, w, 0.5).tolist() == [4, 1]
    assert smoothing_scales(x, w, 1).tolist() == [8, 2]
    assert smoothing_scales(x, w, 0).tolist() == [2, 0.5]
    assert smoothing_scales(np.array([0.0, 3.0]), np.array([1.0, 0.0]), 0.5).tolist() == [1, 1]
    with pytest.raises(ValueError, match=r"alpha must be 0 to 1, got 1\.5"):
        smoothing_scales(x, w, 1.5)


def test_smoothing_evens_out_both_sides() -> None:
    """With alpha 0.5 the largest input and the largest weight of a channel are the same afterwards."""
    made = smooth(CONFIG, weights(), inputs())
    for fold in norm_folds(CONFIG):
        norms = (tensors[f"{fold.source}.weight"] for tensors in (made, weights()))
        moved = np.divide(*norms)
        absmax_x = inputs()[fold.linears[0]].absmax * moved
        absmax_w = np.max([np.abs(made[f"{n}.weight"]).max(axis=0) for n in fold.linears], axis=0)
        assert np.allclose(absmax_x, absmax_w, rtol=1e-4), fold.source
    assert np.array_equal(made[f"{DOWN}.weight"], weights()[f"{DOWN}.weight"])
