"""A run that is recorded: three requests, and what they gave."""

from __future__ import annotations

from typing import NamedTuple

from engine_helpers import make_engine
from text_helpers import finish, greedy

from mini_vllm import LLMEngine, RequestOutput
from mini_vllm.trace import StepTrace, Trace, TraceRecorder

PROMPTS = {"a": list(range(10, 30)), "b": [*range(10, 26), 5, 5], "c": [7] * 9}


class Recorded(NamedTuple):
    engine: LLMEngine
    trace: Trace
    done: dict[str, RequestOutput]

    @property
    def steps(self) -> list[StepTrace]:
        return self.trace.steps


def record() -> Recorded:
    """Requests that share a prefix, in chunks, in a pool that forces preemption."""
    engine = make_engine(num_gpu_blocks=18, block_size=4, max_num_batched_tokens=12, max_num_seqs=4)
    recorder = TraceRecorder(engine, "A title", "What to look at.")
    for request_id, prompt in PROMPTS.items():
        engine.add_request(request_id, prompt, greedy(18, ignore_eos=True))
    done = finish(engine)
    trace = recorder.trace
    recorder.detach()
    engine.add_request("unseen", [5], greedy(2))
    finish(engine)
    return Recorded(engine, trace, done)
