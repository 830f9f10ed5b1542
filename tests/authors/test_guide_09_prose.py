"""What phase 09's pages say in prose of Gil's row, of children and of beams, held against the code."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module
from mini_vllm import LLM, SamplingParams
from mini_vllm.sample import ops
from mini_vllm.sampling_params import BeamSearchParams

PHASE = ROOT / "phase-09-sampling"
GUIDE = (PHASE / "00-guide.md").read_text("utf-8")
EXERCISES = (PHASE / "EXERCISES.md").read_text("utf-8")


@pytest.fixture(scope="module")
def draws() -> ModuleType:
    """The row and the draw."""
    return load_module(PHASE / "draws.py", "phase_09_draws")


def test_what_the_three_likeliest_letters_hold(draws: ModuleType) -> None:
    """68 % of the whole, and 88 % of what min-p leaves, so top-p needs five or three."""
    probs = np.sort(ops.softmax(draws.row()[None])[0])[::-1]
    cut = np.sort(ops.softmax(draws.min_p(0.2)(draws.row())[None])[0])[::-1]
    assert f"{probs[:3].sum():.0%}" == "68%"
    assert f"{cut[:3].sum():.0%}" == "88%"
    assert "hold 88 % of what is left" in GUIDE
    assert "they hold 68 %, and it takes five" in GUIDE
    assert draws.count(draws.row(), draws.top_p(0.8)) == 5
    assert f"0.1 · 0.309 = {0.1 * probs[0]:.3f}" in GUIDE


def test_the_caption_of_the_knobs(draws: ModuleType) -> None:
    """top_k 3: i, d, a; top_p 0.8: t and m too; min_p 0.1: c too."""
    kept = [draws.kept(draws.row(), stage(v)) for stage, v in (
        (draws.top_k, 3), (draws.top_p, 0.8), (draws.min_p, 0.1))]  # fmt: skip
    assert kept == ["i d a", "i d a t m", "i d a t m c"]


def test_temperatures_that_are_changed() -> None:
    """At 0 the knobs are off; up to 0.01 it is raised."""
    greedy = SamplingParams(temperature=0, top_k=5, top_p=0.5, min_p=0.1)
    assert (greedy.top_k, greedy.top_p, greedy.min_p) == (0, 1.0, 0.0)
    assert [SamplingParams(temperature=t).temperature for t in (9e-6, 0.005)] == [0.01, 0.01]


def test_gils_text_begins_with_the_winner_of_the_race(draws: ModuleType) -> None:
    """An s, with seed 7; its arrival is in the table of six sentences."""
    assert draws.by_quotient(draws.row(), 7) == "s" == draws.gil(7)[0]
    last = draws.race(draws.row(), 7)[-1]
    assert f"{last[2]:.3f} / {last[1]:.3f}" == "0.007 / 0.031"


def test_a_beams_temperature_counts_under_processed_logprobs_alone(draws: ModuleType) -> None:
    """Raw, the text with a is the best at any temperature; processed, at 0.5, greedy's."""
    best = {}
    for mode in ("raw_logprobs", "processed_logprobs"):
        params = BeamSearchParams(beam_width=3, max_tokens=20, temperature=0.5)
        [found] = LLM(logprobs_mode=mode).beam_search([draws.PROMPT], params)
        best[mode] = (found.sequences[0].text or "").removeprefix("<bos>")
    assert best["raw_logprobs"] == draws.beams(3)[0][0]
    assert best["processed_logprobs"] == draws.greedy()[0]
    assert "at 0.5 the text with `i` wins" in GUIDE


def test_seeds_of_children_collide() -> None:
    """7, 8 and 9 with n=3: five texts; 1, 2 and 3 with n=4: six."""
    assert len({seed + i for seed in (7, 8, 9) for i in range(3)}) == 5
    assert "he has five texts and not nine" in GUIDE
    assert len({seed + i for seed in (1, 2, 3) for i in range(4)}) == 6


def test_when_d_would_win() -> None:
    """Exercise 2: noise below 0.04, about 4 %."""
    assert round(0.1 * 0.1 / 0.25, 2) == 0.04
    assert f"{1 - math.exp(-0.04):.0%}" == "4%"
    assert "about 4 %" in EXERCISES


def test_three_penalties_at_once() -> None:
    """Exercise 3."""
    logits = np.array([[2, -1, 0.5]], np.float32)
    prompt, counts = np.array([[True, False, False]]), np.array([[0, 2, 0]], np.float32)
    one = [np.array([x], np.float32) for x in (0.2, 0.5, 1.25)]
    found = ops.apply_penalties(logits, prompt, counts, *one)[0]
    assert found.round(2).tolist() == [pytest.approx(1.6), pytest.approx(-2.45), 0.5]


def test_a_flat_row_keeps_all_its_ties(draws: ModuleType) -> None:
    """`top_k=1` is not greedy where tokens tie."""
    assert draws.count(np.zeros(264, np.float32), draws.top_k(1)) == 264
