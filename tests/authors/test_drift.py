"""`course drift`: the engine decides as each recorded release, and the page says so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from course.drift import compare as compare_module
from course.drift.command import main
from course.drift.compare import (
    RESULTS,
    Results,
    changed_by,
    compare,
    decide,
    is_digest,
    load,
    recorded_releases,
    scheduled_otherwise,
)
from course.drift.page import PAGE, make_page, read_counts
from course.drift.part_cases import PARTS
from course.drift.parts import ask
from course.drift.parts import digest as parts_digest
from course.drift.parts import read as read_parts
from course.drift.workloads import Case, cases, digest, golden
from course.learner.labs import CourseError
from course.parity.workloads import workload
from mini_vllm.core.sched.releases import PIN, RELEASES, RULES, rules_of
from tests.engine.helpers.thorough import THOROUGH, either

NEWEST = RELEASES[-1]


def test_every_release_is_recorded_on_the_same_workloads() -> None:
    assert recorded_releases() == list(RELEASES)
    assert len(cases()) == 445
    assert len({(case.group, case.name) for case in cases()}) == 445
    for release in RELEASES:
        assert load(release).release == release
        assert sum(map(is_digest, load(release).outcomes)) >= 430


@pytest.mark.parametrize("release", either([PIN, NEWEST], list(RELEASES)))
def test_the_engine_decides_as_the_release(release: str) -> None:
    """No difference that the release's rules do not explain."""
    found = compare(release)
    assert [(c.case.group, c.case.name) for c in found if c.explained is False] == []
    assert sum(c.explained is True for c in found) >= 430
    if release == PIN:
        assert not any(c.changed for c in found)


def test_the_digests_of_the_pin_are_those_of_the_golden_traces() -> None:
    at_pin = {(c.group, c.name): o for c, o in zip(cases(), load(PIN).outcomes, strict=True)}
    for case, trace in golden("scheduler"):
        assert digest(trace) == at_pin[case.group, case.name]


FURTHER = (
    ("a victim that was passed over", "priority", 8010, True, "58a6da1699", "f0f24a6b6d"),
    ("a victim that was passed over", "priority", 8051, True, "c49d3358d8", "9499f4ae07"),
    ("padding at the end", "drafts-short-model", 8012, False, "6713743448", "13207488cf"),
    ("padding at the end", "drafts-short-model", 8014, True, "2d6aa62bb0", "02e237ea35"),
)
"""Two rules matter in none of the 445 workloads. What vLLM decided in others, just before and since."""


@pytest.mark.parametrize("further", FURTHER, ids=lambda row: f"{row[1]} {row[2]}")
def test_rules_that_the_workloads_miss_are_vllms(further: tuple[Any, ...]) -> None:
    name, shape, seed, ahead, before, since = further
    rule = next(rule for rule in RULES if rule.name == name)
    case = Case(f"fresh {shape}", str(seed), workload(seed, shape), ahead)
    last = RELEASES[RELEASES.index(rule.first) - 1]
    assert decide(case, rules_of(last)) == before
    assert decide(case, rules_of(rule.first)) == since


def test_a_missing_rule_is_noticed() -> None:
    """Each other rule decides some workload that nothing else does."""
    counted = read_counts()
    missed = {row[0] for row in FURTHER}
    assert {rule.name for rule in RULES if not counted[rule.name]} == missed
    rule = next(rule for rule in RULES if rule.name == "what EAGLE gives up")
    case = next(
        case
        for case in cases()
        if case.group == "fresh drafts-block-sizes"
        and decide(case, rules_of(rule.first))
        != decide(case, [other for other in rules_of(rule.first) if other is not rule])
    )
    assert case.work["config"]["speculative_config"]["method"] == "eagle"


@pytest.mark.skipif(not THOROUGH, reason="counts anew, a minute: MINI_VLLM_THOROUGH=1")
def test_the_counts_are_right() -> None:
    counted = read_counts()
    for rule in (RULES[2], RULES[3], RULES[-3]):
        assert sum(changed_by(rule).values()) == counted[rule.name]
    assert scheduled_otherwise("0.23.0") == counted["0.23.0"]


def test_the_page_has_the_tables() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert make_page(text) == text, "run: python -m course.drift.page"
    assert text.count("<!-- end -->") == 6


def test_each_part_is_recorded_in_each_release() -> None:
    recorded = {(row.release, row.part): row for row in read_parts()}
    assert list(recorded) == [(release, part) for release in RELEASES for part in PARTS]
    for (release, part), row in recorded.items():
        assert row.cases == PARTS[part].cases
        assert (row.digest == recorded[PIN, part].digest) == (not row.differ)
        assert not (row.reason and release == PIN)


@pytest.mark.vllm
def test_a_part_of_the_pin_does_as_recorded() -> None:
    part = "n-gram proposer"
    recorded = next(row for row in read_parts() if (row.release, row.part) == (PIN, part))
    assert parts_digest(ask(None, [part])[part]) == recorded.digest


def test_readme_names_the_pin_and_the_newest_release() -> None:
    """No other; the site takes both from the results when it is built."""
    text = (PAGE.parents[1] / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\b0\.[23]\d\.\d+\b", text)) == {PIN, recorded_releases()[-1]}
    assert f"[checked against {recorded_releases()[-1]}](docs/RELEASES.md)" in text


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "0.33.0. For one: course drift 0.33.0" in capsys.readouterr().out
    assert main(["0.23.0"]) == 0
    said = capsys.readouterr().out
    assert "New in 0.23.0, lookahead slots" in said
    assert main([NEWEST, "--show", "scheduler", "no-such"]) == 2
    assert "there is no workload 'scheduler' 'no-such'" in capsys.readouterr().err
    assert main(["0.99.0"]) == 2
    assert "0.99.0 is not recorded yet" in capsys.readouterr().err


def test_another_scheduler_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It decides as the pin, so it differs from the newest release, and is told where."""
    mine = tmp_path / "mine.py"
    mine.write_text("from mini_vllm.core.sched.scheduler import Scheduler\n", encoding="utf-8")
    assert main([NEWEST, "--scheduler", f"{mine}:Scheduler"]) == 1
    assert "unexplained, plain ones first" in capsys.readouterr().out
    assert main([NEWEST, "--scheduler", f"{mine}:Nothing"]) == 2
    assert "has no class Nothing" in capsys.readouterr().err


def test_results_of_other_workloads_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_module, "RESULTS", tmp_path)
    path = Results("0.1.0", "2026-11-28", load_outcomes()).save()
    assert path.read_text(encoding="utf-8").count("\n") > 20
    assert load("0.1.0").outcomes == load_outcomes()
    text = path.read_text(encoding="utf-8").replace(load_outcomes()[0], "", 1).replace('"", ', "")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CourseError, match="444 outcomes for 445 workloads: record it again"):
        load("0.1.0")


def load_outcomes() -> tuple[str, ...]:
    data = json.loads((RESULTS / f"{PIN}.json").read_text(encoding="utf-8"))
    return tuple(outcome for group in data["outcomes"].values() for outcome in group)
