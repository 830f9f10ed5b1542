"""The faults of docs/FOUND_IN_VLLM.md by release: the table of docs/RELEASES.md and what was recorded."""

from __future__ import annotations

import re

import pytest

from course.faults.checks import CHECKS
from course.faults.releases import (
    CHECKED,
    FAULTS,
    FOUND,
    PAGE,
    RESULTS,
    _span,
    make_page,
    read,
    write,
)
from mini_vllm.core.sched.releases import PIN, RELEASES
from tests.engine.helpers.real_vllm.vllm_helpers import output_of

LATER = {"shared-prefix"}
"""Faults that the pin does not have yet."""


def test_the_page_has_the_table_of_the_results() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert make_page(text) == text, "run: python -m course.faults.releases"


def test_each_check_was_run_on_each_release_and_goes_wrong_at_the_pin() -> None:
    results = read()
    assert results.keys() == CHECKS.keys() == {fault.name for fault in CHECKED}
    for name, found in results.items():
        assert list(found) == list(RELEASES), name
        assert (found[PIN] == "wrong") != (name in LATER), name
        for release, verdict in found.items():
            assert re.match(r"wrong$|well$|not run: .", verdict), (name, release)


def test_the_results_are_as_they_are_written() -> None:
    before = RESULTS.read_text(encoding="utf-8")
    write(read())
    assert RESULTS.read_text(encoding="utf-8") == before


def test_each_section_has_a_fault_and_each_without_a_check_says_why() -> None:
    sections = {
        int(n) for n in re.findall(r"^## (\d+)\. ", FOUND.read_text(encoding="utf-8"), re.M)
    }
    assert {fault.section for fault in FAULTS} == sections
    assert all(bool(fault.name) != bool(fault.why) for fault in FAULTS)


def test_a_fault_is_mended_where_it_does_not_come_back() -> None:
    first, second, third, fourth, *_ = RELEASES
    assert _span({first: "wrong", second: "wrong"}) == (f"{first} to {second}", "")
    found = {first: "wrong", second: "well", third: "wrong", fourth: "well"}
    assert _span(found) == (f"{first} to {third}", fourth)
    assert _span({first: "wrong", second: "not run: why", third: "well"}) == (first, third)


@pytest.mark.vllm
def test_faults_of_the_pin_go_wrong_here() -> None:
    printed = output_of(
        "-m", "course.faults.checks", "seed", "balancedness", "beam", "after-a-chunk"
    )
    verdicts = [line.split("\t")[:2] for line in printed.splitlines() if line.count("\t") == 2]
    assert verdicts == [[n, "wrong"] for n in ("seed", "balancedness", "beam", "after-a-chunk")]
