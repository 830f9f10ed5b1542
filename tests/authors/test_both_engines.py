"""The deep dive of phase 00 shows what its script prints, mini_vllm's half of it and vLLM's."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from course.docs.pages import ROOT, read_page
from course.learner.labs import load_module
from tests.engine.helpers.real_vllm.vllm_helpers import output_of

SCRIPT = ROOT / "phase-00-foundations" / "both_engines.py"
both = load_module(SCRIPT, "phase_00_both_engines")
PAGE = read_page(ROOT / "phase-00-foundations" / "01-deep-dive.md")
SHOWN = {
    block.head.split(" | ")[0].rsplit(" ", 1)[-1]: [
        line for line in block.body if line[:3] != "```"
    ]
    for block in PAGE.outputs
}


DECIMAL = re.compile(r"\d+\.\d+")


def check_same(shown: Iterable[str], said: Iterable[str]) -> None:
    """The same lines; a number may differ by one in its third decimal: processors round differently."""
    texts = ["\n".join(lines) for lines in (shown, said)]
    assert DECIMAL.sub("x", texts[0]) == DECIMAL.sub("x", texts[1])
    numbers = [[float(number) for number in DECIMAL.findall(text)] for text in texts]
    assert numbers[0] == pytest.approx(numbers[1], rel=0, abs=1.1e-3)


def test_the_page_shows_every_stop() -> None:
    assert list(SHOWN) == list(both.STOPS)


@pytest.mark.parametrize("name", both.STOPS)
def test_mini_vllms_half(name: str) -> None:
    said: list[str] = []
    both.STOPS[name](both.Mini(both.BUDGET if name == "rows" else 2048), said.append)
    alike = f"{name}, vLLM and mini_vllm alike"
    title = alike if alike in SHOWN[name] else f"{name}, mini_vllm"
    first = SHOWN[name].index(title) + 1
    check_same((line.strip() for line in SHOWN[name][first:]), (line.strip() for line in said))


@pytest.mark.vllm
def test_both_halves() -> None:
    said = output_of(SCRIPT).splitlines()
    check_same((line for lines in SHOWN.values() for line in lines), said)
