"""Lab 01-02: what its tests share: engines to run, watched or not, and a comparison that teaches."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from course.learner.labs import load_module
from mini_vllm import EngineConfig, LLMEngine, SamplingParams

HERE = Path(__file__).resolve().parent
engines = load_module(HERE / "engines.py", "lab_01_02_engines_of_the_test")
PROMPT = "The KV cache"  # 13 tokens with <bos>


def engine(loaded: tuple[Any, Any], **settings: Any) -> LLMEngine:
    model, tokenizer = loaded
    return LLMEngine(model, EngineConfig(**settings), tokenizer=tokenizer)


def watched(lab: ModuleType, loaded: tuple[Any, Any]) -> tuple[LLMEngine, list[dict[str, Any]]]:
    it = engine(loaded)
    records: list[dict[str, Any]] = []
    lab.watch(it.engine_core.scheduler, records.append)
    return it, records


def greedy(max_tokens: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **more)


def run(it: LLMEngine) -> list[Any]:
    outputs = []
    while it.has_unfinished_requests():
        outputs += it.step()
    return outputs


def same(got: Any, want: Any, rule: str) -> None:
    assert got == want, f"should be {want!r}, got {got!r}. {rule}"
