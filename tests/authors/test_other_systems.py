"""What a learner types, on systems that nobody here has: Windows its paths, shell and files; macOS."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath
from typing import Any, cast

import pytest
from course_helpers import ROOT, git, solve

from course.learner.labs import Course, Lab, load_course
from course.learner.progress import Progress, write_atomically
from tests.engine.helpers.other_systems import run_like_windows

simulated = pytest.mark.skipif(sys.platform == "win32", reason="this is what it simulates")
NOT_ON_WINDOWS = {"fcntl", "grp", "pty", "pwd", "readline", "resource", "termios", "tty", "uvloop"}
GRADED = ("starter.py", "solution.py", "test_lab*.py", "support.py", "conftest.py", "show.py")
# Support that names no encoding, and the JSON that it reads: in ASCII, which every encoding has.
READS_ASCII = {
    "phase-08-speculative-decoding/labs/lab-01-ngram-proposer/support.py": "answers.json",
    "phase-09-sampling/labs/lab-04-beam-search/support.py": "recorded.json",
}


# -- commands, where there is no fork, no fcntl, no alarm, and text is in cp1252 ------------------


@simulated
def test_a_lab_from_its_starter_to_the_next_one(course: Course, totals: Lab) -> None:
    pytest.importorskip("typer")

    def types(*argv: str) -> tuple[int, str]:
        ran = run_like_windows("-m", "course", *argv, cwd=course.root)
        assert ran.stderr == ""
        return ran.returncode, " ".join(ran.stdout.split())

    status, said = types("grade", "00-01")
    assert (status, "0 of 3 tests pass, 3 wait for" in said) == (1, True), said
    totals.starter.write_text(
        totals.solution.read_text("utf-8").replace("sum(", "1 + sum("), "utf-8"
    )
    hints = totals.hints.read_text("utf-8").replace("item.", "item \N{RIGHTWARDS ARROW} 5.")
    totals.hints.write_text(hints, "utf-8")
    status, said = types("hint", "00-01")  # an arrow is none of the code page's characters
    assert (status, "Look at the first item ? 5." in said) == (0, True), said
    solve(totals)
    status, said = types("grade", "--all")
    assert (status, "1 of 2 labs pass." in said) == (1, True), said
    status, said = types()
    assert (status, "1 of 2 labs done." in said) == (0, True), said
    kept = json.loads((course.root / ".course" / "progress.json").read_text("utf-8"))
    assert kept["labs"]["00-01"]["attempts"] == 2


@simulated
def test_doctor() -> None:
    pytest.importorskip("typer")
    ran = run_like_windows("-m", "course", "doctor")
    assert ran.stderr == ""
    assert "The command course" in ran.stdout


@simulated
def test_pytest_on_a_lab() -> None:
    lab = load_course(ROOT).resolve("02-01")
    ran = run_like_windows("-m", "pytest", "-q", "-p", "no:cacheprovider", str(lab.folder))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout


# -- paths ----------------------------------------------------------------------------------------


def test_a_path_is_shown_as_the_pages_have_it() -> None:
    root = cast(Path, PureWindowsPath("C:\\Users\\ada\\course"))
    course = Course(root, ())
    assert (
        course.show(root / "phase-00-foundations" / "00-guide.md")
        == "phase-00-foundations/00-guide.md"
    )
    assert course.show(cast(Path, PureWindowsPath("D:\\x.py"))) == "D:\\x.py"


def test_a_lab_goes_by_a_piece_of_its_path_in_windows_words() -> None:
    assert load_course(ROOT).resolve("paged-attention\\labs\\lab-01").id == "02-01"


def test_a_file_of_the_engine_goes_by_its_path_in_windows_words() -> None:
    pytest.importorskip("typer")
    from course.cite.compare_command import chosen

    for name in ("mini_vllm\\core\\block_pool.py", ".\\core\\block_pool.py"):
        assert chosen(name) == ["mini_vllm/core/block_pool.py"]


# -- what is advised ------------------------------------------------------------------------------


def test_lab_impl_in_powershell(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    from course.learner import doctor, report

    monkeypatch.setenv("LAB_IMPL", "starter")
    for system, begins, ends in (
        ("posix", "LAB_IMPL=starter pytest", "unset LAB_IMPL"),
        ("nt", '$env:LAB_IMPL="starter"; pytest', "Remove-Item Env:LAB_IMPL"),
    ):
        shell = types.SimpleNamespace(name=system, environ=os.environ)
        monkeypatch.setattr(report, "os", shell)
        monkeypatch.setattr(doctor, "os", shell)
        assert report.of_starter("pytest labs/lab-01").startswith(begins)
        [check] = [check for check in doctor.examine(ROOT) if check.name == "LAB_IMPL"]
        assert check.uv == check.pip == ends


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_what_is_for_linux_alone_says_so(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from course.kernels import bench, script
    from course.learner import doctor

    file = tmp_path / "kernel.py"
    file.write_text("", encoding="utf-8")
    there = types.SimpleNamespace(platform=system, version_info=(3, 11, 7), executable="python")
    monkeypatch.setattr(bench, "sys", there)
    with pytest.raises(bench.BenchError, match="the kernel bench needs Linux"):
        bench.judge(file)
    monkeypatch.setattr(doctor, "sys", there)
    monkeypatch.setattr(doctor, "version_of", lambda name: None)
    checks = {check.name: check for check in doctor.examine(ROOT)}
    for name in ("triton", "vllm"):
        assert (checks[name].state, checks[name].uv, checks[name].pip) == (doctor.OPTIONAL, "", "")
        assert "needs Linux" in checks[name].detail
    monkeypatch.setattr(script, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["show.py"])
    with pytest.raises(SystemExit, match="Triton is built for Linux alone"):
        script.options("A lab's script.")


# -- files that somebody else has open ------------------------------------------------------------


def test_a_file_is_replaced_when_its_reader_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows refuses to replace a file that is open; a virus scanner opens what has just been written."""
    path = tmp_path / "progress.json"
    real, refused, pauses = Path.replace, [0], []

    def replace(new: Path, target: Path) -> Path:
        if refused[0] < often:
            refused[0] += 1
            raise PermissionError(13, "Access is denied", str(target))
        return real(new, target)

    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr("course.learner.progress.time.sleep", pauses.append)
    often = 2
    write_atomically(path, "new")
    assert (path.read_text("utf-8"), len(pauses)) == ("new", 2)
    often = 99
    with pytest.raises(PermissionError):
        write_atomically(path, "newer")
    assert [one.name for one in tmp_path.iterdir()] == ["progress.json"]
    assert path.read_text("utf-8") == "new"


def test_progress_is_locked_on_windows(
    totals: Lab, course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: list[tuple[int, int]] = []
    msvcrt: Any = types.ModuleType("msvcrt")
    msvcrt.LK_LOCK = 1
    msvcrt.locking = lambda file, mode, nbytes: locked.append((mode, nbytes))
    monkeypatch.setitem(sys.modules, "msvcrt", msvcrt)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with Progress(course.root).update(totals) as entry:
        assert locked == [(1, 1)]
        entry.attempts += 1
    assert Progress(course.root)[totals].attempts == 1


# -- the repository -------------------------------------------------------------------------------


def tracked() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("no git here")
    out = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [name for name in out.stdout.decode().split("\0") if name]


def test_lines_end_as_they_do_here_in_a_clone_on_windows(tmp_path: Path) -> None:
    """Git for Windows would turn them, and bash reads no script whose lines end in CR."""
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitattributes").write_bytes((ROOT / ".gitattributes").read_bytes())
    (tmp_path / "script.sh").write_bytes(b"true\nfalse\n")
    git(tmp_path, "add", ".")
    (tmp_path / "script.sh").unlink()
    git(tmp_path, "-c", "core.autocrlf=true", "checkout", "--", "script.sh")
    assert (tmp_path / "script.sh").read_bytes() == b"true\nfalse\n"


def test_every_file_has_a_name_that_windows_and_macos_take() -> None:
    names = tracked()
    assert len({name.casefold() for name in names}) == len(names), "two differ in case alone"
    for name in names:
        assert len(name) < 160, f"{name}: with the folders above it, over Windows' 260 characters"
        for part in PureWindowsPath(name).parts:
            assert not set('<>:"\\|?*') & set(part), name
            assert part == part.rstrip(" ."), name
            assert not re.fullmatch(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?", part), name


@functools.cache
def sources() -> list[tuple[str, ast.Module]]:
    """The files that a learner's commands load, and the labs' that are graded."""
    paths = [ROOT / "conftest.py"]
    for package in ("mini_vllm", "course"):
        paths += sorted((ROOT / package).rglob("*.py"))
    for pattern in GRADED:
        paths += sorted(ROOT.glob(f"phase-*/labs/lab-*/{pattern}"))
    return [(path.relative_to(ROOT).as_posix(), ast.parse(path.read_bytes())) for path in paths]


def at_the_top(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported."""
    waiting: list[ast.AST] = [*tree.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def test_no_module_needs_unix_to_be_imported() -> None:
    found = []
    for name, tree in sources():
        for node in at_the_top(tree):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module or ""]
            found += [
                f"{name}:{node.lineno}: {module}" for module in modules if module in NOT_ON_WINDOWS
            ]
    assert not found


def names_no_encoding(call: ast.Call) -> bool:
    """Whether a call opens text, or reads another process', in whatever encoding the system has."""
    given = {key.arg: key.value for key in call.keywords}
    if "encoding" in given:
        return False
    method = isinstance(call.func, ast.Attribute)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in ("read_text", "write_text"):
        return len(call.args) < (1 if name == "read_text" else 2)
    if name in ("run", "Popen", "check_output"):
        return "text" in given or "universal_newlines" in given
    if name not in ("open", "fdopen", "NamedTemporaryFile", "TemporaryFile"):
        return False
    places = call.args[:1] if method and name == "open" else call.args[1:2]
    usual = "w+b" if name.endswith("TemporaryFile") else "r"
    mode = given.get("mode", places[0] if places else ast.Constant(usual))
    # A call of something else's `open` has a path or an address there, which is no constant mode.
    text = mode.value if isinstance(mode, ast.Constant) and isinstance(mode.value, str) else "b"
    return "b" not in text


@pytest.mark.parametrize(
    ("code", "guilty"),
    [
        ("path.read_text()", True),
        ("path.read_text('utf-8')", False),
        ("path.write_text(x)", True),
        ("path.open('w')", True),
        ("path.open()", True),
        ("path.open('rb')", False),
        ("open(path)", True),
        ("open(path, 'wb')", False),
        ("os.fdopen(1, 'w')", True),
        ("os.open(path, os.O_RDONLY)", False),
        ("subprocess.run(command, text=True)", True),
        ("subprocess.run(command, text=True, encoding='utf-8')", False),
    ],
)
def test_what_names_no_encoding_is_found(code: str, guilty: bool) -> None:
    call = ast.parse(code, mode="eval").body
    assert isinstance(call, ast.Call)
    assert names_no_encoding(call) is guilty


def test_text_is_read_and_written_in_an_encoding_that_is_named() -> None:
    """Windows' own is that of its region, in which our pages cannot be read."""
    for name, data in READS_ASCII.items():
        assert (ROOT / name).with_name(data).read_bytes().isascii(), data
    found = [
        f"{name}:{node.lineno}: {ast.unparse(node)}"
        for name, tree in sources()
        if name not in READS_ASCII
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and names_no_encoding(node)
    ]
    assert not found, "\n".join(found)
