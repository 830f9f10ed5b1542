"""Lab 06-03: planting, as the lab gives it."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module

LAB = ROOT / "phase-06-quantization/labs/lab-03-activation-outliers-smoothquant"
support = load_module(LAB / "support.py", "test_lab_06_03_support")


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "starter.py", "test_lab_06_03_starter")


def test_planting_changes_no_output(lab: ModuleType) -> None:
    """Norm up, columns down: in float32 the same outputs, bit for bit, from inputs 64 times as loud."""
    of = support.block(1, "attn")
    norm, weights = of.norm.astype(np.float32), [w.astype(np.float32) for w in of.weights]
    copies = norm.copy(), [w.copy() for w in weights]
    loud, moved = lab.plant(norm, weights, [5, 77], 64)
    assert np.array_equal(norm, copies[0]), "the norm is the caller's; you have changed it"
    assert all(map(np.array_equal, weights, copies[1])), (
        "the weights are the caller's; you changed one"
    )
    dtypes = {np.asarray(a).dtype for a in (loud, *moved)}
    assert dtypes == {np.dtype(np.float32)}, (
        f"float32 came in, {sorted(map(str, dtypes))} came back"
    )
    ratio = np.asarray(loud) / norm
    want = np.ones(128)
    want[[5, 77]] = 64
    assert np.array_equal(ratio, want), (
        f"channels 5 and 77 of the norm are 64 times as large, the others as they were; yours: "
        f"{ratio[[5, 77]].tolist()}, others {ratio[[0, 6]].tolist()}"
    )
    normed = of.normed.astype(np.float32)
    for i, (before, after) in enumerate(zip(weights, moved, strict=True)):
        terms = (normed * norm)[:40, None] * before[:9], (normed * loud)[:40, None] * after[:9]
        assert np.array_equal(*terms), (
            f"weight {i}: some product of an input and its weight has changed. What the norm gains, each "
            "column loses; and a power of two changes no digit"
        )
