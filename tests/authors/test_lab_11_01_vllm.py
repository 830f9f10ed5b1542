"""Lab 11-01 beside vLLM: what was recorded is still what it does, and the lab's layer is its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from course.learner.labs import load_module

LAB = Path(__file__).resolve().parents[2] / "phase-11-multi-lora/labs/lab-01-batched-lora"


@pytest.mark.vllm
def test_steps_in_vllm() -> None:
    """Each step by vLLM's CPU operations: the lab's rows, and what `borrowed` says of the others.

    A failure at a row without an adapter means that vLLM has mended it.
    """
    in_vllm = load_module(LAB / "in_vllm.py", "lab_11_01_in_vllm")
    support = in_vllm.support
    lab = load_module(LAB / "solution.py", "lab_11_01_solution_vllm")
    recorded = support.recorded()["steps"]
    assert recorded.keys() == support.STEPS.keys()
    num_borrowed = 0
    for name, step in support.STEPS.items():
        theirs = np.array(in_vllm.step_in_vllm(step))
        near = support.NEAR * np.abs(theirs).max()
        assert np.abs(theirs - np.array(recorded[name])).max() <= near, f"{name}: recorded.json"
        slots = [lab.place(step.sizes, pairs) for pairs in step.adapters]
        lent = lab.borrowed(step.slot_of_row, step.filled)
        num_borrowed += len(lent)
        right = lab.step_layer(step.x, step.weight, step.slot_of_row, slots)
        apart = np.flatnonzero(np.abs(right - theirs).max(axis=1) > near)
        assert apart.tolist() == list(lent), name
        as_there = [lent.get(row, slot) for row, slot in enumerate(step.slot_of_row)]
        same = lab.step_layer(step.x, step.weight, as_there, slots)
        assert np.abs(same - theirs).max() <= near, name
    assert num_borrowed


@pytest.mark.vllm
def test_tenants_in_vllm() -> None:
    """Each run's tokens by real vLLM: recorded, the lab's with `borrowed`, and merged weights' where no row
    borrows."""
    in_vllm = load_module(LAB / "in_vllm.py", "lab_11_01_in_vllm")
    support = in_vllm.support
    lab = load_module(LAB / "solution.py", "lab_11_01_solution_vllm")
    played = in_vllm.play_all()
    assert played == support.recorded()["runs"], "recorded.json is not what vLLM says"
    borrowing = []
    for name, run in support.RUNS.items():
        assert support.play(lab, run, as_cpu_build=True) == played[name], name
        merged = support.merged_tokens(run)
        assert support.play(lab, run) == merged, name
        if merged != played[name]:
            borrowing.append(name)
    assert borrowing == ["three slots", "Ada and Eve", "Cy's adapter removed"]
