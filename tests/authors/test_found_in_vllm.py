"""docs/FOUND_IN_VLLM.md: a table whose rows have sections and commands, and outputs that commands print."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from course.docs.pages import ROOT
from mini_vllm.core.sched.releases import RELEASES
from tests.engine.helpers.real_vllm.vllm_helpers import NO_FP8_CACHE, cpu_kernels, output_of

PAGE = (ROOT / "docs/FOUND_IN_VLLM.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| \[(\d+)\]\(#([\w-]+)\) \|(.+?)\|(.+?)\|(.+?)\|$", PAGE, re.M)
SECTIONS = dict(re.findall(r"^## (\d+)\. (.+)$", PAGE, re.M))


def shown(command: str) -> list[str]:
    """What the page says that a command prints."""
    [text] = re.findall(
        rf"<!-- output: {re.escape(command)} \|.*?-->\n```text\n(.*?)```", PAGE, re.S
    )
    return str(text).splitlines()


def test_every_row_has_its_section_and_every_section_a_row_and_a_report() -> None:
    assert {number for number, *_ in ROWS} == SECTIONS.keys()
    for number, anchor, *_ in ROWS:
        title = re.sub(r"[^\w -]", "", SECTIONS[number].lower()).replace(" ", "-")
        assert anchor == f"{number}-{title}"
    for number in SECTIONS:
        section = PAGE.partition(f"\n## {number}. ")[2].partition("\n## ")[0]
        assert re.search(r"^ *> .{80}", section, re.M), f"{number} has no report"


def test_every_row_says_what_a_search_of_vllms_issues_found() -> None:
    """By us alone, by others too, or by others first; each number is a link."""
    for *_, search in ROWS:
        links = re.findall(
            r"\[(\d+)\]\(https://github\.com/vllm-project/vllm/(?:issues|pull)/(\d+)\)", search
        )
        assert all(shown == number for shown, number in links), search
        by_others = search.startswith(" from ") or "also in" in search
        assert search.startswith((" found here", " from [")), search
        assert bool(links) == by_others, search


def test_the_releases_of_the_forced_resets_are_those_that_were_run() -> None:
    runs: dict[str, dict[str, str]] = json.loads(
        (ROOT / "course/fuzz/results/releases.json").read_text(encoding="utf-8")
    )
    doubled = [r for r, found in runs.items() if found["doubled, async"] == "WrongTokens"]
    deadly = [r for r, found in runs.items() if found["deadly, async"].startswith("Crash")]
    assert doubled == ["0.20.0", *RELEASES[: RELEASES.index("0.27.0")]]
    assert deadly == doubled[1:]
    assert "The tokens double from 0.20.0 to 0.26.0" in PAGE


@pytest.mark.vllm
@pytest.mark.parametrize(
    "arguments",
    [
        ["cpu", "mixture"],
        ["cpu", "cache"],
        ["cpu", "silence"],
        ["cards"],
        ["sampling", "beams"],
        ["sampling", "neighbour"],
    ],
)
def test_the_page_shows_what_the_commands_print(arguments: list[Any]) -> None:
    module, *topics = arguments
    if {"cache", "silence"} & set(topics) and not cpu_kernels().fp8_cache:
        pytest.skip(NO_FP8_CACHE)
    name = f"course.faults.{module}"
    printed = output_of("-m", name, *topics).splitlines()
    expected = shown(" ".join(["python -m", name, *topics]))
    if "mixture" in topics and expected[0] not in printed:
        # Without AVX-512 there is no grouped kernel, and all three die of the same.
        expected = [line.partition(":")[0] + expected[2].partition(":")[1] + expected[2].partition(":")[2]
                    for line in expected]  # fmt: skip
    assert [line for line in printed if line in expected] == expected


@pytest.mark.vllm
def test_a_request_that_cannot_end_does_not() -> None:
    printed = output_of("-m", "course.faults.limits", "end").splitlines()
    assert "prompt 54, vLLM: 10 turns, 10 tokens" in printed
    assert "prompt 60, vLLM: not ended after 300 turns, 4 tokens" in printed
    assert any(line.startswith("prompt 60, mini_vllm: refused: ") for line in printed)


@pytest.mark.vllm
def test_a_window_of_no_layer_is_every_layers() -> None:
    printed = output_of("-m", "course.faults.limits", "window").splitlines()
    assert "layers that are all full, in vLLM: a window of 16" in printed
    assert "mini_vllm: 0 of 60 tokens are not transformers'" in printed
    [found] = [line for line in printed if line.startswith("vLLM: ")]
    assert int(found.split()[1]) > 20, found


@pytest.mark.vllm
def test_the_page_shows_what_the_known_worlds_do() -> None:
    printed = output_of("-m", "course.fuzz", "known").splitlines()
    assert printed[-8:] == shown("python -m course.fuzz known")


@pytest.mark.vllm
def test_the_page_shows_what_the_known_worlds_with_drafts_do() -> None:
    printed = output_of("-m", "course.fuzz", "known", "--drafts").splitlines()
    assert printed[-2:] == shown("python -m course.fuzz known --drafts")
