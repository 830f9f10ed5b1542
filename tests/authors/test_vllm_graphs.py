"""The deep dive of phase 05 shows what its scripts print of vLLM, and the guide's table says the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest

from course.docs.pages import ROOT, read_page
from course.learner.labs import load_module

PHASE = ROOT / "phase-05-cuda-graphs"
sys.path.insert(0, str(PHASE))  # they import their neighbours by name
steps: Any = load_module(PHASE / "vllm_steps.py", "phase_05_vllm_steps")
paper: Any = load_module(PHASE / "vllm_on_paper.py", "phase_05_vllm_on_paper")
night: Any = load_module(PHASE / "night.py", "phase_05_night")
shipped: Any = load_module(PHASE / "morning.py", "phase_05_morning")
sys.path.remove(str(PHASE))
SHOWN = {
    tuple(block.head.split(" | ")[0].split("/")[-1].split()): [
        line for line in block.body if line[:3] != "```"
    ]
    for block in read_page(PHASE / "01-deep-dive.md").outputs
}


def shown(script: str) -> dict[str, list[str]]:
    """Topic -> what the page shows of it."""
    return {name: lines for (file, name), lines in SHOWN.items() if file == script}


def test_the_page_shows_every_topic() -> None:
    assert shown("vllm_steps.py").keys() == steps.TOPICS.keys()
    assert shown("vllm_on_paper.py").keys() == paper.TOPICS.keys()


def test_the_guides_steps_run_as_vllm_says() -> None:
    """Mode and rows of the guide's four steps, out of what vLLM's dispatcher answered."""
    told = {}
    for line in shown("vllm_steps.py")["dispatch"]:
        if m := re.search(r"  (\S.*?)\s+uniform (\w+)\s+(\w+)\s+(\d+) rows", line):
            told[m[1]] = (m[2] == "True", m[3], int(m[4]))
    rows = {"Kim": 1, "33 people": 33, "33 people and 200 rows of Lou's": 233,
            "33 people and 2,047 rows of Lou's": 2080}  # fmt: skip
    for name, count in rows.items():
        uniform, mode, padded = told[name]
        assert night.runs_as(count, uniform) == (mode, padded), name


def test_the_guides_launches_are_those_of_the_shipped_program() -> None:
    """The closed forms for Kim's model, held against the kernels that the engine launches."""
    program = shipped.program()
    layers = sum(kernel.kind == "attention" for kernel in program)
    assert len(program) == layers * len(night.LAYER) + 3
    assert [k.kind for k in program if k.name.startswith("layers.0.")] == list(night.LAYER)


@pytest.mark.vllm
def test_vllm_says_what_the_page_shows_of_its_steps() -> None:
    topics = shown("vllm_steps.py")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "TRITON_INTERPRET"))}
    done = subprocess.run(
        [sys.executable, str(PHASE / "vllm_steps.py"), *topics],
        env=env, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [line for lines in topics.values() for line in lines]
