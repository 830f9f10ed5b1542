"""Lab 05-02: the card's roofline, as the lab gives it."""

from __future__ import annotations

from types import ModuleType

import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module

LAB = ROOT / "phase-05-cuda-graphs/labs/lab-02-launch-overhead"
same = load_module(LAB / "support.py", "test_lab_05_02_support").same


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "starter.py", "test_lab_05_02_starter")


def test_the_card_is_lab_00_04s(lab: ModuleType) -> None:
    """Weights once, K and V of all; from some number of rows on, arithmetic."""
    card = lab.Card("2 TB/s, 320 TFLOP/s", 320e12, 2e12)
    model = lab.Model("8e9", 8_000_000_000, 131_072, lab.Kernels(32))
    same(lab.device_time(card, model, 1), 8e-3, "16 GB of weights at 2 TB/s, in seconds")
    same(lab.device_time(card, model, 64), 8e-3, "64 rows read the same weights")
    same(
        lab.device_time(card, model, 320), 16e-3, "twice the ridge of 160 rows: arithmetic decides"
    )
    same(
        lab.device_time(card, model, 1, 61_440),
        8e-3 + 61_440 * 131_072 / 2e12,
        "K and V of 61,440 tokens",
    )
    same(
        lab.device_time(card, model, 320, 61_440),
        16e-3,
        "320 rows and K and V of 61,440 tokens: what is read hides behind arithmetic with weights",
    )
    for given, layers, size in ((lab.KIMS, 16, 64), (lab.LLAMA_3_8B, 32, 128)):
        want = (2 * given.params + 1000 * 4 * layers * 8 * size) / 3350e9
        same(
            lab.device_time(lab.H100, given, 1, 1000),
            want,
            f"{given.name}, 1,000 tokens of context",
        )
        same(
            lab.device_time(lab.H100, given, 2000),
            4000 * given.params / 989.5e12,
            f"{given.name}, 2,000 rows",
        )
    half = lab.Model("4 bits", 8_000_000_000, 131_072, lab.Kernels(32), 0.5)
    same(lab.device_time(card, half, 1), 2e-3, "half a byte a weight")
    same(
        lab.device_time(card, half, 1, 61_440),
        2e-3 + 61_440 * 131_072 / 2e12,
        "half a byte a weight; K and V of 61,440 tokens are as large as ever",
    )
