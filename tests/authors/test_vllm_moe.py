"""What phase 07's script prints of real vLLM: what the phase's pages show of it, and say from it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from topic_helpers import load_scripts, topics_on

from course.docs.pages import ROOT
from tests.engine.helpers.real_vllm.vllm_helpers import output_of

PHASE = ROOT / "phase-07-gemm-and-moe"
(moe,) = load_scripts(PHASE, "vllm_moe")

pytestmark = pytest.mark.vllm


def shown() -> Iterator[tuple[str, list[str]]]:
    """Topic and lines of each block on the phase's pages that the script has printed."""
    for page in sorted(PHASE.glob("*.md")):
        for blocks in topics_on(page, {"vllm_moe.py": moe}).values():
            yield from blocks.items()


@pytest.fixture(scope="module")
def printed() -> dict[str, list[str]]:
    """Topic -> its lines, the topic's name before them."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in output_of(PHASE / "vllm_moe.py").splitlines():
        if line.endswith(", vLLM") and not line.startswith(" "):
            lines = found.setdefault(line.removesuffix(", vLLM"), [])
        lines.append(line)
    return found


def test_every_topic_is_printed(printed: dict[str, list[str]]) -> None:
    assert list(printed) == list(moe.TOPICS)


def test_the_pages_show_what_is_printed(printed: dict[str, list[str]]) -> None:
    """Or name the command, where the cheatsheet's table says it."""
    pages = dict(shown())
    dive = (PHASE / "01-deep-dive.md").read_text("utf-8")
    named = set(re.findall(rf"`python {PHASE.name}/vllm_moe\.py (\w+)`", dive))
    assert pages.keys() | named == moe.TOPICS.keys()
    for topic, lines in pages.items():
        assert lines == printed[topic], topic


def test_the_cheatsheets_kernels_are_those_that_were_chosen(printed: dict[str, list[str]]) -> None:
    """The guide says it, too: Triton on an A100 and an L4, FlashInfer's on the H200."""
    chosen = "\n".join(printed["chosen"])
    assert (
        "  one GPU\n      A100, L4: TritonExperts\n      H200, RTX 5090: FlashInferExperts"
        in chosen
    )
    sheet = (PHASE / "CHEATSHEET.md").read_text("utf-8")
    assert (
        "| one GPU, TP, or EP without DP | Triton | FlashInfer CUTLASS | FlashInfer TRT-LLM |"
        in sheet
    )
    row = "| DP without EP, or with EP and the default exchange | Triton | Triton | FlashInfer TRT-LLM |"
    assert row in sheet


def test_a_layer_is_six_launches_and_five_without_a_list(printed: dict[str, list[str]]) -> None:
    lines = printed["launches"][1:]
    starts = [at for at, line in enumerate(lines) if " token" in line and "pairs" in line]
    many, one = lines[: starts[1]], lines[starts[1] :]
    assert (len(many) - 2, len(one) - 2) == (6, 5)
    assert not any("moe_align_block_size" in line for line in one)
