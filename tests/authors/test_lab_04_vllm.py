"""What labs 04-01 and 04-03 say of vLLM's Triton kernels, in the interpreter; 04-03's solution beside it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_module

LABS = Path(__file__).resolve().parents[2] / "phase-04-attention-backends" / "labs"
GATHER = LABS / "lab-01-paged-attention-gather"
PARTS = LABS / "lab-03-flash-decoding-partitions"

pytestmark = [pytest.mark.vllm, pytest.mark.triton]


def in_child(script: Path, expression: str) -> Any:
    """An expression over the names of a lab's script, in a process of its own: Triton is set up once."""
    load = f"import json, runpy; names = runpy.run_path({str(script)!r})"
    code = f"{load}; print(json.dumps(eval({expression!r}, names)))"
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.splitlines()[-1])


def test_a_row_that_has_seen_nothing_keeps_a_zero() -> None:
    """Its later scores of -110 have no weight then: 0 / 0. Without a window, or at -10, all is well."""
    got = in_child(
        GATHER / "in_vllm.py",
        "[rows_that_are_not_numbers(s, w) for s, w in ((-110, None), (-10, 16), (-110, 16))]",
    )
    assert got == [[], [], [47]]


def test_segments_are_vllms() -> None:
    """The lab's formula names as many segments as vLLM's kernel writes."""
    lengths = [1, 16, 17, 203, 256, 257, 300, 1000]
    got = in_child(PARTS / "in_vllm.py", f"[segments_with_keys(n) for n in {lengths}]")
    solution = load_module(PARTS / "solution.py", "lab_04_03_solution_for_vllm")
    assert got == [solution.segments(n, 16)[1] for n in lengths]


def test_merge_of_outputs_is_vllms() -> None:
    """The same output and lse, ±inf on one side included; with nothing on both, NaN there and 0 here."""
    inf = math.inf
    pairs = [
        (0.0, 1.5),
        (-80.0, 3.0),
        (9000.0, 8999.0),
        (inf, 2.0),
        (2.0, -inf),
        (-inf, inf),
        (-inf, -inf),
    ]
    got = in_child(
        PARTS / "in_vllm.py",
        f"[merged([1.0, -2.0], a, [5.0, 4.0], b) for a, b in {pairs}]".replace("inf", "math.inf"),
    )
    outputs = load_module(PARTS / "outputs.py", "lab_04_03_outputs_for_vllm")
    for (a, b), (out, lse) in zip(pairs, got, strict=True):
        mine, my_lse = outputs.merge_outputs(
            np.array([[1.0, -2.0]]), np.array([a]), np.array([[5.0, 4.0]]), np.array([b])
        )
        if math.isinf(a) and math.isinf(b):
            assert np.isnan(out).all()
            assert not mine.any()
        else:
            np.testing.assert_allclose(mine[0], out, rtol=1e-5)
            np.testing.assert_allclose(my_lse[0], lse, rtol=1e-6)
