"""The deep dive of phase 02 shows what its scripts print, mini_vllm's half of it and vLLM's."""

from __future__ import annotations

import sys

import pytest

from course.docs.pages import ROOT, read_page
from course.learner.labs import load_module
from tests.engine.helpers.real_vllm.vllm_helpers import output_of

PHASE = ROOT / "phase-02-paged-attention"
sys.path.insert(0, str(PHASE))  # `only_vllm` imports its neighbour by name
both = load_module(PHASE / "both_pools.py", "phase_02_both_pools")
only = load_module(PHASE / "only_vllm.py", "phase_02_only_vllm")
two_kinds = load_module(PHASE / "two_kinds.py", "phase_02_two_kinds")
sys.path.remove(str(PHASE))
PAGE = read_page(PHASE / "01-deep-dive.md")
SHOWN = {
    tuple(block.head.split(" | ")[0].split("/")[-1].split()): [
        line for line in block.body if line[:3] != "```"
    ]
    for block in PAGE.outputs
}


def printed(script: str, *scenes: str) -> list[str]:
    return [line.rstrip() for line in output_of(PHASE / script, *scenes).splitlines()]


def shown(script: str) -> dict[str, list[str]]:
    """Scene -> what the page shows of it."""
    return {
        name: lines for (file, *scene), lines in SHOWN.items() if file == script for name in scene
    }


def test_the_page_shows_every_scene() -> None:
    assert shown("both_pools.py").keys() == both.SCENES.keys()
    assert shown("only_vllm.py").keys() == only.SCENES.keys()


@pytest.mark.parametrize("name", shown("both_pools.py"))
def test_mini_vllms_half(name: str) -> None:
    title, *lines = shown("both_pools.py")[name]
    assert title == f"{name}, vLLM and mini_vllm alike"
    assert lines == [f"  {line}".rstrip() for line in both.scene(name)]


def test_two_kinds_of_layers() -> None:
    assert SHOWN["two_kinds.py",] == printed("two_kinds.py")
    world = two_kinds.after_a_stranger(two_kinds.mini_parts(two_kinds.TWO_KINDS))
    world.manager.check_invariants()


@pytest.mark.vllm
def test_two_kinds_of_layers_in_vllm() -> None:
    _, *lines = printed("two_kinds.py", "vllm")
    assert lines == SHOWN["two_kinds.py",][1:]


@pytest.mark.vllm
@pytest.mark.parametrize("script", ["both_pools.py", "only_vllm.py"])
def test_vllms_half(script: str) -> None:
    scenes = shown(script)
    assert printed(script, *scenes) == [line for lines in scenes.values() for line in lines]
