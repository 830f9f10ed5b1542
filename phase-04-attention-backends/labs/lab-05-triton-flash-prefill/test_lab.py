"""Lab 04-05: a prefill kernel, judged without a GPU by the kernel bench (`course kernel`)."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from course.learner.stubs import unwritten

pytestmark = [pytest.mark.torch, pytest.mark.triton]
KERNEL = "prefill_kernel"
FIRST = ("right", "races", "bytes")  # one process: they all run the kernel in the interpreter


@functools.cache
def ask(path: str, judges: tuple[str, ...], vllm: bool) -> Any:
    from course.kernels import judge

    return judge(path, "prefill", judges, vllm=vllm)


def judged(
    lab: ModuleType, judge: str, beside: tuple[str, ...] = FIRST, vllm: bool = False
) -> None:
    """Fails with what the judge of that name has against the kernel."""
    started(lab)
    report = ask(str(lab.__file__), beside, vllm)
    against = [f.message for f in report.of(judge) if f.ok is not True]
    if not report.of(judge):  # an earlier judge saw what makes this one pointless
        against = [f"judge {f.judge}: {f.message}" for f in report.findings if f.ok is not True]
    assert not against, "\n".join(against)


def accepted(lab: ModuleType) -> None:
    """Skips what is pointless, and takes long, as long as the kernel is not right and frugal."""
    started(lab)
    if not ask(str(lab.__file__), FIRST, False).ok:
        pytest.skip(f"first {KERNEL}: right, no race, no key behind the frontier")


def started(lab: ModuleType) -> None:
    """Raise what an unwritten kernel raises here, where the grader can see it."""
    if KERNEL in unwritten(Path(str(lab.__file__)).read_text(encoding="utf-8")):
        kernel = getattr(lab, KERNEL).fn
        kernel(*[None] * kernel.__code__.co_argcount)


def test_chunks_are_right(lab: ModuleType) -> None:
    """Prompts, chunks that start mid-sequence, GQA: within rounding of float64, no access outside."""
    judged(lab, "right")


def test_programs_leave_no_race(lab: ModuleType) -> None:
    """A program writes the rows of its own tokens and heads and no others."""
    judged(lab, "races")


def test_no_key_behind_the_frontier_is_read(lab: ModuleType) -> None:
    """K and V are asked for once a program, and only up to its last token."""
    judged(lab, "bytes")


def test_compiles_for_four_gpus(lab: ModuleType) -> None:
    """sm_75, 80, 90 and 100: no spills, shared memory fits, loads of 128 bits; tensor cores from sm_80."""
    accepted(lab)
    judged(lab, "compiled", ("compiled",))


@pytest.mark.vllm
def test_agrees_with_vllms_kernel(lab: ModuleType) -> None:
    """The same chunks through vLLM's own Triton kernel."""
    accepted(lab)
    judged(lab, "right", ("right",), vllm=True)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_your_kernel_runs_by_itself(lab: ModuleType, device: str) -> None:
    """show.py, the script of this lab, on this device."""
    accepted(lab)
    script = Path(__file__).with_name("show.py")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [
        sys.executable,
        str(script),
        "--impl",
        str(lab.__file__),
        "--device",
        device,
        "--json",
    ]
    ran = subprocess.run(command, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, f"show.py failed: {ran.stderr.strip().splitlines()[-1:]}"
    error = json.loads(ran.stdout)["error"]
    assert error < 2e-3, (
        f"on {device}, in float16, your kernel is {error:.1e} away from attention over a gathered copy"
    )
