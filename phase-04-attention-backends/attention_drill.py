"""Ida decodes and Jon's prompt comes, stopped before that step: a place for breakpoints in attention.

    python phase-04-attention-backends/attention_drill.py

The shipped model (4 query heads on 2 KV heads, 4 layers) on `OnlineAttention`, tiles of 32 keys and of 8
queries, blocks of 16. Ida has 40 tokens, Jon comes with 20. At the prompt of the debugger `engine` and
`online` are names. EXERCISES.md has the drills.
"""

from __future__ import annotations

import bdb
import contextlib

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.attention import OnlineAttention, online
from mini_vllm.engine.parts import EngineParts


def main() -> None:
    engine = LLMEngine(
        config=EngineConfig(block_size=16, num_gpu_blocks=32, enable_prefix_caching=False),
        parts=EngineParts(attention=lambda: OnlineAttention(tile=32, query_tile=8)),
    )
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    engine.add_request("ida", {"prompt_token_ids": [20 + i % 37 for i in range(40)]}, params)
    engine.step()
    engine.add_request("jon", {"prompt_token_ids": [60 + i % 41 for i in range(20)]}, params)
    breakpoint()  # noqa: T100
    while engine.has_unfinished_requests():
        engine.step()
    assert online  # a name for the debugger


if __name__ == "__main__":
    with contextlib.suppress(bdb.BdbQuit):  # the debugger's `q`
        main()
