"""Linear methods: what is stored, what is multiplied, and that nothing changes where nothing is quantised."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mini_vllm.layers.linear import Linear
from mini_vllm.layers.quantization.base import NoQuantizationConfig
from mini_vllm.layers.quantization.config import OnlineQuantizationConfig
from mini_vllm.layers.quantization.float_formats import E4M3
from mini_vllm.layers.quantization.linear import unpack_numbers
from mini_vllm.layers.quantization.pack import pack_int32, unpack_int32
from mini_vllm.layers.quantization.scaled import (
    Fp8LinearMethod,
    W8A8Int8LinearMethod,
    quantize_per_token_asymmetric_int8,
    quantize_per_token_fp8,
    quantize_per_token_int8,
)
from mini_vllm.model_loader import load_model, load_weights
from tests.engine.helpers.models.model_helpers import texts, whole, write_checkpoint
from tests.engine.helpers.quantization.quantized_helpers import (
    cases,
    quantized_weight,
    twin,
    write_quantized,
)

CASES = cases(group=16)


def rows(n: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, size)).astype(np.float32)


def test_without_quantisation_the_product_is_the_plain_one() -> None:
    """Every bit of it, for one projection and for three side by side."""
    weights = {
        f"{name}.weight": rows(out, 32, out) for name, out in (("q", 24), ("k", 8), ("v", 16))
    }
    weights["k.bias"], weights["q.bias"], weights["v.bias"] = (
        rows(1, 8)[0],
        rows(1, 24)[0],
        rows(1, 16)[0],
    )
    x = rows(5, 32)
    for names in (("q",), ("q", "k", "v")):
        sizes = {name: len(weights[f"{name}.weight"]) for name in names}
        linear = Linear(weights, 32, sizes, True, NoQuantizationConfig())
        matrix = np.concatenate([weights[f"{n}.weight"] for n in names])
        bias = np.concatenate([weights[f"{n}.bias"] for n in names])
        np.testing.assert_array_equal(linear.weight, matrix)
        # Bit for bit: one product, of matrices of the same shape that lie in memory the same way.
        if linear.weight.flags.c_contiguous:
            product = np.ascontiguousarray((matrix @ x.T).T)
        else:
            product = x @ np.ascontiguousarray(matrix.T)
        np.testing.assert_array_equal(linear(x), product + bias)
        assert (linear.input_size, linear.output_size) == (32, sum(sizes.values()))


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("w8a8", "fp8")])
def test_a_weight_only_model_is_the_one_that_its_codes_stand_for(name: str, tmp_path: Path) -> None:
    """Read, repacked, sorted and multiplied: logits as those of a float32 model with dequantised weights."""
    write_checkpoint(tmp_path / "float")
    weights = write_quantized(tmp_path / "float", tmp_path / "quantised", CASES[name])
    model, expected = load_model(tmp_path / "quantised"), twin(tmp_path / "float", weights)
    ids = texts(model)["r0"]
    logits = whole(expected, ids)
    np.testing.assert_allclose(whole(model, ids), logits, rtol=0, atol=2e-5 * np.abs(logits).max())
    assert np.abs(logits - whole(load_model(tmp_path / "float"), ids)).max() > 1e-3
    down = model.layers[0].mlp.down_proj
    assert down.weight_packed.nbytes == 32 * 48 * CASES[name].args.num_bits // 8, (
        "codes stay packed in memory, as in the file"
    )


def layer_of(method: Any, **tensors: np.ndarray) -> Any:
    """A layer of one projection, loaded."""
    out, size = tensors["weight"].shape
    layer = SimpleNamespace(names=["x"], input_size=size, output_sizes=[out], **tensors)
    method.process_weights_after_loading(layer)
    return layer


@pytest.mark.parametrize("size", [96, 1032, 4096])
def test_w8a8_sums_whole_numbers_exactly(size: int) -> None:
    """Also where float32 could not: 1,032 products of 128 by 128 are the most that fit below 2^24."""
    rng = np.random.default_rng(size)
    weight = rng.integers(-128, 128, (7, size)).astype(np.int8)
    weight[0] = -128
    x = rows(3, size)
    x[0] = -1.0
    method, scale = W8A8Int8LinearMethod("channel"), rng.random((7, 1)).astype(np.float32)
    got = method.apply(layer_of(method, weight=weight, weight_scale=scale), x)
    codes, x_scale = quantize_per_token_int8(x)
    sums = codes.astype(np.int64) @ weight.astype(np.int64).T
    np.testing.assert_array_equal(got, sums.astype(np.float32) * x_scale * scale.T)


def test_activations_get_a_scale_a_row() -> None:
    """The largest number of a row is 127 steps, or 448 in FP8; a row of zeros stays zeros."""
    x = np.array([[0.5, -2.0, 1.0], [0, 0, 0], [1e-30, -3e-30, 0], [300, 1, -2]], np.float32)
    codes, scale = quantize_per_token_int8(x)
    assert codes.dtype == np.int8
    assert codes.tolist() == [[32, -127, 64], [0, 0, 0], [42, -127, 0], [127, 0, -1]]
    np.testing.assert_allclose(scale.ravel(), np.array([2, 0, 3e-30, 300]) / 127, rtol=1e-6)
    fp8, scale = quantize_per_token_fp8(x)
    numbers = E4M3.decode(fp8)
    assert numbers[0].tolist() == [112, -448, 224]
    assert numbers[1].tolist() == numbers[2].tolist() == [0, 0, 0], (
        "a scale is at least 1 / (448 * 512)"
    )
    np.testing.assert_allclose(numbers[3] * scale[3], x[3], rtol=0.07)


def test_a_row_may_have_a_zero_point_of_its_own() -> None:
    """From its smallest number to its largest; one number alone is coded from 0."""
    x = np.array(
        [[0, 1, 2.55], [-5, -5, -5], [0, 0, 0], [100, 101, 102.55], [-1e-38, 0, 0]], np.float32
    )
    with np.errstate(all="raise", under="ignore"):
        codes, scale, zero_point = quantize_per_token_asymmetric_int8(x)
    assert codes[0].tolist() == [-128, -28, 127]
    assert codes[2].tolist() == [-128] * 3
    np.testing.assert_allclose((codes - zero_point) * scale, x, rtol=0, atol=0.006)
    assert np.abs((codes - zero_point) * scale - x)[[1, 2, 4]].max() < 1e-6


def test_a_row_of_next_to_nothing_has_finite_codes() -> None:
    """1 divided by its scale would be infinite, and infinity times a 0 beside it is NaN."""
    x = np.array([[1e-38, 0, -1e-38], [1e-45, 0, 0]], np.float32)
    with np.errstate(all="raise", under="ignore"):
        codes, scale = quantize_per_token_int8(x)
    assert codes[:, 1].tolist() == [0, 0]
    assert np.abs(codes * scale - x).max() < 1e-37


@pytest.mark.parametrize("activations", [True, False])
@pytest.mark.parametrize("strategy", ["channel", "tensor"])
def test_fp8_is_a_product_of_decoded_numbers(strategy: str, activations: bool) -> None:
    weight = E4M3.encode(rows(6, 32, 1) * 100)
    scale = np.array([[0.5], [2], [1], [0.25], [1], [3]], np.float32)
    if strategy == "tensor":
        scale = np.array([[0.5]], np.float32)
    x = rows(4, 32)
    method = Fp8LinearMethod(strategy, activations)
    got = method.apply(layer_of(method, weight=weight, weight_scale=scale), x)
    if activations:
        codes, x_scale = quantize_per_token_fp8(x)
        x = E4M3.decode(codes) * x_scale
    matrix = E4M3.decode(weight).astype(np.float64) * scale
    np.testing.assert_allclose(got, x @ matrix.T, rtol=2e-6, atol=1e-4)


def test_a_scale_for_each_projection_becomes_one_for_each_row() -> None:
    """Strategy tensor: q, k and v have a scale each, and are one product."""
    weights: dict[str, np.ndarray] = {}
    for name, out, scale in (("q", 4, 1.0), ("k", 2, 2.0), ("v", 2, 3.0)):
        weights[f"{name}.weight"] = np.ones((out, 8), np.int8)
        weights[f"{name}.weight_scale"] = np.array(scale if name == "k" else [scale], np.float32)
    config = OnlineQuantizationConfig(W8A8Int8LinearMethod("tensor"))
    linear: Any = Linear(weights, 8, {"q": 4, "k": 2, "v": 2}, False, config)
    assert linear.weight_scale.tolist() == [1, 1, 1, 1, 2, 2, 3, 3]
    np.testing.assert_allclose(
        linear(np.ones((1, 8), np.float32))[0], 8 * linear.weight_scale, rtol=1e-6
    )


@pytest.mark.parametrize("bits", [4, 8])
def test_numbers_are_unpacked_as_the_plain_form_does(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 2**bits, (5, 64)).astype(np.int32)
    packed = pack_int32(codes, bits, axis=1)
    got = unpack_numbers(packed, bits)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, unpack_int32(packed, bits, axis=1, length=64))


def test_columns_in_the_order_of_their_groups_are_not_moved(tmp_path: Path) -> None:
    """A g_idx that is in order costs nothing in a step; another one is kept as a gather of the input."""
    write_checkpoint(tmp_path / "float")
    for name, moved in (("gptq", False), ("gptq-desc", True)):
        write_quantized(tmp_path / "float", tmp_path / name, CASES[name])
        linear: Any = load_model(tmp_path / name).layers[0].mlp.gate_up_proj
        assert (linear.perm is not None) is moved
    case = CASES["gptq-desc"]
    up = load_weights(tmp_path / "float")["model.layers.0.mlp.up_proj.weight"]
    expected = quantized_weight(up, case).dequantize()
    got = linear.quant_method.dequantize(linear)[48:]
    np.testing.assert_allclose(got, expected[:, linear.perm], rtol=1e-6)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("small_kernels", [True, False])
def test_either_order_in_memory_gives_the_product(
    small_kernels: bool, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which one a machine takes depends on its BLAS, and for a small matrix does not; rows are those of
    float64 to float32's last digits."""
    from mini_vllm.layers.quantization import base as module

    monkeypatch.setattr(module, "has_small_matrix_kernels", lambda: small_kernels)
    monkeypatch.setattr(module, "SMALL_WEIGHT", 24 * 32 + small)
    weights = {"q.weight": rows(24, 32, 1)}
    linear = Linear(weights, 32, {"q": 24}, False, NoQuantizationConfig())
    assert linear.weight.flags.c_contiguous is (small_kernels and not small)
    for n in (1, 2, 5, 40):
        x = rows(n, 32, n)
        got, want = linear(x), x.astype(np.float64) @ weights["q.weight"].T.astype(np.float64)
        assert got.flags.c_contiguous, "what comes after reads it row by row"
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
