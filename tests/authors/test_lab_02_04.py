"""Lab 02-04: attention over K and V that lie in order, as the lab gives it."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module

LAB = ROOT / "phase-02-paged-attention/labs/lab-04-paged-attention-numpy"
support = load_module(LAB / "support.py", "test_lab_02_04_support")


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "starter.py", "test_lab_02_04_starter")


def test_attend_is_attention(lab: ModuleType) -> None:
    """Query heads h * group and its neighbours share KV head h; hidden keys weigh nothing."""
    rng = np.random.default_rng(1)
    query, keys = rng.normal(size=(3, 6, 5)), rng.normal(size=(2, 7, 2, 5))
    visible = np.arange(7) <= np.array([4, 5, 6])[:, None]
    got = lab.attend(query, *keys, 5**-0.5, visible)
    support.expect_close(
        got, support.dense(query, *keys), "3 queries, 6 heads on 2 KV heads, 7 keys"
    )
    got = lab.attend(200 * query, *keys, 5**-0.5, visible)
    support.expect_close(
        got,
        support.dense(200 * query, *keys),
        "scores of several hundred",
        "exp overflows past 709: take the largest score off first",
    )
    loud = keys.copy()
    loud[0, 4] = -loud[0, 1]
    loud[0, [1, 4]] *= 5000
    got = lab.attend(
        query[:1], *loud, 5**-0.5, np.array([[True, False, True, True, False, True, True]])
    )
    support.expect_close(
        got,
        support.dense(query[:1], *keys[:, [0, 2, 3, 5, 6]]),
        "keys 1 and 4 of 7 hidden, as `visible` says, with scores in the thousands",
        "The largest score to take off is the largest that is visible; beside a hidden one of 5,000 every "
        "weight is 0",
    )
