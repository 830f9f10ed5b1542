"""Lab 02-06: two kernels, judged without a GPU by the kernel bench (`course kernel`)."""

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
ONE, BATCH = "decode-one", "decode"
KERNEL = {ONE: "decode_one_kernel", BATCH: "decode_kernel"}
FIRST = ("right", "races", "bytes")  # one process: they all run the kernel in the interpreter


@functools.cache
def ask(path: str, problem: str, judges: tuple[str, ...], vllm: bool) -> Any:
    from course.kernels import judge

    return judge(path, problem, judges, vllm=vllm)


def judged(
    lab: ModuleType, problem: str, judge: str, beside: tuple[str, ...] = FIRST, vllm: bool = False
) -> None:
    """Fails with what the judge of that name has against the kernel."""
    if problem == BATCH:
        accepted(lab, ONE)
    started(lab, problem)
    report = ask(str(lab.__file__), problem, beside, vllm)
    against = [f.message for f in report.of(judge) if f.ok is not True]
    if not report.of(judge):  # an earlier judge saw what makes this one pointless
        against = [f"judge {f.judge}: {f.message}" for f in report.findings if f.ok is not True]
    assert not against, "\n".join(against)


def accepted(lab: ModuleType, problem: str) -> None:
    """Skips what is pointless, and takes long, as long as that kernel is not right and frugal."""
    started(lab, problem)
    if not ask(str(lab.__file__), problem, FIRST, False).ok:
        pytest.skip(f"first {KERNEL[problem]}: right, no race, each byte once")


def started(lab: ModuleType, problem: str) -> None:
    """Raise what an unwritten kernel raises here, where the grader can see it."""
    name = KERNEL[problem]
    if name in unwritten(Path(str(lab.__file__)).read_text(encoding="utf-8")):
        kernel = getattr(lab, name).fn
        kernel(*[None] * kernel.__code__.co_argcount)


def test_one_sequence_is_right(lab: ModuleType) -> None:
    """One sequence, ragged lengths and block sizes: within rounding of float64, no access outside."""
    judged(lab, ONE, "right")


def test_one_sequence_leaves_no_race(lab: ModuleType) -> None:
    """One sequence: no program writes what another reads or writes."""
    judged(lab, ONE, "races")


def test_one_sequence_reads_each_byte_once(lab: ModuleType) -> None:
    """One sequence: bytes loaded and stored, against the least there is."""
    judged(lab, ONE, "bytes")


def test_batch_is_right(lab: ModuleType) -> None:
    """Many sequences, GQA, tiles beside blocks: within rounding of float64, no access outside."""
    judged(lab, BATCH, "right")


def test_batch_leaves_no_race(lab: ModuleType) -> None:
    """Many sequences: a program writes the rows of its own query heads and no others."""
    judged(lab, BATCH, "races")


def test_batch_reads_each_byte_once(lab: ModuleType) -> None:
    """Many sequences: K and V are read once for all query heads that share them."""
    judged(lab, BATCH, "bytes")


@pytest.mark.parametrize("problem", [ONE, BATCH])
def test_compiles_for_four_gpus(lab: ModuleType, problem: str) -> None:
    """sm_75, 80, 90 and 100: no spills, shared memory fits, loads of 128 bits."""
    accepted(lab, problem)
    judged(lab, problem, "compiled", ("compiled",))


@pytest.mark.vllm
def test_batch_agrees_with_vllms_kernel(lab: ModuleType) -> None:
    """The same cases through vLLM's own Triton kernel, 2D and segmented."""
    accepted(lab, BATCH)
    judged(lab, BATCH, "right", ("right",), vllm=True)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_your_kernel_runs_by_itself(lab: ModuleType, device: str) -> None:
    """show.py, the script of this lab, on this device."""
    accepted(lab, BATCH)
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
