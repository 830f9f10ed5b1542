"""`python -m course.conformance`: vLLM's tests on vLLM and on `mini_vllm`, against the committed table."""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from course.conformance import table
from course.conformance.page import PAGE, make_page
from course.conformance.upstream_tests import (
    FILES,
    LEFT_OUT,
    RELEASE,
    find_tests,
    make_workspace,
    path_below_tests,
)

_ROOT = Path(__file__).parents[2]
PACKAGES = {
    "vllm": f"vLLM {RELEASE}",
    "pytest": "pytest",
    "pytest_asyncio": "pytest-asyncio",
    "pytest_timeout": "pytest-timeout",
    "tblib": "tblib",
}
_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",  # two runs at once, on the two cores that there are
    "TORCH_COMPILE_DISABLE": "1",  # compiling vLLM's model takes longer than all its tests
}
_SECONDS_A_TEST = 120


def missing_packages() -> list[str]:
    """What this environment lacks for a run."""
    return [name for module, name in PACKAGES.items() if not importlib.util.find_spec(module)]


def start(
    engine: str, workspace: Path, record: Path, files: Sequence[str]
) -> subprocess.Popen[str]:
    """Start vLLM's tests on one of the two engines, in a process of its own.

    Without vLLM's conftest.py, whose clean-up costs seconds a test; the fixtures that are wanted are named.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= _SETTINGS | {"PYTHONPATH": str(_ROOT)}
    command = [
        sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider",
        "-p", "tests.v1.engine.conftest", "-p", "course.conformance.fixtures",
        "-p", "course.conformance.swap",
        "--engine", engine, "--record", str(record), "--timeout", str(_SECONDS_A_TEST),
        *(f"--deselect=tests/{path_below_tests(test)}" for test in LEFT_OUT),
        *(f"tests/{path_below_tests(file)}" for file in files),
    ]  # fmt: skip
    return subprocess.Popen(
        command,
        cwd=workspace,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )


def run(tests: Path, files: Sequence[str] = FILES) -> dict[str, str]:
    """Run the tests on both engines and give the verdicts.

    Raises ValueError with the end of pytest's words if one of the runs did not come to its end.
    """
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        workspace = Path(folder)
        make_workspace(tests, workspace)
        records = {engine: workspace / f"{engine}.jsonl" for engine in ("vllm", "mini")}
        running = {e: start(e, workspace, record, files) for e, record in records.items()}
        try:
            said = {engine: process.communicate()[0] for engine, process in running.items()}
        finally:
            for process in running.values():
                process.kill()
        for engine, process in running.items():
            if process.returncode not in (0, 1) or not records[engine].exists():
                raise ValueError(f"the run on {engine} broke off: {said[engine][-2000:]}")
        outcomes = {engine: table.read_outcomes(record) for engine, record in records.items()}
    return table.verdicts(outcomes["vllm"], outcomes["mini"])


def summarize(got: dict[str, str]) -> str:
    counts = Counter(word.split(" ")[0].rstrip(":") for word in got.values())
    return f"vLLM passes {len(got)} tests: " + ", ".join(f"{n} {w}" for w, n in counts.items())


def main(argv: Sequence[str] | None = None) -> int:
    """0 if every verdict is the table's; 1 if one is not; 2 if the tests could not be run."""
    parser = argparse.ArgumentParser(prog="python -m course.conformance", description=__doc__)
    parser.add_argument(
        "--tests", type=Path, metavar="FOLDER", help="vLLM's tests, if they are here"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="tests whose name holds TEXT")
    parser.add_argument(
        "--fetch", action="store_true", help="only get the tests, and say where they are"
    )
    parser.add_argument("--write", action="store_true", help="make expected.tsv and the page anew")
    arguments = parser.parse_args(argv)
    if arguments.write and arguments.only:
        parser.error("--write makes the whole table, and --only runs a part")
    if arguments.fetch:
        try:
            print(find_tests(arguments.tests))
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        return 0
    if lacking := missing_packages():
        print(f"this environment lacks {', '.join(lacking)}", file=sys.stderr)
        return 2
    started = time.monotonic()
    try:
        tests = find_tests(arguments.tests)
        files = [f for f in FILES if arguments.only in f or arguments.only.startswith(f)]
        got = run(tests, files or FILES)
        expected = table.read_expected() if table.EXPECTED.exists() else {}
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{summarize(got)} ({time.monotonic() - started:.0f} s)")
    if arguments.write:
        expected = table.update(expected, got)
        table.write_expected(expected)
        PAGE.write_text(make_page(expected), encoding="utf-8")
    differences = table.compare(expected, got, arguments.only)
    for line in differences:
        print(line)
    if not differences:
        print("Every verdict is the table's.")
    return 1 if differences else 0
