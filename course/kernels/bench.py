"""`judge`: starts the children that run and compile a kernel, and gathers what they find.

Triton reads `TRITON_INTERPRET` when it is imported, so the interpreter and the compiler need a process
each. This one imports neither torch nor Triton.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course.kernels.problems import PROBLEMS
from course.kernels.report import INTERPRETED, JUDGES, Finding, Report, from_data
from mini_vllm.utils.extras import how_to_get

TIMEOUT = (
    600.0  # seconds for a child and one file; a kernel that never ends should not hang a terminal
)
ROOT = Path(__file__).resolve().parents[2]
Starts = list[
    list[list[str]]
]  # a list a case, a start a launch; course.kernels.starts has the form
# What the interpreter was seen to start, by file, its content and problem: the compiler must see the same.
_interpreted: dict[tuple[Path, str, str], Starts] = {}
DIED = "the process that ran the kernel died: "
ONLY_INTERPRETED = (
    "what runs in the interpreter is not what is compiled: the same call differs in {}. A kernel must not "
    "ask who runs it, TRITON_INTERPRET for instance: then nothing that was seen here holds on a GPU"
)


class BenchError(ValueError):
    """The bench cannot judge: a package, the file or the problem is missing, or the bench itself failed."""


def judge(
    path: str | Path,
    problem: str = "decode",
    judges: Sequence[str] = JUDGES,
    *,
    vllm: bool = True,
) -> Report:
    """The report on the kernel in the file `path`.

    `judges` may name fewer of them, in any order. With `vllm=False` vLLM's kernel is neither run nor
    compiled beside it, which is faster. Raises BenchError where nothing can be judged.
    """
    return judge_many([path], problem, judges, vllm=vllm)[0]


def judge_many(
    paths: Sequence[str | Path],
    problem: str = "decode",
    judges: Sequence[str] = JUDGES,
    *,
    vllm: bool = True,
) -> list[Report]:
    """As `judge`, for several files: what is the same for all of them is worked out once."""
    files = [Path(path).resolve() for path in paths]
    _refuse(files, problem, judges)
    wanted = [judge for judge in JUDGES if judge in judges]
    findings: dict[Path, list[Finding]] = {file: [] for file in files}
    interpreted = [judge for judge in wanted if judge in INTERPRETED]
    if interpreted:
        for file, (found, starts) in _child(
            files, problem, interpreted, interpret=True, vllm=vllm
        ).items():
            findings[file] += found
            _interpreted[_key(file, problem)] = starts
    if "compiled" in wanted:
        if unseen := [file for file in files if _key(file, problem) not in _interpreted]:
            seen = _child(unseen, problem, [], interpret=True, vllm=False)
            _interpreted.update({_key(file, problem): seen[file][1] for file in unseen})
        for file, (found, starts) in _child(
            files, problem, ["compiled"], interpret=False, vllm=vllm
        ).items():
            findings[file] += found
            if said := _differ(_interpreted[_key(file, problem)], starts):
                findings[file].append(Finding("compiled", False, ONLY_INTERPRETED.format(said)))
    return [
        Report(str(path), problem, tuple(findings[file]))
        for path, file in zip(paths, files, strict=True)
    ]


def _key(file: Path, problem: str) -> tuple[Path, str, str]:
    return file, hashlib.sha256(file.read_bytes()).hexdigest(), problem


def _differ(interpreted: Starts, compiled: Starts) -> str | None:
    """The first thing that the two children saw differently, in words, or None."""
    for ours, theirs in zip(interpreted, compiled, strict=False):
        for one, other in zip(ours, theirs, strict=False):
            if one == other:
                continue
            if one[:2] == other[:2]:
                what = "the grid" if one[2] != other[2] else "the arguments"
                return f"{what} of {one[0]}"
            if one[0] == other[0]:
                return f"the source of {one[0]}, or a number that it reads from its file"
            return f"{one[0]} in the one and {other[0]} in the other"
        if len(ours) != len(theirs):
            return f"{len(ours)} launches in the one and {len(theirs)} in the other"
    return None


def _refuse(files: Sequence[Path], problem: str, judges: Sequence[str]) -> None:
    """Say in one sentence what is missing, before a child says it in a traceback."""
    if problem not in PROBLEMS:
        there = ", ".join(PROBLEMS) or "none outside of the course's repository"
        raise BenchError(f"there is no problem {problem!r}; there are: {there}")
    if unknown := [judge for judge in judges if judge not in JUDGES]:
        raise BenchError(f"there is no judge {unknown[0]!r}; there are: {', '.join(JUDGES)}")
    for file in files:
        if not file.is_file():
            raise BenchError(f"{file} is no file")
    if not sys.platform.startswith("linux"):
        raise BenchError("the kernel bench needs Linux: Triton is built for no other system")
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        raise BenchError(
            f"{' and '.join(missing)} missing, which the kernel bench needs (no GPU): "
            f"{how_to_get('torch')}"
        )


def _environment(interpret: bool) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    if interpret:
        env["TRITON_INTERPRET"] = "1"
    env |= {
        # Empty, not unset: vLLM then keeps its Triton kernels although no driver answers.
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])]),
    }
    return env


def _child(
    files: Sequence[Path], problem: str, judges: Sequence[str], *, interpret: bool, vllm: bool
) -> dict[Path, tuple[tuple[Finding, ...], Starts]]:
    """Findings and starts by file."""
    request = {
        "files": [str(file) for file in files],
        "problem": problem,
        "judges": judges,
        "vllm": vllm,
    }
    with tempfile.TemporaryDirectory(prefix="course-kernel-") as folder:
        answer = Path(folder) / "answer.jsonl"
        command = [sys.executable, "-m", "course.kernels.worker", json.dumps(request), str(answer)]
        try:
            ran = subprocess.run(
                command,
                env=_environment(interpret),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=TIMEOUT * len(files),
            )
            ended = f"exit status {ran.returncode}" if ran.returncode else ""
            last = "\n".join(ran.stderr.strip().splitlines()[-3:])
        except subprocess.TimeoutExpired:
            ended, last = f"not ended after {TIMEOUT:g} seconds, is there an endless loop?", ""
        lines = answer.read_text(encoding="utf-8").splitlines() if answer.is_file() else []
    if not lines:  # the worker's first line says that it is ready
        raise BenchError(f"the bench itself failed ({ended}): {last}")
    results: list[dict[str, Any]] = [json.loads(line) for line in lines[1:]]
    found = {
        file: (from_data(result["findings"]), result["starts"])
        for file, result in zip(files, results, strict=False)
    }
    for file in files[len(results) :]:
        gone = Finding(
            judges[0] if judges else "compiled",
            False,
            f"{DIED}{ended} {last}".strip(),
        )
        found[file] = (gone,), []
    return found
