"""`course drift --rule`: a workload for each rule, in words and as two runs side by side."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from course.drift.command import main
from course.drift.compare import load
from course.drift.page import PAGE, read_counts
from course.drift.shown import Shown, can_be_drawn, case_of, in_words, page, rule_named, show
from course.drift.workloads import cases, digest
from course.learner.labs import CourseError
from course.site.viewer import ViewerError, frame, make_page, missing_command, read_viewer
from mini_vllm.core.sched.releases import RULES
from mini_vllm.trace.page import data_of_page

ROOT = Path(__file__).resolve().parents[2]
LINE = "<!-- viewer: ../course/drift/results/shown.tsv | rule {} -->"
ALONE = "a request alone"


@pytest.fixture(scope="module")
def shown() -> dict[str, Shown]:
    return {rule.name: show(rule) for rule in RULES}


def runs_of(text: str) -> list[Any]:
    """The data of the two viewers on the page."""
    return [data_of_page(html.unescape(page)) for page in re.findall(r'srcdoc="([^"]*)"', text)]


def test_each_rule_is_shown_by_a_workload(shown: dict[str, Shown]) -> None:
    counted = read_counts()
    for rule in RULES:
        assert (shown[rule.name].case in cases()) == (counted[rule.name] > 0)


def test_with_the_rule_it_is_what_vllm_decided(shown: dict[str, Shown]) -> None:
    """The digest of the run with the rule is that of the release's own scheduler."""
    for one in shown.values():
        if one.case in cases():
            vllm = load(one.rule.first).outcomes[cases().index(one.case)]
            assert digest(one.with_it) == vllm != digest(one.without), one.rule.name


def test_the_viewer_shows_these_decisions(shown: dict[str, Shown]) -> None:
    drawn = 0
    for one in shown.values():
        if not can_be_drawn(one.rule, one.case):
            assert "kv_cache_groups" in one.case.work["config"]
            continue
        runs = runs_of(page(one))
        drawn += 1
        for run, trace in zip(runs, (one.without, one.with_it), strict=True):
            steps: list[Any] = trace["steps"]
            plans = [step for step in steps if step.get("call") != "update"]
            assert len(plans) == len(run["steps"]), one.rule.name
            for plan, step in zip(plans, run["steps"], strict=True):
                parts = {part["request_id"]: part for part in step["scheduled"]}
                got = {i: part["num_scheduled_tokens"] for i, part in parts.items()}
                assert list(got.items()) == list(plan["scheduled"].items())
                assert {i: part["block_ids"] for i, part in parts.items()} == plan["blocks"]
            assert run["view"]["step"] == one.number
    assert drawn == 13


def test_a_rule_in_words(shown: dict[str, Shown]) -> None:
    said = list(in_words(shown[ALONE], 148))
    assert said[0].startswith("a request alone, from 0.31.0: `long_prefill_token_threshold`")
    assert said[1].startswith("It matters in 148 of 445 workloads, for instance in fresh ")
    assert "Step 2 is the first that differs" in said[3]
    assert said[4:6] == ["  scheduled", "    r000: 16  |  63"]
    behind = "\n".join(in_words(shown["a victim that was passed over"], 0))
    assert "in none of the 445 workloads, but in another one: fresh priority 8010 async" in behind
    assert "Plan 41 is the first" in behind
    groups = "\n".join(in_words(shown["windows of plans in flight"], 59))
    assert "    r001, group 0: … 33  |  … 16" in groups


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "alone.html"
    assert main(["--rule", "request alone", "--trace", str(out)]) == 0
    assert f"wrote {out}" in capsys.readouterr().out
    before, since = runs_of(out.read_text(encoding="utf-8"))
    assert (before["title"], since["title"]) == ("Without the rule", "With it")
    why = {part["why"] for step in since["steps"] for part in step["scheduled"]}
    assert any(
        words.startswith("not by vLLM 0.22.1's rules, which would give it 16") for words in why
    )
    assert main(["--rule", "freed"]) == 2
    assert "more than one rule 'freed':\n  freed blocks without a hash" in capsys.readouterr().err
    assert main(["--rule", ALONE, "--trace", str(tmp_path / "x.txt")]) == 2
    assert main(["0.33.0", "--trace", str(out)]) == 2
    assert main(["--rule", "a window of one token", "--trace", str(out)]) == 2
    assert "several block tables" in capsys.readouterr().err


def test_a_line_becomes_a_link_to_both_runs() -> None:
    viewer = read_viewer(LINE.format(ALONE), PAGE, ROOT)
    assert viewer.uri == "course/drift/results/a-request-alone.html"
    link = '<p><a href="../../course/drift/results/a-request-alone.html">A request alone: both runs'
    assert frame(viewer, "docs/RELEASES").startswith(link)
    assert '--rule "a request alone" --trace OUT.html' in str(missing_command(viewer, "", ROOT))
    assert len(runs_of(make_page(viewer))) == 2
    unknown = read_viewer(LINE.format("no such"), PAGE, ROOT)
    with pytest.raises(ViewerError, match="no rule 'no such'"):
        make_page(unknown)


def test_a_rule_without_a_workload_says_what_finds_one() -> None:
    rule = rule_named(ALONE)
    nameless = type(rule)("another", rule.first, rule.says, rule.put_on)
    with pytest.raises(CourseError, match=r"python -m course\.drift\.shown"):
        case_of(nameless)
