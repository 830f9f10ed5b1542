"""The deep dive of phase 03 shows what its scripts print, mini_vllm's half of it and vLLM's."""

from __future__ import annotations

import pytest
from topic_helpers import load_scripts, topics_on

from course.docs.pages import ROOT
from tests.engine.helpers.vllm_helpers import output_of

PHASE = ROOT / "phase-03-scheduler"
both, ahead, alone = load_scripts(PHASE, "both_schedulers", "both_ahead", "vllm_alone")
SHOWN = topics_on(PHASE / "01-deep-dive.md")


def test_the_page_shows_every_topic() -> None:
    assert SHOWN["both_schedulers.py"].keys() == both.TOPICS.keys()
    assert SHOWN["both_ahead.py"].keys() == ahead.TOPICS.keys()
    assert SHOWN["vllm_alone.py"].keys() == alone.TOPICS.keys()


@pytest.mark.parametrize(
    ("script", "name"),
    [
        (script, name)
        for script in ("both_schedulers.py", "both_ahead.py")
        for name in SHOWN[script]
    ],
)
def test_mini_vllms_half(script: str, name: str) -> None:
    title, *lines = SHOWN[script][name]
    assert title == f"{name}, vLLM and mini_vllm alike"
    said = {"both_schedulers.py": both, "both_ahead.py": ahead}[script].topic(name)
    assert lines == [f"  {line}".rstrip() for line in said]


@pytest.mark.vllm
@pytest.mark.parametrize("script", ["both_schedulers.py", "both_ahead.py", "vllm_alone.py"])
def test_vllms_half(script: str) -> None:
    topics = SHOWN[script]
    printed = [line.rstrip() for line in output_of(PHASE / script, *topics).splitlines()]
    assert printed == [line for lines in topics.values() for line in lines]
