"""Gil's request and a greedy one in one batch: a place for breakpoints in the sampler.

    python phase-09-sampling/sampling_drill.py

It stops before the first step, which computes both prompts and samples a token for each. At the prompt of the
debugger `engine`, `sampler`, `ops` and `state` are names, the last three modules of `mini_vllm`. EXERCISES.md
has the drills.
"""

from __future__ import annotations

import bdb
import contextlib

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.sample import ops, sampler
from mini_vllm.sample.logits_processor import AdapterLogitsProcessor, state


class Nothing(AdapterLogitsProcessor):
    """A processor that changes nothing; it is there to be told of rows."""

    def is_argmax_invariant(self) -> bool:
        return True

    def new_req_logits_processor(self, params: SamplingParams) -> None:
        return None


def main() -> None:
    engine = LLMEngine(config=EngineConfig(logits_processors=[Nothing]))
    engine.add_request("bo", "Why ", SamplingParams(temperature=0, max_tokens=2))
    engine.add_request(
        "gil", "Why ", SamplingParams(temperature=1.0, seed=7, min_p=0.02, max_tokens=4)
    )
    breakpoint()  # noqa: T100
    while engine.has_unfinished_requests():
        engine.step()
    assert ops
    assert sampler
    assert state  # names for the debugger


if __name__ == "__main__":
    with contextlib.suppress(bdb.BdbQuit):  # the debugger's `q`
        main()
