"""What `course` keeps: progress, hints, diff, reset, watch."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from course_helpers import (
    ROOT,
    TOTALS_SOLUTION,
    TOTALS_STARTER,
    Ran,
    git,
    run_module,
    solve,
)

pytest.importorskip("typer")
pytest.importorskip("rich")


from course.learner.labs import Course, Lab
from course.learner.progress import Progress, digest
from tests.engine.helpers.patience import PATIENCE

Capsys = pytest.CaptureFixture[str]


def write(
    lab: Lab, total: str = "return sum(items)", clip: str = "return min(max(x, low), high)"
) -> None:
    """A learner's starter.py with these bodies."""
    first, second = TOTALS_STARTER.split("    raise NotImplementedError\n")[:2]
    lab.starter.write_text(f"{first}    {total}\n{second}    {clip}\n")


# -- progress -------------------------------------------------------------------------------------


def test_progress_is_kept_and_ignored_bygit(course: Course, totals: Lab, capsys: Capsys) -> None:
    solve(totals)
    Ran(capsys, "grade", "00-01")
    kept = json.loads((course.root / ".course" / "progress.json").read_text())
    assert kept["version"] == 2
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
        entry.hints = ["1", "2"]
    before = progress.path.read_bytes()

    def no_space(fd: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="no space"), progress.update(totals) as entry:
        entry.hints = ["3"]
    assert progress.path.read_bytes() == before
    assert sorted(p.name for p in progress.path.parent.iterdir()) == [
        ".gitignore", "lock", "progress.json",
    ]  # fmt: skip


def test_two_commands_at_once_lose_nothing(course: Course) -> None:
    first, second = Progress(course.root), Progress(course.root)
    with first.update(course.labs[0]) as entry:
        entry.hints = ["1"]
    with second.update(course.labs[1]) as entry:
        entry.hints = ["1", "2"]
    again = Progress(course.root)
    assert [again[lab].hints for lab in course.labs] == [["1"], ["1", "2"]]


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
def test_reset_takes_the_authors_starter_fromgit(
    course: Course, totals: Lab, capsys: Capsys
) -> None:
    git(course.root, "init", "-q")
    git(course.root, "add", ".")
    git(course.root, "commit", "-qm", "the course")
    write(totals, clip="raise NotImplementedError")
    git(course.root, "commit", "-qam", "a learner's own commit")
    solve(totals)
    git(course.root, "commit", "-qam", "another")
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
        assert process.wait(timeout=PATIENCE) in (0, 130)
        assert "Traceback" not in process.stdout.read()
    finally:
        process.kill()
        process.stdout.close()
        process.wait()
