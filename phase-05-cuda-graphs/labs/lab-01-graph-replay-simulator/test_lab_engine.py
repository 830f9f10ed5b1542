"""Lab 05-01: your runners under the engine's Llama."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from course.learner.labs import load_support
from mini_vllm import LLM, SamplingParams
from mini_vllm.cudagraph import BatchDescriptor, GraphPool, build_program
from mini_vllm.engine.parts import EngineParts

support = load_support(__file__)
PROMPTS = ["It is four in the morning", "A batch", "What is a slot?"]
PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def run(parts: EngineParts, **settings: Any) -> tuple[list[Any], list[Any], Any]:
    """The tokens, how each step ran, and what ran the model."""
    llm = LLM(parts=parts, max_num_seqs=4, max_model_len=96, **settings)
    core, stats = llm.llm_engine.engine_core, []
    core.step_observers.append(lambda step: stats.append(step.model_runner_output.cudagraph_stats))
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    return tokens, stats, core.model_runner.forward


def test_the_engine_under_your_graphs(lab: ModuleType) -> None:
    """Under your `GraphRunner` the engine gives the same tokens, in 13 launches per step or 1."""
    expected, _, _ = run(EngineParts())
    sizes = [1, 2, 4, 80]
    for mode, of_prompts, of_decodes in (
        ("FULL_AND_PIECEWISE", 13, 1),
        ("PIECEWISE", 13, 13),
        ("FULL", 1, 1),
    ):
        settings = {"cudagraph_mode": mode, "cudagraph_capture_sizes": sizes}
        tokens, stats, forward = run(EngineParts(graph_runner=lab.GraphRunner), **settings)
        assert tokens == expected, f"under {mode} the engine gives other tokens on your GraphRunner"
        assert type(forward.full) is lab.GraphRunner, "the engine did not take your GraphRunner"
        got = [stat.launches for stat in stats if stat is not None]
        want = [of_prompts] + 7 * [of_decodes]
        assert got == want, f"the launches of each step under {mode} are {want}, not {got}"
        captured = len(forward.piecewise.pieces[0].entries) + len(forward.full.entries)
        wanted = {"FULL_AND_PIECEWISE": 4 + 3, "PIECEWISE": 4, "FULL": 4}[mode]
        assert captured == wanted, (
            f"{mode} with sizes {sizes}: {wanted} shapes are captured, not {captured}"
        )


def test_the_llama_in_your_pieces(lab: ModuleType) -> None:
    """The shipped model under your three classes gives the same hidden states with graphs as without."""
    llm = LLM(max_num_seqs=2, max_model_len=64, num_gpu_blocks=8)
    core = llm.llm_engine.engine_core
    kernels = build_program(llm.llm_engine.model, 16)
    buffers = {
        "input_ids": np.array([70, 80, 90, 0], np.int32),
        "positions": np.arange(4, dtype=np.int32),
        "slot_mapping": np.array([16, 17, 18, -1]),
        "query_start_loc": np.array([0, 3], np.int32),
        "seq_lens": np.array([3], np.int32),
        "block_table": np.array([[1, 0]], np.int32),
    }
    caches = {f"kv_cache.{i}": cache for i, cache in enumerate(core.model_runner.kv_caches)}
    counter, desc = lab.LaunchCounter(), BatchDescriptor(4)
    pieces = lab.PiecewiseGraphRunner(kernels, counter, GraphPool())
    results = []
    for mode in (support.NONE, support.PIECEWISE, support.PIECEWISE):
        counter.launches = 0
        values = buffers | caches
        pieces(values, mode, desc)
        results.append((counter.launches, values["normed"][:3].copy()))
    (eager, want), _, (launches, got) = results
    assert eager == 51, f"kernel by kernel the four layers are 51 launches, not {eager}"
    assert launches == 13, (
        f"5 pieces, and 2 kernels outside in each layer: 13 launches, not {launches}"
    )
    # Bit for bit: both ways run the four rows of the buffers, so each product has one shape.
    assert np.array_equal(got, want), (
        f"the pieces compute something else: off by {np.abs(got - want).max():.1e} at most"
    )
