"""Lab 03-04: what a preemption costs, computed again or copied: given, and held here."""

from __future__ import annotations

from types import ModuleType

import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module

LAB = ROOT / "phase-03-scheduler/labs/lab-04-preemption"


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "starter.py", "test_lab_03_04_starter")


TINY = (1000, 2, 4, 1, 8)  # weights, layers, heads, KV heads, numbers in a key


def test_kv_bytes(lab: ModuleType) -> None:
    """A key and a value, in each layer and each KV head, 2 bytes a number."""
    for model, tokens, expected in (
        (lab.LLAMA_3_8B, 1, 131_072),
        (lab.LLAMA_2_7B, 1, 524_288),
        (lab.LLAMA_3_8B, 2000, 262_144_000),
        (lab.Model(*TINY), 3, 192),
    ):
        got = lab.kv_bytes(tokens, model)
        assert got == expected, (
            f"{tokens} tokens of {model}: {expected:,} bytes, not {got:,}. Query heads keep nothing, and "
            "every key has a value"
        )


def test_what_computing_takes(lab: ModuleType) -> None:
    """Two operations a weight, and attention by hand."""
    for tokens, found, expected, why in (
        (
            1,
            0,
            2256,
            "2,000 for the weights; 1 pair, 4 heads, 2 layers, 2 * 8 for the key and the value",
        ),
        (3, 0, 7536, "6,000 for the weights, and 1 + 2 + 3 pairs at 256 operations"),
        (3, 2, 2768, "one token is left, and it sees all 3 keys"),
        (10, 4, 23_520, "12,000 for six tokens; they see 5 to 10 keys, 45 pairs at 256 operations"),
    ):
        got = lab.recompute_flops(tokens, lab.Model(*TINY), found)
        assert got == expected, (
            f"{tokens} tokens, {found} found: {why}: {expected:,} operations, not {got:,}"
        )
        assert isinstance(got, int), (
            f"operations are counted, so {expected:,} and not {got!r}: `//`"
        )


def test_the_cards_peak(lab: ModuleType) -> None:
    """Operations over operations a second, in milliseconds."""
    flops = lab.recompute_flops(3, lab.Model(*TINY))
    assert flops == 7536, (
        f"where nothing is said, nothing is found: 7,536 operations, not {flops:,}"
    )
    got = lab.recompute_ms(2000, lab.LLAMA_3_8B, lab.A100)
    assert got == pytest.approx(106.31, abs=0.01), f"2,000 tokens on an A100: 106.31 ms, not {got}"
    half = lab.recompute_ms(2000, lab.LLAMA_3_8B, lab.A100, 1000)
    assert half == pytest.approx(54.00, abs=0.01), (
        f"with the first 1,000 found: 54.00 ms, more than half, because the rest sees them all; not {half}"
    )


def test_out_and_in(lab: ModuleType) -> None:
    """The link is taken twice: once when the blocks go, once when they return."""
    for model, link, expected in (
        (lab.LLAMA_3_8B, lab.PCIE_4, 16.384),
        (lab.LLAMA_2_7B, lab.PCIE_5, 32.768),
        (lab.LLAMA_3_8B, lab.NVLINK_C2C, 1.1651),
    ):
        got = lab.swap_ms(2000, model, link)
        assert got == pytest.approx(expected, abs=1e-3), (
            f"2,000 tokens of {model} over {link}: {expected} ms, out and in, not {got}"
        )


def test_break_even(lab: ModuleType) -> None:
    """The smallest number of found tokens, equality included; None where nothing helps."""
    model = lab.Model(*TINY)
    gpu = lab.Gpu(1e6)
    for found in (0, 4, 9):
        ms = lab.recompute_ms(10, model, gpu, found)
        link = lab.Link(2 * lab.kv_bytes(10, model) / ms * 1e3 / (1 + 1e-9))
        got = lab.break_even(10, model, gpu, link)
        assert got == found, (
            f"10 tokens; swapping takes as long as computing what {found} found tokens leave: {found}, not "
            f"{got}"
        )
        slower = lab.Link(link.bandwidth / 1.01)
        got = lab.break_even(10, model, gpu, slower)
        assert got == found, f"and with a slower link it is still {found}, not {got}"
    got = lab.break_even(10, lab.Model(1280, 2, 4, 1, 8), lab.Gpu(1024.0), lab.Link(256.0))
    assert got == 9, (
        f"with 9 of 10 found one token takes 5,000 ms, and so does the link: level is enough, 9, not {got}"
    )
    got = lab.break_even(10, model, gpu, lab.Link(1e12))
    assert got is None, f"one token has to be computed, and that takes longer: None, not {got}"


def test_five_machines(lab: ModuleType) -> None:
    """The README's table: 2,000 tokens, computed again or copied."""
    pairs = {
        "Llama-3-8B, A100, PCIe 4": (lab.LLAMA_3_8B, lab.A100, lab.PCIE_4),
        "Llama-3-8B, H100, PCIe 5": (lab.LLAMA_3_8B, lab.H100, lab.PCIE_5),
        "Llama-3-8B, GH200, NVLink-C2C": (lab.LLAMA_3_8B, lab.H100, lab.NVLINK_C2C),
        "Llama-2-7B, A100, PCIe 4": (lab.LLAMA_2_7B, lab.A100, lab.PCIE_4),
        "Llama-2-7B, H100, PCIe 5": (lab.LLAMA_2_7B, lab.H100, lab.PCIE_5),
    }
    got = {
        name: (
            round(lab.recompute_ms(2000, model, gpu), 1),
            round(lab.swap_ms(2000, model, link), 1),
            lab.break_even(2000, model, gpu, link),
        )
        for name, (model, gpu, link) in pairs.items()
    }
    expected = {
        "Llama-3-8B, A100, PCIe 4": (106.3, 16.4, 1700),
        "Llama-3-8B, H100, PCIe 5": (33.5, 8.2, 1523),
        "Llama-3-8B, GH200, NVLink-C2C": (33.5, 1.2, 1933),
        "Llama-2-7B, A100, PCIe 4": (89.8, 65.5, 555),
        "Llama-2-7B, H100, PCIe 5": (28.3, 32.8, 0),
    }
    assert got == expected, f"(computed again, out and in, found to be even): {expected}, not {got}"
    gil = lab.break_even(50, lab.LLAMA_3_8B, lab.A100, lab.PCIE_4)
    assert gil == 43, f"of the guide's Gil, 50 tokens, 43 must be found (44 are); yours: {gil}"
