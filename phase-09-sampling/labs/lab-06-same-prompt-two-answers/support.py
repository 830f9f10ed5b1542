"""What the lab's tests and scripts share: the engine that plays a situation, and the recorded tickets."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.engine.parts import EngineParts
from mini_vllm.model_loader import get_model
from mini_vllm.sample.sampler import Sampler

RECORDED = Path(__file__).resolve().parent / "recorded.json"
MINE = "mine"


class CpuSampler(Sampler):
    """Seeds count only in a batch where every row has one, as in `forward_cpu` of vLLM 0.22.1."""

    def sample(self, logits: Any, sampling_metadata: Any) -> Any:
        """The engine's own, without generators where one is lacking."""
        kept = sampling_metadata.generators
        if len(kept) < len(logits):
            sampling_metadata.generators = {}
        try:
            return super().sample(logits, sampling_metadata)
        finally:
            sampling_metadata.generators = kept


@cache
def _model() -> Any:
    return get_model(str(DEFAULT_MODEL), EngineConfig().attention, None)


def prompt_of(number: int) -> list[int]:
    """44 tokens, others for each number."""
    return [1, *(5 + (7 * number + 3 * i * i) % 120 for i in range(43))]


def params_of(neighbour: Any, num_tokens: int) -> SamplingParams:
    """What a neighbour asks for."""
    knobs: dict[str, Any] = {"temperature": 0.0} if neighbour == "greedy" else {"seed": neighbour}
    return SamplingParams(
        **({"temperature": 4.0, "ignore_eos": True, "max_tokens": num_tokens} | knobs)
    )


def play(lab: ModuleType, situation: Any, model: Any = None, num_tokens: int = 12) -> Any:
    """Serve the request of `situation` on an engine of its own, and write down what happened: a `lab.Run`."""
    parts = EngineParts(sampler=CpuSampler) if situation.cpu_path else EngineParts()
    config = EngineConfig(
        block_size=16,
        max_model_len=256,
        max_num_batched_tokens=situation.token_budget,
        max_num_seqs=8,
        num_gpu_blocks=128,
    )
    engine = LLMEngine(model or _model(), config, parts=parts)
    prompt: list[int] = list(situation.prompt)
    if situation.warm:
        greedy = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        engine.add_request("before", prompt, greedy)
        while engine.has_unfinished_requests():
            engine.step()
    for number, neighbour in enumerate(situation.neighbours, start=1):
        params = params_of(neighbour, num_tokens)
        engine.add_request(f"neighbour {number}", prompt_of(number), params)
    params = SamplingParams(
        temperature=situation.temperature,
        top_k=situation.top_k,
        top_p=situation.top_p,
        seed=situation.seed,
        logprobs=2,
        ignore_eos=True,
        max_tokens=num_tokens,
    )
    engine.add_request(MINE, prompt, params)
    return _watch(engine, situation, lab)


def _watch(engine: LLMEngine, situation: Any, lab: ModuleType) -> Any:
    """Run until all are served."""
    chunks: list[int] = []
    batches: list[int] = []
    done: Any = None

    def observe(record: Any) -> None:
        scheduled = record.scheduler_output.num_scheduled_tokens
        if MINE in scheduled:
            if sum(chunks) + first < len(situation.prompt):
                chunks.append(scheduled[MINE])
            if sum(chunks) + first >= len(situation.prompt):
                batches.append(len(scheduled))

    first = 0
    if situation.warm:
        first = 16 * ((len(situation.prompt) - 1) // 16)
    engine.engine_core.step_observers.append(observe)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.request_id == MINE:
                done = output
    answer = done.outputs[0]
    best = [
        tuple(sorted((one.logprob for one in row.values()), reverse=True)[:2])
        for row in answer.logprobs
    ]
    assert done.num_cached_tokens == first, (done.num_cached_tokens, first)
    return lab.Run(
        situation=situation,
        tokens=tuple(answer.token_ids),
        best=tuple(best),
        cached=done.num_cached_tokens,
        chunks=tuple(chunks),
        batches=tuple(batches),
    )


# ---- the recorded tickets ------------------------------------------------------------------------


def as_json(run: Any) -> dict[str, Any]:
    """A run without its prompt, and of its situation what is not usual."""
    usual = type(run.situation)(prompt=run.situation.prompt)
    found = dict(vars(run))
    found["situation"] = {
        name: value for name, value in vars(run.situation).items() if value != getattr(usual, name)
    }
    return found


def tickets(lab: ModuleType) -> dict[str, list[Any]]:
    """Per ticket its runs: first the two that came in."""
    return {
        name: [_as_run(lab, ticket["prompt"], one) for one in ticket["runs"]]
        for name, ticket in json.loads(RECORDED.read_text(encoding="utf-8"))["tickets"].items()
    }


def _as_run(lab: ModuleType, prompt: list[int], told: dict[str, Any]) -> Any:
    knobs = {k: tuple(v) if isinstance(v, list) else v for k, v in told["situation"].items()}
    return lab.Run(
        situation=lab.Situation(prompt=tuple(prompt), **knobs),
        tokens=tuple(told["tokens"]),
        best=tuple((one, two) for one, two in told["best"]),
        cached=told["cached"],
        chunks=tuple(told["chunks"]),
        batches=tuple(told["batches"]),
    )


def replayed(runs: list[Any]) -> Callable[[Any], Any]:
    """`play` for a ticket: looks the situation up among its runs."""
    by_situation = {run.situation: run for run in runs}

    def look_up(situation: Any) -> Any:
        assert situation in by_situation, (
            f"this ticket has no run of {situation}: take run a or run b, and move one setting at most"
        )
        return by_situation[situation]

    return look_up
