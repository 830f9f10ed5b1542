"""Lab 03-01: your loops beside the engine's own, on random workloads and on the real model."""

from __future__ import annotations

from types import ModuleType

from course.learner.labs import load_support
from course.parity.decisions import mini_parts
from course.parity.record import workload
from course.parity.traces import Run
from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.engine.parts import EngineParts

support = load_support(__file__)


def test_the_same_decisions_as_the_engine(lab: ModuleType) -> None:
    """Your scheduler decides as the engine does in twelve random workloads without preemptions and hits."""
    for seed in range(12):
        work = workload(seed, ("mixed", "large-budget", "no-gate", "short-model")[seed % 4])
        work["config"] |= {"enable_prefix_caching": False, "num_blocks": 4000, "policy": "fcfs"}
        mine = Run(work, mini_parts(work["config"]))
        yours = Run(work, mini_parts(work["config"], lab.Scheduler))
        while not mine.done:
            mine.arrive()
            yours.arrive()
            expected = mine.decide()
            got = support.explained(yours.parts.scheduler, yours.decide)
            for field in ("scheduled", "blocks", "running", "finished", "free"):
                a, b = expected[field], got[field]  # type: ignore[literal-required]
                assert a == b, (
                    f"workload {seed}, step {mine.step}, {field}: the engine has {a}, yours {b}"
                )
            order = list(expected["scheduled"])
            assert list(got["scheduled"]) == order, (
                f"workload {seed}, step {mine.step}: served in the order {order}, yours: "
                f"{list(got['scheduled'])}"
            )


def test_the_same_tokens(lab: ModuleType) -> None:
    """With your loops, five chunked requests on the shipped model get the same tokens as with the
    engine's."""
    said = []
    for parts in (EngineParts(), EngineParts(scheduler=lab.Scheduler)):
        config = EngineConfig(
            block_size=4,
            num_gpu_blocks=100,
            max_model_len=64,
            max_num_batched_tokens=8,
            max_num_seqs=3,
        )
        engine = LLMEngine(config=config, parts=parts)
        for number, prompt in enumerate(("A block", "The scheduler", "A", "Why now?", "One step")):
            params = SamplingParams(temperature=0, max_tokens=4 + number, ignore_eos=True)
            engine.add_request(str(number), prompt, params)
        tokens: dict[str, list[int]] = {}
        while engine.has_unfinished_requests():
            for output in support.explained(engine.engine_core.scheduler, engine.step):
                tokens[output.request_id] = list(output.outputs[0].token_ids)
        said.append(tokens)
    assert said[1] == said[0], f"the engine says {said[0]}, with your loops {said[1]}"
