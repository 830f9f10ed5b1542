"""Scales, zero points, codes and packed words: against numbers worked by hand, and there and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.layers.quantization.grid import (
    QuantArgs,
    QuantizedWeight,
    check_group_size,
    choose_scales,
    dequantize,
    quantize,
    round_to_nearest,
)
from mini_vllm.layers.quantization.pack import (
    AWQ_ORDER,
    pack_awq,
    pack_int32,
    unpack_awq,
    unpack_int32,
)
from tests.engine.helpers.thorough import either

INT4 = QuantArgs(4, strategy="channel")
UINT4 = QuantArgs(4, symmetric=False, strategy="channel")


def weights(seed: int, rows: int, columns: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


# -- scales and codes -----------------------------------------------------------------------------


def test_symmetric_scale_is_the_largest_magnitude_over_7_and_a_half_and_both_ends_are_codes() -> (
    None
):
    row = np.array([[15.0, 7.0, 1.0, 0.0, -1.0, -15.0]], np.float32)
    scale, zero_point = choose_scales(row, INT4)
    assert scale.tolist() == [[2.0]]
    assert zero_point is None
    codes = quantize(row, scale, None, INT4)
    assert codes.tolist() == [[7, 4, 0, 0, 0, -8]]  # 7.5 is cut to 7; 3.5, 0.5 and -0.5 go to even
    assert dequantize(codes, scale, None).tolist() == [[14.0, 8.0, 0.0, 0.0, 0.0, -16.0]]


def test_asymmetric_grid_spans_from_the_smallest_to_the_largest_and_holds_0_exactly() -> None:
    row = np.array([[-3.0, 0.0, 12.0, 5.4]], np.float32)
    scale, zero_point = choose_scales(row, UINT4)
    assert zero_point is not None
    assert (scale.tolist(), zero_point.tolist()) == ([[1.0]], [[3]])
    codes = quantize(row, scale, zero_point, UINT4)
    assert codes.tolist() == [[0, 3, 15, 8]]
    assert dequantize(codes, scale, zero_point).tolist() == [[-3.0, 0.0, 12.0, 5.0]]


def test_weights_all_above_0_still_have_0_on_their_grid() -> None:
    row = np.array([[10.0, 15.0]], np.float32)
    weight = round_to_nearest(row, UINT4)
    assert weight.zero_point is not None
    assert weight.zero_point.tolist() == [[0]]
    assert weight.dequantize().tolist() == row.tolist()


@pytest.mark.parametrize("args", [INT4, UINT4, QuantArgs(8, strategy="tensor")])
def test_a_group_of_zeros_comes_back_as_zeros(args: QuantArgs) -> None:
    weight = round_to_nearest(np.zeros((2, 8), np.float32), args)
    assert (weight.scale > 0).all()
    assert not weight.dequantize().any()


def test_a_group_has_its_own_scale_a_channel_has_one_and_a_tensor_has_one_for_all() -> None:
    weight = np.array([[7.5, 1.0, 75.0, 1.0], [0.75, 0.1, 750.0, 1.0]], np.float32)
    shapes = {
        QuantArgs(4, strategy="group", group_size=2): [[1.0, 10.0], [0.1, 100.0]],
        INT4: [[10.0], [100.0]],
        QuantArgs(4, strategy="tensor"): [[100.0]],
    }
    for args, expected in shapes.items():
        scale, _ = choose_scales(weight, args)
        np.testing.assert_allclose(scale, expected, rtol=1e-6, err_msg=str(args))


def test_a_scale_is_stored_in_16_bits_if_asked_and_the_codes_are_chosen_for_the_stored_one() -> (
    None
):
    weight = weights(0, 4, 64)
    args = QuantArgs(4, strategy="group", group_size=32, scale_dtype="float16")
    quantized = round_to_nearest(weight, args)
    assert (quantized.scale == quantized.scale.astype(np.float16)).all()
    again = quantize(weight, quantized.scale, None, args)
    assert (again == quantized.codes).all()


def test_fp8_codes_are_bytes_and_the_largest_weight_of_a_row_becomes_448() -> None:
    args = QuantArgs(8, "float", strategy="channel")
    row = np.array([[4.48, -2.24, 0.02, 0.0]], np.float32)
    weight = round_to_nearest(row, args)
    np.testing.assert_allclose(weight.scale, [[0.01]], rtol=1e-6)
    assert weight.codes.tolist() == [[0x7E, 0xF6, 0x40, 0x00]]  # 448, -224, 2, 0
    np.testing.assert_allclose(weight.dequantize(), row, rtol=1e-6)


def test_g_idx_gives_each_column_the_scale_of_its_group() -> None:
    codes = np.array([[1, 1, 1, 1]], np.int32)
    scale = np.array([[1.0, 10.0]], np.float32)
    g_idx = np.array([1, 0, 0, 1], np.int32)
    assert dequantize(codes, scale, None, g_idx).tolist() == [[10.0, 1.0, 1.0, 10.0]]
    columns = np.array([[10.0, 1.0, 1.0, 10.0]], np.float32)
    args = QuantArgs(4, strategy="group", group_size=2)
    assert quantize(columns, scale, None, args, g_idx).tolist() == [[1, 1, 1, 1]]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_no_weight_errs_by_more_than_half_a_step_but_for_float32s_rounding(
    bits: int, symmetric: bool
) -> None:
    weight = weights(bits, 8, 96)
    quantized = round_to_nearest(weight, QuantArgs(bits, "int", symmetric, "group", 32))
    error = np.abs(quantized.dequantize() - weight) / np.repeat(quantized.scale, 32, axis=1)
    # Asymmetric: the zero point is rounded as well, so an end may lie up to a step away.
    assert error.max() <= (0.5 if symmetric else 1.0) + 1e-4


@settings(max_examples=either(30, 300))
@given(
    bits=st.integers(2, 8),
    symmetric=st.booleans(),
    group_size=st.sampled_from([1, 2, 4, 8, 16]),
    data=st.data(),
)
def test_what_was_on_the_grid_stays_where_it_is(
    bits: int, symmetric: bool, group_size: int, data: st.DataObject
) -> None:
    args = QuantArgs(bits, "int", symmetric, "group", group_size)
    low, high = int(args.minimum), int(args.maximum)
    seed = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    codes = rng.integers(low, high + 1, (3, 16), dtype=np.int32)
    scale = np.exp2(rng.integers(-20, 20, (3, 16 // group_size))).astype(np.float32)
    zero_point = None if symmetric else rng.integers(low, high + 1, scale.shape, dtype=np.int32)
    numbers = dequantize(codes, scale, zero_point)
    assert (quantize(numbers, scale, zero_point, args) == codes).all()


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"num_bits": 9}, "num_bits must be 2 to 8 for type 'int', got 9"),
        ({"num_bits": 1}, "num_bits must be 2 to 8 for type 'int', got 1"),
        ({"num_bits": True}, "num_bits must be an int, got True"),
        ({"num_bits": 4, "type": "float"}, "num_bits must be 8 for type 'float', got 4"),
        ({"num_bits": 8, "type": "nf4"}, "type must be 'int' or 'float', got 'nf4'"),
        ({"num_bits": 8, "type": "float", "symmetric": False}, "symmetric must be True"),
        ({"num_bits": 4, "strategy": "row"}, "strategy must be one of tensor, channel"),
        ({"num_bits": 8, "strategy": "token"}, "dynamic must be True, got False"),
        ({"num_bits": 4, "strategy": "group"}, "group_size must be an int, got None"),
        ({"num_bits": 4, "strategy": "group", "group_size": 0}, "at least 1, got 0"),
        ({"num_bits": 4, "group_size": 128}, "group_size 128 needs strategy 'group'"),
        ({"num_bits": 4, "scale_dtype": "int8"}, "None, float16, bfloat16, float32, got 'int8'"),
    ],
)
def test_arguments_without_a_meaning_are_refused(keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        QuantArgs(**keywords)


def test_a_group_that_does_not_fit_is_refused_with_those_that_do() -> None:
    check_group_size(384, 128)
    check_group_size(200, 8)
    with pytest.raises(ValueError, match=r"16 does not divide the 200 .*; 8, 200 would, among"):
        check_group_size(200, 16)
    with pytest.raises(
        ValueError, match=r"256 does not divide the 384 inputs .* 8, 16, 32, 64, 128, 384 would"
    ):
        check_group_size(384, 256)
    with pytest.raises(ValueError, match=r"; 8, 16, 32, 64, 128 would, among others$"):
        choose_scales(weights(0, 2, 128), QuantArgs(4, strategy="group", group_size=48))
    with pytest.raises(ValueError, match="group_size -1 does not divide"):
        check_group_size(128, -1)


def test_weights_that_are_not_finite_or_no_matrix_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        choose_scales(np.array([[1.0, np.nan]]), INT4)
    with pytest.raises(ValueError, match="got shape \\(4,\\)"):
        choose_scales(np.ones(4), INT4)


def test_parts_that_do_not_fit_together_are_refused() -> None:
    codes = np.zeros((2, 4), np.int32)
    one = np.ones((2, 2), np.float32)
    group = QuantArgs(4, strategy="group", group_size=2)
    loose = QuantArgs(4, symmetric=False, strategy="group", group_size=2)
    index = np.array([0, 0, 1, 2], np.int32)
    for arguments, words in (
        ((codes + 8, one, None, group), "codes must be -8 to 7, got 8 to 8"),
        ((codes - 1, one, codes[:, :2], loose), "codes must be 0 to 15, got -1 to -1"),
        ((codes, one, codes[:, :2] + 16, loose), "zero_point must be 0 to 15, got 16 to 16"),
        ((codes, np.ones((3, 2), np.float32), None, group), "got shape \\(3, 2\\)"),
        ((codes, np.ones((2, 3), np.float32), None, group), "3 groups do not divide the 4"),
        ((codes, one, codes[:, :2], group), "has no zero point"),
        ((codes, one, None, loose), "zero point is missing"),
        ((codes, one, codes, loose), "the scale's shape \\(2, 2\\), got \\(2, 4\\)"),
        ((codes, one, None, group, index), "g_idx must be 0 to 1, got 0 to 2"),
        ((codes, one, None, group, index[:2]), "g_idx must have shape \\(4,\\)"),
    ):
        with pytest.raises(ValueError, match=words):
            QuantizedWeight(*arguments)


# -- packing --------------------------------------------------------------------------------------


def test_the_first_code_stands_in_the_lowest_bits() -> None:
    assert pack_int32(np.array([1, 2, 3, 4, 5, 6, 7, 8]), 4, 0).tolist() == [0x87654321 - 2**32]
    assert pack_int32(np.array([1, 2, 3, 4]), 8, 0).tolist() == [0x04030201]
    assert pack_int32(np.array([[1, 15]]), 4, 1).tolist() == [[0xF1]]


def test_awq_puts_columns_0_2_4_6_below_1_3_5_7() -> None:
    word = pack_awq(np.array([[0, 1, 2, 3, 4, 5, 6, 7]]))
    assert word.tolist() == [[0x75316420]]
    assert AWQ_ORDER == (0, 2, 4, 6, 1, 3, 5, 7)


@settings(max_examples=either(40, 400))
@given(
    bits=st.sampled_from([1, 2, 4, 8, 16]),
    rows=st.integers(0, 5),
    columns=st.integers(0, 40),
    axis=st.sampled_from([0, 1, -1, -2]),
    seed=st.integers(0, 2**32 - 1),
)
def test_packing_and_unpacking_is_exact(
    bits: int, rows: int, columns: int, axis: int, seed: int
) -> None:
    codes = np.random.default_rng(seed).integers(0, 2**bits, (rows, columns))
    packed = pack_int32(codes, bits, axis)
    assert packed.dtype == np.int32
    assert packed.shape[axis] == -(-codes.shape[axis] * bits // 32)
    assert (unpack_int32(packed, bits, axis, codes.shape[axis]) == codes).all()


@settings(max_examples=either(20, 200))
@given(rows=st.integers(0, 5), words=st.integers(0, 5), seed=st.integers(0, 2**32 - 1))
def test_awqs_order_and_back_is_exact(rows: int, words: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 16, (rows, 8 * words))
    assert (unpack_awq(pack_awq(codes)) == codes).all()
    bits = np.random.default_rng(seed).integers(-(2**31), 2**31, (rows, words)).astype(np.int32)
    assert (pack_awq(unpack_awq(bits)) == bits).all()


def test_what_cannot_be_packed_is_refused_by_value() -> None:
    codes = np.zeros((2, 8), np.int32)
    words = pack_int32(codes, 4, 1)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: pack_int32(codes - 8, 4, 1), "must be 0 to 15, got -8 to -8"),
        (lambda: pack_int32(codes + 16, 4, 1), "must be 0 to 15, got 16 to 16"),
        (lambda: pack_int32(codes.astype(np.float32), 4, 1), "whole numbers, got dtype float32"),
        (lambda: pack_int32(codes, 3, 1), "to fill a word of 32, got 3"),
        (lambda: pack_int32(codes, 4, 2), "axis 2 is not one of the 2 axes"),
        (lambda: unpack_int32(words, 4, 1, 9), "take 2 words along axis 1, got 1"),
        (lambda: unpack_int32(words.astype(np.int64), 4, 1, 8), "must be int32, got dtype int64"),
        (lambda: pack_awq(codes[:, :4]), "a multiple of 8, got shape \\(2, 4\\)"),
        (lambda: unpack_awq(words[0]), "must be \\[rows, words\\], got shape \\(1,\\)"),
    ]
    for call, message in calls:
        with pytest.raises(ValueError, match=message):
            call()


# -- held equal to compressed-tensors -------------------------------------------------------------


@pytest.mark.vllm
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("scale_dtype", [None, "float16", "bfloat16"])
def test_scales_zero_points_codes_and_numbers_are_compressed_tensors_bit_for_bit(
    bits: int, symmetric: bool, scale_dtype: Any
) -> None:
    import torch
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle import forward
    from compressed_tensors.quantization.utils import calculate_qparams

    theirs = QuantizationArgs(
        num_bits=bits, symmetric=symmetric, strategy="group", group_size=32,
        scale_dtype=getattr(torch, scale_dtype) if scale_dtype else None,
    )  # fmt: skip
    ours = QuantArgs(bits, "int", symmetric, "group", 32, scale_dtype=scale_dtype)
    half = 0 if symmetric else 2 ** (bits - 1)
    for seed in range(either(20, 200)):
        # Multiples of a small power of two fall on ties, which is where rules differ.
        steps = np.round(weights(seed, 16, 128) * 16) / (16 if seed % 2 else 15.7)
        weight = steps.astype(np.float32) + np.float32((0, 0.5, -40)[seed % 3])
        weight[0, :32] = 0.0 if symmetric else 1.0
        groups = torch.from_numpy(weight).reshape(16, 4, 32)
        scale, zero_point = calculate_qparams(groups.amin(-1), groups.amax(-1), theirs)
        mine, my_zero_point = choose_scales(weight, ours)
        assert (mine == scale.float().numpy()).all()
        if my_zero_point is not None:
            assert (my_zero_point - half == zero_point.numpy()).all()
        codes = forward.quantize(
            torch.from_numpy(weight), scale.float(), zero_point, theirs, dtype=torch.int32
        )
        my_codes = quantize(weight, mine, my_zero_point, ours)
        assert (my_codes - half == codes.numpy()).all()
        numbers = forward.dequantize(codes, scale.float(), zero_point, theirs)
        assert (dequantize(my_codes, mine, my_zero_point) == numbers.numpy()).all()


@pytest.mark.vllm
def test_fp8_scales_and_bytes_are_those_of_compressed_tensors() -> None:
    import torch
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle import forward
    from compressed_tensors.quantization.utils import calculate_qparams

    theirs = QuantizationArgs(num_bits=8, type="float", strategy="channel")
    ours = QuantArgs(8, "float", strategy="channel")
    for seed in range(either(20, 200)):
        weight = torch.from_numpy(weights(seed, 16, 128))
        scale, _ = calculate_qparams(weight.amin(1, True), weight.amax(1, True), theirs)
        theirs_codes = forward.quantize(weight, scale, None, theirs, dtype=torch.float8_e4m3fn)
        mine = round_to_nearest(weight.numpy(), ours)
        assert (mine.scale == scale.numpy()).all()
        assert (mine.codes == theirs_codes.view(torch.uint8).numpy()).all()
        back = forward.dequantize(theirs_codes, scale, None, theirs)
        assert (mine.dequantize() == back.numpy()).all()


@pytest.mark.vllm
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_words_are_those_of_compressed_tensors(bits: int, axis: Any) -> None:
    import torch
    from compressed_tensors.compressors.pack_quantized import pack_to_int32, unpack_from_int32

    half = 2 ** (bits - 1)
    codes = np.random.default_rng(bits).integers(-half, half, (24, 40)).astype(np.int8)
    theirs = pack_to_int32(torch.from_numpy(codes), bits, axis)
    ours = pack_int32(codes.astype(np.int32) + half, bits, axis)
    assert (ours == theirs.numpy()).all()
    back = unpack_from_int32(torch.from_numpy(ours), bits, torch.Size(codes.shape), axis)
    assert (back.numpy() == codes).all()


@pytest.mark.vllm
def test_awqs_order_is_the_one_that_vllm_undoes() -> None:
    from vllm.model_executor.layers.quantization.awq_marlin import _REVERSE_AWQ_PACK_ORDER

    assert [AWQ_ORDER[i] for i in _REVERSE_AWQ_PACK_ORDER] == list(range(8))
    codes = np.random.default_rng(0).integers(0, 16, (3, 16))
    nibbles = unpack_int32(pack_awq(codes), 4, 1, 16).reshape(3, 2, 8)
    assert (nibbles[:, :, _REVERSE_AWQ_PACK_ORDER].reshape(3, 16) == codes).all()
