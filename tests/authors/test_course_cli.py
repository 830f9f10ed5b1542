"""The command `course`: what it prints, keeps and refuses."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from course_helpers import (
    DRAW_STARTER,
    ROOT,
    TOTALS_SOLUTION,
    TOTALS_STARTER,
    Ran,
    make_repository,
    run_module,
    solve,
)

pytest.importorskip("typer")
pytest.importorskip("rich")

from rich.console import Console

from course.learner import doctor
from course.learner.cli import main
from course.learner.grade import Grade, Job, grade, run_jobs
from course.learner.labs import Course, CourseError, Lab
from course.learner.mistakes import looks_like, read_mistake
from course.learner.progress import Progress, digest
from course.learner.report import show_grade
from course.learner.results import LabRun

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    course = make_repository(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAB_IMPL", raising=False)
    return course


@pytest.fixture
def totals(course: Course) -> Lab:
    return course.labs[0]


def write(
    lab: Lab, total: str = "return sum(items)", clip: str = "return min(max(x, low), high)"
) -> None:
    """A learner's starter.py with these bodies."""
    first, second = TOTALS_STARTER.split("    raise NotImplementedError\n")[:2]
    lab.starter.write_text(f"{first}    {total}\n{second}    {clip}\n")


# -- where you are --------------------------------------------------------------------------------


def test_alone_it_says_where_you_are_and_what_is_next(course: Course, capsys: Capsys) -> None:
    ran = Ran(capsys)
    assert ran.status == 0
    assert "0 of 2 labs done" in ran.out
    assert "Lab 00-01: Totals" in ran.out
    assert "phase-00-beginnings/labs/lab-01-totals/README.md" in ran.out
    assert "course grade 00-01" in ran.out


def test_next_moves_on_when_a_lab_passes(course: Course, totals: Lab, capsys: Capsys) -> None:
    solve(totals)
    assert Ran(capsys, "grade", "00-01").status == 0
    assert "Lab 01-01: Drawing" in Ran(capsys, "next").out
    solve(course.labs[1])
    assert Ran(capsys, "grade").status == 0, "without a name, the next lab is graded"
    for command in ((), ("next",)):
        assert "All 2 labs are done" in Ran(capsys, *command).out


def test_list_and_next_follow_what_was_graded(course: Course, totals: Lab, capsys: Capsys) -> None:
    course.phases[0].guide.write_text("# Guide\n")
    assert "phase-00-beginnings/00-guide.md" in Ran(capsys, "next").out, "a phase not begun"
    ran = Ran(capsys, "list")
    assert re.search(r"00-01 +Totals +CPU-OK +20 min +next", ran.out)
    assert re.search(r"01-01 +Drawing +CPU-OK +20 min +builds sampler", ran.out)
    write(totals, clip="return x")
    Ran(capsys, "grade", "00-01")
    assert "2 of 3 tests" in Ran(capsys, "list").out
    ran = Ran(capsys, "next")
    assert "00-guide.md" not in ran.out
    assert "2 of 3 tests passed" in ran.out
    solve(totals)
    Ran(capsys, "grade", "00-01")
    assert re.search(r"00-01 .* done$", Ran(capsys, "list").out, re.MULTILINE)
    write(totals, clip="return x")
    assert "done, changed since" in Ran(capsys, "list").out


def test_lines_have_no_blanks_at_their_end(course: Course, capsys: Capsys) -> None:
    for command in (("list",), ("hint", "00-01")):
        out = Ran(capsys, *command).out
        assert not re.search(r"[ \t]+$", out, re.MULTILINE), out


@pytest.mark.parametrize("command", [("list",), ("next",), ("hint", "1-1"), ()])
def test_every_command_works_from_any_folder(
    course: Course, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    outputs = set()
    for folder in (course.root, course.labs[1].folder / "wrong"):
        shutil.rmtree(course.root / ".course", ignore_errors=True)
        monkeypatch.chdir(folder)
        ran = Ran(capsys, *command)
        assert ran.status in (0, 1)
        outputs.add(ran.out)
    assert len(outputs) == 1


def test_the_lab_you_stand_in_is_meant(
    course: Course, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(course.labs[1].folder)
    assert "Lab 01-01" in Ran(capsys, "grade").out


def test_outside_of_the_repository(
    tmp_path_factory: pytest.TempPathFactory, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    for command in ((), ("list",), ("grade", "00-01"), ("doctor",), ("assemble",)):
        ran = Ran(capsys, *command)
        assert ran.status == 2
        assert "not inside the course's repository" in ran.err
        assert "Traceback" not in ran.err


def test_a_name_that_is_not_one_gets_near_matches(course: Course, capsys: Capsys) -> None:
    ran = Ran(capsys, "grade", "totols")
    assert (ran.status, ran.out) == (2, "")
    assert "no lab is called 'totols'" in ran.err
    assert "00-01  lab-01-totals" in ran.err


# -- grading --------------------------------------------------------------------------------------


def test_the_starter_fails_and_says_what_is_not_written(course: Course, capsys: Capsys) -> None:
    ran = Ran(capsys, "grade", "00-01")
    assert ran.status == 1
    assert "not written yet: total" in ran.line
    assert "not written yet: clip" in ran.line
    assert "total adds all items, the first and the last too." in ran.out
    assert "0 of 3 tests pass, 3 wait for what is not written yet." in ran.out
    assert "Traceback" not in ran.out
    assert "NotImplementedError" not in ran.out


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


def test_a_known_mistake_is_named_with_its_hint(totals: Lab, capsys: Capsys) -> None:
    write(totals, clip="return x if x > low else low")
    ran = Ran(capsys, "grade", "00-01")
    assert "This looks like “Only the lower bound is kept”. There are two bounds." in ran.line
    assert "comparing with 3 known mistakes" in ran.err
    wrong = totals.folder / "wrong" / "only_one_bound.py"
    wrong.write_text(wrong.read_text().replace("Only the lower", "Just the lower"))
    ran = Ran(capsys, "grade", "00-01")
    assert "comparing with 1 known mistakes" in ran.err, "what the others fail is kept"
    assert "“Just the lower bound is kept”" in ran.line


# -- what a failure tells: many starters, run in one batch and shown as `course grade` shows them ---

CASES: dict[str, tuple[str, str] | str] = {
    "a bound is missing": ("return sum(items)", "return x if x > low else low"),
    "the first is missing": ("return sum(items[1:])", "raise NotImplementedError"),
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
    wrong = totals.wrong
    runs = run_jobs(
        course.root,
        [Job(lab.test, path) for lab, path in labs] + [Job(totals.test, path) for path in wrong],
        2,
    )
    known = list(zip(map(read_mistake, wrong), runs[len(CASES) :], strict=True))
    found = {}
    for name, (lab, _), run in zip(CASES, labs, runs, strict=False):
        mistakes = looks_like(run, known if lab == totals else [])
        out = io.StringIO()
        show_grade(Console(file=out, width=100), course, Grade(lab, run, tuple(mistakes)))
        found[name] = Case(run, [mistake.name for mistake in mistakes], out.getvalue())
    return found


def test_a_failure_shows_the_teaching_message(cases: dict[str, Case]) -> None:
    case = cases["a bound is missing"]
    assert "clip(9, 0, 5) must be 5, got 9: both bounds count" in case.line
    assert "test_clip_keeps_to_both_bounds" in case.line
    assert "(1 of 3 cases, the first: 9-5)" in case.line
    assert "assert " not in case.text
    assert "2 of 3 tests pass, 1 fail." in case.text


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


def test_another_mistake_is_not_taken_for_a_known_one(cases: dict[str, Case]) -> None:
    assert cases["something else"].mistakes == []
    assert "This looks like" not in cases["something else"].text


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
        "course.learner.grade.Job.__init__.__defaults__", (2.0, 0.4, (), "", False, None)
    )
    write(totals, total=loop)
    run = grade(course, totals, Progress(course.root)).run
    first = run.tests[0]
    assert not run.passed
    assert run.tests[-1].outcome == "passed", "the other tests are run all the same"
    if "except" not in loop:
        assert first.outcome == "time"
        assert first.message == "Still running after 0 s, and ended."
        assert (first.function, first.code) == ("total", "while True: pass")


def test_an_endless_loop_at_the_top_level(
    totals: Lab, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "course.learner.grade.Job.__init__.__defaults__", (3.0, 1.0, (), "", False, None)
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
        "course.learner.grade.Job.__init__.__defaults__", (1.0, 0.5, (), "", False, None)
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


# -- progress -------------------------------------------------------------------------------------


def test_progress_is_kept_and_ignored_by_git(course: Course, totals: Lab, capsys: Capsys) -> None:
    solve(totals)
    Ran(capsys, "grade", "00-01")
    kept = json.loads((course.root / ".course" / "progress.json").read_text())
    assert kept["version"] == 1
    entry = kept["labs"]["00-01"]
    assert (entry["attempts"], entry["passed"], entry["failed"]) == (1, 3, 0)
    assert entry["passed_digest"] == digest(totals.starter)
    assert "*" in (course.root / ".course" / ".gitignore").read_text().split()
    if shutil.which("git"):
        subprocess.run(["git", "init", "-q", str(course.root)], check=True)
        out = subprocess.run(
            ["git", "-C", str(course.root), "status", "--porcelain", "-uall"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert ".course" not in out.stdout


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"version": 1}', '{"version": 1, "labs": {"00-01": {"attempts": "x"}}}',
     '{"version": 0, "labs": {}}', '{"version": 1, "labs": {"00-01": 3}}', "\xff\x00"],
)  # fmt: skip
def test_a_damaged_file_is_kept_and_progress_begins_anew(
    course: Course, capsys: Capsys, content: str
) -> None:
    path = course.root / ".course" / "progress.json"
    path.parent.mkdir()
    path.write_text(content, encoding="latin-1")
    ran = Ran(capsys, "list")
    assert ran.status == 0
    assert "could not be read" in ran.err
    assert "course grade --all" in ran.err
    [aside] = path.parent.glob("progress.damaged-*.json")
    assert aside.read_text(encoding="latin-1") == content
    assert Ran(capsys, "grade", "00-01").err == ""


def test_a_file_of_a_newer_course_is_left_alone(course: Course, capsys: Capsys) -> None:
    path = course.root / ".course" / "progress.json"
    path.parent.mkdir()
    path.write_text('{"version": 99, "labs": {}}')
    ran = Ran(capsys, "grade", "00-01")
    assert ran.status == 2
    assert "format 99" in ran.err
    assert path.read_text() == '{"version": 99, "labs": {}}'


def test_a_crash_while_writing_leaves_the_old_file(
    course: Course, totals: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = Progress(course.root)
    with progress.update(totals) as entry:
        entry.hints = 2
    before = progress.path.read_bytes()

    def no_space(fd: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="no space"), progress.update(totals) as entry:
        entry.hints = 3
    assert progress.path.read_bytes() == before
    assert sorted(p.name for p in progress.path.parent.iterdir()) == [
        ".gitignore", "lock", "progress.json",
    ]  # fmt: skip


def test_two_commands_at_once_lose_nothing(course: Course) -> None:
    first, second = Progress(course.root), Progress(course.root)
    with first.update(course.labs[0]) as entry:
        entry.hints = 1
    with second.update(course.labs[1]) as entry:
        entry.hints = 2
    again = Progress(course.root)
    assert [again[lab].hints for lab in course.labs] == [1, 2]


# -- hints, diff, reset ---------------------------------------------------------------------------


def test_hints_go_one_step_further_each_time(totals: Lab, capsys: Capsys) -> None:
    titles = [Ran(capsys, "hint", "00-01").out.splitlines()[0] for _ in range(4)]
    assert titles == [
        "Lab 00-01, hint 1 of 3: look",
        "Lab 00-01, hint 2 of 3: count",
        "Lab 00-01, hint 3 of 3: nearly there",
        "Lab 00-01, hint 3 of 3: nearly there",
    ]
    again = Ran(capsys, "hint", "00-01", "--again").out
    assert [f"hint {n} of 3" in again for n in (1, 2, 3)] == [True] * 3
    assert "--peek" in Ran(capsys, "hint", "00-01").out
    assert "3 of 3 hints seen" in Ran(capsys).out


def test_no_hint_again_before_the_first(totals: Lab, capsys: Capsys) -> None:
    assert Ran(capsys, "hint", "00-01", "--again").status == 2


def test_diff_only_once_the_lab_passes(totals: Lab, capsys: Capsys) -> None:
    ran = Ran(capsys, "diff", "00-01")
    assert (ran.status, ran.out) == (2, "")
    assert "--peek" in ran.err
    peeked = Ran(capsys, "diff", "00-01", "--peek").out
    assert "-    raise NotImplementedError" in peeked
    assert "+        result += item" in peeked
    write(totals)
    assert "-    return sum(items)" in Ran(capsys, "diff", "00-01").out
    solve(totals)
    assert "No difference" in Ran(capsys, "diff", "00-01").out


def _git(root: Path, *arguments: str) -> None:
    name = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(root), *name, *arguments], check=True, capture_output=True)


def test_reset_asks_and_keeps_a_backup(
    course: Course, totals: Lab, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ran(capsys, "grade", "00-01")  # the course meets the lab while it is untouched
    solve(totals)
    out = run_module(course.root, "course", "reset", "00-01", text="n\n")
    assert out.returncode == 1
    assert totals.starter.read_text() == TOTALS_SOLUTION
    out = run_module(course.root, "course", "reset", "00-01", text="y\n")
    assert out.returncode == 0, out.stderr
    assert totals.starter.read_text() == TOTALS_STARTER
    [backup] = (course.root / ".course" / "backups" / "00-01").iterdir()
    assert backup.read_text() == TOTALS_SOLUTION
    assert str(backup.relative_to(course.root)) in out.stdout
    assert "nothing to do" in Ran(capsys, "reset", "00-01", "--yes").out


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_reset_takes_the_authors_starter_from_git(
    course: Course, totals: Lab, capsys: Capsys
) -> None:
    _git(course.root, "init", "-q")
    _git(course.root, "add", ".")
    _git(course.root, "commit", "-qm", "the course")
    write(totals, clip="raise NotImplementedError")
    _git(course.root, "commit", "-qam", "a learner's own commit")
    solve(totals)
    _git(course.root, "commit", "-qam", "another")
    write(totals, total="return 1")
    ran = Ran(capsys, "reset", "00-01", "--yes")
    assert ran.status == 0, ran.err
    assert totals.starter.read_text() == TOTALS_STARTER


def test_reset_without_a_source_says_so(totals: Lab, capsys: Capsys) -> None:
    solve(totals)
    ran = Ran(capsys, "reset", "00-01", "--yes")
    assert ran.status == 2
    assert "no untouched starter of 00-01 is to be had" in ran.err
    assert totals.starter.read_text() == TOTALS_SOLUTION


# -- watch ----------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="ends the command with SIGINT")
def test_watch_grades_on_every_save(course: Course, totals: Lab) -> None:
    pytest.importorskip("watchfiles")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "course", "watch", "00-01"], cwd=course.root, env=env,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    seen = ""

    def read_until(text: str) -> None:
        nonlocal seen
        for line in process.stdout or ():
            seen += line
            if text in line:
                return
        raise AssertionError(f"{text!r} did not come:\n{seen}")

    try:
        read_until("Waiting for starter.py")
        time.sleep(0.3)  # the watcher begins when the grade is out
        fresh = totals.starter.with_name("starter.py.tmp")
        fresh.write_text(TOTALS_SOLUTION)
        fresh.replace(totals.starter)  # as editors save
        read_until("Lab 00-01 passes")
        read_until("Waiting for starter.py")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) in (0, 130)
        assert "Traceback" not in process.stdout.read()
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


# -- doctor and the rest --------------------------------------------------------------------------


def test_doctor_names_what_is_missing_with_both_commands(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT / "tests")
    real = doctor.version_of
    monkeypatch.setattr(
        doctor, "version_of",
        lambda name: {"torch": "1.0", "numpy": real("numpy"), "rich": None}.get(name, real(name)),
    )  # fmt: skip
    ran = Ran(capsys, "doctor")
    assert ran.status == 1
    assert re.search(r"ok +Python +3\.", ran.out)
    assert re.search(r"missing +rich", ran.out)
    assert "uv sync --inexact --extra course" in ran.out
    assert 'pip install -e ".[course]"' in ran.out
    assert re.search(r"not here +torch +1\.0 is there, ==2\.11\.\* is wanted", ran.out)
    assert "upstream/vllm" in ran.out
    assert "To be mended:" in ran.out


def test_doctor_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, time; start = time.process_time()\n"
        "from pathlib import Path; from course.learner.doctor import examine\n"
        f"checks = examine(Path({str(ROOT)!r}))\n"
        "print(time.process_time() - start, len(checks), 'torch' in sys.modules)\n"
    )
    times = []
    for _ in range(3):
        out = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        )
        took, num_checks, torch = out.stdout.split()
        times.append(float(took))
        assert int(num_checks) > 10
        assert torch == "False"
    assert min(times) < 1.0, f"doctor took {min(times):.2f} s at best"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_doctor_compares_the_upstream_tree_with_the_pin(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "UPSTREAM_PIN.md"):
        shutil.copy(ROOT / name, tmp_path)
    tree = tmp_path / "upstream" / "vllm"
    tree.mkdir(parents=True)
    _git(tree, "init", "-q")
    _git(tree, "commit", "-q", "--allow-empty", "-m", "x")
    [check] = [c for c in doctor.examine(tmp_path) if c.name == "upstream/vllm"]
    assert check.state == doctor.OPTIONAL
    assert "but the pin is 0decac0d96" in check.detail
    assert "scripts/get_upstream.sh" in check.uv


def test_the_pin_is_read() -> None:
    assert doctor.read_pin(ROOT) == ("0.22.1", "0decac0d96c42b49572498019f0a0e3600f50398")


def test_groups_of_other_modules_are_mounted(
    course: Course, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are imported when called; what their extra brings may be missing."""
    import course.learner.commands as commands

    name = "site"
    assert name in Ran(capsys, "--help").out

    real = commands.importlib.import_module

    def missing(module: str, package: str | None = None) -> object:
        if not module.startswith("course."):
            return real(module, package)
        raise ModuleNotFoundError("No module named 'mkdocs'", name="mkdocs")

    monkeypatch.setattr(commands.importlib, "import_module", missing)
    ran = Ran(capsys, name, "--help")
    assert ran.status == 2
    assert f"'course {name}' needs mkdocs" in ran.err
    assert "--extra" in ran.err


def test_without_its_tools_the_command_says_what_to_install(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *a: None if name == "typer" else real(name, *a)
    )
    assert main([]) == 2
    err = capsys.readouterr().err
    assert "typer missing" in err
    assert "uv sync --extra course" in err


def test_grading_without_pytest_says_what_to_install(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CourseError, match="grading needs pytest"):
        run_jobs(course.root, [])


def test_check_says_what_breaks_the_contract(totals: Lab, capsys: Capsys) -> None:
    assert Ran(capsys, "check").status == 0
    (totals.folder / "wrong" / "starts_at_one.py").unlink()
    ran = Ran(capsys, "check", "totals")
    assert ran.status == 1
    assert "at least 3 mistakes, has 2" in ran.out
