"""Lab 06-06: FP8 and FP4 by bits."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)

FORMATS = ("E4M3", "E5M2", "E2M1")
KINDS = {
    "numbers": "x is a number of the format, so nothing is rounded",
    "ties": "x lies half-way between two numbers: the code whose last bit is 0",
    "beside ties": "x lies next to the middle of two numbers, by the least that float32 can say",
    "anything": "the nearest number",
    "zero": "0 has a code for each sign",
    "below all numbers": "below the smallest number there is 0, and x's sign stays",
}


def encoded(lab: ModuleType, name: str, x: float, saturate: bool) -> Any:
    """What `encode` returns; an undue ValueError counts as a wrong answer, not as a crash."""
    try:
        return lab.encode(getattr(lab, name), x, saturate)
    except (ValueError, OverflowError) as error:
        return f"{type(error).__name__}: {error}"


def told(lab: ModuleType, name: str, got: Any) -> str:
    """A code with its fields and its number, as the recorded table has it."""
    fmt = getattr(lab, name)
    size = 2 ** (1 + fmt.exponent_bits + fmt.mantissa_bits)
    if not isinstance(got, int) or not 0 <= got < size:
        return f"{got!r}, which is no code of {name}"
    number = support.floats(support.ANSWERS[name]["decode"])[got]
    return f"{int(got)} ({support.bits(fmt, got)}, {number:.9g})"


# ---- before you write anything -------------------------------------------------------------------


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your predictions hold: largest numbers, spacing and ties."""
    answers = {
        "largest numbers": (
            [448, 57_344, 6],
            "Which codes does each keep for NaN and infinity, and which is the largest that is left?",
        ),
        "numbers from 1 to 2": (
            [8, 4, 2],
            "How many values can the mantissa of each have?",
        ),
        "17, 19, 21": (
            [16, 20, 20],
            "How far apart are E4M3's numbers from 16 to 32, and which of two neighbours has the even code?",
        ),
    }
    got = lab.predictions()
    assert set(got) == set(answers), f"the names are {sorted(answers)}, yours {sorted(got)}"
    for name, (want, ask) in answers.items():
        wrong = wrong_in(got[name], want, 1e-6)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- one number ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_the_largest_code(lab: ModuleType, name: str) -> None:
    """The largest code is the last before the codes that are not numbers, or the last with its sign."""
    want = {"E4M3": 126, "E5M2": 123, "E2M1": 7}[name]
    got = lab.largest_code(getattr(lab, name))
    assert got == want, (
        f"{name}: codes 0 to {want} are numbers in their order, and then come "
        f"{'negative ones' if name == 'E2M1' else 'what is no number'}; yours ends at {got}"
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_floats_become_codes(lab: ModuleType, name: str, kind: str) -> None:
    """Floats get ml_dtypes' codes: every number, every tie, both neighbours of a tie, and others."""
    for x, want in support.asked(name, kind):
        for saturate in (True, False):
            got = encoded(lab, name, x, saturate)
            assert got == want, (
                f"{name}, {kind}: {support.show(x)} becomes {told(lab, name, want)}, yours "
                f"{told(lab, name, got)}. {KINDS[kind]}"
            )


@pytest.mark.parametrize("name", FORMATS)
def test_past_the_end(lab: ModuleType, name: str) -> None:
    """Past the end, a saturating cast gives the largest number, any other what ml_dtypes and torch give."""
    largest = {"E4M3": 126, "E5M2": 123, "E2M1": 7}[name]
    sign_bit = {"E4M3": 128, "E5M2": 128, "E2M1": 8}[name]
    for x, want in support.asked(name, "past the end"):
        got = encoded(lab, name, x, False)
        assert got == want, (
            f"{name} without saturating: {support.show(x)} becomes {told(lab, name, want)}, yours "
            f"{told(lab, name, got)}. What rounds to the largest number is that number; the rest is what the "
            "format has beyond it"
        )
        most = largest | (sign_bit if x < 0 else 0)
        got = encoded(lab, name, x, True)
        assert got == most, (
            f"{name}, saturating: {support.show(x)} becomes {told(lab, name, most)}, yours "
            f"{told(lab, name, got)}. "
            + (
                "An infinity is cut off too"
                if math.isinf(x)
                else "Beyond the largest there is no code"
            )
        )


# ---- blocks --------------------------------------------------------------------------------------


def test_blocks_of_mxfp4(lab: ModuleType) -> None:
    """An MXFP4 block has the scale and bytes that compressed-tensors makes."""
    for x, want in ((-24.0, 129), (4.2, 127)):
        _, scale = lab.encode_mxfp4([x] + [1.0] * 31)
        assert scale == want, (
            f"a block of {x} and ones: the scale 2^{want - 127} brings {x} to {x / 2.0 ** (want - 127):.6g}; "
            f"yours is code {scale}, which brings it to {x / 2.0 ** (scale - 127):.6g}"
        )
    answers = support.ANSWERS["MXFP4"]
    packed = bytes.fromhex(answers["packed"])
    for i, block in enumerate(support.blocks("MXFP4", 32)):
        data, scale = lab.encode_mxfp4(list(block))
        largest = max(abs(x) for x in block)
        want = answers["scales"][i]
        assert scale == want, (
            f"the largest of the block is {support.show(largest)}. With the scale 2^{want - 127} it comes to "
            f"{largest / 2.0 ** (want - 127):.6g}; yours is code {scale}, which brings it to "
            f"{largest / 2.0 ** (scale - 127):.6g}"
        )
        theirs = packed[16 * i : 16 * i + 16]
        assert data == theirs, (
            f"a block whose largest is {support.show(largest)}, scale 2^{want - 127}: {theirs.hex(' ')}, "
            f"yours {bytes(data).hex(' ')}"
        )
    data, scale = lab.encode_mxfp4([0.0] * 32)
    assert (data, scale) == (bytes(16), 0), (
        f"a block of zeros is 16 bytes of 0 with scale code 0; yours {bytes(data).hex(' ')} and {scale}"
    )


def test_blocks_of_nvfp4(lab: ModuleType) -> None:
    """An NVFP4 block has the scale and bytes that vLLM's reference makes, under one scale per tensor."""
    answers = support.ANSWERS["NVFP4"]
    packed = bytes.fromhex(answers["packed"])
    for i, block in enumerate(support.blocks("NVFP4", 16)):
        data, scale = lab.encode_nvfp4(list(block), answers["global_scale"])
        largest = max(abs(x) for x in block)
        want = answers["scales"][i]
        assert scale == want, (
            f"the largest of the block is {support.show(largest)}, the global scale "
            f"{answers['global_scale']:.6g}: {largest * answers['global_scale'] / 6:.6g} in E4M3 is code "
            f"{want}, yours {scale}"
        )
        stored = support.floats(support.ANSWERS["E4M3"]["decode"])[want]
        rule = (
            f"Each number is divided by what a reader multiplies with, {stored:g} / "
            f"{answers['global_scale']:.6g}: the scale as it is stored, over the global one"
            if stored
            else "The scale is stored as 0, so each number becomes 0, with its sign"
        )
        theirs = packed[8 * i : 8 * i + 8]
        assert data == theirs, (
            f"a block whose largest is {support.show(largest)}, scale code {want}: {theirs.hex(' ')}, yours "
            f"{bytes(data).hex(' ')}. {rule}"
        )


def test_a_global_scale_that_does_not_fit(lab: ModuleType) -> None:
    """If the global scale was chosen on other numbers, a block's scale may lie past either end of E4M3."""
    for x, global_scale, want, scale, why in (
        (
            6.0,
            1000.0,
            [7, 15, 1],
            126,
            "1,000 is past 448, so the scale is cut off, and so are 6 / 0.448",
        ),
        (
            3.0,
            0.001,
            [0, 8, 0],
            0,
            "0.0005 is nearer to 0 than to 2^-9, so all numbers are 0, with their sign",
        ),
    ):
        block = [x, -x, 0.224] + [0.0] * 13
        try:
            got = lab.encode_nvfp4(block, global_scale)
        except (ValueError, ZeroDivisionError) as error:
            raise AssertionError(
                f"the largest is {x}, the global scale {global_scale}: {why}. Yours ends with "
                f"{type(error).__name__}: {error}"
            ) from error
        data = bytes([want[0] | want[1] << 4, want[2]]) + bytes(6)
        assert got == (data, scale), (
            f"the largest is {x}, the global scale {global_scale}: {why}. Scale code {scale} and bytes "
            f"{data.hex(' ')}; yours {got[1]} and {bytes(got[0]).hex(' ')}"
        )


def test_the_scale_of_the_whole_tensor(lab: ModuleType) -> None:
    """The tensor's global scale puts the largest block's scale at 448."""
    x = [number for block in support.blocks("NVFP4", 16) for number in block]
    for largest, want in [
        (max(abs(number) for number in x), support.ANSWERS["NVFP4"]["global_scale"]),
        (6.0, 448.0),
        (0.75, 3584.0),
    ]:
        got = lab.choose_global_scale(largest)
        assert got == pytest.approx(want, rel=1e-6), (
            f"a tensor whose largest is {largest:.6g}: its block's scale is {largest:.6g} / 6, and "
            f"{want:.6g} times that is 448; yours {got}"
        )
