"""Lab 06-08: the predictions, and the seconds of the linears."""

from __future__ import annotations

from types import ModuleType

import pytest

from course.learner.labs import load_support

support = load_support(__file__)
same, pair = support.same, support.pair

# ---- predictions ---------------------------------------------------------------------------------

ANSWERS: dict[str, tuple[float, float, str]] = {
    "times faster, alone": (
        3.23, 0.12,
        "which bytes does a step read in 16 bits, which in 4.125, and which of them are the same? The "
        "embedding is a table of which one row is read",
    ),
    "times faster, sixty-four decode": (
        1.79, 0.12, "how many bytes are 64 caches of 1,000 tokens, and in which of the two are they fewer?",
    ),
    "times faster, the same with a chunk": (
        1.0, 0.05, "what do 2,048 tokens in a step wait for, and in how many bits is multiplied?",
    ),
    "tokens from which the linears gain nothing": (
        404, 0.03,
        "just before it, which of the two still reads and which computes? When do both compute?",
    ),
}  # fmt: skip


@pytest.mark.parametrize("question", ANSWERS)
def test_the_predictions_hold(lab: ModuleType, question: str) -> None:
    """Your four predictions about Noor's card hold."""
    said = lab.predictions()
    assert sorted(said) == sorted(ANSWERS), f"answer {sorted(ANSWERS)}; yours: {sorted(said)}"
    want, room, hint = ANSWERS[question]
    assert abs(said[question] - want) <= room * want, (
        f"{question}: not {said[question]:g}. Ask yourself: {hint}"
    )


# ---- the linears ---------------------------------------------------------------------------------
def test_linears_matrix_by_matrix(lab: ModuleType) -> None:
    """Each matrix of Llama-3.1-8B is read once and multiplied with every token."""
    shapes = support.matrices(lab.LLAMA_8B) * 32
    total = sum(out * into for out, into in shapes)
    rates = ((lab.FP16, 121e12), (lab.W4A16, 121e12), (lab.W8A8, 242e12), (lab.FP8, 242e12))
    for scheme, rate in rates:
        for tokens in (1, 64, 2048):
            read = sum(out * into * scheme.bits / 8 / 300e9 for out, into in shapes)
            compute = sum(2 * out * into * tokens / rate for out, into in shapes)
            what = f"Llama-3.1-8B's linears on an L4, {scheme.name}, {tokens} tokens"
            pair(lab.linears_seconds(lab.L4, scheme, total, tokens), (read, compute), what)


def test_dequantising_takes_time(lab: ModuleType) -> None:
    """Dequantising adds a share of the product's time, and not a byte."""
    scheme = lab.Scheme("4 bits", 4, dequant=0.5)
    got = lab.linears_seconds(support.plain_card(lab), scheme, 1000, 10)
    pair(got, (500 / 1e12, 1.5 * 20_000 / 100e12), "1,000 weights of 4 bits, 10 tokens, 0.5 more")
    scheme = lab.Scheme("fp8 stored", 8, "fp8", dequant=0.25)
    got = lab.linears_seconds(support.plain_card(lab), scheme, 1000, 10)
    pair(
        got, (1000 / 1e12, 1.25 * 20_000 / 100e12), "1,000 weights of 8 bits, 10 tokens, 0.25 more"
    )


def test_unpacking_first(lab: ModuleType) -> None:
    """Unpacking first reads what is stored and writes 16 bits; only then the product reads and computes."""
    for bits, tokens in ((4, 1), (4, 1000), (8, 1)):
        scheme = lab.Scheme("unpacked", bits, unpacks_first=True)
        got = lab.linears_seconds(support.plain_card(lab), scheme, 1000, tokens)
        before, compute = (125 * bits + 2000) / 1e12, 2000 * tokens / 100e12
        want = (before + 2000 / 1e12, before + compute)
        pair(got, want, f"1,000 weights of {bits} bits unpacked to memory, {tokens} tokens")
