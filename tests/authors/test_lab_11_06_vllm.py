"""Lab 11-06 beside vLLM's managers: what was recorded is still what they do, and the fix runs in them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from course.learner.labs import load_module

LAB = Path(__file__).resolve().parents[2] / "phase-11-multi-lora/labs/lab-06-one-load-too-many"
pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def in_vllm() -> Any:
    return load_module(LAB / "in_vllm.py", "lab_11_06_in_vllm")


@pytest.fixture(scope="module")
def lab() -> Any:
    return load_module(LAB / "solution.py", "lab_11_06_solution_vllm")


def test_walks_and_loads_are_those_recorded(in_vllm: Any) -> None:
    """Measured again, a process for each hash seed; and the seeds differ in what they load."""
    support = in_vllm.support
    found, recorded = in_vllm.measure_all(), support.recorded()
    assert found == {trace: recorded[trace] for trace in found}
    for trace in ("five", "day"):
        totals = {sum(len(step[-1]) for step in steps) for steps in found[trace].values()}
        assert len(totals) == 3, f"{trace}: {totals}"


def make_request(adapter: int) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(f"tenant-{adapter}", adapter, "-")


def test_the_fix_in_vllms_manager_loads_what_is_missing_and_no_more(in_vllm: Any, lab: Any) -> None:
    """On 200 random traces, and as it does in the lab's own manager. Without it vLLM loads more."""
    support = in_vllm.support
    num_loads = {"own": 0, "fixed": 0}
    for seed in range(200):
        max_loras, steps = support.random_steps(seed)
        max_cpu_loras = max_loras + (0, 0, 1, 3)[seed % 4]
        for kind, fix in (("own", None), ("fixed", lab.apply_adapters)):
            loads: list[int] = []
            fills: list[int] = []
            theirs = in_vllm.real_manager(max_loras, max_cpu_loras, loads, fills)
            ours = support.Manager(max_loras, max_cpu_loras)
            with in_vllm.fixed_by(fix):
                for step in steps:
                    in_memory = theirs.list_adapters()
                    slots = set(theirs._adapter_manager.lora_index_to_id)
                    before = len(loads), len(fills)
                    requests = {make_request(n) for n in step}
                    theirs.set_active_adapters(requests, None)
                    if fix is None:
                        support.walk_as_given(ours, list(requests))
                    else:
                        lab.apply_adapters(ours, requests)
                        assert len(loads) - before[0] == len(set(step) - in_memory)
                        assert len(fills) - before[1] == len(set(step) - slots)
                    assert ours.loads == loads
                    assert len(ours.fills) == len(fills)
                    assert (
                        ours._adapter_manager.lora_index_to_id
                        == theirs._adapter_manager.lora_index_to_id
                    )
            num_loads[kind] += len(loads)
    assert num_loads["own"] > num_loads["fixed"], num_loads


def test_the_walk_at_the_pin_is_vllms(in_vllm: Any, lab: Any) -> None:
    """Whatever the order: here a list in the place of the set."""
    support = in_vllm.support
    for seed in range(200):
        max_loras, steps = support.random_steps(seed)
        loads: list[int] = []
        theirs = in_vllm.real_manager(max_loras, max_loras, loads, [])
        resident: list[int] = []
        for step in steps:
            before = len(loads)
            theirs.set_active_adapters([make_request(n) for n in step], None)
            assert lab.pinned_step(resident, step, max_loras) == loads[before:]
            assert set(resident) == theirs.list_adapters()


def test_no_order_of_a_step_loads_less_than_the_fix(in_vllm: Any, lab: Any) -> None:
    """From the same state, over random orders of the same step."""
    support, rng = in_vllm.support, random.Random(0)
    for seed in range(40):
        max_loras, steps = support.random_steps(seed)
        for now in range(1, len(steps), 7):
            counts = []
            for order in (None, *(rng.sample(steps[now], len(steps[now])) for _ in range(6))):
                loads: list[int] = []
                theirs = in_vllm.real_manager(max_loras, max_loras, loads, [])
                for step in steps[:now]:
                    theirs.set_active_adapters([make_request(n) for n in step], None)
                before = len(loads)
                with in_vllm.fixed_by(lab.apply_adapters if order is None else None):
                    theirs.set_active_adapters([make_request(n) for n in order or steps[now]], None)
                counts.append(len(loads) - before)
            assert counts[0] <= min(counts[1:]), (seed, now, counts)
