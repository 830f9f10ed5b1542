"""What phase 08's script prints of real vLLM: what the phase's pages show of it, and say from it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from topic_helpers import load_scripts, topics_on

from course.docs.pages import ROOT
from tests.engine.helpers.real_vllm.vllm_helpers import output_of

PHASE = ROOT / "phase-08-speculative-decoding"
spec, runs = load_scripts(PHASE, "vllm_spec", "runs")

pytestmark = pytest.mark.vllm


def shown() -> Iterator[tuple[str, list[str]]]:
    """Topic and lines of each block on the phase's pages that the script has printed."""
    for page in sorted(PHASE.glob("*.md")):
        for blocks in topics_on(page, {"vllm_spec.py": spec}).values():
            yield from blocks.items()


@pytest.fixture(scope="module")
def printed() -> dict[str, list[str]]:
    """Topic -> its lines, the topic's name before them."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in output_of(PHASE / "vllm_spec.py").splitlines():
        if line.endswith(", vLLM") and not line.startswith(" "):
            lines = found.setdefault(line.removesuffix(", vLLM"), [])
        lines.append(line)
    return found


def test_every_topic_is_printed(printed: dict[str, list[str]]) -> None:
    """In the script's order."""
    assert list(printed) == list(spec.TOPICS)


def test_the_pages_show_what_is_printed(printed: dict[str, list[str]]) -> None:
    """Line by line."""
    pages = dict(shown())
    assert pages.keys() == spec.TOPICS.keys()
    for topic, lines in pages.items():
        assert lines == printed[topic], topic


def test_vllm_counts_what_the_engine_counts(printed: dict[str, list[str]]) -> None:
    """The guide's run with the head, drafted by real vLLM."""
    counters = "\n".join(printed["counters"])
    made = runs.head()
    assert f"num_drafts {made.drafts}\n" in counters
    assert f"num_draft_tokens {made.draft_tokens}\n" in counters
    assert f"num_accepted_tokens {made.accepted_tokens}\n" in counters
    assert f"per_pos {made.per_position}" in counters


def test_the_cheatsheet_says_which_methods_are_scheduled_ahead(
    printed: dict[str, list[str]],
) -> None:
    """N-gram lookup and draft models are not, by default."""
    rows = {line.split("  ")[1].strip(): line.split() for line in printed["methods"][2:]}
    assert rows["ngram"][-3:] == ["off", "8,192", "16,384"]
    assert rows["draft_model"][-3:] == ["off", "7,168", "15,360"]
    assert rows["eagle"][-3:] == ["on", "8,192", "16,384"]
    sheet = (PHASE / "CHEATSHEET.md").read_text("utf-8")
    assert "| `ngram` | earlier in this text; CPU | no | turned off |" in sheet
    assert "| `draft_model` | a small model | yes | only if asked for |" in sheet
