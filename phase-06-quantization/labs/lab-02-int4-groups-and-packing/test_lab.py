"""Lab 06-02: bytes of a card, groups of 4 bits, packed words, three layouts, and who runs them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
GROUPS = (16, 32, 64, 128, -1)
WORDS = ("weight_packed", "weight_zero_point", "qweight", "qzeros")


def weights(seed: int, rows: int = 8, columns: int = 128) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def as_word(number: Any) -> str:
    """A word in hexadecimal, for reading; anything that is not a whole number stays as it is."""
    whole = isinstance(number, int | np.integer)
    return f"{int(number) % 2**32:#010x}" if whole else repr(number)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your predictions hold: the card's bytes, bits per weight, two orders in a word, and a shared layer."""
    got = lab.predictions()
    layers, others = 6_979_321_856 * 4.25 / 8e9, 262_410_240 * 2 / 1e9  # Mistral-7B
    want = {
        "gigabytes of the card": (
            [layers, layers + others],
            "a scale of 16 bits for 64 weights; embedding and lm_head stay in 16 bits",
        ),
        "bits a weight": (
            [4.4, 4.1, 4.0625, 4.3125],
            "4 bits and the group's share of its scale; a zero point has 4 bits too",
        ),
        "words of 0 to 7": (
            [0x76543210, 0x75316420],
            "two numbers, not strings; in hexadecimal the lowest bits stand at the right",
        ),
        "GPUs that share 11,008 inputs": (
            [1, 1, 0, 0],
            "each GPU's inputs must be a multiple of 128",
        ),
    }
    assert got.keys() == want.keys(), f"the names are {sorted(want)}, yours {sorted(got)}"
    for name, (numbers, why) in want.items():
        close = {"gigabytes of the card": 1e-3, "bits a weight": 1e-4}.get(name, 0)
        if name.startswith("words"):
            wrong = wrong_in([as_word(n) for n in got[name]], [as_word(n) for n in numbers])
        else:
            wrong = wrong_in(got[name], numbers, close * min(numbers))
        assert not wrong, f"{name}: {wrong}; think of this: {why}"


# ---- what it costs -------------------------------------------------------------------------------


def test_the_card_of_an_8b_model(lab: ModuleType) -> None:
    """A card that says W4A16, group_size=128, sym means 5.70 GB, not 4."""
    linears, others = support.LLAMA_8B_LINEARS, support.LLAMA_8B_OTHERS
    codes = sum(out * inp for out, inp in linears) // 2
    for group_size, symmetric, bits in ((128, True, 4.125), (128, False, 4.15625), (32, True, 4.5)):
        expected = int(codes * bits / 4) + 16 * len(linears) + 2 * others
        got = lab.card_bytes(linears, others, group_size, symmetric)
        assert got == expected, (
            f"group size {group_size}, symmetric {symmetric}: {expected:,} bytes, you say {got:,}; "
            f"without what is not quantised {expected - 2 * others:,} and {got - 2 * others:,}"
        )
    default = lab.card_bytes(linears, others, 128)
    assert default == lab.card_bytes(linears, others, 128, True), "symmetric unless told otherwise"


# ---- groups --------------------------------------------------------------------------------------


def test_a_group_by_hand(lab: ModuleType) -> None:
    """Two groups of four on a symmetric grid get the right scales, ties, and both ends."""
    weight = np.array([[15.0, 5.0, 1.0, -15.0, 0.75, 0.25, 0.0, -0.3]], np.float32)
    codes, scale, zero_point = lab.quantize_groups(weight, 4)
    assert scale.tolist() == [[2.0, np.float32(np.float16(0.1))]], (
        f"scales {scale.tolist()}: the largest magnitude, 15 and 0.75, over 7.5"
    )
    assert zero_point.tolist() == [[8, 8]], f"zero points {zero_point.tolist()}, not 8"
    assert codes.tolist() == [[15, 10, 8, 0, 15, 11, 8, 5]], (
        f"codes {codes.tolist()}: 15 / 2 + 8 is 15.5 and cut to 15; 5 / 2 is 2.5, 1 / 2 is 0.5, and "
        "a tie goes to the even one, 10 and 8; -15 / 2 + 8 is 0.5 and goes to 0"
    )
    assert (codes.dtype, scale.dtype, zero_point.dtype) == (np.int32, np.float32, np.int32), (
        f"dtypes {codes.dtype}, {scale.dtype}, {zero_point.dtype}"
    )


def test_an_asymmetric_group_by_hand(lab: ModuleType) -> None:
    """An asymmetric grid goes from the smallest weight to the largest, and 0 is always on it."""
    weight = np.array([[-3.0, 0.0, 12.0, 4.5, 7.5, 3.1, 6.0, 1.0]], np.float32)
    codes, scale, zero_point = lab.quantize_groups(weight, 4, symmetric=False)
    assert scale.tolist() == [[1.0, 0.5]], (
        f"scales {scale.tolist()}: (12 + 3) / 15, and 7.5 / 15 as the second group begins at 0"
    )
    assert zero_point.tolist() == [[3, 0]], f"zero points {zero_point.tolist()}, not 3 and 0"
    assert codes.tolist() == [[0, 3, 15, 8, 15, 6, 12, 2]], (
        f"codes {codes.tolist()}, not [[0, 3, 15, 8, 15, 6, 12, 2]]; 4.5 / 1 + 3 is 7.5 and goes to 8: "
        "round after the zero point is added"
    )
    negative, _, below = lab.quantize_groups(-weight[:, 4:], 4, symmetric=False)
    assert (below.tolist(), negative.tolist()) == ([[15]], [[0, 9, 3, 13]]), (
        f"weights all below 0: zero point {below.tolist()}, codes {negative.tolist()}, not 15 and 0, 9, "
        "3, 13"
    )
    # 7.5 is 14.497 exact scales of 0.51733 and 14.504 stored ones of 0.51709.
    close = np.array([[-7.5, 0.26, 0.0, -1.0]], np.float32)
    _, _, fourteen = lab.quantize_groups(close, 4, symmetric=False)
    assert fourteen.tolist() == [[14]], (
        f"7.5 below 0 in scales of 7.76 / 15 is 14.497, zero point {fourteen.tolist()}: the zero point is "
        "chosen before the scale goes into float16"
    )


@pytest.mark.parametrize("symmetric", [True, False])
def test_codes_are_those_of_the_engine(lab: ModuleType, symmetric: bool) -> None:
    """Every code, scale and zero point is the engine's, on random weights and on the shipped model's."""
    shipped = support.linear_weights()["model.layers.0.mlp.down_proj"]
    for weight, group_size in ((weights(0), 32), (shipped, 128), (shipped, -1)):
        expected = support.unsigned(support.reference(weight, group_size, symmetric))
        got = lab.quantize_groups(weight, group_size, symmetric)
        for what, i in (("scales", 1), ("zero points", 2), ("codes", 0)):
            mine, theirs = got[i], expected[i]
            assert mine.shape == theirs.shape, f"{what} have shape {mine.shape}, not {theirs.shape}"
            differ = np.flatnonzero(mine != theirs)
            assert differ.size == 0, (
                f"group size {group_size}, symmetric {symmetric}: {differ.size} of {theirs.size} {what} "
                f"differ, the first {mine.flat[differ[0]]} for {theirs.flat[differ[0]]}"
                + ("; they are chosen for the scale that float16 holds" if what == "codes" else "")
            )


def test_a_group_of_zeros_stays_one(lab: ModuleType) -> None:
    """A group of pruned weights causes no division by 0, and 0 comes back as 0."""
    weight = weights(1, 2, 16)
    weight[0, :8] = 0
    weight[1, 8:] = 1e-9  # float16 has no scale so small
    for symmetric in (True, False):
        try:
            with np.errstate(divide="raise", invalid="raise"):
                codes, scale, zero_point = lab.quantize_groups(weight, 8, symmetric)
        except FloatingPointError as error:
            raise AssertionError(f"symmetric {symmetric}: a group of zeros: {error}") from error
        assert scale[0, 0] == scale[1, 1] == 1, f"a scale of 0 becomes 1, got {scale.tolist()}"
        back = lab.dequantize_groups(codes, scale, zero_point)
        assert not back[0, :8].any(), f"zeros came back as {back[0, :8].tolist()}"


def test_smaller_groups_err_less_on_the_shipped_model(lab: ModuleType) -> None:
    """The error on the shipped layers is the expected one, and a smaller group is never much worse."""
    weight = support.linear_weights()["model.layers.1.mlp.down_proj"]
    errors = {size: lab.weight_error(weight, size) for size in GROUPS}
    for size, error in errors.items():
        rounded = support.reference(weight, size, True).dequantize()
        expected = float(np.sqrt(((rounded - weight) ** 2).sum() / (weight**2).sum()))
        assert error == pytest.approx(expected, rel=1e-4), (
            f"group size {size}: an error of {error}, not {expected}"
        )
    assert errors[16] < errors[32] < errors[64] < errors[128] < errors[-1], f"{errors}"
    assert lab.weight_error(weight, 32, False) != errors[32], "symmetric False changes nothing"


# ---- words ---------------------------------------------------------------------------------------


def test_the_first_code_is_in_the_lowest_bits(lab: ModuleType) -> None:
    """Hand-made words have the first code in the lowest bits, along either axis and with the top bit set."""
    row = np.arange(1, 9, dtype=np.int32)[None]
    for axis, codes in ((1, row), (0, row.T)):
        word = lab.pack(codes, axis)
        assert (word.shape, word.dtype) == ((1, 1), np.int32), (
            f"eight codes along axis {axis}: {word.dtype} {word.shape}, not int32 (1, 1)"
        )
        bits = int(word[0, 0]) % 2**32
        assert bits == 0x87654321, f"codes 1 to 8 along axis {axis}: {bits:#010x}, not 0x87654321"
    back = lab.unpack(np.array([[-1985229329]], np.int32), 1)  # 0x89ABCDEF
    assert back.tolist() == [[15, 14, 13, 12, 11, 10, 9, 8]], f"0x89ABCDEF holds {back.tolist()}"


def test_words_lose_nothing(lab: ModuleType) -> None:
    """Every code survives packing and unpacking in every place, in both orders."""
    rng = np.random.default_rng(2)
    for shape in ((8, 8), (16, 24), (24, 40)):
        codes = rng.integers(0, 16, shape).astype(np.int32)
        for axis in (0, 1):
            words = lab.pack(codes.copy(), axis)
            sizes = [shape[0], shape[1]]
            sizes[axis] //= 8
            assert list(words.shape) == sizes, f"{shape} along {axis}: words {words.shape}"
            back = lab.unpack(words, axis)
            assert back.dtype == np.int32, f"codes come back in {back.dtype}, not int32"
            assert (back == codes).all(), f"{int((back != codes).sum())} codes changed, axis {axis}"
        awq = lab.pack_awq(codes)
        assert (awq.shape, awq.dtype) == ((shape[0], shape[1] // 8), np.int32), (
            f"{shape} in AWQ's order: {awq.dtype} {awq.shape}"
        )
        assert (lab.unpack_awq(awq) == codes).all(), "AWQ's order is not undone"


def test_awqs_order(lab: ModuleType) -> None:
    """An AWQ word holds columns 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits up."""
    word = int(lab.pack_awq(np.arange(8, dtype=np.int32)[None])[0, 0]) % 2**32
    assert word == 0x75316420, f"codes 0 to 7 in AWQ's order: {word:#010x}, not 0x75316420"
    back = lab.unpack_awq(np.array([[0x76543210]], np.int32))
    assert back.tolist() == [[0, 4, 1, 5, 2, 6, 3, 7]], f"0x76543210 holds {back.tolist()}"


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", support.GRIDS)
def test_files_are_bit_for_bit_those_that_vllm_reads(lab: ModuleType, grid: str) -> None:
    """Your tensors of a layer equal the checkpoint's, and you read the checkpoint's correctly."""
    layout, symmetric = grid.split(",")[0], support.GRIDS[grid]
    files = support.written(grid, 64)
    for name in ("model.layers.0.self_attn.k_proj", "model.layers.3.mlp.down_proj"):
        weight = support.linear_weights()[name]
        codes, scale, zero_point = support.unsigned(support.reference(weight, 64, symmetric))
        mine = lab.write_layer(layout, codes, scale, zero_point, symmetric)
        assert mine.keys() == files[name].keys(), (
            f"{grid} has {sorted(files[name])}, yours {sorted(mine)}"
        )
        for part, theirs in files[name].items():
            assert isinstance(mine[part], np.ndarray), f"{grid}, {part}: {mine[part]!r} is no array"
            tensor = mine[part]
            assert (tensor.shape, tensor.dtype) == (theirs.shape, theirs.dtype), (
                f"{grid}, {part}: {tensor.dtype} {tensor.shape}, not {theirs.dtype} {theirs.shape}"
            )
            differ = np.flatnonzero(tensor != theirs)
            shown = as_word if part in WORDS else str
            assert differ.size == 0, (
                f"{grid}, {part}: {differ.size} of {theirs.size} differ, the first "
                f"{shown(theirs.flat[differ[0]])} in the file and {shown(tensor.flat[differ[0]])} in yours"
            )
        for what, got, want in zip(
            ("codes", "scales", "zero points"), lab.read_layer(layout, files[name]),
            (codes, scale, zero_point), strict=True,
        ):  # fmt: skip
            assert got.shape == want.shape, f"{grid}: read {what} of shape {got.shape}"
            assert got.dtype == want.dtype, f"{grid}: read {what} as {got.dtype}"
            assert (got == want).all(), f"{grid}: {int((got != want).sum())} {what} read wrongly"


def test_zero_points_of_each_layout(lab: ModuleType) -> None:
    """A symmetric zero point of 8 is left out, or written as 7 for GPTQ; AWQ's is stored unchanged."""
    codes = np.tile(np.arange(16, dtype=np.int32), (8, 1))
    scale = np.ones((8, 2), np.float32)
    eight = np.full((8, 2), 8, np.int32)
    uneven = np.arange(16, dtype=np.int32).reshape(8, 2)
    packed = lab.write_layer("pack-quantized", codes, scale, eight)
    assert "weight_zero_point" not in packed, "a symmetric file needs no zero points"
    gptq = int(lab.write_layer("gptq", codes, scale, eight)["qzeros"][0, 0]) % 2**32
    assert gptq == 0x77777777, f"GPTQ's readers add 1, so 8 is written as 7: {gptq:#010x}"
    for layout in ("pack-quantized", "awq"):
        tensors = lab.write_layer(layout, codes, scale, uneven, symmetric=False)
        _, _, back = lab.read_layer(layout, tensors)
        assert back.shape == uneven.shape, f"{layout}: zero points came back in shape {back.shape}"
        assert (back == uneven).all(), f"{layout}: zero points came back as {back.tolist()}"
