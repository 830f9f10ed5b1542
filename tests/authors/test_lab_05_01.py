"""Lab 05-01: what a list of kernels reads from outside, and its cut into pieces, as the lab gives them."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module
from mini_vllm.cudagraph import GraphPool, Kernel

LAB = ROOT / "phase-05-cuda-graphs/labs/lab-01-graph-replay-simulator"
support = load_module(LAB / "support.py", "test_lab_05_01_support")


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "starter.py", "test_lab_05_01_starter")


def test_inputs_are_read_before_they_are_written(lab: ModuleType) -> None:
    """A name that an earlier kernel wrote comes from inside; one that is read and then written does not."""
    assert lab.inputs_of(support.KERNELS) == ["x"], (
        f"y and z are written before they are read: the input is x, not {lab.inputs_of(support.KERNELS)}"
    )
    kernels = [
        Kernel("a", np.add, ("q", "p"), "q", 2),
        Kernel("b", np.add, ("q", "r"), None),
        Kernel("c", np.add, ("p", "r"), "s", 2),
    ]
    assert lab.inputs_of(kernels) == ["q", "p", "r"], (
        "a reads q before it writes q, so q comes from outside; each name once, in the order in which it is "
        f"first read: q, p, r, not {lab.inputs_of(kernels)}"
    )


def test_pieces_are_what_lies_between(lab: ModuleType) -> None:
    """Neighbours that stay outside stay together; at the ends there may be a piece or none."""
    for names, want in {
        "ab|c||def": ["ab", "|", "c", "||", "def"],
        "|a|": ["|", "a", "|"],
        "abc": ["abc"],
    }.items():
        kernels = [Kernel(n, np.negative, ("x",), "x", 2, splitting=n == "|") for n in names]
        run = lab.PiecewiseGraphRunner(kernels, lab.LaunchCounter(), GraphPool())
        got = ["".join(k.name for k in getattr(part, "kernels", part)) for part in run.parts]
        assert got == want, f"{names} (a bar stays outside) has the parts {want}, not {got}"
        for part in run.parts:
            if isinstance(part, lab.GraphRunner):
                assert part.runtime_mode is support.PIECEWISE, (
                    f"a piece's mode is PIECEWISE, not {part.runtime_mode}"
                )
        outside = [isinstance(part, list) for part in run.parts]
        assert outside == ["|" in part for part in want], (
            "runs of splitting kernels are lists, others runners"
        )
