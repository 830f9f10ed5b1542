"""Given: the workload of workload.json, and one loop that takes either engine through it.

`mini_vllm.LLMEngine` and vLLM's `LLMEngine` have the same methods here, so the same lines drive both.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import mini_vllm
from course.learner.labs import load_module
from mini_vllm import EngineConfig, LLMEngine
from mini_vllm.tokenizer import Tokenizer

HERE = Path(__file__).resolve().parent
listening = load_module(HERE / "listening.py", "lab_01_02_listening")
CAPTURE = HERE / "capture"
MODEL = Path(mini_vllm.__file__).resolve().parent / "checkpoints" / "tiny-llama"


class Arrival(TypedDict):
    """One request: it comes when `step` steps are done, and is aborted when `abort` are."""

    request_id: str
    step: int
    prompt: str
    max_tokens: int
    abort: NotRequired[int]


class Workload(TypedDict):
    """Settings, by the names of `mini_vllm.EngineConfig`, and requests in order of arrival."""

    settings: dict[str, int]
    requests: list[Arrival]


def load_workload() -> Workload:
    workload: Workload = json.loads((HERE / "workload.json").read_text(encoding="utf-8"))
    return workload


def drive(engine: Any, requests: list[Arrival], sampling_params: Callable[..., Any]) -> None:
    """Take an engine through the requests, step by step.

    Greedy, with `ignore_eos`: how many tokens a request makes does not depend on which.
    """
    tokenizer = Tokenizer.from_folder(MODEL)
    steps = 0
    while engine.has_unfinished_requests() or any(r["step"] >= steps for r in requests):
        for r in requests:
            if r["step"] == steps:
                params = sampling_params(temperature=0, max_tokens=r["max_tokens"], ignore_eos=True)
                prompt = {"prompt_token_ids": tokenizer.encode(r["prompt"])}
                engine.add_request(r["request_id"], prompt, params)
            if r.get("abort") == steps:
                engine.abort_request([r["request_id"]])
        engine.step()
        steps += 1


def run_mini_vllm(workload: Workload) -> list[dict[str, Any]]:
    """The records that `watch` makes of `mini_vllm`'s scheduler on a workload."""
    engine = LLMEngine(MODEL, EngineConfig(**workload["settings"]))  # type: ignore[arg-type]
    records: list[dict[str, Any]] = []
    listening.watch(engine.engine_core.scheduler, records.append)
    drive(engine, workload["requests"], mini_vllm.SamplingParams)
    return records


def read_capture() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What capture.py wrote: how it was made, and the records of vLLM's scheduler."""
    lines = (CAPTURE / "in_process.jsonl").read_text(encoding="utf-8").splitlines()
    made, *records = (json.loads(line) for line in lines)
    return made, records


def read_log(name: str) -> str:
    """The log of a run: `in_process` or `busy_loop`."""
    return (CAPTURE / f"{name}.log").read_text(encoding="utf-8")
