"""`benchmarks.spec_decode`: what it makes of counts, and its prompts. Nothing is timed here."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import spec_decode


def answer(steps: int, cpu: float, accepted: int | None = None) -> dict[str, Any]:
    """One request's round of 40 tokens; three draft tokens a step, counted from an earlier round on."""
    found = {"outputs": [[7] * 40], "steps": steps, "rows": 4 * steps, "cpu": cpu}
    if accepted is None:
        return found | {"before": {}, "after": {}}
    name = "vllm:spec_decode_num_"
    counts = {"drafts": 10, "draft_tokens": 30, "accepted_tokens": accepted}
    per_pos = f"{name}accepted_tokens_per_pos"
    return found | {
        "before": {name + key: 5 for key in counts} | {per_pos: [5, 5, 5]},
        "after": {name + key: 5 + value for key, value in counts.items()} | {per_pos: [13, 12, 8]},
    }


def test_a_row_is_made_of_differences() -> None:
    """Counters grow over all rounds; a row is one round's, beside the same engine without drafts."""
    answers = {"mini_vllm:none": answer(40, 1.0), "mini_vllm:eagle": answer(16, 0.5, 18)}
    best = {"mini_vllm:none": 100.0, "mini_vllm:eagle": 150.0}
    least = {"mini_vllm:none": 1.0, "mini_vllm:eagle": 0.5}
    row = spec_decode.make_row("mini_vllm:eagle", 1, best, least, answers)
    assert row["/ without"] == 1.5
    assert row["CPU / without"] == 2.0
    assert (row["steps"], row["steps / without"], row["tokens / step"]) == (16, 0.4, 2.5)
    assert row["acceptance length"] == pytest.approx(2.8)
    assert row["acceptance %"] == pytest.approx(60)
    assert row["by position %"] == "80 70 30"
    plain = spec_decode.make_row("mini_vllm:none", 1, best, least, answers)
    assert plain.keys() == row.keys(), "the rows are one table"
    assert plain["acceptance length"] is None


def test_it_pays_as_far_as_all_smaller_batches_gain() -> None:
    """A gain beyond a loss is no limit; nor is the row without drafts one."""
    gains = {
        "ngram": (1.2, 1.1, 0.9, 1.3),
        "eagle": (0.9, 1.5, 1.5, 1.5),
        "draft_model": (2, 2, 2, 2),
    }
    rows = [
        {"engine": "vLLM", "method": method, "concurrent": batch, "/ without": gain}
        for method, all_gains in (gains | {"none": (1, 1, 1, 1)}).items()
        for batch, gain in zip(spec_decode.BATCHES, all_gains, strict=True)
    ]
    assert spec_decode.find_limits(rows) == {
        "vLLM, ngram": 4,
        "vLLM, eagle": 0,
        "vLLM, draft_model": 64,
    }


def test_the_prompts_are_texts_of_one_length() -> None:
    """As many as the largest batch has requests, all different."""
    prompts = spec_decode.read_prompts(64, 64)
    assert {len(prompt) for prompt in prompts} == {64}
    assert len({tuple(prompt) for prompt in prompts}) == 64


def test_both_engines_read_the_same_settings() -> None:
    """No drafts is None; n-grams have no model, the others a folder."""
    assert spec_decode.speculative_config("none", 3) is None
    ngram = spec_decode.speculative_config("ngram", 3)
    assert ngram is not None
    assert "model" not in ngram
    eagle = spec_decode.speculative_config("eagle", 3)
    assert eagle is not None
    assert eagle["model"].endswith("tiny-llama-eagle")
