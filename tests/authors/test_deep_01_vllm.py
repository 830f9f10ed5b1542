"""What phase 01's deep dive says of two batches in flight, held against real vLLM."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

PHASE = Path(__file__).resolve().parents[2] / "phase-01-architecture"
CACHE, EOS = "The KV cache", "The GPU"  # the shipped model ends the answer to "The GPU" itself
PROMPT_TOKENS = {CACHE: 13, EOS: 8}
FOURTH = 119  # its 4th token after "The KV cache"
ENDINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "length": (CACHE, {"max_tokens": 4, "ignore_eos": True}),
    "model length": (CACHE, {"max_tokens": 1000, "ignore_eos": True}),  # max_model_len is 128
    "stop token": (CACHE, {"max_tokens": 64, "stop_token_ids": [FOURTH]}),
    "eos": (EOS, {"max_tokens": 64}),
    "aborted": (CACHE, {"max_tokens": 64, "ignore_eos": True, "abort_before_call": 4}),
}
OUTPUTS = {"length": 4, "model length": 128 - 13, "stop token": 4, "eos": 17}


@functools.cache
def played() -> dict[str, Any]:
    """Each ending on both loops, in one process: starting vLLM is what takes the time."""
    from course.parity.tokens_run import run_worker

    job = {
        f"{name}, {loop}": [loop == "ahead", prompt, params]
        for name, (prompt, params) in ENDINGS.items()
        for loop in ("plain", "ahead")
    }
    answer: dict[str, Any] = run_worker("tests.engine.helpers.real_vllm.two_lanes", [], job)
    return answer


def told(name: str) -> tuple[list[int], list[int], list[int]]:
    """Of a run: the tokens that went out, the tokens of each plan, the plans whose row was dropped."""
    calls = played()[name]
    tokens = [token for call in calls for token in call["news"] or ()]
    plans = [call["tokens"] for call in calls if call["planned"] is not None]
    dropped = [call["updated"] for call in calls if call["rows"] and not call["news"]]
    return tokens, plans, dropped


@pytest.mark.vllm
@pytest.mark.parametrize("ending", OUTPUTS)
def test_one_batch_at_a_time_ends_with_one_empty_plan(ending: str) -> None:
    tokens, plans, dropped = told(f"{ending}, plain")
    prompt = PROMPT_TOKENS[ENDINGS[ending][0]]
    assert len(tokens) == OUTPUTS[ending]
    assert plans == [prompt, *[1] * (len(tokens) - 1), 0]
    assert dropped == []


@pytest.mark.vllm
@pytest.mark.parametrize("ending", ["length", "model length"])
def test_under_async_scheduling_a_length_stop_leaves_two_empty_plans(ending: str) -> None:
    """The scheduler can count to `max_tokens`: it does not plan a row that nobody needs."""
    tokens, plans, dropped = told(f"{ending}, ahead")
    assert plans == [13, *[1] * (len(tokens) - 1), 0, 0]
    assert dropped == []
    assert tokens == told(f"{ending}, plain")[0]


@pytest.mark.vllm
@pytest.mark.parametrize("ending", ["stop token", "eos"])
def test_under_async_scheduling_an_eos_stop_wastes_one_row_and_leaves_one_empty_plan(
    ending: str,
) -> None:
    tokens, plans, dropped = told(f"{ending}, ahead")
    prompt = PROMPT_TOKENS[ENDINGS[ending][0]]
    assert plans == [prompt, *[1] * len(tokens), 0]
    assert dropped == [len(tokens) + 1]
    assert tokens == told(f"{ending}, plain")[0]


@pytest.mark.vllm
def test_an_abort_under_way_drops_one_row_or_two() -> None:
    """The abort lies ready while a pass runs; with two in flight the next plan has the request too."""
    assert told("aborted, plain")[1:] == ([13, 1, 1, 1, 0], [4])
    assert told("aborted, ahead")[1:] == ([13, 1, 1, 1, 0], [3, 4])


@pytest.mark.vllm
def test_the_first_call_returns_at_once() -> None:
    first, second = played()["length, ahead"][:2]
    assert (first["planned"], first["updated"], first["news"]) == (1, None, None)
    assert (second["planned"], second["updated"]) == (2, 1)


@pytest.mark.vllm
def test_page_and_picture_show_this_run() -> None:
    page = (PHASE / "01-deep-dive.md").read_text(encoding="utf-8")
    for text in played()["texts"]:
        assert text in page, "run lanes.py again and paste what it prints"
    drawn = (PHASE / "lanes.svg").read_text(encoding="utf-8")
    assert drawn == played()["svg"], "run lanes.py --draw again"
