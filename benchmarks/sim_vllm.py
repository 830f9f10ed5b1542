"""vLLM's own schedulers for the simulator, and whether they decide as ours do.

    python -m benchmarks.sim_vllm [--workloads N] [--first SEED]

Draws random workloads, runs each through ours and through vLLM's scheduler on the same virtual clock,
and compares every plan: when it was made, who got how many tokens in which order, who was preempted.
Sync and async, FCFS and priority. Needs vLLM, its CPU build will do, and no model.

Under `priority` ours is `UpstreamScheduler`, which keeps the two faults of the pin's.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
from collections.abc import Callable, Sequence
from typing import Any

from course.parity.decisions import engine_config
from course.parity.record import SHAPES, vllm_parts, workload
from course.parity.traces import Config
from mini_vllm.sim import LinearCost, ServingMetrics, SimParts, SimRequest, Simulator, mini_parts
from mini_vllm.sim.cost import StepCost

ONE_GROUP = sorted(
    name for name, ranges in SHAPES.items() if not {"groups", "drafts"} & ranges.keys()
)
"""Shapes of workloads that the simulator plays: it has one KV cache group of full attention, no drafts."""

Plan = tuple[float, list[tuple[str, int]], list[str]]
"""When it was made, (request, tokens) in scheduling order, who was preempted."""


def vllm_sim_parts(config: Config, async_scheduling: bool = False) -> SimParts:
    """vLLM's `Scheduler` or `AsyncScheduler` for `Simulator`. Raises ImportError without vLLM."""
    parts = vllm_parts(config)
    scheduler = parts.scheduler
    if async_scheduling:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler

        scheduler = AsyncScheduler(
            vllm_config=scheduler.vllm_config,
            kv_cache_config=scheduler.kv_cache_config,
            structured_output_manager=scheduler.structured_output_manager,
            block_size=config["block_size"],
            log_stats=False,
        )

    def make_request(q: SimRequest) -> Any:
        if len(q.prompt) >= config["max_model_len"]:
            raise ValueError(f"request {q.request_id!r} is too long")
        arrival: Any = {
            "id": q.request_id, "prompt": q.prompt, "max_tokens": q.max_tokens, "ignore_eos": True,
            "priority": q.priority,
        }  # fmt: skip
        # Its second argument becomes the arrival time.
        return parts.make_request(arrival, q.arrival)  # type: ignore[arg-type]

    return SimParts(scheduler, make_request, parts.make_output, async_scheduling)


def our_sim_parts(config: Config, async_scheduling: bool = False) -> SimParts | None:
    """Ours, with the pin's faults; None for an async scheduler where there is none yet."""
    name = "UpstreamAsyncScheduler" if async_scheduling else "UpstreamScheduler"
    for module in ("upstream_scheduler", "async_scheduler", "scheduler"):
        if importlib.util.find_spec(f"mini_vllm.core.sched.{module}") is None:
            continue
        scheduler = getattr(importlib.import_module(f"mini_vllm.core.sched.{module}"), name, None)
        if scheduler is not None:
            return mini_parts(engine_config(config), scheduler, async_scheduling)
    return None


def drawn(seed: int) -> tuple[Config, list[SimRequest], LinearCost]:
    """A random workload: `course.parity.record`'s, with times instead of steps, and a random cost."""
    rng = random.Random(f"sim {seed}")
    work = workload(seed, ONE_GROUP[seed % len(ONE_GROUP)])
    fixed = rng.uniform(0.5e-3, 20e-3)
    ratio = [rng.choice([0.0, rng.random()]) for _ in range(6)]
    units = (0.5, 0.02, 0.1, 0.02, 0.001, 0.0001)
    cost = LinearCost(
        name="drawn", source="random", add_request_s=rng.choice([0.0, 1e-4]),
        host_s=(rng.choice([0.0, 0.3 * fixed]), *([0.0] * 6)),
        device_s=(fixed, *(r * u * fixed for r, u in zip(ratio, units, strict=True))),
    )  # fmt: skip
    pace = rng.uniform(0.3, 3.0) * fixed
    # No two at the same time: under `priority` the pin's scheduler could let them preempt each other
    # for ever.
    requests = [
        SimRequest(
            q["id"], (q["step"] + i / 1e6) * pace, [10**6 + t for t in q["prompt"]],
            q["max_tokens"], q["priority"],
        )
        for i, q in enumerate(work["requests"])
    ]  # fmt: skip
    return work["config"], requests, cost


def play(
    parts: SimParts, requests: Sequence[SimRequest], cost: StepCost
) -> tuple[list[Plan], dict[str, Any]]:
    """Every plan of the run, and its figures."""
    plans: list[Plan] = []

    def observe(plan: Any, now: float) -> None:
        scheduled = list(plan.num_scheduled_tokens.items())
        plans.append((now, scheduled, sorted(plan.preempted_req_ids or ())))

    metrics = ServingMetrics()
    simulator = Simulator(parts, cost, metrics, observe)
    simulator.run(requests)
    pool = parts.scheduler.kv_cache_manager.block_pool
    missing = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
    if missing:
        raise AssertionError(f"{missing} blocks were not given back")
    return plans, metrics.result(simulator.num_preemptions)


def first_difference(ours: list[Plan], theirs: list[Plan]) -> str | None:
    """The first plan that differs, in words; None if all are equal."""
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return f"plan {number}: ours {one}, vLLM's {other}"
    if len(ours) != len(theirs):
        return f"ours made {len(ours)} plans, vLLM's {len(theirs)}"
    return None


def compare(seed: int, async_scheduling: bool) -> tuple[str | None, int, int]:
    """The first difference on a drawn workload, how many plans there were, and how many preemptions."""
    config, requests, cost = drawn(seed)
    mine = our_sim_parts(config, async_scheduling)
    if mine is None:
        raise ImportError("there is no mini_vllm.core.sched.async_scheduler")
    ours, figures = play(mine, requests, cost)
    theirs, their_figures = play(vllm_sim_parts(config, async_scheduling), requests, cost)
    found = first_difference(ours, theirs)
    if found is None and figures != their_figures:
        found = "the plans are equal and the figures are not"
    return found, len(ours), figures["num_preemptions"]


def compare_many(count: int, first: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Rows of totals, one a mode. A mode that ours has not is left out, and said."""
    rows: list[dict[str, Any]] = []
    for mode, async_scheduling in (("sync", False), ("async", True)):
        totals = {"workloads": 0, "plans": 0, "preemptions": 0, "different": 0}
        for seed in range(first, first + count):
            try:
                difference, plans, preemptions = compare(seed, async_scheduling)
            except ImportError as error:
                say(f"{mode}: left out: {error}")
                break
            totals["workloads"] += 1
            totals["plans"] += plans
            totals["preemptions"] += preemptions
            if difference is not None:
                totals["different"] += 1
                say(f"{mode}, seed {seed}: {difference}")
        if totals["workloads"]:
            rows.append({"scheduling": mode, **totals})
    return rows


def main(argv: list[str] | None = None) -> int:
    from benchmarks import machine

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", type=int, default=500, help="how many, in each mode (500)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed (0)")
    parser.add_argument("--save", action="store_true", help="write results/sim-schedules.json")
    args = parser.parse_args(argv)
    rows = compare_many(args.workloads, args.first, lambda text: print(text, flush=True))
    print(machine.table(rows))
    if args.save:
        command = f"python -m benchmarks.sim_vllm --workloads {args.workloads} --first {args.first}"
        print(machine.save("sim-schedules", command, rows))
    return 1 if any(row["different"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
