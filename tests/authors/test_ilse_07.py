"""What phase 07's pages say in prose of Ilse's card, held against `bill.py`, and of the tiny Mixtral."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module

PHASE = ROOT / "phase-07-gemm-and-moe"
GUIDE = (PHASE / "00-guide.md").read_text("utf-8")


@pytest.fixture(scope="module")
def bill() -> ModuleType:
    return load_module(PHASE / "bill.py", "phase_07_bill")


def test_tokens_per_second_alone_and_with_fifteen_others(bill: ModuleType) -> None:
    assert int(1e3 / bill.step_ms(1)) == 188
    assert int(1e3 / bill.step_ms(16)) == 52
    assert "188 tokens per second" in GUIDE
    assert "each of them gets 52" in GUIDE


def test_the_three_sizes(bill: ModuleType) -> None:
    model, card = bill.MIXTRAL, bill.H200
    assert model.parameters == 46_702_792_704, "the checkpoint's"
    assert round(2 * model.parameters / 1e9, 1) == 93.4
    assert round(model.computing / 1e9, 1) == 12.7
    left = 0.92 * card.memory - 2 * model.parameters
    assert (int(left / 1e9), int(left / (2000 * 131_072))) == (36, 138)
    assert "36 GB remain for the KV cache, which is 138 conversations of 2,000 tokens" in GUIDE


@pytest.mark.parametrize(
    ("name", "first"), [("MIXTRAL", 754), ("DENSE_13", 207), ("DENSE_47", 207)]
)
def test_the_first_step_that_waits_for_arithmetic(bill: ModuleType, name: str, first: int) -> None:
    model = getattr(bill, name)
    for tokens, waits in ((first - 1, False), (first, True)):
        arithmetic = 2 * model.computing * tokens / bill.H200.flops
        assert (arithmetic > bill.step_bytes(tokens, model) / bill.H200.bandwidth) == waits


def test_both_experts_on_one_gpu_in_three_cases_of_seven(bill: ModuleType) -> None:
    """So the busier of two reads 1 and 3/7 for one token."""
    assert abs(bill.busiest(1) - 10 / 7) < 0.01
    assert "three cases of seven" in GUIDE


def test_four_tokens_leave_nine_rows_of_ten_empty(bill: ModuleType) -> None:
    blocks = bill.touched(4)
    assert 5 < blocks < 6
    assert round(1 - 8 / (16 * blocks), 1) == 0.9


def test_the_parts_of_two_gpus_add_up() -> None:
    sys.path.insert(0, str(PHASE))
    try:
        broken = load_module(PHASE / "broken_moe.py", "phase_07_broken")
    finally:
        sys.path.remove(str(PHASE))
    assert broken.both_gpus() == 0
    assert broken.one_gpu_of_two() > 10


def test_a_token_never_has_one_expert_twice(bill: ModuleType) -> None:
    ids = bill.six_tokens()
    assert all(len(np.unique(row)) == 2 for row in ids)
    blocks, owners = bill.aligned(ids, 4, 4)
    assert owners == [1, 2, 3, 3]
    assert sorted(pair for block in blocks for pair in block if pair < 12) == list(range(12))
