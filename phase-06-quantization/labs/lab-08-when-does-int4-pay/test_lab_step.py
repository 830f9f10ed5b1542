"""Lab 06-08: a whole step, what it waits for, when 4 bits pay, and what others have seen."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import ModuleType

import pytest

from course.learner.labs import load_support

support = load_support(__file__)
same = support.same
REPORTS = json.loads((Path(__file__).resolve().parent / "reports.json").read_text("utf-8"))

# ---- a step --------------------------------------------------------------------------------------


def test_parts_come_one_after_the_other(lab: ModuleType) -> None:
    """The parts of a step run one after another: caches are not read while the linears compute."""
    step = lab.mixed_step(63, 1000, 8000, 2048)
    linears = 2 * 6_979_321_856 * 2048 / 121e12
    head = 2 * 128_256 * 4096 / 300e9
    caches = (63 * 1001 + 1985) * 131_072 / 300e9
    want = linears + head + caches
    got = lab.step_seconds(lab.L4, lab.LLAMA_8B, lab.FP16, step)
    same(got, want, "63 who decode and 1,985 tokens of a prompt on an L4, in 16 bits")
    got = lab.step_seconds(lab.L4, lab.LLAMA_8B, lab.FP16, step, 1)
    same(got, want - caches / 2, "the same with a cache of 8 bits")


def test_a_step_alone(lab: ModuleType) -> None:
    """A single decoding request reads everything but the embedding, and gains 3.2 times."""
    alone = [lab.Request(1)]
    head = 2 * 128_256 * 4096
    times = {}
    for scheme in (lab.FP16, lab.W4A16, lab.W8A8):
        want = (6_979_321_856 * scheme.bits / 8 + head + 131_072) / 300e9
        times[scheme.name] = lab.step_seconds(lab.L4, lab.LLAMA_8B, scheme, alone)
        same(times[scheme.name], want, f"one token on an L4, {scheme.name}")
    gain = times["fp16"] / times["w4a16"]
    assert 3.22 < gain < 3.24, f"alone, 4 bits are {gain:.2f} times as fast, not 3.23"


def test_what_a_step_waits_for(lab: ModuleType) -> None:
    """Three kinds of step on Noor's card wait for the right part and limit."""
    decode, long = [lab.Request(1, 1000)] * 64, [lab.Request(1, 6000)] * 64
    chunk, prompt = lab.mixed_step(64, 1000, 8000, 2048), [lab.Request(2048)]
    for step, scheme, want, what in (
        (decode, lab.FP16, ("linears", "memory"), "64 decode, 16 bits"),
        (decode, lab.W4A16, ("attention", "memory"), "64 decode, 4 bits: now the caches are more"),
        (long, lab.FP16, ("attention", "memory"), "64 decode with 6,000 tokens each, 16 bits"),
        (chunk, lab.W4A16, ("linears", "compute"), "64 decode beside a chunk, 4 bits"),
        (prompt, lab.FP16, ("linears", "compute"), "2,048 tokens of a prompt, 16 bits"),
        ([lab.Request(32_000)], lab.FP8, ("attention", "compute"), "a prompt of 32,000, fp8"),
        (  # 12 ms and 12 ms against 18 and 0.2: the sum of the two would choose the linears
            [lab.Request(1, 399)] * 103, lab.W4A16, ("attention", "memory"),
            "103 decode with 400 tokens each, 4 bits",
        ),
    ):  # fmt: skip
        got = lab.regime(lab.L4, lab.LLAMA_8B, scheme, step)
        assert got == want, (
            f"{what}: the longest part is {want[0]}, which waits for {want[1]}; yours: {got}"
        )
    small = dataclasses.replace(lab.LLAMA_8B, layers=1)
    got = lab.regime(lab.L4, small, lab.W4A16, [lab.Request(1)])
    assert got == ("head", "memory"), f"one layer in 4 bits and a head in 16: the head, not {got}"
    for cached, want in ((20_000, "linears"), (40_000, "attention")):
        got = lab.regime(lab.L4, lab.LLAMA_8B, lab.W4A16, [lab.Request(1, cached)])
        assert got == (want, "memory"), (
            f"4-bit linears are as many bytes as 27,000 tokens of cache, so with {cached:,} it is {want}, "
            f"not {got}"
        )
    got = lab.regime(lab.L4, lab.LLAMA_8B, lab.W4A16, [lab.Request(1, 60_000)], 0.5)
    assert got == ("linears", "memory"), f"60,000 tokens of cache in 4 bits: linears, not {got}"


def test_at_the_ridge_it_computes(lab: ModuleType) -> None:
    """A part that reads and computes equally long counts as compute, as in lab 00-04."""
    card = support.plain_card(lab, flops=128e12, bandwidth=1e12)
    model = support.small_model(lab, mlp=60)
    got = [lab.regime(card, model, lab.FP16, [lab.Request(n)]) for n in (127, 128)]
    want = [("linears", "memory"), ("linears", "compute")]
    assert got == want, f"a ridge of 128: memory with 127 tokens, compute with 128, not {got}"


# ---- when it pays --------------------------------------------------------------------------------


def cards(lab: ModuleType) -> list[object]:
    """Cards with ridges from 39 to 1,000."""
    return [
        support.plain_card(lab, flops=flops, int8=2 * flops, bandwidth=bandwidth)
        for flops, bandwidth in ((121e12, 3e11), (312e12, 2039e9), (75e12, 1935e9), (1e15, 1e12))
    ]


def test_how_long_all_is_gained(lab: ModuleType) -> None:
    """With one token more than the full gain allows, the linears compute for longer than they read."""
    for card in cards(lab):
        for scheme in (lab.FP16, lab.W4A16, lab.W8A8, lab.Scheme("w4", 4.5, dequant=0.3)):
            got = lab.full_gain_until(card, scheme)
            assert isinstance(got, int), f"a whole number of tokens, got {got!r}"
            rate = card.int8 if scheme.product == "int8" else card.flops  # type: ignore[attr-defined]
            read = scheme.bits / 8 / card.bandwidth  # type: ignore[attr-defined]
            a_token = 2 * (1 + scheme.dequant) / rate
            last = got * a_token <= read * (1 + 1e-12) < (got + 1) * a_token
            assert last, (
                f"{scheme.name}, {scheme.dequant:g} for dequantising, {rate / 1e12:g} TFLOP/s: {got} is not "
                "the last number of tokens for which computing takes no longer than reading"
            )
    got = lab.full_gain_until(support.plain_card(lab, flops=128e12, bandwidth=1e12), lab.FP16)
    assert got == 128, f"a ridge of 128 itself still counts: 128, not {got}"


def test_where_4_bits_stop_to_pay(lab: ModuleType) -> None:
    """Where 4 bits stop paying, with and without dequantising."""
    for card in cards(lab):
        ridge = card.flops / card.bandwidth  # type: ignore[attr-defined]
        for dequant in (0.0, 0.1, 0.25, 1.0):
            for bits in (3.5, 4.125, 8.0):
                scheme = lab.Scheme("stored small", bits, dequant=dequant)
                want = math.ceil(ridge / (1 + dequant))
                got = lab.break_even(card, scheme)
                assert got == want, (
                    f"ridge {ridge:.1f}, {bits} bits, {dequant:g} for dequantising: no faster from {want} "
                    f"tokens on, not {got}. Which of the two still reads there?"
                )


def test_equally_long_is_no_faster(lab: ModuleType) -> None:
    """A scheme that takes equally long is no faster: beside itself, and 4 bits where both compute."""
    got = lab.break_even(lab.L4, lab.FP16)
    assert got == 1, f"16 bits are no faster than 16 bits from the first token on, not {got}"
    got = lab.break_even(lab.L4, lab.W4A16)
    assert got == 404, f"Noor's card, nothing for dequantising: 404, not {got}"


def test_8_bits_never_stop(lab: ModuleType) -> None:
    """8 bits never stop paying against 16 on a card with tensor cores for them, but do on one without."""
    for scheme in (lab.W8A8, lab.FP8):
        got = lab.break_even(lab.L4, scheme)
        assert got is None, (
            f"{scheme.name} on an L4 is faster for any number of tokens: None, not {got}"
        )
    got = lab.break_even(support.plain_card(lab), lab.FP8)
    assert got == 100, f"fp8 without tensor cores for it, ridge 100: 100, not {got}"


def test_4_bits_beside_8(lab: ModuleType) -> None:
    """Two schemes that both read less than 16 bits, 4 and 8, are compared with each other."""
    got = lab.break_even(lab.L4, lab.W4A16, lab.FP8)
    assert got == 202, f"on an L4 fp8 is as fast as 4 bits from 202 tokens on, not {got}"
    got = lab.break_even(lab.L4, lab.FP8, lab.W4A16)
    assert got == 1, (
        f"fp8 beside 4 bits is slower with one token and faster from 202: the first that is no faster is 1, "
        f"not {got}"
    )


def test_unpacking_never_pays(lab: ModuleType) -> None:
    """A scheme that unpacks first never pays, on any card."""
    scheme = lab.Scheme("unpacked", 4.125, unpacks_first=True)
    for card in cards(lab):
        got = lab.break_even(card, scheme)
        assert got == 1, (
            f"no faster from 1 token on, not {got}. How many bytes does it move for one weight?"
        )


def test_the_search_ends(lab: ModuleType) -> None:
    """The search tries every number up to and including `most`, 8,192 by default."""
    card = support.plain_card(lab, flops=1e15)
    found = [lab.break_even(card, lab.W4A16, most=most) for most in (999, 1000)]
    assert found == [None, 1000], (
        f"a ridge of 1,000, most 999 and 1,000: None and 1000, not {found}"
    )
    for ridge, want in ((8192, 8192), (8193, None)):
        got = lab.break_even(support.plain_card(lab, flops=ridge * 1e12), lab.W4A16)
        assert got == want, f"a ridge of {ridge}, most not given: {want}, not {got}"


# ---- what others have seen -----------------------------------------------------------------------

WHY = {
    "A": "1,000 prompts of 32 tokens and no second token: how many tokens has a step? Where is the ridge?",
    "B": "the same file on both sides. Which bytes or operations does the flag change?",
    "C": "how many tokens has a step of 1 to 4 people? How near is the gain to that in bytes?",
    "D": "which `dequant` gives one half?",
    "E": "which `dequant` would make it eight times slower?",
}


@pytest.mark.parametrize("report", WHY)
def test_the_reports(lab: ModuleType, report: str) -> None:
    """Each of the five reports gets the explanation that the arithmetic gives."""
    said = lab.explanations()
    assert sorted(said) == sorted(WHY), f"answer {sorted(WHY)}; yours: {sorted(said)}"
    want = {"A": "compute", "B": "kernel", "C": "memory", "D": "compute", "E": "kernel"}[report]
    assert said[report] == want, f"report {report}: not {said[report]!r}. {WHY[report]}"


def test_a_table_from_four_rates(lab: ModuleType) -> None:
    """A user's 13 measurements of Marlin follow from two bandwidths and two rates read off the table itself.

    At each end of the table only one limit counts. The lines between follow within 35 %, worst where one
    limit takes over from the other.
    """
    table = REPORTS["marlin"]
    few, many = table["times_faster"][0], table["times_faster"][-1]
    bandwidth, flops = table["gb_s"][0] * 1e9, table["tflops"][-1] * 1e12
    marlin = support.plain_card(lab, flops=flops, bandwidth=bandwidth)
    torch = support.plain_card(lab, flops=flops / many, bandwidth=bandwidth * 16 / 4.125 / few)
    for rows, seen in zip(table["rows"], table["times_faster"], strict=True):
        mine = max(lab.linears_seconds(marlin, lab.W4A16, 1, rows))
        got = max(lab.linears_seconds(torch, lab.FP16, 1, rows)) / mine
        assert abs(got / seen - 1) < 0.35, (
            f"{rows} rows: {seen} times was measured, {got:.2f} derived"
        )
