"""Lab 05-05: its committed results, and the scripts that made them, on real vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_module
from tests.engine.helpers.real_vllm.vllm_helpers import ROOT, output_of

[LAB] = (ROOT / "phase-05-cuda-graphs" / "labs").glob("lab-05-*")
CHILD = """
import json, sys
from pathlib import Path
from course.learner.labs import load_module
if __name__ == "__main__":
    made = load_module(Path(sys.argv[1]) / "in_vllm.py", "lab_05_05_in_vllm_child")
    print(json.dumps({task}))
"""
ON_A_CPU = """made.compare(
    made.engines({"eager": made.ON_CPU["eager"], "again": made.ON_CPU["eager"]},
                 made.DEFAULT_MODEL, dtype="float32", block_size=16),
    (1, 3), 3, 2)"""
ON_A_GPU = 'made.on_gpu(None, "H100 SXM")'


@pytest.fixture(scope="module")
def in_vllm() -> ModuleType:
    return load_module(LAB / "in_vllm.py", "lab_05_05_in_vllm_tested")


@pytest.fixture(scope="module")
def solution() -> ModuleType:
    return load_module(LAB / "solution.py", "lab_05_05_solution_tested")


def child(task: str, **environment: str) -> dict[str, Any]:
    """What `task` gives in a process of its own, without the settings of other tests."""
    output = output_of("-c", CHILD.replace("{task}", task), LAB, **environment)
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", ["steps", "vllm"])
def test_a_result_says_how_it_was_made(name: str) -> None:
    """Command, date, hardware, versions and how busy the machine was; no place of that machine."""
    text = (LAB / f"{name}.json").read_text(encoding="utf-8")
    about = json.loads(text)["about"]
    assert about["command"] == f"python measure.py --{name} --write"
    assert {"date", "hardware", "versions", "load average at the end"} <= about.keys()
    for word in (str(Path.home()), str(ROOT), "/tmp/", "127.0.0.1"):
        assert word not in text, word


def test_the_graphs_are_shown_beside_the_prediction(
    in_vllm: ModuleType, solution: ModuleType
) -> None:
    """The table for a GPU, from drawn seconds: no run has been made, and its code must not wait for one."""
    seconds = {"eager": 9e-4, "NONE": 6e-4, "PIECEWISE": 4e-4, "FULL_AND_PIECEWISE": 3e-4}
    found = {
        "tokens": 33, "same": True, "card": "H100 SXM", "model": in_vllm._sizes(in_vllm.DEFAULT_MODEL),
        "rows": [{"batch": 1, "seconds": {name: [s] * 3 for name, s in seconds.items()}}],
    }  # fmt: skip
    lines: list[str] = []
    in_vllm.show_graphs(solution, found, lines.append)
    assert len(lines) == 2 + len(seconds)
    rows = {line.split()[1]: line for line in lines[2:]}
    assert "0.90 ms" in rows["eager"]
    assert rows["eager"].endswith("0.67 loss")
    assert rows["NONE"].endswith("0.60 ms  ")
    assert rows["PIECEWISE"].endswith("1.50 gain")
    assert rows["FULL_AND_PIECEWISE"].endswith("2.00 gain")


@pytest.mark.vllm
def test_engines_side_by_side_on_a_cpu() -> None:
    """Two engines in one process, in turns, the same tokens, a time for each round."""
    found = child(ON_A_CPU, TORCH_COMPILE_DISABLE="1")
    assert found["same"]
    assert [row["batch"] for row in found["rows"]] == [1, 3]
    for row in found["rows"]:
        assert {name: len(taken) for name, taken in row["seconds"].items()} == {
            "eager": 2,
            "again": 2,
        }


@pytest.mark.gpu
@pytest.mark.vllm
def test_engines_side_by_side_on_a_gpu() -> None:
    """The same code with the kinds that a GPU has; what is captured is what was asked for."""
    found = child(ON_A_GPU)
    sizes = found["capture_sizes"]
    assert sizes["eager"] == sizes["NONE"] == []
    assert sizes["PIECEWISE"] == sizes["FULL_AND_PIECEWISE"] != []
    assert [row["batch"] for row in found["rows"]] == [1, 8, 64]
