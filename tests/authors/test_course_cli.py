"""The command `course`: where you are, the doctor, the other groups, and what is missing."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from course_helpers import (
    ROOT,
    TOTALS_STARTER,
    Ran,
    git,
    solve,
)

pytest.importorskip("typer")
pytest.importorskip("rich")


import mini_vllm
from course.learner import doctor
from course.learner.cli import main
from course.learner.grade import run_jobs
from course.learner.labs import Course, CourseError, Lab
from tests.engine.helpers.patience import PATIENCE

Capsys = pytest.CaptureFixture[str]


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
    for folder in (course.root, course.labs[1].folder):
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
    git(tree, "init", "-q")
    git(tree, "commit", "-q", "--allow-empty", "-m", "x")
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
    import course.authors.command as commands

    name = "site"
    real = commands.importlib.import_module

    def missing(module: str, package: str | None = None) -> object:
        if not module.startswith("course."):
            return real(module, package)
        raise ModuleNotFoundError("No module named 'mkdocs'", name="mkdocs")

    monkeypatch.setattr(commands.importlib, "import_module", missing)
    for words in ((name,), ("author", name)):
        ran = Ran(capsys, *words, "--help")
        assert ran.status == 2
        assert f"'course {name}' needs mkdocs" in ran.err
        assert "--extra" in ran.err


AUTHORS = ("contract", "mistake", "mutate", "weigh", "sync", "cite", "correspond", "docs", "site")


def test_a_learner_sees_the_learners_commands(capsys: Capsys) -> None:
    """The authors' are one line, `author`, and still answer to the short names that pages use."""

    def listed(*words: str) -> list[str]:
        return re.findall(r"(?m)^│ ([a-z]+) ", Ran(capsys, *words, "--help").out)

    assert listed() == [
        "list", "track", "next", "grade", "hint", "watch", "diff", "reset", "doctor", "assemble", "compare",
        "drift", "kernel", "author",
    ]  # fmt: skip
    assert listed("author") == list(AUTHORS)


@pytest.mark.parametrize("name", AUTHORS[:7])
def test_an_authors_command_goes_by_two_names(name: str, capsys: Capsys) -> None:
    long, short = Ran(capsys, "author", name, "--help"), Ran(capsys, name, "--help")
    assert (long.status, short.status) == (0, 0)
    assert f"Usage: course author {name}" in long.line
    assert long.out.replace(f"course author {name}", f"course {name}").split() == short.out.split()


def test_a_place_in_vllm_is_shown_to_a_learner(capsys: Capsys) -> None:
    """Pages say `course cite show PATH:LINE`; without a tree it says where to get one."""
    ran = Ran(capsys, "cite", "show", "vllm/v1/request.py:239")
    assert "request.py" in ran.line
    assert "No such" not in ran.line


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
    assert "uv sync --inexact --extra course" in err


def test_grading_without_pytest_says_what_to_install(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CourseError, match="grading needs pytest"):
        run_jobs(course.root, [])


def test_contract_says_what_breaks_it(totals: Lab, capsys: Capsys) -> None:
    ran = Ran(capsys, "contract", "totals")
    assert ran.status == 1
    assert "starts_at_one: no fingerprint of it as it is now" in ran.line
    assert Ran(capsys, "contract", "totals", "--write").status == 0
    assert Ran(capsys, "contract", "totals").status == 0
    totals.mistakes.write_text("")
    ran = Ran(capsys, "contract", "totals")
    assert ran.status == 1
    assert "at least 3 mistakes, has 0" in ran.out


# -- where its output goes, and where it is started -------------------------------------------------


def run_course(*argv: str, shell: str = "", cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """`course` as a process, in a shell that redirects its output as `shell` says."""
    command = " ".join(["exec", shlex.quote(sys.executable), "-m", "course", *argv, shell])
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=cwd, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False, timeout=PATIENCE,
    )  # fmt: skip


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["list", "next", "--help", "--version", "hint --help"])
def test_a_full_disk_is_one_line(command: str) -> None:
    ran = run_course(command, shell="> /dev/full")
    assert ran.stderr == "course: the output cannot be written: No space left on device\n"
    assert ran.returncode == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("package", ["cite", "docs", "parity", "fuzz", "conformance"])
def test_a_full_disk_is_one_line_for_the_other_commands(package: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"exec {shlex.quote(sys.executable)} -m course.{package} --help >/dev/full"],
        cwd=ROOT, env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
        capture_output=True, encoding="utf-8", check=False, timeout=PATIENCE,
    )  # fmt: skip
    line = f"course.{package}: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, line)


@pytest.mark.parametrize(
    ("package", "absent", "extra"), [("site", "mkdocs", "site"), ("cite", "typer", "course")]
)
def test_a_missing_package_is_named_with_what_brings_it(
    package: str, absent: str, extra: str
) -> None:
    without = (
        f"import runpy, sys; sys.modules[{absent!r}] = None; sys.argv = ['course', '--help']; "
    )
    without += f"runpy.run_module('course.{package}', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", without], cwd=ROOT, capture_output=True, encoding="utf-8",
        check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"course.{package} needs {absent}: ")
    assert done.stderr.count("\n") == 1
    assert f'pip install -e ".[{extra}]"' in done.stderr


def test_the_version_is_the_engine_s() -> None:
    assert run_course("--version").stdout == f"course {mini_vllm.__version__}\n"


def test_a_pipe_whose_reader_has_gone_ends_it_in_silence() -> None:
    assert run_course("list", shell="| true").stderr == ""


def test_a_deleted_folder_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    ran = run_course("list", cwd=gone)
    assert "is not inside the course's repository" in ran.stderr
    line = f"cd {shlex.quote(str(gone))} && rmdir {shlex.quote(str(gone))} && "
    line += f"exec {shlex.quote(sys.executable)} -m course list"
    ran = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False, timeout=PATIENCE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ran.stderr.splitlines()[-1].startswith("course: the folder you are in has been deleted")
    assert "Traceback" not in ran.stderr
    assert ran.returncode == 2
