"""Our scheduler and vLLM's own on the same virtual clock: the same plans at the same times (`-m vllm`)."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks.sim_vllm import ONE_GROUP, compare

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("seed", range(len(ONE_GROUP)))  # one of each
def test_both_schedulers_make_the_same_plans(seed: int) -> None:
    difference, plans, _ = compare(seed, async_scheduling=False)
    assert difference is None, difference
    assert plans > 10


@pytest.mark.skipif(
    importlib.util.find_spec("mini_vllm.core.sched.async_scheduler") is None,
    reason="there is no mini_vllm.core.sched.async_scheduler",
)
@pytest.mark.parametrize("seed", range(len(ONE_GROUP)))
def test_so_do_both_asynchronous_ones(seed: int) -> None:
    difference, plans, _ = compare(seed, async_scheduling=True)
    assert difference is None, difference
    assert plans > 10
