"""The deep dive of phase 03 shows what its scripts print, mini_vllm's half of it and vLLM's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from course.docs.pages import ROOT, read_page
from course.learner.labs import load_module

PHASE = ROOT / "phase-03-scheduler"
sys.path.insert(0, str(PHASE))  # they import their neighbours by name
both = load_module(PHASE / "both_schedulers.py", "phase_03_both_schedulers")
ahead = load_module(PHASE / "both_ahead.py", "phase_03_both_ahead")
alone = load_module(PHASE / "vllm_alone.py", "phase_03_vllm_alone")
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
    assert shown("both_schedulers.py").keys() == both.TOPICS.keys()
    assert shown("both_ahead.py").keys() == ahead.TOPICS.keys()
    assert shown("vllm_alone.py").keys() == alone.TOPICS.keys()


@pytest.mark.parametrize(
    ("script", "name"),
    [
        (script, name)
        for script in ("both_schedulers.py", "both_ahead.py")
        for name in shown(script)
    ],
)
def test_mini_vllms_half(script: str, name: str) -> None:
    title, *lines = shown(script)[name]
    assert title == f"{name}, vLLM and mini_vllm alike"
    said = {"both_schedulers.py": both, "both_ahead.py": ahead}[script].topic(name)
    assert lines == [f"  {line}".rstrip() for line in said]


@pytest.mark.vllm
@pytest.mark.parametrize("script", ["both_schedulers.py", "both_ahead.py", "vllm_alone.py"])
def test_vllms_half(script: str) -> None:
    topics = shown(script)
    done = subprocess.run(
        [sys.executable, str(PHASE / script), *topics],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    assert printed == [line for lines in topics.values() for line in lines]
