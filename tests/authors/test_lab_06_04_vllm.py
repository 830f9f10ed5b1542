"""Lab 06-04: its committed results, its picture, and the script that made them, on real vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_module
from tests.engine.helpers.real_vllm.vllm_helpers import ROOT, cpu_kernels, output_of

[LAB] = (ROOT / "phase-06-quantization" / "labs").glob("lab-04-*")
CHILD = """
import json, sys, tempfile
from pathlib import Path
from course.learner.labs import load_module
if __name__ == "__main__":
    made = load_module(Path(sys.argv[1]) / "measure.py", "lab_06_04_measure_child")
    made.METHODS, made.TIMED = ("int8", "w8a8", "int4-g32"), ("none", "w8a8")
    made.DOCUMENTS, made.IN_VLLM, made.PROMPTS, made.TOKENS = 20, 2, 2, 8
    made.BATCHES, made.STEPS, made.ROUNDS = (1,), 3, 2
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(made.in_vllm(made.load_lab("solution"), Path(place))))
"""


@pytest.fixture(scope="module")
def measure() -> ModuleType:
    return load_module(LAB / "measure.py", "lab_06_04_measure_tested")


@pytest.fixture(scope="module")
def results() -> Any:
    return json.loads((LAB / "results.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("engine", ["mini_vllm", "vllm"])
def test_a_result_says_how_it_was_made(results: Any, engine: str) -> None:
    """Command, date, hardware, versions and how busy the machine was; no place of that machine."""
    about = results[engine]["about"]
    assert (
        about["command"]
        == f"python measure.py {'--mini' if engine == 'mini_vllm' else '--vllm'} --write"
    )
    assert {"date", "hardware", "versions", "machine", "load average at the end"} <= about.keys()
    text = json.dumps(results)
    for word in (str(Path.home()), str(ROOT), "/tmp/", "127.0.0.1"):
        assert word not in text, word


def test_every_method_was_measured(measure: ModuleType, results: Any) -> None:
    assert list(results["mini_vllm"]["methods"]) == ["none", *measure.METHODS]
    real = results["vllm"]["methods"]
    assert [name for name in real if not name.startswith("none")] == list(measure.METHODS)


def test_vllm_and_the_engine_agree_on_the_same_files(results: Any) -> None:
    """To rounding: in W8A8 an activation may round to the next code, in bfloat16 every one is rounded."""
    real = results["vllm"]["methods"]
    floor = real["none, bfloat16"]["kl from mini_vllm"]
    for name, row in real.items():
        if "refused" in row:
            continue
        most = 1e-4 if row["dtype"] == "float32" else 12 * floor
        assert row["kl from mini_vllm"] < most, (name, row["kl from mini_vllm"], floor)
        if not name.startswith("none"):
            assert row["kl from mini_vllm"] < row["kl"] / 10, name


def test_the_report_is_printed_from_the_file(
    measure: ModuleType, results: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the solution's functions: a row for each method, its perplexity as it was measured."""
    measure.report(measure.load_lab("solution"), results)
    printed = capsys.readouterr().out.splitlines()
    for name, row in results["mini_vllm"]["methods"].items():
        assert any(line.split()[:2] == [name, f"{row['perplexity']:.4f}"] for line in printed), name


@pytest.mark.vllm
def test_measuring_anew_gives_what_is_committed(results: Any) -> None:
    """The same methods are taken and refused; vLLM and the engine say the same of two documents, where vLLM
    has a kernel on this processor, and one that is right."""
    right = {"w8a8": cpu_kernels().exact_int8, "int4-g32": cpu_kernels().four_bits}
    found = json.loads(output_of("-c", CHILD, LAB).splitlines()[-1])
    assert "CPUWNA16LinearKernel" in found["methods"]["int8"]["refused"]
    assert ("refused" in found["methods"]["int4-g32"]) is not right["int4-g32"]
    kept = results["vllm"]["methods"]
    for name in ("w8a8", "int4-g32"):
        row = found["methods"][name]
        assert row["dtype"] == kept[name]["dtype"]
        if not right[name]:
            continue
        assert row["agreement with mini_vllm"] > 0.97
        assert row["kl from mini_vllm"] < (1e-4 if name == "w8a8" else 5e-3)
    [timed] = found["rates"]
    assert {name: len(taken) for name, taken in timed["seconds"].items()} == {"none": 2, "w8a8": 2}
