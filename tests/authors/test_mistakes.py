"""What a learner's failures look like: a pure function of runs; and messages made short."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.learner.mistakes import Likeness, Mistake, looks_like
from course.learner.results import LabRun, TestResult
from course.learner.shorten import LONG, MOST_CHARACTERS, MOST_LINES, shorten

TESTS = "abcdefgh"


def run(problem: str | None = None, **failed: str) -> LabRun:
    """Eight tests, of which those named fail with these messages; `!` before one: an error, `~`: it hangs."""
    tests = []
    for name in TESTS:
        message = failed.get(name)
        outcome = "passed" if message is None else "failed"
        if message is not None and message[:1] in "!~?":
            outcome = {"!": "error", "~": "time", "?": "todo"}[message[0]]
        tests.append(TestResult(name, name, outcome=outcome, message=message or ""))
    return LabRun(tests, problem)


def known(**runs: LabRun) -> list[tuple[Mistake, LabRun]]:
    return [(Mistake(Path(f"{n}.py"), n.upper(), "hint", "test_x"), r) for n, r in runs.items()]


def said(likeness: Likeness | None) -> str | None:
    return likeness.sentence if likeness is not None else None


ONE = run(a="got 3, not 4", b="2 of 5 rows")
OTHER = run(c="the end is missing")


def test_every_message_agrees() -> None:
    assert said(looks_like(ONE, known(one=ONE, other=OTHER))) == "This looks like “ONE”."


@pytest.mark.parametrize(
    "mine",
    [
        pytest.param(run(a="got 5, not 4", b="2 of 5 rows"), id="another number"),
        pytest.param(run(a="got 3, not 4"), id="one failure less"),
        pytest.param(run(a="!got 3, not 4", b="2 of 5 rows"), id="an error, not an assertion"),
        pytest.param(run("still running", a="got 3, not 4", b="2 of 5 rows"), id="it hung"),
        pytest.param(run(), id="nothing fails"),
    ],
)
def test_silent_where_they_do_not(mine: LabRun) -> None:
    assert looks_like(mine, known(one=ONE, other=OTHER)) is None


def test_the_last_digits_of_a_fraction_do_not_count() -> None:
    mine, theirs = run(a="is 0.63000001 at 0x7f12"), run(a="is 0.63 at 0x7e99")
    assert said(looks_like(mine, known(one=theirs))) == "This looks like “ONE”."
    assert looks_like(run(a="is 0.64"), known(one=run(a="is 0.63"))) is None
    assert looks_like(run(a="is 100001"), known(one=run(a="is 100002"))) is None


def test_the_name_of_the_file_does_not_count() -> None:
    mine = run(a="here: Scheduler of lab_lab_04_preemption_starter_20a0f167, step 3")
    theirs = run(a="here: Scheduler of lab_lab_04_preemption_the_first_goes_e7bdf7f9, step 3")
    assert said(looks_like(mine, known(one=theirs))) == "This looks like “ONE”."


def test_a_part_agrees() -> None:
    """Half of the failures and more, each of them alike: it may be that mistake, among others."""
    mine = run(a="got 3, not 4", b="2 of 5 rows", d="something else")
    assert said(looks_like(mine, known(one=ONE))) == "This may be “ONE”."
    assert looks_like(run(a="x", b="y", c="the end is missing", d="z"), known(other=OTHER)) is None


def test_two_mistakes_at_once() -> None:
    mine = run(a="got 3, not 4", b="2 of 5 rows", c="the end is missing")
    wanted = "This may be “ONE”, and also “OTHER”."
    assert said(looks_like(mine, known(one=ONE, other=OTHER))) == wanted


def test_two_that_nothing_tells_apart() -> None:
    assert said(looks_like(ONE, known(x=ONE, y=ONE))) == "This looks like “X” or “Y”."
    assert looks_like(ONE, known(x=ONE, y=ONE, z=ONE)) is None


def test_silent_where_most_fail_alike_or_hang() -> None:
    every = run(**dict.fromkeys(TESTS, "there is no answer"))
    assert looks_like(every, known(one=every)) is None, "one message for all tells nothing"
    hung = run(**dict.fromkeys("ab", "~still running"))
    assert looks_like(hung, known(one=hung)) is None
    told = run(**{name: f"{name} is wrong" for name in TESTS})
    assert said(looks_like(told, known(one=told))) == "This looks like “ONE”."
    assert looks_like(told, known(one=run(**{n: f"{n} is wrong" for n in "abcdef"}))) is None


def test_what_is_not_written_is_not_compared() -> None:
    mine = run(a="got 3, not 4", b="?")
    assert said(looks_like(mine, known(one=ONE))) == "This looks like “ONE”."


# -- messages -------------------------------------------------------------------------------------


def test_two_long_values_are_shown_where_they_differ() -> None:
    wanted = [{"step": n, "id": "a"} for n in range(40)]
    got = [*wanted[:17], {"step": 17, "id": "b"}, *wanted[18:]]
    text = shorten(f"the events should be {wanted}, got {got}. Look at the queue.")
    assert len(text) < 300
    assert "{'step': 17, 'id': 'a'}" in text
    assert "{'step': 17, 'id': 'b'}" in text
    assert "Look at the queue." in text
    assert text.endswith("They differ first in item 17, counted from 0.")


def test_a_value_that_ends_early() -> None:
    text = shorten(f"should be {list(range(40))}, got {list(range(30))}")
    assert "item 30, counted" in text
    assert "29]" in text


def test_a_short_message_is_left_alone() -> None:
    for text in ("clip(9, 0, 5) must be 5, got 9", "it isn't (so", "one\ntwo", "a" * LONG):
        assert shorten(text) == text


def test_a_message_never_floods() -> None:
    text = shorten("\n".join(f"line {n}" for n in range(751)))
    assert len(text.splitlines()) == MOST_LINES
    assert "744 lines more" in text
    assert len(shorten("word " * 5000)) <= MOST_CHARACTERS + 2
    assert len(shorten(f"only {list(range(999))}")) < 120


def test_numpys_arrays_become_a_line() -> None:
    np = pytest.importorskip("numpy")
    wanted = np.arange(12.0).reshape(3, 4)
    with pytest.raises(AssertionError) as error:
        np.testing.assert_allclose(wanted + 1, wanted, err_msg="one too much")
    lines = shorten(str(error.value)).splitlines()
    assert any(line.startswith("Mismatched elements: 12 / 12 (100%)") for line in lines)
    assert not any("array(" in line for line in lines)
