"""Lab 10-03 beside vLLM: what was recorded is still what its ranks do, also on two Ray nodes."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from course.learner.labs import load_module
from mini_vllm import LLM, SamplingParams
from tests.engine.helpers.thorough import either

LAB = Path(__file__).resolve().parents[2] / "phase-10-parallelism/labs/lab-03-two-ranks-for-real"
in_vllm = load_module(LAB / "in_vllm.py", "lab_10_03_in_vllm")
in_ray = load_module(LAB / "in_ray.py", "lab_10_03_in_ray")

OFTEN = ["tp 4", "pp 3", "tp 2, pp 2", "experts, tp 2, ep", "embedding not summed"]
"""Of the twelve runs, those that differ most: each loads two to four workers."""


@pytest.mark.vllm
@pytest.mark.parametrize("name", either(["pp 3"], OFTEN))
def test_ranks_in_vllm(name: str) -> None:
    """Workers, blocks, tokens, and each rank's calls in every step."""
    recorded = in_vllm.support.recorded()["runs"]
    assert recorded.keys() == in_vllm.RUNS.keys()
    assert in_vllm.start(name) == recorded[name]


def greedy(prompts: Any) -> list[list[int]]:
    """The tokens that `mini_vllm` gives on one rank."""
    params = SamplingParams(temperature=0, max_tokens=in_ray.NUM_TOKENS, ignore_eos=True)
    outputs = LLM().generate(prompts, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_what_was_recorded_on_two_nodes() -> None:
    """One rank, two ranks and two nodes gave one rank's tokens here, and lost nodes ended their server."""
    record = json.loads(in_ray.RECORD.read_text(encoding="utf-8"))
    assert {name: one["nodes"] for name, one in record["answers"].items()} == {
        "one rank": 1, "two ranks": 1, "two nodes": 2,
    }  # fmt: skip
    for name, one in record["answers"].items():
        assert one["tokens"] == greedy(in_ray.PROMPTS), name
    for name in ("is killed", "freezes"):
        assert record[name]["late"][0] == 500, name
        assert record[name]["server"][0] == 0, name


@pytest.mark.vllm
def test_two_ray_nodes() -> None:
    """Real vLLM with a rank on each of two nodes gives the same tokens."""
    if find_spec("ray") is None:
        pytest.skip("ray is not installed beside vLLM: pip install -e '.[ray]'")
    with in_ray.two_nodes() as (address, _):
        found = in_ray.ask("ray", 2, RAY_ADDRESS=address)
    assert found["nodes"] == 2
    assert found["tokens"] == greedy(in_ray.PROMPTS)
