"""What a learner's failures look like: a pure function of fingerprints; and messages made short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from course.learner.fingerprints import Fingerprint, signature
from course.learner.likeness import Likeness
from course.learner.likeness import looks_like as compare
from course.learner.mistakes import Mistake
from course.learner.results import LabRun, TestResult
from course.learner.shorten import LONG, MOST_CHARACTERS, MOST_LINES, shorten
from course.learner.sides import Sides

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


def known(**runs: LabRun) -> list[tuple[Mistake, Fingerprint]]:
    return [
        (Mistake(Path(), name, name.upper(), "hint", "test_x"), Fingerprint.of(run))
        for name, run in runs.items()
    ]


def looks_like(mine: LabRun, those: list[tuple[Mistake, Fingerprint]]) -> Likeness | None:
    return compare(Fingerprint.of(mine), those)


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


def raised(name: str, kind: str = "ValueError", code: str = "raise ValueError(…)") -> TestResult:
    return TestResult(
        name, name, outcome="error", message=f"{kind}: no", file="starter.py", code=code
    )


def test_an_error_of_the_learners_own_hides_what_the_test_says() -> None:
    """The other tests tell; then it may be that mistake. Where none is left, nobody can tell."""
    mine = run(a="got 3, not 4", b="2 of 5 rows")
    mine.tests[1] = raised("b")
    assert said(looks_like(mine, known(one=ONE, other=OTHER))) == "This may be “ONE”."
    mine.tests[1] = raised("b", "IndexError", "return rows[3]")
    assert looks_like(mine, known(one=ONE)) is None, "no words of the file: something else is wrong"
    mine.tests[0], mine.tests[1] = raised("a"), raised("b")
    assert looks_like(mine, known(one=ONE)) is None
    mine = run(a="got 3, not 4", b="!KeyError: 'x'")
    theirs = run(a="got 3, not 4", b="!IndexError: 3")
    assert said(looks_like(mine, known(one=theirs))) == "This may be “ONE”."
    assert looks_like(mine, known(one=run(a="got 4, not 4", b="!IndexError: 3"))) is None


def test_a_test_that_only_one_side_has_run_is_not_compared() -> None:
    """Skipped where the fingerprint was taken, or here: torch is not everywhere."""
    theirs = run(a="got 3, not 4", b="2 of 5 rows")
    theirs.tests[1].outcome = "skipped"
    assert said(looks_like(ONE, known(one=theirs))) == "This looks like “ONE”."
    mine = run(a="got 3, not 4", b="2 of 5 rows")
    mine.tests[1].outcome = "skipped"
    assert said(looks_like(mine, known(one=ONE))) == "This looks like “ONE”."
    theirs.tests[0].outcome = "skipped"
    assert looks_like(mine, known(one=theirs)) is None, "they have nothing in common"


def test_where_two_runs_differ_a_fingerprint_says_nothing() -> None:
    one, other = Fingerprint.of(ONE), Fingerprint.of(run(a="got 3, not 4", b="3 of 5 rows"))
    agreed = one.agreed(other)
    assert agreed.fails.keys() == {"a"}
    assert agreed.tests == set(TESTS) - {"b"}


def failure(**given: Any) -> str:
    return signature(TestResult("t", "t", **{"outcome": "failed", **given}))


def test_a_refusal_in_other_words_is_the_same_refusal() -> None:
    raised = {"outcome": "error", "file": "starter.py", "code": 'raise ValueError("' + "…"}
    mine = failure(message="ValueError: no: negative", **raised)
    assert mine == failure(message="ValueError: -1 is too small", **raised) == "error ValueError"
    assert mine != failure(message="TypeError: no: negative", **raised)
    other = raised | {"code": "return items[3]"}
    assert failure(message="IndexError: 3", **other) != failure(message="IndexError: 4", **other)
    in_one_line = raised | {"code": 'if low > high: raise ValueError("…")'}
    assert mine == failure(message="ValueError: no", **in_one_line)
    tests_own = raised | {"file": "test_lab.py"}
    assert failure(message="ValueError: a", **tests_own) != failure(
        message="ValueError: b", **tests_own
    )


def test_words_of_the_graded_file_inside_a_message_do_not_count() -> None:
    mine = failure(message="it says 'too few' and not the number 7", own_words=["too few"])
    assert mine == failure(message="it says 'nope' and not the number 7", own_words=["nope"])
    assert mine != failure(message="it says 'nope' and not the number 8", own_words=["nope"])


def test_the_line_of_the_graded_file_does_not_count() -> None:
    one = failure(message="key_cache: 2 times, by lines 65 and 81; element 7 in line 9")
    assert one == failure(message="key_cache: 2 times, by lines 136 and 151; element 7 in line 12")
    assert one != failure(message="key_cache: 3 times, by lines 65 and 81; element 7 in line 9")
    assert failure(message="line 0: got 1") != failure(message="line 1: got 1"), "a line of a log"


def test_where_the_course_lies_does_not_count() -> None:
    one = failure(message="/home/ada/vllm/models/config.json: got 3, in /tmp/x1/a.py")
    assert one == failure(message="/work/models/config.json: got 3, in /tmp/pytest-of-bo/a.py")
    assert one != failure(message="/work/models/other.json: got 3, in /tmp/x1/a.py")
    assert one == failure(
        message=r"C:\\Users\\ada\\config.json: got 3, in D:\\x\\a.py".replace("\\\\", "\\")
    )


# -- messages -------------------------------------------------------------------------------------


def test_two_long_values_are_shown_where_they_differ() -> None:
    wanted = [{"step": n, "id": "a"} for n in range(40)]
    got = [*wanted[:17], {"step": 17, "id": "b"}, *wanted[18:]]
    text = shorten(f"the events should be {wanted}, got {got}. Look at the queue.")
    assert len(text) < 320
    assert "{'step': 17, 'id': 'a'}" in text
    assert "{'step': 17, 'id': 'b'}" in text
    assert "Look at the queue." in text
    assert text.endswith(
        "They differ first in item 17, counted from 0:\n"
        "  yours     {'step': 17, 'id': 'b'}\n"
        "  expected  {'step': 17, 'id': 'a'}"
    )


def test_a_value_that_ends_early() -> None:
    text = shorten(f"should be {list(range(40))}, got {list(range(30))}")
    assert "They differ first in item 30, counted from 0: yours nothing, expected 30" in text
    assert "29]" in text


def test_what_a_test_takes_for_equal_does_not_differ() -> None:
    """With the test's tolerance the first item that it refuses is named, not the first other digit."""
    wanted = [round(0.1 * n, 1) for n in range(20)]
    got = [x + 1e-9 for x in wanted]
    got[13] = 5.0
    text = f"should be {wanted}, got {got}"
    assert "first in item 13, counted from 0: yours 5.0, expected 1.3" in shorten(
        text, [1e-6, 1e-8]
    )
    assert "first in item 0, counted from 0: yours 1e-09, expected 0.0" in shorten(text)
    got[13] = wanted[13]
    assert "differ" not in shorten(f"should be {wanted}, got {got}", [1e-6, 1e-8])


def test_a_parenthesis_of_a_sentence_is_left_whole() -> None:
    """Lab 03-01 explains a step in brackets; a tuple of texts is a value, and so is a list in a sentence."""
    said = (
        "each piece takes one. (In the third two are free when Gil asks. The rest of his prompt wants three, "
        "but this piece wants one.)"
    )
    assert len(said) > LONG
    assert shorten(f"7 blocks: {said} Yours: [1]") == f"7 blocks: {said} Yours: [1]"
    assert shorten(f"only ({list(range(99))}, which is too long)").count(",") < 40
    names = tuple(f"one of the names {n}" for n in range(40))
    assert len(shorten(f"only {names}")) < 120


def test_what_was_asked_is_compared_with_nothing() -> None:
    """Lab 03-05 names two answers and then, longer than these, the question."""
    asked = [list(range(20)), list(range(30))]
    text = shorten(
        f"the engine computes [11, 5], you say [11, 2], for {asked} with the salts {[None] * 40}"
    )
    assert "differ" not in text
    assert "the engine computes [11, 5], you say [11, 2], for [[0, 1" in text


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("got {mine}, must be {right}", "yours 7, expected 17"),
        ("must be {right}, and you say {mine}", "yours 7, expected 17"),
        ("the engine has {right}, not {mine}", "yours 7, expected 17"),
        ("yours are {mine}, not {right}", "yours 7, expected 17"),
        ("{right}, not {mine}", "the first has 17, the second 7"),
        ("for {asked}, got {mine}", ""),
        ("{asked}; vLLM leaves 3, and yours 4. The row: {mine}", ""),
        ("on {asked} it must be {right}, got {mine}", "yours 7, expected 17"),
    ],
)
def test_it_is_said_whose_value_is_whose(message: str, told: str) -> None:
    """Yours first, whichever the message has first. What was asked is compared with nothing."""
    asked, right, mine = [1] * 60, list(range(60)), [*range(17), 7, *range(18, 60)]
    text = shorten(message.format(asked=asked, right=right, mine=mine))
    item = "They differ first in item 17, counted from 0: "
    assert text.partition("They differ")[2] == (item + told if told else "").removeprefix(
        "They differ"
    )


def test_the_sides_of_the_assertion_decide() -> None:
    right, mine = list(range(60)), [*range(17), 7, *range(18, 60)]
    for first, second in ((right, mine), (mine, right)):
        text = shorten(f"{first}, not {second}", None, Sides(str(mine), str(right)))
        assert text.endswith("item 17, counted from 0: yours 7, expected 17")


def test_entries_of_a_dict_are_compared_by_their_keys() -> None:
    """In whatever order they stand; an entry that one of the two lacks is named."""
    right = {n: n / 4 for n in range(20)}
    mine = dict(reversed(right.items())) | {7: 9.5}
    text = shorten(f"must be {right}, got {mine}")
    assert text.endswith("They differ first in item 7: yours 9.5, expected 1.75")
    del mine[7]
    assert shorten(f"must be {right}, got {mine}").endswith("item 7: yours nothing, expected 1.75")


def test_the_items_of_numpys_arrays() -> None:
    np = pytest.importorskip("numpy")
    wanted = np.arange(40.0).reshape(4, 10)
    got = wanted + 1e-9
    got[2, 3] = 7.5
    text = shorten(f"should be {wanted}, got {got}", [1e-6, 1e-8])
    assert (
        "They differ first in item 2, item 3 of it, counted from 0: yours 7.5e+00, expected 23."
        in text
    )


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
    if "(ACTUAL)" in str(error.value):  # numpy says where from 2.3 on
        assert any(
            line.endswith(", the first at [0, 0]: yours 1.0, expected 0.0") for line in lines
        )
    assert not any("array(" in line for line in lines)
