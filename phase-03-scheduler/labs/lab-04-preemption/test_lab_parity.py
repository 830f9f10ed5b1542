"""Lab 03-04: your scheduler beside vLLM's recorded decisions, and beside the engine's."""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType
from typing import Any

import course.parity
from course.learner.labs import load_support
from course.parity.decisions import explain, mini_parts, replay
from course.parity.record import record, workload
from course.parity.traces import Run, Trace, read_traces
from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.engine.parts import EngineParts

support = load_support(__file__)
GOLDEN = Path(course.parity.__file__).parents[2] / "tests/golden/scheduler-0.22.1.jsonl.gz"
WORKLOADS = [("no-cache", seed) for seed in (3, 6, 9, 10)]
WORKLOADS += [("priority", seed) for seed in (1, 6, 8, 11)]
WORKLOADS += [("no-gate", seed) for seed in (2, 3, 4, 8)]


@functools.cache
def golden() -> list[tuple[str, Trace]]:
    """The recorded traces that have prefix caching off."""
    found = read_traces(str(GOLDEN))
    return [(Path(w).name, t) for w, t in found if not t["config"]["enable_prefix_caching"]]


@functools.cache
def random_traces() -> list[tuple[str, Trace]]:
    """What the engine's own scheduler decides on random workloads without prefix caching."""
    traces = []
    for shape, seed in WORKLOADS:
        work = workload(seed, shape)
        work["config"]["enable_prefix_caching"] = False
        traces.append((f"{shape} {seed}", record(work, mini_parts(work["config"]))))
    return traces


def compare(lab: ModuleType, traces: list[tuple[str, Trace]]) -> None:
    for where, trace in traces:
        found = replay(where, trace, lab.Scheduler)
        assert found is None, explain(found, lab.Scheduler)


def test_the_same_decisions_as_vllm(lab: ModuleType) -> None:
    """Your scheduler decides as vLLM did in every recorded workload without prefix caching, in 152
    preemptions."""
    traces = golden()
    count = sum(sum(trace["preemptions"].values()) for _, trace in traces)
    assert (len(traces), count) == (5, 152), (
        f"five traces with 152 preemptions, not {len(traces)} with {count}"
    )
    compare(lab, traces)


def test_the_same_decisions_as_the_engine(lab: ModuleType) -> None:
    """Your scheduler decides as the engine does in twelve random workloads, under both policies, gate on
    or off."""
    compare(lab, random_traces())


def test_what_must_hold(lab: ModuleType) -> None:
    """The invariants I6 to I11 and I13 hold after each decision of the random workloads."""

    class Watched(lab.Scheduler):  # type: ignore[name-defined,misc]
        def schedule(self) -> Any:
            leader = self.running[0] if self.running else None
            plan = super().schedule()
            found = support.broken(self, plan, leader)
            assert not found, f"broken: {'; '.join(found[:3])}"
            return plan

    for where, trace in random_traces():
        run = Run(trace, mini_parts(trace["config"], Watched))
        limit = 4 * len(trace["steps"])
        while not run.done and run.step < limit:
            run.arrive()
            run.decide()
        assert run.done, (
            f"{where}: not done after {limit} steps; the engine takes {len(trace['steps'])}"
        )


def test_the_same_tokens(lab: ModuleType) -> None:
    """Four requests on the shipped model read the same with 12 blocks, where they are preempted, as with
    99."""
    said: list[dict[str, list[int]]] = []
    lost = []
    for blocks, parts in ((99, EngineParts()), (12, EngineParts(scheduler=lab.Scheduler))):
        config = EngineConfig(
            block_size=4,
            num_gpu_blocks=blocks + 1,
            max_model_len=40,
            max_num_batched_tokens=16,
            max_num_seqs=4,
            enable_prefix_caching=False,
        )
        engine = LLMEngine(config=config, parts=parts)
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        for name, prompt in (("eve", "Why now?"), ("fay", "A"), ("gil", "A block"), ("hal", "One")):
            engine.add_request(name, prompt, params)
        tokens: dict[str, list[int]] = {}
        steps = 0
        while engine.has_unfinished_requests() and steps < 200:
            steps += 1
            for output in engine.step():
                tokens[output.request_id] = list(output.outputs[0].token_ids)
        said.append(tokens)
        lost.append(engine.engine_core.scheduler.num_preemptions)
    assert lost[0] == 0, f"99 blocks are enough, and yet {lost[0]} preemptions"
    assert lost[1] > 0, "12 blocks are not enough, and the scheduler has counted no preemption"
    assert said[1] == said[0], f"with room: {said[0]}, with your preemptions: {said[1]}"
