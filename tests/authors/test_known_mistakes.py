"""`course grade` names a known mistake: in whatever words, and with its cure the second time."""

from __future__ import annotations

import pytest
from course_helpers import TOTALS_STARTER, Ran, mistake, solve, take_totals

pytest.importorskip("typer")
pytest.importorskip("rich")

from course.authors.proof import take_fingerprints
from course.learner.grade import Job, compare, run_jobs
from course.learner.labs import Lab, load_course

Capsys = pytest.CaptureFixture[str]


def write(
    lab: Lab, total: str = "return sum(items)", clip: str = "return min(max(x, low), high)"
) -> None:
    """A learner's starter.py with these bodies."""
    first, second = TOTALS_STARTER.split("    raise NotImplementedError\n")[:2]
    lab.starter.write_text(f"{first}    {total}\n{second}    {clip}\n")


def test_a_known_mistake_is_named_with_its_hint(totals: Lab, capsys: Capsys) -> None:
    take_totals(totals)
    write(totals, clip="return x if x > low else low")
    Ran(capsys, "grade", "00-01")
    ran = Ran(capsys, "grade", "00-01")
    assert "This looks like “Only the lower bound is kept”. There are two bounds. FAIL" in ran.line
    totals.mistakes.write_text(
        totals.mistakes.read_text().replace("Only the lower", "Just the lower")
    )
    assert "“Just the lower bound is kept”" in Ran(capsys, "grade", "00-01").line
    text = totals.mistakes.read_text().replace("+ return x", "+ return x - 0")
    totals.mistakes.write_text(text)
    ran = Ran(capsys, "grade", "00-01")
    assert "This looks like" not in ran.line, "a fingerprint of other lines is not used"


def test_the_cure_is_kept_for_the_second_time(totals: Lab, capsys: Capsys) -> None:
    """The first failure says what it looks like; the same mistake, or test, again says how to mend it."""
    take_totals(totals)
    first = "return sum(items[1:])"
    write(totals, total=first)
    ran = Ran(capsys, "grade", "00-01")
    assert "This looks like “The first item is left out”. FAIL" in ran.line
    assert "How to mend this: course hint 00-01, or grade it again. Every detail:" in ran.line
    assert "Indices begin at 0" not in ran.line
    write(totals, total="return sum(items, 1)")
    ran = Ran(capsys, "grade", "00-01")
    assert "“The sum begins at 1”. Nothing added up is 0. FAIL" in ran.line, (
        "test_total_adds_every_item failed the last time as well"
    )
    assert "fail. Stuck? course hint 00-01. Every" in ran.line
    write(totals, clip="return x if x > low else low")
    assert "There are two bounds" not in Ran(capsys, "grade", "00-01").line, "another test"
    write(totals, total="this is no Python")
    Ran(capsys, "grade", "00-01")
    write(totals, total=first)
    ran = Ran(capsys, "grade", "00-01")
    assert "“The first item is left out”. Indices begin at 0" in ran.line, "it was named before"
    solve(totals)
    Ran(capsys, "grade", "00-01")
    write(totals, total=first)
    assert "Indices begin" not in Ran(capsys, "grade", "00-01").line, (
        "since then the lab has passed"
    )


REFUSALS = """

def words(lab):
    try:
        return lab.clip(3, 5, 0)
    except ValueError as error:
        return f"refused: {error}"


def test_bounds_in_order(lab):
    \"\"\"A low bound above the high one is refused, and named.\"\"\"
    with pytest.raises(ValueError) as caught:
        lab.clip(3, 5, 0)
    said = str(caught.value)
    assert "5" in said, f"{said!r} does not name the low bound, 5"


def test_both_bounds_are_named(lab):
    \"\"\"In words that the test has as text only.\"\"\"
    assert "0" in words(lab), f"the error names both bounds; yours: {words(lab)}. What is the high one?"


def test_equal_bounds(lab):
    \"\"\"Equal bounds leave one number.\"\"\"
    caught = []
    try:
        lab.clip(3, 4, 4)
    except ValueError as error:
        caught.append(error)
    assert not caught, f"4 and 4 are in order, and yours raises {caught[0]!r}"
"""
# Clip as others write the same mistake: the bounds are not named, and equal ones are refused.
IN_OTHER_WORDS = {
    "other words": "    if low >= high:\n        raise ValueError('the wrong way round')\n",
    "words with values": "    if low >= high:\n        raise ValueError(f'{x!r} has no place here')\n",
    "in one line": "    if low >= high: raise ValueError('the wrong way round')\n",
    "a helper": "    if low >= high:\n        refuse('these two are the wrong way round')\n",
    "a type of its own": "    if low >= high:\n        raise Bounds('the wrong way round')\n",
    "quotes": '    if low >= high:\n        raise ValueError("it\'s \'low\' first, then \\"high\\"")\n',
    "prints": "    print('clip', x)\n    if low >= high:\n        raise ValueError('wrong way round')\n",
    "from another": "    try:\n        assert low < high, 'in order'\n"
    "    except AssertionError as error:\n        raise ValueError('wrong way round') from error\n",
}
OWN = """

class Bounds(ValueError):
    pass


def refuse(what):
    raise ValueError(f"clip: {what}")
"""


def test_a_known_mistake_in_other_words_is_named(totals: Lab) -> None:
    """What the learner's own file says in refusing something is not compared, nor the type it gives it,
    whether the test keeps the error, or its words only."""
    totals.test.write_text(totals.test.read_text() + REFUSALS)
    guard = "    if low > high:\n        raise ValueError(f'{low} is above {high}')\n"
    rest = "    return min(max(x, low), high)\n"
    head = totals.solution.read_text().partition("    if x < low:")[0]
    totals.solution.write_text(head + guard + rest)
    change = (
        "clip\n- if low > high:\n-     raise ValueError(f'{low} is above {high}')\n"
        "+ if low >= high:\n+     raise ValueError('bounds in disorder')"
    )
    test = "test_bounds_in_order"
    totals.mistakes.write_text(mistake("nameless", "No number.", "Say which.", test, change))
    course = load_course(totals.folder.parents[2])
    assert [*take_fingerprints(course, course.labs[0])] == []
    jobs = []
    for name, body in IN_OTHER_WORDS.items():
        path = course.root / name / "starter.py"
        path.parent.mkdir()
        path.write_text(head + body + rest + OWN)
        jobs.append(Job(totals.folder, path))
    for name, run in zip(IN_OTHER_WORDS, run_jobs(course.root, jobs, 2), strict=True):
        assert len(run.bad) == 3, f"{name}: {[(test.name, test.message) for test in run.bad]}"
        likeness = compare(totals, run)
        assert likeness is not None, f"{name}: {[(t.message, t.own_words) for t in run.bad]}"
        assert likeness.sentence == "This looks like “No number”.", name
