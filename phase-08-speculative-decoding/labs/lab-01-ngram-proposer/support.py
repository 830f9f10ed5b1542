"""Given: random texts and what vLLM drafts for them, runs that it has counted, a proposer's settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm import LLM, EngineConfig, EngineParts, SamplingParams
from mini_vllm.metrics.reader import Vector

ANSWERS = Path(__file__).resolve().parent / "answers.json"
NUM_RECORDED = 400


@dataclass
class Case:
    """A text, and how it is to be looked up."""

    tokens: list[int]
    min_n: int
    max_n: int
    k: int
    max_model_len: int


def random_cases(number: int, seed: int = 8) -> Iterator[Case]:
    """Texts of 1 to 40 tokens over two to six different ones; every fourth ends near `max_model_len`."""
    rng = np.random.RandomState(seed)
    for index in range(number):
        length = int(rng.randint(1, 41))
        min_n, max_n = sorted(rng.randint(1, 6, size=2).tolist())
        limit = length + int(rng.randint(0, 4)) if index % 4 == 0 else 64
        tokens = rng.randint(0, rng.randint(2, 7), size=length).tolist()
        yield Case(tokens, min_n, max_n, int(rng.randint(1, 7)), limit)


def recorded() -> list[tuple[Case, list[int]]]:
    """The first cases, and what vLLM's own function drafted for them (`in_vllm.py --record`)."""
    answers = json.loads(ANSWERS.read_text("utf-8"))["drafts"]
    return list(zip(random_cases(len(answers)), answers, strict=True))


@dataclass
class Run:
    """A prompt that vLLM has answered at temperature 0, with drafts and without, on the shipped model.

    Attributes:
        prompt, k, min_n, max_n, max_tokens: what was asked.
        text: the prompt's tokens, max_tokens of answer, and k more.
        num_prompt_tokens: how many of them are the prompt.
        num_steps and so on: what was counted with drafts.
    """

    prompt: str
    k: int
    min_n: int
    max_n: int
    max_tokens: int
    text: list[int]
    num_prompt_tokens: int
    num_steps: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: list[int]


def recorded_runs() -> list[Run]:
    """vLLM's runs (`in_vllm.py --record`)."""
    return [Run(**run) for run in json.loads(ANSWERS.read_text("utf-8"))["runs"]]


def make_config(k: int, min_n: int, max_n: int, max_model_len: int = 64) -> EngineConfig:
    """Settings with speculation by n-grams."""
    return EngineConfig(**make_settings(k, min_n, max_n, max_model_len))


def make_settings(k: int, min_n: int, max_n: int, max_model_len: int) -> dict[str, Any]:
    """The same as a dictionary."""
    spec = {"method": "ngram", "num_speculative_tokens": k}
    spec |= {"prompt_lookup_min": min_n, "prompt_lookup_max": max_n}
    return {"max_model_len": max_model_len, "speculative_config": spec}


def run_engine(drafter: Any, run: Run) -> tuple[list[int], dict[str, Any]]:
    """The engine with this drafter in it: its answer to the run's prompt, and what it has counted."""
    llm = LLM(
        **make_settings(run.k, run.min_n, run.max_n, 512),
        parts=EngineParts(drafter=drafter),
        disable_log_stats=False,
    )
    prompt = {"prompt_token_ids": run.text[: run.num_prompt_tokens]}
    params = SamplingParams(temperature=0, max_tokens=run.max_tokens, ignore_eos=True)
    output = llm.generate(prompt, params, use_tqdm=False)[0]
    counted = {
        metric.name.removeprefix("vllm:spec_decode_"): getattr(metric, "value", None)
        for metric in llm.get_metrics()
    }
    [per_pos] = [metric.values for metric in llm.get_metrics() if isinstance(metric, Vector)]
    counted |= {
        "num_steps": llm.llm_engine.engine_core.num_steps,
        "num_accepted_tokens_per_pos": per_pos,
    }
    return list(output.outputs[0].token_ids), counted
