"""`course grade`: what a run tells the learner, whatever the learner wrote."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from course_helpers import (
    DRAW_STARTER,
    ROOT,
    TOTALS_STARTER,
    Ran,
    add_tests,
    make_repository,
    solve,
    take_totals,
)

pytest.importorskip("typer")
pytest.importorskip("rich")

from rich.console import Console

from course.learner.grade import Grade, Job, compare, run_jobs
from course.learner.judge import grade
from course.learner.labs import Course, Lab
from course.learner.progress import Progress
from course.learner.report import show_grade
from course.learner.results import LabRun, TestResult

Capsys = pytest.CaptureFixture[str]


def write(
    lab: Lab, total: str = "return sum(items)", clip: str = "return min(max(x, low), high)"
) -> None:
    """A learner's starter.py with these bodies."""
    first, second = TOTALS_STARTER.split("    raise NotImplementedError\n")[:2]
    lab.starter.write_text(f"{first}    {total}\n{second}    {clip}\n")


# -- grading --------------------------------------------------------------------------------------


def test_the_starter_fails_and_says_what_is_not_written(course: Course, capsys: Capsys) -> None:
    ran = Ran(capsys, "grade", "00-01")
    assert ran.status == 1
    assert "not written yet: total (starter.py, line 10)" in ran.line
    assert "It is the first to write. These wait for it: total adds all items" in ran.line
    assert "The sum of no items is 0. After it: clip" in ran.line
    assert "clip goes up to low" not in ran.line, "what waits for clip comes when total is written"
    assert ran.out.count("todo") == 1
    assert "0 of 3 tests pass, 3 wait for what is not written yet." in ran.out
    assert "Traceback" not in ran.out
    assert "NotImplementedError" not in ran.out


def test_the_first_to_write_is_the_first_in_the_file(totals: Lab, capsys: Capsys) -> None:
    """Whatever the order of the tests, and once it is written the next one follows."""
    text = totals.test.read_text()
    head, first, rest = text.partition("\n\ndef test_total_adds")
    clip = rest.index("@pytest.mark")
    totals.test.write_text(head + "\n\n" + rest[clip:] + first + rest[:clip])
    assert "not written yet: total" in Ran(capsys, "grade", "00-01").line
    write(totals, clip="raise NotImplementedError")
    ran = Ran(capsys, "grade", "00-01")
    assert "not written yet: clip (starter.py, line 15) It is the first to write." in ran.line
    assert "After it" not in ran.line
    assert "2 of 3 tests pass, 1 wait" in ran.line
    write(totals, total="return 7", clip="raise NotImplementedError")
    assert "todo not written yet: clip (1 test)" in Ran(capsys, "grade", "00-01").line


def test_one_line_a_test_saying_what_it_pins(totals: Lab, capsys: Capsys) -> None:
    solve(totals)
    ran = Ran(capsys, "grade", "00-01")
    assert ran.status == 0
    lines = [line.strip() for line in ran.out.splitlines() if line.startswith(" pass")]
    assert lines == [
        "pass  total adds all items, the first and the last too.",
        "pass  The sum of no items is 0.",
        "pass  clip goes up to low and down to high, and leaves the rest alone.",
    ]
    assert "Lab 00-01 passes: 3 tests." in ran.out


# -- what a failure tells: many starters, run in one batch and shown as `course grade` shows them ---

CASES: dict[str, tuple[str, str] | str] = {
    "a bound is missing": ("return sum(items)", "return x if x > low else low"),
    "the first is missing": ("return sum(items[1:])", "raise NotImplementedError"),
    "the last is missing": ("return sum(items[:-1])", "return min(max(x, low), high)"),
    "something else": ("return 7", "return min(max(x, low), high)"),
    "two mistakes": ("return sum(items, 1)", "return max(x, low)"),
    "divides": ("return sum(items) / len(items) * len(items)", "return x"),
    "prints": ("print('items are', items); return 0", "return x"),
    "brackets": ("raise ValueError('[bold] x[0] [/nothing]')", "return x"),
    "not closed": "def total(items):\n    return sum(items\n",
    "imports": "import numpie\n",
    "clip is gone": "def total(items):\n    return sum(items)\n",
    "no Sampler's answer": DRAW_STARTER.replace("raise NotImplementedError", "return 3"),
}


@dataclass
class Case:
    run: LabRun
    mistakes: list[str]
    text: str

    @property
    def line(self) -> str:
        return " ".join(self.text.split())


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    course = make_repository(tmp_path_factory.mktemp("cases"))
    totals, drawing = course.labs
    first, second = TOTALS_STARTER.split("    raise NotImplementedError\n")[:2]
    labs = []
    for name, code in CASES.items():
        path = course.root / name / "starter.py"
        path.parent.mkdir()
        if isinstance(code, tuple):
            code = f"{first}    {code[0]}\n{second}    {code[1]}\n"
        path.write_text(code)
        labs.append((drawing if "Sampler" in name else totals, path))
    take_totals(totals)
    runs = run_jobs(course.root, [Job(lab.folder, path) for lab, path in labs], 2)
    found = {}
    for name, (lab, _), run in zip(CASES, labs, runs, strict=True):
        likeness = compare(lab, run)
        out = io.StringIO()
        named = likeness.mistakes if likeness else ()
        met = frozenset(mistake.key for mistake in named)
        show_grade(Console(file=out, width=100), course, Grade(lab, run, likeness, met))
        mistakes = [mistake.name for mistake in named]
        found[name] = Case(run, mistakes, out.getvalue())
    return found


def test_a_failure_shows_the_teaching_message(cases: dict[str, Case]) -> None:
    case = cases["a bound is missing"]
    assert "clip(9, 0, 5) must be 5, got 9: both bounds count" in case.line
    assert "test_clip_keeps_to_both_bounds" in case.line
    assert "(1 of 3 cases, the first: 9-5)" in case.line
    assert "assert " not in case.text
    assert "2 of 3 tests pass, 1 fail." in case.text


def test_a_case_whose_name_has_brackets_is_shown_whole(tmp_path: Path) -> None:
    course = make_repository(tmp_path)
    cases = [
        TestResult(f"test_chunks[{name}]", "test_chunks", outcome="failed", message="no")
        for name in ("[4, 4, 5]", "[12, 1]")
    ]
    out = io.StringIO()
    failed = Grade(course.labs[0], LabRun(cases), None, frozenset())
    show_grade(Console(file=out, width=100), course, failed)
    assert "(2 of 2 cases, the first: [4, 4, 5])" in " ".join(out.getvalue().split())


def test_what_is_not_written_does_not_hide_a_known_mistake(cases: dict[str, Case]) -> None:
    case = cases["the first is missing"]
    assert (
        "This looks like “The first item is left out”. Indices begin at 0, not at 1." in case.line
    )
    assert "not written yet: clip" in case.line


def test_two_known_mistakes_at_once(cases: dict[str, Case]) -> None:
    assert sorted(cases["two mistakes"].mistakes) == [
        "Only the lower bound is kept.",
        "The sum begins at 1.",
    ]
    said = "This may be “The sum begins at 1”, and also “Only the lower bound is kept”."
    assert said in cases["two mistakes"].line


def test_another_mistake_is_not_taken_for_a_known_one(cases: dict[str, Case]) -> None:
    assert cases["something else"].mistakes == []
    assert "This looks like" not in cases["something else"].text


def test_the_same_tests_with_other_numbers_are_another_mistake(cases: dict[str, Case]) -> None:
    """`sum(items[:-1])` fails what "the first item is left out" fails; only the total differs."""
    case = cases["the last is missing"]
    assert [test.name for test in case.run.bad] == ["test_total_adds_every_item"]
    assert case.mistakes == []


def test_an_exception_names_the_file_and_line(cases: dict[str, Case]) -> None:
    case = cases["divides"]
    assert "ZeroDivisionError: division by zero" in case.line
    assert "starter.py, line 10, in total: return sum(items) / len(items) * len(items)" in case.line
    assert "Traceback" not in case.text


def test_a_syntax_error_names_the_file_and_line(cases: dict[str, Case]) -> None:
    case = cases["not closed"]
    assert not case.run.passed
    assert "starter.py cannot be loaded" in case.text
    assert "starter.py, line 2" in case.text
    assert case.text.count("SyntaxError: '(' was never closed") == 1


def test_an_error_at_the_top_level_is_shown_once(cases: dict[str, Case]) -> None:
    case = cases["imports"]
    assert "starter.py cannot be loaded" in case.text
    assert case.text.count("ModuleNotFoundError: No module named 'numpie'") == 1
    assert "starter.py, line 1: import numpie" in case.line


def test_a_function_that_is_gone_is_named(cases: dict[str, Case]) -> None:
    assert "starter.py has no clip." in cases["clip is gone"].text


def test_an_answer_of_the_wrong_kind_names_the_line_of_the_test(cases: dict[str, Case]) -> None:
    line = cases["no Sampler's answer"].line
    assert "The test could not use what your code gave it." in line
    assert "AttributeError: 'int' object has no attribute 'sampled_token_ids'" in line
    assert re.search(r"test_lab\.py, line \d+: token = int\(out\.sampled_token_ids\[0\]\)", line)


def test_what_the_code_printed_is_shown(cases: dict[str, Case]) -> None:
    assert "It printed: items are [1, 2, 4]" in cases["prints"].line


def test_brackets_in_a_message_are_no_markup(cases: dict[str, Case]) -> None:
    assert "ValueError: [bold] x[0] [/nothing]" in cases["brackets"].line


@pytest.mark.parametrize(
    "loop", ["while True: pass", "try:\n        while True: pass\n    except: pass"]
)
def test_an_endless_loop_is_ended_and_found(
    course: Course, totals: Lab, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "course.learner.grade.Job.__init__.__defaults__", (30.0, 1.0, (), False, None, (), ())
    )
    write(totals, total=loop)
    run = grade(course, totals, Progress(course.root)).run
    first = run.tests[0]
    assert not run.passed
    assert run.tests[-1].outcome == "passed", "the other tests are run all the same"
    if "except" not in loop:
        assert first.outcome == "time"
        assert first.message == "Still running after 1 s, and ended."
        assert (first.function, first.code) == ("total", "while True: pass")


def test_an_endless_loop_at_the_top_level(
    totals: Lab, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "course.learner.grade.Job.__init__.__defaults__", (3.0, 1.0, (), False, None, (), ())
    )
    totals.starter.write_text("n = 0\nwhile True:\n    n += 1\n")
    ran = Ran(capsys, "grade", "00-01")
    assert ran.status == 1
    assert "Still running after 1 s, and ended." in ran.line
    assert "what it does at the top level never ends" in ran.line


def test_an_endless_loop_that_no_signal_reaches(
    course: Course, totals: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In C, or with the alarm turned off: then the whole process is ended."""
    monkeypatch.setattr(
        "course.learner.grade.Job.__init__.__defaults__", (1.0, 0.5, (), False, None, (), ())
    )
    monkeypatch.setattr("course.learner.grade.GRACE", 2.0)
    write(
        totals,
        total="import signal, time; signal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
        "    while True: time.sleep(1)",
    )
    run = grade(course, totals, Progress(course.root)).run
    assert run.problem is not None
    assert "test_total_adds_every_item" in run.problem
    assert run.tests[0].outcome == "time"


def test_python_itself_may_end(course: Course, totals: Lab) -> None:
    write(totals, total="import os; os._exit(3)")
    run = grade(course, totals, Progress(course.root)).run
    assert not run.passed
    assert run.problem is not None
    assert "Python itself ended while test_total_adds_every_item ran" in run.problem


def test_skipped_tests_are_no_failures_and_no_passes(totals: Lab, capsys: Capsys) -> None:
    solve(totals)
    text = totals.test.read_text()
    totals.test.write_text(
        text.replace("def test_total_of", '@pytest.mark.skip("no GPU")\ndef test_total_of')
    )
    ran = Ran(capsys, "grade", "00-01")
    assert ran.status == 0
    assert "no GPU" in ran.out
    assert "1 could not run here" in ran.line
    totals.test.write_text(
        text.replace("import pytest", 'import pytest\npytestmark = pytest.mark.skip("x")')
    )
    assert Ran(capsys, "grade", "00-01").status == 1, "a lab of which nothing ran does not pass"


def test_a_test_file_that_does_not_load(totals: Lab, capsys: Capsys) -> None:
    totals.test.write_text("import nothing_of_the_kind\n")
    ran = Ran(capsys, "grade", "00-01")
    assert ran.status == 1
    assert "test_lab.py cannot be loaded" in ran.line


SHY = """\
class Shy(list):
    def __iter__(self):
        assert False, "do not walk through one item"


ONE = Shy([5])
"""


def test_a_second_file_of_tests_counts(totals: Lab, capsys: Capsys) -> None:
    """It is graded with the first; an assertion in what they share is the tests' own."""
    add_tests(totals)
    solve(totals)
    assert "Lab 00-01 passes: 4 tests." in Ran(capsys, "grade", "00-01").out
    write(totals, total="return 4 if items == [5] else sum(items)")
    ran = Ran(capsys, "grade", "00-01")
    assert ran.status == 1
    assert "test_total_of_one_item_is_that_item should be 5, got 4: one item is" in ran.line
    support = totals.folder / "support.py"
    shared = support.read_text()
    support.write_text(shared.replace("ONE = [5]", SHY))
    solve(totals)
    ran = Ran(capsys, "grade", "00-01")
    assert "test_total_of_one_item_is_that_item do not walk through one item" in ran.line
    assert "AssertionError" not in ran.line
    support.write_text(shared.replace("got == wanted", "wanted + None"))
    line = Ran(capsys, "grade", "00-01").line
    assert "The test could not use what your code gave it." in line
    assert re.search(r"support\.py, line \d+: assert wanted \+ None", line)
    support.write_text("import nothing_of_the_kind\n")
    assert "test_lab_more.py cannot be loaded" in Ran(capsys, "grade", "00-01").line


def test_all_and_phase(course: Course, totals: Lab, capsys: Capsys) -> None:
    solve(totals)
    ran = Ran(capsys, "grade", "--all")
    assert ran.status == 1
    assert "00-01  passes" in ran.out
    assert "01-01  0 of 1 tests" in ran.out
    assert "1 of 2 labs pass." in ran.out
    assert Ran(capsys, "grade", "--phase", "0").status == 0
    assert Ran(capsys, "grade", "--phase", "9").status == 2
    assert Ran(capsys, "grade", "00-01", "--all").status == 2


def test_plain_pytest_needs_none_of_this(course: Course, totals: Lab) -> None:
    env = {**os.environ, "LAB_IMPL": "starter", "PYTHONPATH": str(ROOT)}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # the course's own conftest.py has to be enough
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(totals.folder)]
    out = subprocess.run(
        command, cwd=course.root, env=env, capture_output=True, text=True, check=False
    )
    assert "5 failed" in out.stdout
    solve(totals)
    out = subprocess.run(
        command, cwd=course.root, env=env, capture_output=True, text=True, check=False
    )
    assert "5 passed" in out.stdout
