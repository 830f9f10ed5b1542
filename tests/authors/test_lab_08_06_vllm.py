"""Lab 08-06: what it says of vLLM's validators, asked again, and its test on vLLM's own rejection sampler.

    LAB_IMPL=starter pytest -m vllm tests/authors/test_lab_08_06_vllm.py

Without LAB_IMPL the reference is held.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest

from course.learner.labs import load_module
from tests.engine.helpers.real_vllm.vllm_helpers import ROOT, output_of

LAB = ROOT / "phase-08-speculative-decoding" / "labs" / "lab-06-which-parameters-survive"
CHOICE = os.environ.get("LAB_IMPL", "").strip() or "solution"
pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    named = {"solution": LAB / "solution.py", "starter": LAB / "starter.py"}
    return load_module(named.get(CHOICE, Path(CHOICE)), "lab_08_06_held")


def test_the_validators_say_the_same(lab: ModuleType) -> None:
    """Parameters and methods, put to vLLM's own functions now."""
    ask = load_module(LAB / "ask_vllm.py", "lab_08_06_ask")
    config = ask.make_config()
    assert ask.ask_parameters(config) == lab.parameters()
    assert ask.ask_methods(config) == lab.methods()


def test_the_cpu_build_is_the_biased_one(
    lab: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the README says of `in_vllm.py`: found in nearly all of 20 models, and nobody else accused. The
    CPU build's draft rows are divided by whatever was in memory, which now and then may be harmless."""
    in_vllm = load_module(LAB / "in_vllm.py", "lab_08_06_in_vllm")
    in_vllm.main(CHOICE if CHOICE in ("solution", "starter") else "solution")
    lines = [line.split("accused") for line in capsys.readouterr().out.splitlines()[1:]]
    accused = {name.strip(): int(rest.split()[0]) for name, rest in lines}
    assert accused["vLLM, CPU as it is"] >= 15, accused
    assert accused["mini_vllm"] == accused["vLLM, expand mended"] == 0, accused


def test_a_user_of_the_cpu_build_sees_it() -> None:
    """The whole engine: some text comes far more often, or far less, with drafts than without."""
    lines = output_of(LAB / "end_to_end.py").splitlines()[1:]
    apart = [abs(int(line.split()[-2]) - int(line.split()[-1])) for line in lines]
    assert max(apart) > 150, lines  # of 1,000; by chance 90 once in 10,000 runs
