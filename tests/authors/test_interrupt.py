"""Ctrl-C: one line and exit status 130, wherever it comes. The signal is sent from a known place, not after
a time."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from odd_case import SCENARIO

from course.learner.labs import Course, Lab
from mini_vllm import LLMEngine
from mini_vllm.entrypoints.cli import errors, main
from tests.engine.helpers.patience import PATIENCE

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """A process started in the background ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


COMMANDS = {
    "generate": ["generate", "The scheduler", "--max-tokens", "20"],
    "generate --json": ["generate", "a", "b", "--json"],
    "generate --trace": ["generate", "a", "--trace", "steps.html"],
    "bench": ["bench", "--num-prompts", "8", "--input-len", "8", "--output-len", "8"],
    "trace": ["trace", "scenario.json", "-o", "steps.html"],
}


@pytest.mark.parametrize("argv", COMMANDS.values(), ids=COMMANDS)
def test_in_the_middle_of_a_run(
    argv: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scenario.json").write_text(json.dumps(SCENARIO))
    step, steps = LLMEngine.step, []

    def stop_at_the_third(engine: LLMEngine) -> object:
        steps.append(engine)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return step(engine)

    monkeypatch.setattr(LLMEngine, "step", stop_at_the_third)
    assert main(argv) == 130
    assert capsys.readouterr().err == "mini-vllm: interrupted\n"
    assert len(steps) == 3
    assert not Path("steps.html").exists(), "half a trace was written"


WHILE_LOADING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder)
from {module} import main
raise SystemExit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("module", "name", "argv"),
    [
        ("mini_vllm.entrypoints.cli", "argparse", ["generate", "a"]),
        ("mini_vllm.entrypoints.cli", "numpy", ["generate", "a"]),
        ("mini_vllm.entrypoints.cli", "mini_vllm.engine.async_llm", ["serve", "--port", "0"]),
        ("course.learner.cli", "typer", ["list"]),
        ("course.learner.cli", "course.learner.labs", ["list"]),
        ("course.learner.cli", "numpy", ["assemble"]),
        ("course.learner.cli", "numpy._core.multiarray", ["assemble"]),
        ("mini_vllm.entrypoints.cli", "typing", ["--help"]),
        ("mini_vllm.entrypoints.cli", "pathlib", ["trace", "x"]),
        ("mini_vllm.entrypoints.cli", "mini_vllm.entrypoints.cli.parser", ["--version"]),
        ("mini_vllm.entrypoints.cli", "numpy._core._multiarray_umath", ["generate", "a"]),
        ("mini_vllm.entrypoints.cli", "datetime", ["simulate"]),  # by numpy's compiled part
        ("mini_vllm.entrypoints.cli", "mini_vllm.models.llama", ["generate", "a"]),
        ("mini_vllm.entrypoints.openai.__main__", "argparse", ["--port", "0"]),
        ("mini_vllm.entrypoints.openai.__main__", "numpy", ["--port", "0"]),
        ("course.learner.cli", "rich", ["--help"]),
    ],
)
def test_while_it_loads(module: str, name: str, argv: list[str]) -> None:
    needs = "typer" if module.startswith("course") else "fastapi" if "serve" in argv else "numpy"
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    done = subprocess.run(
        [sys.executable, "-c", WHILE_LOADING.format(module=module), name, *argv],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
        timeout=PATIENCE,
    )
    command = "course" if module.startswith("course") else "mini-vllm"
    assert done.stderr.decode() == f"{command}: interrupted\n"
    assert done.returncode == 130


# Sends the signal at the N-th module that is looked for, once the command's own is found.
AT_THE_NTH = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
left, out = int(sys.argv[1]), sys.argv[2]

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGINT)

from {module} import {function}
sys.meta_path.insert(0, Finder)
status = {function}({argument})
with open(out, "w", encoding="utf-8") as file:
    file.write(str(left))
raise SystemExit(status)
"""


@pytest.mark.parametrize(
    ("module", "function", "argument"),
    [
        ("mini_vllm.entrypoints.cli", "main", "['generate', 'a', '--max-tokens', '1']"),
        ("course.learner.cli", "main", "['--version']"),
        ("course.door", "run_module", "'course.parity.decisions', 'main'"),
        ("course.door", "run_module", "'course.cite.command', 'app'"),
    ],
)
def test_at_any_module_that_it_loads(
    module: str, function: str, argument: str, tmp_path: Path
) -> None:
    """At each of a dozen places, up to the last module: one line, and nothing of Python's own."""
    if module.startswith("course"):
        pytest.importorskip("typer")
    text = AT_THE_NTH.format(module=module, function=function, argument=argument)

    def run(at: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", text, str(at), str(tmp_path / "left")], cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, check=False,
            timeout=PATIENCE, encoding="utf-8",
        )  # fmt: skip

    whole = 10**6
    run(whole)
    count = whole - int((tmp_path / "left").read_text("utf-8"))
    assert count > 20
    for at in {1 + i * (count - 1) // 11 for i in range(12)}:
        done = run(at)
        assert done.returncode == 130, (at, done.stderr)
        assert done.stderr.endswith(": interrupted\n"), (at, done.stderr)
        assert not re.search("Traceback|KeyboardInterrupt|ignored", done.stderr), (at, done.stderr)


# A learner's file that presses Ctrl-C while it is graded, and then does not end.
PRESSED = """
import os, signal, time
from pathlib import Path
Path({mark!r}).write_text(str(os.getpid()), encoding="utf-8")
os.kill{whom}(int(os.environ["PRESSED"]), signal.SIGINT)
time.sleep(600)
"""
GRADE = """
import os, sys
os.environ["PRESSED"] = str(os.getpid())
from course.learner.cli import main
raise SystemExit(main(["grade", *sys.argv[1:]]))
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="Windows sends no SIGINT to a process")
@pytest.mark.parametrize(("which", "whom"), [("00-01", ""), ("00-01", "pg"), ("--all", "pg")])
def test_in_the_middle_of_a_grade(
    which: str, whom: str, course: Course, totals: Lab, tmp_path: Path
) -> None:
    """Whether the command alone hears it, or as in a terminal all its processes: no test goes on, and nothing
    of the run is kept."""
    pytest.importorskip("typer")
    mark, scratch = tmp_path / "mark", tmp_path / "scratch"
    scratch.mkdir()
    text = totals.solution.read_text("utf-8") + PRESSED.format(mark=str(mark), whom=whom)
    totals.starter.write_text(text, "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", GRADE, which],
        cwd=course.root,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)},
        capture_output=True,
        start_new_session=True,
        check=False,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr.decode()) == (130, "course: interrupted\n")
    assert not (course.root / ".course" / "progress.json").exists()
    pid = int(mark.read_text("utf-8"))
    if which != "--all":  # there the runner, not the command, ends the processes that it has forked
        assert not [*scratch.iterdir()]
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("kind", [ImportError, RuntimeError, SystemError])
def test_what_numpy_makes_of_it(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An ImportError, where the signal comes while its compiled part imports a module of Python's."""
    from course.learner import cli

    def load(argv: list[str] | None) -> int:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise kind("numpy._core.multiarray failed to import") from error

    monkeypatch.setattr(cli, "_run", load)
    assert cli.main(["assemble"]) == 130
    assert capsys.readouterr().err == "course: interrupted\n"
    assert errors.guarded(lambda out: load(None)) == 130
    assert capsys.readouterr().err == "mini-vllm: interrupted\n"
    monkeypatch.setattr(cli, "_run", lambda argv: importlib.import_module("no_such_module"))
    with pytest.raises(ImportError, match="no_such_module"):
        cli.main(["assemble"])
