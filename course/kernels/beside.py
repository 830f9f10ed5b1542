"""vLLM's own Triton kernel on the cases of a problem, as a second opinion and a yardstick.

The interpreter takes half a minute for it, and it gives the same every time. So what it gave is kept in
`.course/kernels`, under the hash of all that it depends on, or in the folder that MINI_VLLM_KERNELS names.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton

from course.kernels import traffic
from course.kernels.case import Case
from course.kernels.record import Recorder
from course.learner.progress import state_folder

SEGMENTS = 16  # into which vLLM splits a sequence where its kernel runs segmented
FORMS = {"2D": 0, "segmented": SEGMENTS}
CASES = 8  # the first ones; those behind them take vLLM's kernel long in the interpreter
SEGMENTED_CASES = 3  # enough to compare with: each takes the interpreter seconds


def forms(problem: Any) -> dict[str, int]:
    """Name and number of segments of each form in which vLLM's kernel can run the problem."""
    found: dict[str, int] = getattr(problem, "FORMS", FORMS)
    return found


class DisagreementError(AssertionError):
    """vLLM's kernel and the float64 reference differ: then no kernel can be judged."""


@dataclass(frozen=True)
class Beside:
    """What vLLM's kernel gave, by form."""

    outputs: dict[str, list[torch.Tensor]]  # on the first cases
    bytes: dict[str, float]  # moved on the long case, in times the least


def why_not(wanted: bool) -> str:
    """Why vLLM's kernel cannot stand beside; "" if it can."""
    if not wanted:
        return "left out"
    return "" if importlib.util.find_spec("vllm") else "not installed"


def ask_vllm(problem: Any, cases: list[Case], long: Case | None) -> Beside:
    """vLLM's kernel on all of them, run or remembered. Raises DisagreementError."""
    kept = _place(problem, cases, long)
    if kept is not None and kept.is_file():
        return Beside(**torch.load(kept, weights_only=True))
    outputs: dict[str, list[torch.Tensor]] = {}
    ratios: dict[str, float] = {}
    for form, segments in forms(problem).items():
        outputs[form] = []
        for case in cases[: SEGMENTED_CASES if segments else CASES]:
            out = problem.vllm(case, segments).double()
            if not bool(((out - case.expected).abs() <= case.tolerance).all()):
                raise DisagreementError(
                    f"vLLM's kernel ({form}) and float64 disagree on {case.label}"
                )
            outputs[form].append(out)
        if long is not None:
            recorder = Recorder(long.inputs)
            with recorder.watching():
                problem.vllm(long, segments)
            ratios[form] = traffic.count(recorder.accesses).total / sum(long.least.values())
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        torch.save({"outputs": outputs, "bytes": ratios}, part)
        part.replace(kept)
    return Beside(outputs, ratios)


def _place(problem: Any, cases: list[Case], long: Case | None) -> Path | None:
    """The file for exactly these cases, with exactly these versions; None outside of a repository."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "pyproject.toml").is_file():
        return None
    key = hashlib.sha256()
    vllm = importlib.util.find_spec("vllm")
    assert vllm is not None
    theirs = getattr(problem, "THEIR_FOLDER", "v1/attention/ops")
    kernels = Path(next(iter(vllm.submodule_search_locations or []))) / theirs
    for place in (Path(__file__).parent, Path(problem.__file__).parent, kernels):
        for source in sorted(place.glob("*.py")):
            key.update(source.read_bytes())
    for path in getattr(problem, "READS", ()):
        key.update((root / path).read_bytes())
    versions = torch.__version__, triton.__version__, np.__version__
    key.update(repr((problem.ENTRY, len(cases), long is not None, versions)).encode())
    folder = os.environ.get("MINI_VLLM_KERNELS") or state_folder(root) / "kernels"
    return Path(folder) / f"{key.hexdigest()[:16]}.pt"
