"""Lab 05-04: what its page shows, and the same asked of vLLM's own code, live.

    LAB_IMPL=starter pytest -m vllm tests/authors/test_lab_05_04_vllm.py

holds a learner's own dispatcher against vLLM's. Without LAB_IMPL the reference is held.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from course.learner.labs import load_module
from tests.engine.helpers.real_vllm.vllm_helpers import ROOT, output_of

LAB = ROOT / "phase-05-cuda-graphs" / "labs" / "lab-04-cudagraph-mode"
CHOICE = os.environ.get("LAB_IMPL", "").strip() or "solution"
IMPL = {name: LAB / f"{name}.py" for name in ("solution", "starter")}.get(CHOICE, Path(CHOICE))


def test_the_script_prints_the_recorded_levels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command that the page names prints what levels.json keeps: each backend's level on each GPU."""
    script = LAB / "in_vllm.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--modes"])
    load_module(script, "lab_05_04_script").main()
    printed = capsys.readouterr().out
    kept = json.loads((LAB / "levels.json").read_text(encoding="utf-8"))
    words = {word for levels in kept["levels"].values() for pair in levels.items() for word in pair}
    assert words <= set(printed.split()), words - set(printed.split())


def test_what_the_page_says_of_the_levels() -> None:
    """FlashAttention allows everything in version 3 alone, and every level leaves the default as it is."""
    kept = json.loads((LAB / "levels.json").read_text(encoding="utf-8"))
    flash = {gpu: levels["FLASH_ATTN"] for gpu, levels in kept["levels"].items()}
    assert flash == {"A100": "UNIFORM_BATCH", "H100": "ALWAYS", "B200": "UNIFORM_BATCH"}
    left = {level: modes["FULL_AND_PIECEWISE"] for level, modes in kept["modes"].items()}
    assert {level for level, mode in left.items() if mode != "FULL_AND_PIECEWISE"} <= {"NEVER"}


@pytest.mark.vllm
@pytest.mark.parametrize("gpu", ["A100", "H100", "B200"])
def test_vllms_builders_say_it_again(gpu: str) -> None:
    """Levels and modes, asked in a process for each GPU."""
    kept = json.loads((LAB / "levels.json").read_text(encoding="utf-8"))
    told = json.loads(output_of(LAB / "in_vllm.py", "--one", gpu).splitlines()[-1])
    assert told["levels"] == kept["levels"][gpu]
    assert told["modes"].items() <= kept["modes"].items()


ASK = """
import logging, pathlib, sys
from course.learner.labs import load_module
logging.disable(logging.WARNING)
lab = load_module(pathlib.Path(sys.argv[1]), "lab_05_04_held")
support = load_module(pathlib.Path(sys.argv[2]), "lab_05_04_support_held")
grid = support.grid
theirs, yours, cells = grid.vllm(), support.yours(lab), 0
for table in list(grid.tables())[::20]:
    a, b = grid.answer(theirs, table), grid.answer(yours, table)
    assert a == b, f"{support.about(table)}: {support.first_difference(a, b)}"
    cells += grid.CELLS
print(f"LAB {cells:,} cells")
"""


@pytest.mark.vllm
def test_vllm_dispatches_as_the_lab_does() -> None:
    """vLLM's dispatcher, asked here and now, cell by cell."""
    out = output_of("-c", ASK, IMPL, LAB / "support.py")
    assert "LAB 450,560 cells" in out, out
