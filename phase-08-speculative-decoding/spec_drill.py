"""The tiny Llama checks three drafts: a place for breakpoints in the judge and in the scheduler.

    python phase-08-speculative-decoding/spec_drill.py

It stops before the step that computes Eve's prompt, which ends in "whole se". The step after that one checks
the drafts of step 149 of the guide. At the prompt of the debugger `engine`, `rejection_sampler` and `drafts`
are names, the last two modules of `mini_vllm`. EXERCISES.md has the drills.
"""

from __future__ import annotations

import bdb
import contextlib

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.core.sched import drafts
from mini_vllm.sample import rejection_sampler

PROMPT = (
    "The KV cache stores the keys and values of all tokens read so far. With it, a decode step has to "
    "compute only one new token per request. Without it, every step would read the whole se"
)


def main() -> None:
    lookup = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2}
    engine = LLMEngine(config=EngineConfig(speculative_config=lookup | {"prompt_lookup_max": 5}))
    engine.add_request("eve", PROMPT, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    breakpoint()  # noqa: T100
    while engine.has_unfinished_requests():
        engine.step()
    assert rejection_sampler
    assert drafts  # names for the debugger


if __name__ == "__main__":
    with contextlib.suppress(bdb.BdbQuit):  # the debugger's `q`
        main()
