"""Lab 05-05: operators as PyTorch starts them. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_module, load_support

with suppress(ImportError):  # here and not in a test, whose seconds are counted
    import torch

support = load_support(__file__)
pytestmark = pytest.mark.torch


def counted(lab: ModuleType, run: Callable[[], object]) -> dict[str, int]:
    with torch.no_grad():
        return dict(lab.count_operators(run))


def test_kernels_are_counted_by_name(lab: ModuleType) -> None:
    """Each started kernel is counted under its operator's short name."""
    x = torch.ones(3, 4)
    got = counted(lab, lambda: ((x + 1) * 2 + x.exp()).sum())
    want = {"add": 2, "mul": 1, "exp": 1, "sum": 1}
    assert got == want, f"(x + 1) * 2 + exp(x), summed, starts {want}, not {got}"


def test_views_start_nothing(lab: ModuleType) -> None:
    """A view starts no kernel: alone, in a list, or from an operator that does not call it one."""
    x = torch.ones(4, 6)
    views: dict[str, Callable[[], Any]] = {
        "transpose": lambda: x.t(),
        "view": lambda: x.view(2, 12),
        "slice": lambda: x[1:3],
        "three chunks in a tuple": lambda: x.chunk(3, dim=1),
        "unbind": lambda: x.unbind(0),
        "expand": lambda: x[:, :1].expand(4, 9),
        "_unsafe_view": lambda: torch.ops.aten._unsafe_view(x, [24]),
        "self in kwargs": lambda: torch.ops.aten.view(self=x, size=[24]),
    }
    for name, view in views.items():
        got = counted(lab, view)
        assert got == {}, f"{name} moves no number, so it starts no kernel; you count {got}"


def test_a_copy_starts_one(lab: ModuleType) -> None:
    """A `reshape` that must copy starts a kernel: a transposed matrix cannot be flattened in place."""
    x = torch.ones(4, 6)
    got = counted(lab, lambda: x.t().reshape(24))
    assert sum(got.values()) == 1, f"one copy and no more; you count {got}"
    got = counted(lab, lambda: torch.cat([x, x]))
    assert got == {"cat": 1}, (
        f"tensors in a list come in as well, and `cat` makes new memory: {got}"
    )


def test_writing_in_place_starts_one(lab: ModuleType) -> None:
    """An operator that writes in place starts a kernel, although it returns memory that came in."""
    x, out = torch.ones(4), torch.ones(4)
    got = counted(lab, lambda: x.add_(1))
    assert got == {"add_": 1}, f"add_ writes 4 numbers, so a kernel runs; you count {got}"
    assert x.tolist() == [2.0] * 4, f"the operator itself must run, once: {x.tolist()}"
    got = counted(lab, lambda: torch.mul(x, 3, out=out))
    assert got == {"mul": 1}, f"a product into given memory is a kernel; you count {got}"
    assert out.tolist() == [6.0] * 4, f"3 times 2 should stand in `out`, not {out.tolist()}"


def test_room_is_not_a_kernel(lab: ModuleType) -> None:
    """An allocation starts no kernel: it sets memory aside and writes nothing."""
    x = torch.ones(4)
    got = counted(lab, lambda: (torch.empty(3), x.new_empty(3), torch.empty_like(x)))
    assert got == {}, f"empty, new_empty and empty_like write nothing; you count {got}"


def test_the_decode_step(lab: ModuleType) -> None:
    """The decode step starts as many operators as `steps.json` says, at batch 1 and at batch 8."""
    step_file = load_module(support.HERE / "step.py", "lab_05_05_step_in_test")
    for hidden_size, batch in ((128, 1), (128, 8)):
        step = step_file.DecodeStep(hidden_size, batch)
        got = sum(counted(lab, step.eager).values())
        want = support.row_of(hidden_size, batch)["operators"]
        assert got == want, f"width {hidden_size}, batch {batch}: {want} operators, not {got}"
        assert torch.isfinite(step.eager()).all(), "the step itself gives numbers"
