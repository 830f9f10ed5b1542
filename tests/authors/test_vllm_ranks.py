"""What phase 10's script prints of real vLLM is what the phase's pages show."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from topic_helpers import load_scripts, topics_on

from course.docs.pages import ROOT
from tests.engine.helpers.real_vllm.vllm_helpers import output_of
from tests.engine.helpers.thorough import either

PHASE = ROOT / "phase-10-parallelism"
(ranks,) = load_scripts(PHASE, "vllm_ranks")
TOPICS = either([topic for topic in ranks.TOPICS if topic != "failure"], list(ranks.TOPICS))

pytestmark = pytest.mark.vllm


def shown() -> Iterator[tuple[str, list[str]]]:
    """Topic and lines of each block on the phase's pages that the script has printed."""
    for page in sorted(PHASE.glob("*.md")):
        for blocks in topics_on(page, {"vllm_ranks.py": ranks}).values():
            yield from blocks.items()


def test_the_pages_show_every_topic() -> None:
    assert {topic for topic, _ in shown()} == set(ranks.TOPICS)


@pytest.mark.parametrize("topic", TOPICS)
def test_the_pages_show_what_is_printed(topic: str) -> None:
    """`failure` waits for a time-out, so it is run where tests may take long."""
    lines = output_of(PHASE / "vllm_ranks.py", topic).splitlines()
    printed = lines[lines.index(f"{topic}, vLLM") :]
    assert printed == dict(shown())[topic]
