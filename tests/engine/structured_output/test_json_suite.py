"""The official JSON Schema test suite: the committed table is what the backends do, and the native backend
takes no document that is invalid."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mini_vllm.structured_output.features import ignored_by_xgrammar
from tests.engine.helpers.thorough import THOROUGH
from tests.engine.structured_output.json_suite import (
    TABLE,
    VARIABLE,
    Group,
    explain,
    fetch_suite,
    judge,
    judge_all,
    obey_natively,
    read_sample,
    read_suite,
    read_table,
    suite_place,
)


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> list[Group]:
    """The whole suite; fetched in thorough runs alone."""
    place: Path | None = suite_place()
    if place is None and not THOROUGH:
        pytest.skip(f"the environment variable {VARIABLE} does not name the suite (json_suite.py)")
    try:
        return read_suite(place or fetch_suite(tmp_path_factory.mktemp("suite")))
    except OSError as error:
        if place is not None:
            raise
        pytest.skip(str(error))


def test_the_native_backend_takes_no_invalid_document() -> None:
    words = Counter(row["native"].split()[0] for row in read_table().values())
    assert words == {"refused": 251, "enforced": 162, "narrower": 25}


def test_every_valid_document_that_it_bars_has_a_reason() -> None:
    for place, row in read_table().items():
        assert row["native"].startswith("narrower") == bool(row["why narrower"]), place
        assert "?" not in row["why narrower"], place


def test_the_sample_is_judged_as_in_the_table() -> None:
    obey, table = obey_natively(), read_table()
    sample = read_sample()
    assert len(sample) > 40
    for group in sample:
        row = table[group.file, group.number]
        assert judge(group, obey) == row["native"], group
        assert explain(group, row["native"], obey) == row["why narrower"], group


def test_the_suite_is_judged_as_in_the_table(suite: list[Group]) -> None:
    obey, table = obey_natively(), read_table()
    assert len(suite) == len(table)
    for group in suite:
        row = table[group.file, group.number]
        verdict = judge(group, obey)
        assert (verdict, explain(group, verdict, obey)) == (row["native"], row["why narrower"]), (
            group
        )


def test_what_xgrammar_ignores_is_named(suite: list[Group]) -> None:
    """Wherever it takes an invalid document `ignored_by_xgrammar` names a keyword, but for one pattern."""
    unnamed = [
        (group.file, group.number)
        for group in suite
        if read_table()[group.file, group.number]["xgrammar"].startswith(("ignored", "misread"))
        and not ignored_by_xgrammar(group.schema)
    ]
    assert unnamed == [("optional/ecmascript-regex", 9)]


@pytest.mark.vllm
def test_the_libraries_do_what_the_table_says(suite: list[Group]) -> None:
    assert judge_all(suite) == TABLE.read_text()
