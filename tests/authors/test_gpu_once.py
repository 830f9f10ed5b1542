"""`scripts/gpu_once.sh`, on which a rented hour depends: its parts, their commands, how one ends."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import lab_kernels

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gpu_once.sh"
EIGHT_MINUTES = 480
MARK = "mark" + ".gpu"
COMMAND = re.compile(r" {9}(?: {8}|--dry {3})(?P<command>python .*)")
PART = re.compile(r"(?P<name>\w+) +(?P<limit>\d+) s  \S")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a script for a Linux box")


def script(
    *arguments: str, python: Path | str = sys.executable
) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHON": str(python)}
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments], env=env, capture_output=True, text=True, cwd=ROOT
    )


@pytest.fixture(scope="module")
def listed() -> list[str]:
    ran = script("--list")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.fixture(scope="module")
def limits(listed: list[str]) -> dict[str, int]:
    found = [match for line in listed if (match := PART.match(line))]
    return {match["name"]: int(match["limit"]) for match in found}


def commands(listed: list[str]) -> Iterator[list[str]]:
    for line in listed:
        if match := COMMAND.fullmatch(line):
            yield shlex.split(match["command"])


def test_bash_reads_it() -> None:
    assert subprocess.run(["bash", "-n", str(SCRIPT)]).returncode == 0
    assert os.access(SCRIPT, os.X_OK)


def test_the_parts_take_eight_minutes_at_most(limits: dict[str, int]) -> None:
    assert "tests" in limits
    assert sum(limits.values()) < EIGHT_MINUTES


def test_the_page_has_the_parts_and_their_limits(limits: dict[str, int]) -> None:
    page = (ROOT / "docs" / "GPU.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d+) s \|", page, re.MULTILINE)
    assert {name: int(limit) for name, limit in rows} == limits


class ParsedError(Exception):
    """The arguments were understood."""


def test_each_command_is_understood(listed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every benchmark's parser takes what the script gives it, and each saves what it finds."""
    usual = argparse.ArgumentParser.parse_args

    def parse(parser: argparse.ArgumentParser, given: list[str]) -> None:
        arguments = usual(parser, given)
        assert arguments.save
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    seen = []
    for python, option, module, *arguments in commands(listed):
        assert (python, option) == ("python", "-m")
        with pytest.raises(ParsedError):
            importlib.import_module(module).main(arguments)
        seen.append("--dry-run" in arguments)
    assert seen == [False, True] * 7, "each benchmark once on a GPU and once without"


def test_a_part_that_is_not_there_is_named() -> None:
    ran = script("--dry", "no-such-part")
    assert ran.returncode == 2
    assert "no part no-such-part; there are: machine tests" in ran.stderr


def test_all_tests_marked_gpu_are_run() -> None:
    """The script looks for them in the learner's suite; of the authors' it names one, and not vLLM's."""
    marked = {
        path.name
        for path in (ROOT / "tests" / "authors").glob("test_*.py")
        if MARK in path.read_text(encoding="utf-8")
    }
    assert marked == {"test_lab_05_06.py", "test_lab_05_05_vllm.py", "test_conftest.py"}
    assert "tests/authors/test_lab_05_06.py" in SCRIPT.read_text(encoding="utf-8")


def test_every_lab_with_a_kernel_is_measured() -> None:
    """Those whose tests run on a GPU, but for the one that writes graphs and no kernel."""
    marked = {
        path.parent.relative_to(ROOT).as_posix()
        for path in ROOT.glob("phase-*/labs/*/test_lab.py")
        if MARK in path.read_text(encoding="utf-8")
    }
    assert marked - {"phase-05-cuda-graphs/labs/lab-06-capture-the-engine"} == {
        *lab_kernels.LABS.values()
    }


FAKE = """#!/bin/sh
case "$*" in
*benchmarks.machine*) echo "a device" ;;
*quantization*) echo "it broke off"; exit 3 ;;
*) echo "ran: $*" ;;
esac
"""


def test_a_part_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text(FAKE, encoding="utf-8")
    fake.chmod(0o755)
    out = tmp_path / "out"
    ran = script("--out", str(out), "machine", "w4a16", "graphs", python=fake)
    assert ran.returncode == 1
    log = (out / "log.txt").read_text(encoding="utf-8")
    assert log == ran.stdout
    assert "it broke off" in log
    assert "ran: -m benchmarks.cudagraph --save --rounds 30" in log
    _, summary = log.split("== summary")
    ends = re.findall(r"^(\w+) +(passed|FAILED with status 3) +\d+ s$", summary, re.MULTILINE)
    assert ends == [("machine", "passed"), ("w4a16", "FAILED with status 3"), ("graphs", "passed")]


def test_a_dry_run_leaves_its_folder(tmp_path: Path) -> None:
    """The part that every machine can run, torch or not."""
    ran = script("--dry", "--out", str(tmp_path / "out"), "machine")
    assert ran.returncode == 0, ran.stdout
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["log.txt", "machine.json"]
    found = json.loads((tmp_path / "out" / "machine.json").read_text(encoding="utf-8"))
    assert found["gpu"]["name"] == "none"
    assert found["machine"]["versions"]["numpy"]


def test_no_dry_run_stands_among_the_committed_results() -> None:
    from benchmarks import machine

    assert machine.may_save(dry_run=False)
    assert not machine.may_save(dry_run=True)
