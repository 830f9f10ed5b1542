"""Lab 03-08: your policy inside real vLLM, and whether simulation and vLLM rank policies alike.

    python phase-03-scheduler/labs/lab-08-beat-the-scheduler/in_vllm.py [--impl starter]
    python ….py --ranking [--repeat N] [--save]
    python ….py --show
    python ….py --trap

The first runs your file on the five workloads in vLLM on this CPU, with the shipped model, and prints what
the simulation had said. The second does so for eight policies. The third prints what the second has
saved. The fourth shows what becomes of a step when the base class is the wrong one. Needs vLLM (SETUP.md),
but for the third.

This file is also the module to name to a server:

    PYTHONPATH=$PWD:phase-03-scheduler/labs/lab-08-beat-the-scheduler \\
        python -m vllm.entrypoints.openai.api_server --model mini_vllm/checkpoints/tiny-llama \\
        --dtype float32 --enforce-eager --scheduler-cls in_vllm.PolicyScheduler

`LAB_IMPL` says whose policy that is (solution). On a GPU it is `in_vllm.AsyncPolicyScheduler`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parents[2]):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from course.learner.labs import load_module  # noqa: E402

SEED = 5
NAMED = {"solution": HERE / "solution.py", "starter": HERE / "starter.py"}
Policy = Callable[[Any, float], Any]


def lab_module(impl: str) -> Any:
    return load_module(NAMED.get(impl, Path(impl)), "lab_03_08_in_vllm")


def __getattr__(name: str) -> Any:
    """`PolicyScheduler` and `AsyncPolicyScheduler`, made when vLLM asks for them."""
    if name not in ("PolicyScheduler", "AsyncPolicyScheduler"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    base = AsyncScheduler if name == "AsyncPolicyScheduler" else Scheduler
    return lab_module(os.environ.get("LAB_IMPL", "solution")).make_scheduler(base)


# ---- real runs -----------------------------------------------------------------------------------


class RealRuns:
    """vLLM's engine on a clock that goes slower when the machine does, in the simulation's seconds."""

    def __init__(self, built_in: str, make_scheduler: Callable[[type, Policy], type]) -> None:
        import support
        from vllm.v1.core.sched.scheduler import Scheduler

        from benchmarks.sim_real import vllm_engine
        from benchmarks.steady import SteadyClock

        self.support = support
        self.clock = SteadyClock()
        self.policy: Policy | None = None

        def whichever(request: Any, now: float) -> Any:
            assert self.policy is not None
            return self.policy(request, now)

        ordered: Any = make_scheduler(Scheduler, whichever)
        runs = self

        class Switchable(ordered):  # type: ignore[misc]
            """With no policy it is vLLM's own scheduler, untouched."""

            def schedule(self, *args: Any, **kwargs: Any) -> Any:
                if runs.policy is None:
                    return super(ordered, self).schedule(*args, **kwargs)
                return super().schedule(*args, **kwargs)

        config = support.CONFIG | {"policy": built_in}
        self.engine = vllm_engine(self.clock, config, scheduler_cls=Switchable)
        self.engine.scheduler.clock = self.clock
        self.agree_on_seconds()

    def agree_on_seconds(self) -> None:
        """Set the clock so that a batch takes as long as in the simulation.

        The cost was measured on another day, perhaps on another machine. How fast this one is, is not
        the question; in what order it serves whom, is. The batch is not one that is compared.
        """
        support = self.support
        batch = support.workload("batch", SEED + 1)
        expected = support.duration(batch)
        self.engine.run(batch)  # the first steps set things up
        for _ in range(2):
            self.clock.rescale(expected / self.engine.run(batch).duration)

    def score(self, name: str, policy: Policy | None) -> Any:
        """The score of a workload under a policy, or under the engine's own."""
        self.policy = policy
        times = self.engine.run(self.support.workload(name, SEED))
        ended = [
            self.support.Ended(request_id.split("-")[0], *took)
            for request_id, took in times.requests.items()
        ]
        return self.support.score(ended, times.itl, times.preemptions)


def your_policy(lab: Any) -> None:
    import support

    from benchmarks import machine

    real = RealRuns("fcfs", lab.make_scheduler)
    rows = []
    for name in support.STREAMS:
        for who, policy in (("fcfs", None), ("yours", lab.policy)):
            made = None if policy is None else lab.make_scheduler
            simulated = support.run(made, support.workload(name, SEED))
            found = real.score(name, policy)
            rows.append(
                {
                    "workload": name,
                    "policy": who,
                    "goodput, simulated": simulated.goodput,
                    "goodput, vLLM": found.goodput,
                    "p99 TTFT, simulated": simulated.p99_ttft_ms,
                    "p99 TTFT, vLLM": found.p99_ttft_ms,
                    "preemptions, simulated": simulated.preemptions,
                    "preemptions, vLLM": found.preemptions,
                }
            )
    print(machine.table(rows))


def ranking(lab: Any, repeat: int, save: bool) -> None:
    """Eight policies, five workloads, simulated and in vLLM."""
    import policies
    import support

    from benchmarks import machine

    ours: dict[str, Policy] = {"solution": lab.policy} | policies.OTHERS
    simulated: dict[str, dict[str, float]] = {}
    real: dict[str, dict[str, list[float]]] = {}
    for name in support.STREAMS:
        found = simulated.setdefault(name, {})
        for built_in in policies.BUILT_IN:
            found[built_in] = support.run(None, support.workload(name, SEED), built_in).goodput
        for who, policy in ours.items():
            made = partial(lab.make_scheduler, policy=policy)
            found[who] = support.run(made, support.workload(name, SEED)).goodput
    for built_in in policies.BUILT_IN:
        runs = RealRuns(built_in, lab.make_scheduler)
        named: dict[str, Policy | None] = {built_in: None}
        if built_in == "fcfs":
            named |= ours
        for _ in range(repeat):
            for who, one in named.items():
                for name in support.STREAMS:
                    goodput = runs.score(name, one).goodput
                    real.setdefault(name, {}).setdefault(who, []).append(goodput)
                print(f"{who} has been run", file=sys.stderr, flush=True)
    rows, taus = [], []
    for name, found in simulated.items():
        means = {who: statistics.fmean(real[name][who]) for who in found}
        for who in found:
            rows.append(
                {
                    "workload": name,
                    "policy": who,
                    "goodput, simulated": found[who],
                    "goodput, vLLM": means[who],
                    "least": min(real[name][who]),
                    "most": max(real[name][who]),
                }
            )
        apart = sum(
            abs(found[a] - found[b]) > support.APART for i, a in enumerate(found) for b in list(found)[:i]
        )  # fmt: skip
        taus.append(
            {
                "workload": name,
                "tau": policies.tau(found, means, support.APART),
                "pairs": apart,
                "tau, all pairs": policies.tau(found, means),
            }
        )
    show(rows, taus)
    if save:
        content = {
            "machine": machine.describe(),
            "command": f"python {HERE.name}/in_vllm.py --ranking --repeat {repeat} --save",
            "seed": SEED,
            "apart": support.APART,
            "taus": taus,
            "rows": rows,
        }
        path = HERE / "ranking.json"
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(path)


def show(rows: list[dict[str, Any]], taus: list[dict[str, Any]]) -> None:
    """Goodput simulated / in vLLM, a line a policy and a column a workload; then tau."""
    from benchmarks import machine

    cells = {
        (
            row["policy"],
            row["workload"],
        ): f"{row['goodput, simulated']:.2f} / {row['goodput, vLLM']:.2f}"
        for row in rows
    }
    names = [row["workload"] for row in taus]
    lines = [
        {"policy": policy} | {name: cells[policy, name] for name in names}
        for policy in dict.fromkeys(row["policy"] for row in rows)
    ]
    print(machine.table(lines))
    print()
    print(machine.table(taus))


# ---- the trap ------------------------------------------------------------------------------------


def trap() -> None:
    """vLLM's two schedulers in a loop that keeps two batches in flight, as a GPU's engine does.

    The times are assumed, not measured: 8 ms a step on the device, 4 ms on the host.
    """
    import support

    from benchmarks import machine
    from benchmarks.sim_vllm import vllm_sim_parts
    from mini_vllm.sim import LinearCost, ServingMetrics, Simulator

    nothing = (0.0,) * 6
    cost = LinearCost("assumed", "round numbers", (4e-3, *nothing), (8e-3, *nothing))
    rows = []
    for base, loop in (
        ("AsyncScheduler", "two batches"),
        ("Scheduler", "two batches"),
        ("Scheduler", "one"),
    ):
        parts = vllm_sim_parts(support.CONFIG, async_scheduling=base == "AsyncScheduler")
        parts = replace(parts, async_scheduling=loop == "two batches")
        metrics = ServingMetrics()
        simulator = Simulator(parts, cost, metrics)
        simulator.run(support.workload("batch", SEED))
        figures = metrics.result(simulator.num_preemptions)
        rows.append(
            {
                "base": base,
                "batches in flight": loop,
                "plans": figures["num_steps"],
                "requests a plan": figures["requests_per_step"],
                "tokens a second": figures["output_throughput"],
                "median ITL, ms": figures["median_itl_ms"],
            }
        )
    print(machine.table(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--impl", default="solution", help="solution, starter or a file")
    parser.add_argument("--ranking", action="store_true", help="eight policies")
    parser.add_argument("--repeat", type=int, default=2, help="of the real runs of --ranking (2)")
    parser.add_argument("--save", action="store_true", help="write ranking.json")
    parser.add_argument("--show", action="store_true", help="what ranking.json has")
    parser.add_argument("--trap", action="store_true", help="the wrong base class")
    args = parser.parse_args()
    if args.show:
        saved = json.loads((HERE / "ranking.json").read_text(encoding="utf-8"))
        show(saved["rows"], saved["taus"])
        return
    try:
        import vllm  # noqa: F401
    except ImportError:
        raise SystemExit("vllm is not installed here; see SETUP.md") from None
    if args.trap:
        trap()
    elif args.ranking:
        ranking(lab_module(args.impl), args.repeat, args.save)
    else:
        your_policy(lab_module(args.impl))


if __name__ == "__main__":
    main()
