"""The lab contract, for every lab there is; and that its checks notice what breaks it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from course_helpers import (
    DRAW_SOLUTION,
    ROOT,
    TOTALS_SOLUTION,
    add_tests,
    make_repository,
    mistake,
)

from course.authors.contract import behaviour, pages_and_code
from course.learner.labs import Course, Lab, load_course

COURSE = load_course(ROOT)
LABS = pytest.mark.parametrize("lab", [pytest.param(lab, id=lab.id) for lab in COURSE.labs])


@pytest.fixture(scope="module")
def ran(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    """Every starter, solution and wrong solution of the labs that `-k` has left, run in one batch."""
    wanted = {
        item.callspec.params.get("lab")
        for item in request.session.items
        if hasattr(item, "callspec")
    }
    return behaviour(COURSE, [lab for lab in COURSE.labs if lab in wanted])


def test_every_lab_folder_is_a_lab() -> None:
    """Front matter complete and valid, prerequisites there and before; no lab left out."""
    assert not COURSE.problems, "\n".join(COURSE.problems)
    folders = sorted(ROOT.glob("phase-*/labs/lab-*"))
    assert len(COURSE.labs) == len(folders)


@LABS
def test_pages_and_code_keep_the_contract(lab: Lab) -> None:
    problems = pages_and_code(COURSE, lab)
    assert not problems, "\n".join(problems)


@LABS
def test_starter_fails_solution_passes_mistakes_are_named(
    lab: Lab, ran: dict[str, list[str]]
) -> None:
    assert not ran[lab.id], "\n".join(ran[lab.id])


# -- the checks themselves ------------------------------------------------------------------------


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return make_repository(tmp_path)


def test_a_lab_that_keeps_the_contract(course: Course) -> None:
    assert [pages_and_code(course, lab) for lab in course.labs] == [[], []]
    assert behaviour(course, course.labs) == {"00-01": [], "01-01": []}


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, old
    path.write_text(text.replace(old, new, 1))


BROKEN: list[tuple[str, Callable[[Path], object], str]] = [
    ("solution", lambda f: (f / "solution.py").unlink(), "solution.py is missing"),
    ("heading", lambda f: _edit(f / "README.md", "# Lab 00-01: T", "# Lab 00-01: t"), "heading"),
    ("command", lambda f: _edit(f / "README.md", "course grade 00-01", "x"), "course grade 00-01"),
    ("hints", lambda f: _edit(f / "HINTS.md", "Hint 3", "Note 3"), "3 to 5 hints, has 2"),
    ("hints' page", lambda f: _edit(f / "README.md", "[HINTS.md](HINTS.md)", "x"), "does not say 'HINTS.md'"),
    (
        "hint in the README",
        lambda f: _edit(f / "README.md", "Stuck?", "<details><summary>Hint 1</summary>\n</details>"),
        "hints stand in HINTS.md",
    ),
    ("hint order", lambda f: _edit(f / "HINTS.md", "Hint 2", "Hint 4"), "without gaps"),
    ("table", lambda f: _edit(f / "README.md", "`test_total_adds_every_item`", "x"), "does not name"),
    ("table's extra", lambda f: _edit(f / "README.md", "something", "`test_x`"), "is no test"),
    (
        "docstring of a test",
        lambda f: _edit(f / "test_lab.py", '"""The sum of no items is 0."""', "pass"),
        "no docstring",
    ),
    ("message", lambda f: _edit(f / "test_lab.py", ', "no items', ' # "no items'), "without a message"),
    ("import", lambda f: _edit(f / "test_lab.py", "import pytest", "import pytest, solution"), "import"),
    (
        "hidden test",
        lambda f: _edit(f / "test_lab.py", "test_total_of_nothing_is_zero", "test_total_adds_every_item"),
        "stands there more than once",
    ),
    (
        "starter complete",
        lambda f: (f / "starter.py").write_text(TOTALS_SOLUTION),
        "leaves nothing to write",
    ),
    (
        "solution elsewhere in the starter",
        lambda f: _edit(f / "starter.py", "def clip", TOTALS_SOLUTION.split('"""Totals."""')[1].split(
            "def clip")[0].replace("total", "helper") + "\n\ndef clip"),
        "helper holds the solution of total",
    ),
    (
        "arguments",
        lambda f: _edit(f / "starter.py", "def total(items)", "def total(items, more)"),
        "other arguments",
    ),
    (
        "docstring of a mistake",
        lambda f: _edit(f / "wrong" / "starts_at_one.py", "Nothing added up is 0.\n", ""),
        "second paragraph",
    ),
    (
        "a mistake that names no test",
        lambda f: _edit(f / "wrong" / "starts_at_one.py", "Refused by", "Caught by"),
        "the docstring ends with",
    ),
    (
        "a mistake that names a test of old",
        lambda f: _edit(f / "wrong" / "starts_at_one.py", "_is_zero`", "_is_0`"),
        "names test_total_of_nothing_is_0, which is no test",
    ),
    ("mistakes", lambda f: (f / "wrong" / "starts_at_one.py").unlink(), "at least 3 mistakes, has 2"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("break_it", "said"),
    [pytest.param(b, said, id=name) for name, b, said in BROKEN],
)
def test_what_breaks_the_contract_on_the_page(
    course: Course, break_it: Callable[[Path], object], said: str
) -> None:
    lab = course.labs[0]
    break_it(lab.folder)
    problems = pages_and_code(course, lab)
    assert any(said in problem for problem in problems), problems


BROKEN_IN_TWO: list[tuple[str, str, str, str, str]] = [
    # what breaks, file, old text, new text, what is said
    (
        "a name in two files", "test_lab_more.py", "def test_total_of_one_item_is_that_item",
        "def test_total_adds_every_item",
        "test_lab.py and test_lab_more.py: test_total_adds_every_item stands there more than once",
    ),
    (
        "message", "test_lab_more.py", ', "one of five is a fifth"', "",
        "test_lab_more.py:10: an assertion without a message",
    ),
    (
        "message of what is shared", "support.py", ', f"should be {wanted}, got {got}: {rule}"', "",
        "support.py:5: an assertion without a message",
    ),
    ("import", "support.py", "ONE = [5]", "from solution import ONE", "support.py:1: takes the code"),
    (
        "docstring", "test_lab_more.py", '    """One item adds up to itself."""\n', "",
        "test_lab_more.py:6: test_total_of_one_item_is_that_item has no docstring",
    ),
    (
        "no test", "test_lab_more.py", "def test_total_of_one", "def total_of_one",
        "test_lab_more.py: has no test",
    ),
    (
        "table", "README.md", "`test_total_of_one_item_is_that_item`", "x",
        "does not name test_total_of_one_item_is_that_item",
    ),
    (
        "a test that is never run", "support.py", "def expect", "def test_expect",
        "support.py: test_expect is never run",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [pytest.param(*rest, id=name) for name, *rest in BROKEN_IN_TWO],
)
def test_a_second_file_of_tests_keeps_the_contract_too(
    course: Course, file: str, old: str, new: str, said: str
) -> None:
    lab = course.labs[0]
    add_tests(lab)
    assert pages_and_code(course, lab) == []
    _edit(lab.folder / file, old, new)
    problems = pages_and_code(course, lab)
    assert any(said in problem for problem in problems), problems


def test_a_file_of_tests_with_a_name_of_its_own_is_found(course: Course) -> None:
    """pytest would run it, and the contract would not look at it."""
    lab = course.labs[0]
    (lab.folder / "test_more.py").write_text("")
    assert any("test_more.py: further tests" in problem for problem in pages_and_code(course, lab))


def test_a_second_file_of_tests_is_run(course: Course) -> None:
    lab = course.labs[0]
    add_tests(lab)
    assert behaviour(course, [lab]) == {"00-01": []}
    _edit(lab.folder / "wrong" / "skips_the_first.py", "test_total_adds_every_item",
          "test_total_of_one_item_is_that_item")  # fmt: skip
    assert pages_and_code(course, lab) == []
    assert behaviour(course, [lab]) == {"00-01": []}
    _edit(lab.solution, "    return result\n", "    return 0 if items == [5] else result\n")
    said = "\n".join(behaviour(course, [lab])["00-01"])
    assert "does not pass: test_total_of_one_item_is_that_item: should be 5, got 0" in said


def test_a_solution_in_the_starters_comments_is_found(course: Course) -> None:
    lab = course.labs[1]
    lab.starter.write_text(
        lab.starter.read_text() + "\n# return super().__call__(logits, sampling_metadata)\n"
    )
    assert any("holds the lines of Sampler.__call__" in p for p in pages_and_code(course, lab))


def test_what_breaks_the_contract_when_it_runs(course: Course) -> None:
    totals, drawing = course.labs
    _edit(totals.solution, "result = 0", "result = 1")
    _edit(totals.test, "assert lab.total([]) == 0", "assert lab.total([]) == 1")
    totals.starter.write_text(TOTALS_SOLUTION)
    for name, code in (("none", "return sum(items) + 1"), ("dies", "raise ValueError(items)")):
        (totals.folder / "wrong" / f"{name}.py").write_text(
            mistake(
                name, "A hint.", "test_total_adds_every_item", f"def total(items):\n    {code}\n"
            )
        )
    drawing.starter.write_text(DRAW_SOLUTION)
    ran = behaviour(course, course.labs)
    said = "\n".join(ran["00-01"])
    assert "solution.py: does not pass: test_total_adds_every_item" in said
    assert "starter.py: no test runs into a function that is not written yet" in said
    assert "dies.py: fails only by test_total_adds_every_item: ValueError" in said
    assert ran["01-01"] == [f"{course.show(drawing.starter)}: passes"]


def test_a_test_that_passes_on_nothing_is_found(course: Course) -> None:
    lab = course.labs[0]
    lab.test.write_text(
        lab.test.read_text() + "\n\ndef test_bad_input(lab):\n"
        '    """Bad input is refused."""\n'
        "    with pytest.raises(Exception):\n        lab.clip('a', 0, 1)\n"
    )
    found = behaviour(course, [lab])[lab.id]
    assert found == [
        f"{course.show(lab.starter)}: test_bad_input passes, though clip is not written yet"
    ]


def test_a_slow_solution_is_found(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course.authors.contract.MAX_SECONDS", 0.05)
    lab = course.labs[0]
    _edit(lab.solution, "    result = 0\n", "    result = 0 * sum(range(5_000_000))\n")
    assert any("its tests take" in problem for problem in behaviour(course, [lab])[lab.id])
