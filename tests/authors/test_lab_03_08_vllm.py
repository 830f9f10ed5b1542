"""Lab 03-08's class over vLLM's own schedulers: the same order, and the trap."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from course.learner.labs import load_module, load_support
from mini_vllm.sim import ServingMetrics, Simulator

ROOT = Path(__file__).parents[2]
[LAB] = (ROOT / "phase-03-scheduler" / "labs").glob("lab-08-*")
pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def lab() -> Any:
    return load_module(LAB / "solution.py", "lab_03_08_vllm")


@pytest.fixture
def made(lab: Any) -> Any:
    """A function that makes vLLM's scheduler of a class, for the simulator."""
    from vllm.v1.core.sched.scheduler import Scheduler

    from benchmarks.sim_vllm import vllm_sim_parts

    support = load_support(LAB / "test_lab.py")

    def make(base: Any, async_scheduling: bool) -> Any:
        parts = vllm_sim_parts(support.CONFIG, async_scheduling)
        one = parts.scheduler
        assert isinstance(one, Scheduler)
        # What a GPU's config says; on a CPU vLLM turns it off.
        one.vllm_config.scheduler_config.async_scheduling = async_scheduling
        scheduler = lab.make_scheduler(base)(
            vllm_config=one.vllm_config,
            kv_cache_config=one.kv_cache_config,
            structured_output_manager=one.structured_output_manager,
            block_size=one.block_size,
            log_stats=False,
        )
        return replace(parts, scheduler=scheduler)

    return make


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_over_vllms_scheduler_it_decides_as_over_ours(
    made: Any, lab: Any, async_scheduling: bool
) -> None:
    """Every workload: the same score, and so the same order, on the same clock."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    support = load_support(LAB / "test_lab.py")
    base = AsyncScheduler if async_scheduling else Scheduler
    for name in support.STREAMS:
        requests = support.workload(name, 41, 100)
        ours = support.run(lab.make_scheduler, requests, async_scheduling=async_scheduling)
        theirs = support.run_parts(made(base, async_scheduling), requests)
        assert theirs == ours, name


def test_the_trap_is_refused(made: Any) -> None:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    with pytest.raises(ValueError, match="Scheduler"):
        made(Scheduler, True)
    assert made(AsyncScheduler, True).scheduler is not None
    assert made(AsyncScheduler, False).scheduler is not None


def test_the_wrong_base_halves_the_batch() -> None:
    """vLLM's sync scheduler with two batches in flight: twice the plans, half the requests in each."""
    from benchmarks.sim_vllm import vllm_sim_parts
    from mini_vllm.sim import LinearCost

    support = load_support(LAB / "test_lab.py")
    nothing = (0.0,) * 6
    cost = LinearCost("assumed", "round numbers", (4e-3, *nothing), (8e-3, *nothing))
    found = {}
    for right in (True, False):
        parts = replace(vllm_sim_parts(support.CONFIG, right), async_scheduling=True)
        metrics = ServingMetrics()
        simulator = Simulator(parts, cost, metrics)
        simulator.run(support.workload("batch", 5))
        found[right] = metrics.result(simulator.num_preemptions)
    assert found[False]["num_steps"] > 1.8 * found[True]["num_steps"]
    assert found[False]["requests_per_step"] < 0.6 * found[True]["requests_per_step"]
    assert found[False]["output_throughput"] < 0.6 * found[True]["output_throughput"]


def test_vllm_takes_the_class_by_name() -> None:
    """`scheduler_cls="in_vllm.PolicyScheduler"`, in an engine core of its own process."""
    code = """
import vllm
if __name__ == "__main__":
    llm = vllm.LLM(
        "mini_vllm/checkpoints/tiny-llama", dtype="float32", enforce_eager=True, block_size=16,
        max_model_len=256, scheduler_cls="in_vllm.PolicyScheduler",
    )
    config = llm.llm_engine.vllm_config.scheduler_config
    print("CLASS", config.get_scheduler_cls().__mro__[0].__name__)
    params = vllm.SamplingParams(temperature=0, max_tokens=8)
    print("TEXT", llm.generate("The KV cache", params)[0].outputs[0].token_ids)
"""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(LAB)]), "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "TORCH_COMPILE_DISABLE": "1",
    }  # fmt: skip
    script = ROOT / ".course" / "scheduler_cls.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "CLASS PolicyScheduler" in done.stdout, done.stdout[-2000:]
    assert "TEXT" in done.stdout
