"""The tiny Mixtral answers one prompt: a place for breakpoints in its router and its experts.

    python phase-07-gemm-and-moe/moe_drill.py

It stops before the step that computes Ilse's prompt of four tokens; one token more is decoded behind it. At
the prompt of the debugger `engine`, `router` and `fused_moe` are names, the last two modules of
`mini_vllm/layers/fused_moe/`. EXERCISES.md has the drills.
"""

from __future__ import annotations

import bdb
import contextlib

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.layers.fused_moe import fused_moe, router


def main() -> None:
    model = DEFAULT_MODEL.parent / "tiny-mixtral"
    engine = LLMEngine(str(model), EngineConfig(num_gpu_blocks=8))
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    engine.add_request("ilse", {"prompt_token_ids": [50, 51, 52, 53]}, params)
    breakpoint()  # noqa: T100
    while engine.has_unfinished_requests():
        engine.step()
    assert router
    assert fused_moe  # names for the debugger


if __name__ == "__main__":
    with contextlib.suppress(bdb.BdbQuit):  # the debugger's `q`
        main()
