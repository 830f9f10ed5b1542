"""Lab 05-01: what a list of kernels reads from outside, as the lab gives it."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module
from mini_vllm.cudagraph import Kernel

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
