"""Several plans in flight, as with a pipeline: decisions equal those of vLLM's own loop and scheduler."""

from __future__ import annotations

import pytest

from course.parity.workloads import SHAPES, workload
from tests.engine.helpers.scheduler.pipeline_queue import play_mini, play_vllm
from tests.engine.helpers.thorough import either

PLAIN = [shape for shape in SHAPES if not shape.startswith("drafts")]
COUNT = either(26, 200)


def test_a_request_that_ends_while_it_waits() -> None:
    """It is preempted with a step in flight, whose token is its last one: it must leave the queue."""
    run = play_mini(workload(7, "short-model"), 2)
    assert set(run.final().values()) <= {
        "FINISHED_STOPPED",
        "FINISHED_LENGTH_CAPPED",
        "FINISHED_ABORTED",
    }


@pytest.mark.vllm
def test_plans_equal_those_of_step_with_batch_queue() -> None:
    """With 2, 3 and 4 in flight: every plan, the empty ones too, and what its result changes."""
    empty = plans = again = 0
    for seed in range(COUNT):
        work, size = workload(seed, PLAIN[seed % len(PLAIN)]), 2 + seed // len(PLAIN) % 3
        ours, theirs = play_mini(work, size), play_vllm(work, size)
        for i, (mine, vllms) in enumerate(zip(ours.log, theirs.log, strict=False)):
            assert mine == vllms, f"seed {seed}, {size} in flight, entry {i}"
        assert len(ours.log) == len(theirs.log)
        assert (ours.outputs(), ours.final()) == (theirs.outputs(), theirs.final())
        plans += sum(kind == "schedule" for kind, *_ in theirs.log)
        empty += theirs.empty
        again += theirs.planned_twice
    print(f"{COUNT} workloads, {plans} plans, {empty} of them empty; {again} times planned again")
    assert empty > 100 * COUNT
    if COUNT > 100:
        assert again, "nothing was preempted in flight"
