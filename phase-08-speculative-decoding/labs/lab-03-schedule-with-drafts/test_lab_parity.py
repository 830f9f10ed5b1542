"""Lab 08-03: your scheduler beside vLLM's recorded decisions, and in the engine."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

import course.parity
from course.parity.decisions import explain, replay
from course.parity.traces import is_async, read_traces
from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.engine.parts import EngineParts

GOLDEN = Path(course.parity.__file__).parents[2] / "tests/golden/drafts-0.22.1.jsonl.gz"


@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
def test_the_same_decisions_as_vllm(lab: ModuleType, ahead: bool) -> None:
    """The decisions are vLLM's on thirty workloads per scheduler, with three methods and both policies."""
    traces = [
        (where, trace) for where, trace in read_traces(str(GOLDEN)) if is_async(trace) is ahead
    ]
    assert len(traces) == 30, f"thirty traces, not {len(traces)}"
    scheduler_class = lab.AsyncScheduler if ahead else lab.Scheduler
    for where, trace in traces:
        found = replay(Path(where).name, trace, scheduler_class)
        assert found is None, explain(found, scheduler_class)


def test_without_speculation_nothing_changes(lab: ModuleType) -> None:
    """Without speculation three requests get the same tokens in the same steps, with few blocks too."""
    said = []
    for parts in (EngineParts(), EngineParts(scheduler=lab.Scheduler)):
        config = EngineConfig(
            block_size=4,
            num_gpu_blocks=9,
            max_model_len=32,
            max_num_batched_tokens=8,
            max_num_seqs=3,
        )
        engine = LLMEngine(config=config, parts=parts)
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        for name, prompt in (("eve", "Why now?"), ("gil", "A block"), ("noor", "One")):
            engine.add_request(name, prompt, params)
        tokens: dict[str, list[int]] = {}
        steps = 0
        while engine.has_unfinished_requests() and steps < 100:
            steps += 1
            for output in engine.step():
                tokens[output.request_id] = list(output.outputs[0].token_ids)
        said.append((tokens, steps, engine.engine_core.scheduler.num_preemptions))
    assert said[1] == said[0], f"the engine says {said[0]}, with your scheduler {said[1]}"
