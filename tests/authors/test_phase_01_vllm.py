"""What phase 01's pages say of vLLM in words and tables, held against vLLM (`-m vllm`)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm
PHASE = Path(__file__).parents[2] / "phase-01-architecture"


def test_the_table_of_statuses() -> None:
    """All of them, in vLLM's order, each with the finish reason that it maps to."""
    from vllm.v1.request import RequestStatus

    section = (PHASE / "CHEATSHEET.md").read_text("utf-8").split("## Statuses")[1].split("\n## ")[0]
    told = re.findall(r"^\| `([A-Z_]+)` \|.*\| (?:`(\w+)` )?\|$", section, re.M)
    reasons = [RequestStatus.get_finished_reason(status) for status in RequestStatus]
    words = ["" if reason is None else str(reason) for reason in reasons]
    assert told == list(zip(RequestStatus.__members__, words, strict=True))


def test_what_is_added_to_the_message_about_max_tokens() -> None:
    """The guide quotes `mini_vllm`'s sentence, and what vLLM has behind it."""
    from vllm import SamplingParams as Theirs

    from mini_vllm import SamplingParams

    with pytest.raises(ValueError, match="max_tokens") as ours:
        SamplingParams(max_tokens=-1)
    with pytest.raises(ValueError, match="max_tokens") as theirs:
        Theirs(max_tokens=-1)
    added = " (parameter=max_tokens, value=-1)"
    assert str(theirs.value) == f"{ours.value}{added}"
    guide = (PHASE / "00-guide.md").read_text("utf-8")
    assert str(ours.value) in guide
    assert f"`{added}`" in guide
