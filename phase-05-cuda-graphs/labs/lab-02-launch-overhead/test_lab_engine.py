"""Lab 05-02: the formulas against the engine, which counts every launch of a real run."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.engine.step_record import StepRecord
from mini_vllm.model_loader import get_model

MODES = ("PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


def counted(layers: int, mode: str) -> list[tuple[str, int]]:
    """How each step of a run ran, and its launches: two prompts, then decodes, one prompt among them.

    The shipped model with its four layers, or with as many as are asked for, the first ones again behind
    the last. No size above 8 is captured, so the longest prompt runs without a graph.
    """
    model = get_model(DEFAULT_MODEL)
    model.config = replace(model.config, num_hidden_layers=layers)
    model.layers = (model.layers * layers)[:layers]
    config = EngineConfig(
        num_gpu_blocks=20, cudagraph_mode=mode, cudagraph_capture_sizes=[1, 2, 4, 8], max_num_seqs=8
    )
    engine = LLMEngine(model, config)
    steps: list[tuple[str, int]] = []

    def observe(record: StepRecord) -> None:
        stat = record.model_runner_output.cudagraph_stats
        if stat is not None:
            steps.append((stat.runtime_mode, stat.launches))

    engine.engine_core.step_observers.append(observe)
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    for name, length in (("kim", 3), ("lou", 2)):
        engine.add_request(name, {"prompt_token_ids": list(range(5, 5 + length))}, params)
    engine.step()
    engine.add_request("late", {"prompt_token_ids": list(range(5, 25))}, params)
    while engine.has_unfinished_requests():
        engine.step()
    return steps


@pytest.mark.parametrize("layers", [1, 4, 7])
@pytest.mark.parametrize("mode", MODES)
def test_the_engine_counts_the_same(lab: ModuleType, layers: int, mode: str) -> None:
    """`launches` counts what the engine counts in every step, for each mode and three depths of the model."""
    steps = counted(layers, mode)
    ran = {one for one, _ in steps}
    assert "NONE" in ran, f"{mode}: a prompt of 20 tokens has no graph, and the steps ran as {ran}"
    assert len(ran) > 1, f"{mode}: no step had a graph"
    for one, launches in steps:
        got = lab.launches(lab.Kernels(layers), one)
        assert got == launches, (
            f"{layers} layers, a step that ran as {one}: the engine started {launches}, you say {got}"
        )
