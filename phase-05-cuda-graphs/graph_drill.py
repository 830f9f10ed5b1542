"""Kim and two more decode, Lou's prompt comes, then Kim is through: a place for breakpoints in graphs.

    python phase-05-cuda-graphs/graph_drill.py

The shipped model (4 layers) under FULL_AND_PIECEWISE, with graphs for 1, 2, 4 and 8 tokens. It stops before
the step in which Kim, Mo and Ned decode and Lou's prompt of four tokens is computed; behind it Kim gets one
token more, and the others go on without her. At the prompt of the debugger `engine`, `forward` and `graph`
are names. EXERCISES.md has the drills.
"""

from __future__ import annotations

import bdb
import contextlib

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.cudagraph import graph
from mini_vllm.worker import graph_forward as forward


def main() -> None:
    engine = LLMEngine(
        config=EngineConfig(
            num_gpu_blocks=32,
            enable_prefix_caching=False,
            max_num_seqs=8,
            cudagraph_mode="FULL_AND_PIECEWISE",
            cudagraph_capture_sizes=[1, 2, 4, 8],
        )
    )
    for name, length, tokens in (("kim", 2, 4), ("mo", 3, 6), ("ned", 3, 6)):
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        engine.add_request(name, {"prompt_token_ids": [40 + length] * length}, params)
    engine.step()
    engine.step()
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    engine.add_request("lou", {"prompt_token_ids": [60, 61, 62, 63]}, params)
    graphs = engine.engine_core.model_runner.forward
    assert isinstance(graphs, forward.NumpyGraphForward)
    graphs.counter.reset()
    breakpoint()  # noqa: T100
    while engine.has_unfinished_requests():
        engine.step()
    assert graph  # a name for the debugger


if __name__ == "__main__":
    with contextlib.suppress(bdb.BdbQuit):  # the debugger's `q`
        main()
