"""The deep dive of phase 05 shows what its scripts print of vLLM, and the guide's table says the same."""

from __future__ import annotations

import re

import pytest
from topic_helpers import load_scripts, topics_on

from course.docs.pages import ROOT
from tests.engine.helpers.real_vllm.vllm_helpers import output_of

PHASE = ROOT / "phase-05-cuda-graphs"
steps, paper, night, shipped = load_scripts(
    PHASE, "vllm_steps", "vllm_on_paper", "night", "morning"
)
SHOWN = topics_on(PHASE / "01-deep-dive.md")


def test_the_pages_show_or_name_every_topic() -> None:
    """The deep dive shows what a topic prints, or it or the cheatsheet names the command."""
    pages = [(PHASE / name).read_text("utf-8") for name in ("01-deep-dive.md", "CHEATSHEET.md")]
    for script, module in (("vllm_steps", steps), ("vllm_on_paper", paper)):
        named = re.findall(rf"`python {PHASE.name}/{script}\.py (\w+)`", "\n".join(pages))
        assert SHOWN[f"{script}.py"].keys() | set(named) == module.TOPICS.keys()


def test_the_guides_steps_run_as_vllm_says() -> None:
    """Mode and rows of the guide's four steps, out of what vLLM's dispatcher answered."""
    told = {}
    for line in SHOWN["vllm_steps.py"]["dispatch"]:
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
    topics = SHOWN["vllm_steps.py"]
    printed = output_of(PHASE / "vllm_steps.py", *topics).splitlines()
    assert printed == [line for lines in topics.values() for line in lines]
