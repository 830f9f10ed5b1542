"""What phase 09's script prints of real vLLM: what the phase's pages show of it, and say from it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from topic_helpers import load_scripts, topics_on

from course.docs.pages import ROOT
from tests.engine.helpers.real_vllm.vllm_helpers import output_of

PHASE = ROOT / "phase-09-sampling"
sampling, draws = load_scripts(PHASE, "vllm_sampling", "draws")

pytestmark = pytest.mark.vllm


def shown() -> Iterator[tuple[str, list[str]]]:
    """Topic and lines of each block on the phase's pages that the script has printed."""
    for page in sorted(PHASE.glob("*.md")):
        for blocks in topics_on(page, {"vllm_sampling.py": sampling}).values():
            yield from blocks.items()


@pytest.fixture(scope="module")
def printed() -> dict[str, list[str]]:
    """Topic -> its lines, the topic's name before them."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in output_of(PHASE / "vllm_sampling.py").splitlines():
        if line.endswith(", vLLM") and not line.startswith(" "):
            lines = found.setdefault(line.removesuffix(", vLLM"), [])
        lines.append(line)
    return found


def test_every_topic_is_printed(printed: dict[str, list[str]]) -> None:
    """In the script's order."""
    assert list(printed) == list(sampling.TOPICS)


def test_the_pages_show_what_is_printed(printed: dict[str, list[str]]) -> None:
    """Line by line."""
    pages = dict(shown())
    assert pages.keys() == {"neighbours", "paths"}
    for topic, lines in pages.items():
        assert lines == printed[topic], topic


def test_the_engine_writes_gils_text(printed: dict[str, list[str]]) -> None:
    """What vLLM writes alone and beside a seeded neighbour, and not beside the others."""
    texts = [line[32:] for line in printed["neighbours"][1:]]
    own = draws.gil(7)
    assert [text == own for text in texts] == [True, True, True, False, False]


def test_vllms_own_functions_keep_what_the_guide_says(printed: dict[str, list[str]]) -> None:
    """min-p first leaves one letter less."""
    assert [line.split(":")[1].strip() for line in printed["order"][1:]] == ["i d a", "i d a t"]


def test_children_have_the_seeds_that_follow(printed: dict[str, list[str]]) -> None:
    """Seed 7's second child is seed 8, and of nine prompt tokens nothing is cached."""
    lines = printed["children"]
    texts = [text for text, _ in draws.children(3, draws.PROMPT, 7)]
    assert [line.split(": ")[1] for line in lines[1:4]] == [repr(text) for text in texts]
    assert lines[4].endswith(repr(texts[1]))
    assert [line.split(": ")[1] for line in lines[5:]] == ["0 cached", "112 cached"]
