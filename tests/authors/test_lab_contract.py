"""The lab contract, for every lab there is; and that its checks notice what breaks it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from course_helpers import (
    DRAW_SOLUTION,
    ROOT,
    TOTALS_MISTAKES,
    TOTALS_SOLUTION,
    add_tests,
    git,
    make_repository,
    mistake,
    take_totals,
)

from course.authors import proof
from course.authors.contract import pages_and_code
from course.authors.proof import behaviour, proved_wholly, take_fingerprints
from course.learner.fingerprints import read_record, stale
from course.learner.labs import MISTAKES, Course, Lab, load_course
from course.learner.mistakes import read_mistakes

COURSE = load_course(ROOT)
LABS = pytest.mark.parametrize("lab", [pytest.param(lab, id=lab.id) for lab in COURSE.labs])


@pytest.fixture(scope="module")
def ran(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    """Every starter, solution and mistake of the labs that `-k` has left, run in one batch."""
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
def test_starter_fails_solution_passes_mistakes_fail_as_their_fingerprints_say(
    lab: Lab, ran: dict[str, list[str]]
) -> None:
    assert not ran[lab.id], "\n".join(ran[lab.id])


# -- the checks themselves ------------------------------------------------------------------------


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    course = make_repository(tmp_path)
    take_totals(course.labs[0])
    monkeypatch.delenv(proof.CHECKOUT, raising=False)
    monkeypatch.setenv(proof.DRAW, "so that none is drawn")
    monkeypatch.setattr(proof, "SHARE", 10**9)
    return course


def test_a_lab_that_keeps_the_contract(course: Course) -> None:
    assert [pages_and_code(course, lab) for lab in course.labs] == [[], []]
    assert behaviour(course, course.labs[:1]) == {"00-01": []}
    assert behaviour(course, course.labs[:1], full=True) == {"00-01": []}


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
    ("a test that there is not", lambda f: _edit(f / "README.md", "something", "`test_x`"), "is no test"),
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
        "a mistake without a hint",
        lambda f: _edit(f / MISTAKES, 'hint = "Nothing added up is 0."', 'hint = " "'),
        "starts_at_one: hint missing",
    ),
    (
        "a word that no mistake has",
        lambda f: _edit(f / MISTAKES, "hint =", "hints ="),
        "skips_the_first: hint missing",
    ),
    (
        "a mistake that names a test of old",
        lambda f: _edit(f / MISTAKES, '_is_zero"', '_is_0"'),
        "starts_at_one: names test_total_of_nothing_is_0, which is no test",
    ),
    (
        "a mistake that is none",
        lambda f: _edit(f / MISTAKES, "+ result = 1", "+ result = 0"),
        "starts_at_one: changes nothing",
    ),
    (
        "a mistake that is no Python",
        lambda f: _edit(f / MISTAKES, "+ result = 1", "+ result = ("),
        "starts_at_one: what comes of it is no Python",
    ),
    (
        "a change that cannot be made",
        lambda f: _edit(f / MISTAKES, "- result = 0", "- result = 7"),
        "starts_at_one: total has these lines 0 times",
    ),
    ("no TOML", lambda f: _edit(f / MISTAKES, "name =", "name"), "mistakes.toml: Expected '='"),
    (
        "mistakes",
        lambda f: (f / MISTAKES).write_text(TOTALS_MISTAKES["starts_at_one"]),
        "at least 3 mistakes, has 1",
    ),
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
    _edit(lab.mistakes, "test_total_adds_every_item", "test_total_of_one_item_is_that_item")
    assert [*take_fingerprints(course, lab)] == []
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
    drawing.starter.write_text(DRAW_SOLUTION)
    ran = behaviour(course, course.labs)
    said = "\n".join(ran["00-01"])
    assert "solution.py: does not pass: test_total_adds_every_item" in said
    assert "starter.py: no test runs into a function that is not written yet" in said
    assert f"{course.show(drawing.starter)}: passes" in ran["01-01"]


# -- fingerprints ---------------------------------------------------------------------------------


def test_a_mistake_that_its_test_does_not_refuse_gets_no_fingerprint(course: Course) -> None:
    lab = course.labs[0]
    test = "test_total_adds_every_item"
    dies = mistake("dies", "It dies.", "Do not.", test, "total\n= raise ValueError(items)")
    other = mistake("other", "The other.", "Not this.", test, "clip\n= return x")
    lab.mistakes.write_text("\n".join([*TOTALS_MISTAKES.values(), dies, other]))
    said = "\n".join(take_fingerprints(course, lab))
    assert "dies: fails only by test_total_adds_every_item: ValueError" in said
    assert "other: passes test_total_adds_every_item, which should refuse it" in said
    assert [one.key for one in stale(lab.folder)] == ["dies", "other"]


def test_what_is_changed_makes_a_fingerprint_stale(course: Course) -> None:
    """The mistake's own lines that mistake's, tests and solution all of them; its words none."""
    lab = course.labs[0]
    _edit(lab.mistakes, "Nothing added up is 0.", "The sum of nothing is 0.")
    lab.readme.write_text(lab.readme.read_text() + "\nMore.\n")
    assert stale(lab.folder) == []
    _edit(lab.mistakes, "+ result = 1", "+ result = 2")
    assert [one.key for one in stale(lab.folder)] == ["starts_at_one"]
    [said] = behaviour(course, [lab])["00-01"]
    assert said.startswith("00-01: starts_at_one: no fingerprint of it as it is now")
    _edit(lab.test, "clip goes up to low and down to high", "clip keeps to low and high")
    assert len(stale(lab.folder)) == 1, "a docstring in other words changes no verdict"
    _edit(lab.test, "both bounds count", "both count")
    assert len(stale(lab.folder)) == 3
    assert [*take_fingerprints(course, lab)] == []
    assert behaviour(course, [lab]) == {"00-01": []}


def _forge(lab: Lab, key: str, test: str, said: str | None) -> None:
    """Make the fingerprint of the mistake `key` say something else of `test`; None: that it passes."""
    content = json.loads(lab.fingerprints.read_bytes())
    fails = content["mistakes"][key]["fails"]
    if said is None:
        del fails[test]
    else:
        fails[test] = said
    lab.fingerprints.write_text(json.dumps(content))


def test_a_fingerprint_that_is_not_true_is_found(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the test that the mistake names always; in the others when the mistake is drawn. Other words are
    found where all is asked for: the last digit of a number may be the processor's."""
    lab = course.labs[0]
    test = "test_total_of_nothing_is_zero"
    _forge(lab, "starts_at_one", test, "failed 0123456789")
    assert behaviour(course, [lab]) == {"00-01": []}
    [said] = behaviour(course, [lab], full=True)["00-01"]
    assert said.startswith(f"00-01: starts_at_one: {test}: not as its fingerprint says")
    _forge(lab, "starts_at_one", test, "error 0123456789")
    [said] = behaviour(course, [lab])["00-01"]
    assert said.startswith(f"00-01: starts_at_one: {test}: not as its fingerprint says")
    take_totals(lab)
    other = "test_total_adds_every_item"
    assert read_record(lab.folder).entries["starts_at_one"][1].fails.keys() == {test, other}
    _forge(lab, "starts_at_one", other, None)
    assert behaviour(course, [lab]) == {"00-01": []}
    [said] = behaviour(course, [lab], full=True)["00-01"]
    assert f"{other}: not as its fingerprint says" in said
    monkeypatch.setattr(proof, "SHARE", 1)
    assert behaviour(course, [lab])["00-01"] == [said]


def test_what_changed_since_the_commit_before_is_proved_wholly(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = course.labs[0]
    assert proved_wholly(course, lab) == [], "no history, and none drawn"
    git(course.root, "init", "-q")
    for text in ("one", "two"):
        lab.hints.write_text(text)
        git(course.root, "add", "-A")
        git(course.root, "commit", "-qm", text)
    assert proved_wholly(course, lab) == []
    content = json.loads(lab.fingerprints.read_bytes())
    content["mistakes"]["starts_at_one"]["of"] = "another time's"
    now = lab.fingerprints.read_text()
    lab.fingerprints.write_text(json.dumps(content))
    git(course.root, "commit", "-qam", "three")
    lab.fingerprints.write_text(now)
    git(course.root, "commit", "-qam", "four")
    assert [one.key for one in proved_wholly(course, lab)] == ["starts_at_one"]
    assert len(proved_wholly(course, lab, full=True)) == 3
    copy = make_repository(course.root.parent / "copy").labs[0]
    copy.fingerprints.write_text(now)
    monkeypatch.setenv(proof.CHECKOUT, str(course.root))
    there = load_course(copy.folder.parents[2])
    assert [one.key for one in proved_wholly(there, there.labs[0])] == ["starts_at_one"]


def test_a_tenth_is_drawn_and_another_for_another_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    for commit in ("1f0c", "2e9b"):
        monkeypatch.setenv(proof.DRAW, commit)
        draw = proof.draw_of(ROOT)
        drawn.append(
            {
                (lab.id, one.key)
                for lab in COURSE.labs
                for one in read_mistakes(lab.folder)
                if proof._is_drawn(draw, lab, one)
            }
        )
    total = sum(len(read_mistakes(lab.folder)) for lab in COURSE.labs)
    assert all(0.05 * total < len(some) < 0.16 * total for some in drawn)
    assert len(drawn[0] & drawn[1]) < 0.05 * total


def test_a_test_that_passes_on_nothing_is_found(course: Course) -> None:
    lab = course.labs[0]
    lab.test.write_text(
        lab.test.read_text() + "\n\ndef test_bad_input(lab):\n"
        '    """Bad input is refused."""\n'
        "    with pytest.raises(Exception):\n        lab.clip('a', 0, 1)\n"
    )
    found = behaviour(course, [lab])[lab.id]
    said = f"{course.show(lab.starter)}: test_bad_input passes, though clip is not written yet"
    assert said in found


def test_a_slow_solution_is_found(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "MAX_SECONDS", 0.05)
    lab = course.labs[0]
    _edit(lab.solution, "    result = 0\n", "    result = 0 * sum(range(5_000_000))\n")
    assert any("its tests take" in problem for problem in behaviour(course, [lab])[lab.id])
