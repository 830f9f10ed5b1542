"""Lab 03-08: the workloads, and how a policy is scored on them.

A policy is a key: of those who wait, whoever has the smallest is tried first. Seats are not touched:
who runs goes on, and who is preempted is the engine's choice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from course.parity.decisions import engine_config
from course.parity.traces import Config
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.sim import (
    Lengths,
    LinearCost,
    ServingMetrics,
    SimParts,
    SimRequest,
    Simulator,
    arrival_times,
    mini_parts,
    random_requests,
)
from mini_vllm.sim.metrics import Live

HERE = Path(__file__).resolve().parent
MAX_MODEL_LEN = 1024
CONFIG: Config = {
    "block_size": 16,
    "num_blocks": 240,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 256,
    "long_prefill_token_threshold": 0,
    "enable_prefix_caching": True,
    "max_model_len": MAX_MODEL_LEN,
    "policy": "fcfs",
}
SLO_TTFT_S = 0.5
SLO_TPOT_S = 0.02
"""A request is good if its first token came within the one, and the others, on average, every other."""
APART = 0.02
"""Goodputs no further apart are not ranked: of 200 requests that is 4."""
FLOOD_LASTS_S = 7.0
STARVED = 2.0
"""In the flood nobody may wait longer than so many times what the longest waits under FCFS."""
LONGEST_WAIT_UNDER_FCFS_S = 3.058755
"""What that is, so that nobody waits for it in each grading. Checked in `tests/authors/test_lab_03_08.py`."""


# ---- the workloads -------------------------------------------------------------------------------


class Stream(NamedTuple):
    """Some users' requests, at a rate. Each begins with one of six documents of `prefix` tokens."""

    users: str
    share: float  # of the workload's requests
    rate: float  # a second
    prompt: str
    output: str
    burstiness: float = 1.0
    prefix: int = 0
    priority: int = 0


PAYING, FREE = "ada ben", "cyd dan eve fay"
_AT_ONCE = math.inf
STREAMS: dict[str, tuple[Stream, ...]] = {
    # Half again as many as can be served while they come.
    "chat": (
        Stream(PAYING, 0.3, 20, "lognormal:120:0.9:700", "lognormal:50:0.7:200"),
        Stream(FREE, 0.7, 46, "lognormal:120:0.9:700", "lognormal:50:0.7:200", priority=1),
    ),
    "rag": (
        Stream(PAYING, 0.3, 45, "uniform:8:200", "uniform:8:80", 0.5, prefix=320),
        Stream(FREE, 0.7, 105, "uniform:8:200", "uniform:8:80", 0.5, prefix=320, priority=1),
    ),
    "batch": (
        Stream(PAYING, 0.3, _AT_ONCE, "lognormal:100:1.0:600", "uniform:4:80"),
        Stream(FREE, 0.7, _AT_ONCE, "lognormal:100:1.0:600", "uniform:4:80", priority=1),
    ),
    "mixed": (
        Stream(PAYING, 0.5, 42, "uniform:8:80", "lognormal:30:0.6:100"),
        Stream(FREE, 0.2, 17, "uniform:500:800", "uniform:2:20", priority=1),
        Stream("gus hal", 0.3, 25, "lognormal:60:0.6:300", "lognormal:80:0.5:200", priority=1),
    ),
    # One user floods the engine with what a careless policy likes: short and, as she says, important.
    "adversarial": (
        Stream("mallory", 0.6, 80, "uniform:4:20", "uniform:20:60"),
        Stream(PAYING, 0.2, 26, "lognormal:150:0.6:600", "uniform:10:60", priority=1),
        Stream(FREE, 0.2, 26, "lognormal:150:0.6:600", "uniform:10:60", priority=1),
    ),
}


def workload(name: str, seed: int, n: int = 200) -> list[SimRequest]:
    """The requests of a workload, `n` or a few less, in the order of their arrival."""
    found = []
    for k, stream in enumerate(STREAMS[name]):
        part = [10 * seed + k, *name.encode()]
        count = round(n * stream.share)
        times = arrival_times(count, stream.rate, stream.burstiness, seed=sum(part))
        lengths = Lengths.parse(stream.prompt), Lengths.parse(stream.output)
        users = stream.users.split()
        # Streams share their documents and nothing else: what is one's own gets numbers of its own.
        for q in random_requests(times, *lengths, stream.prefix, 6, sum(part)):
            own = [token + ((k + 1) << 40) for token in q.prompt[stream.prefix :]]
            user = users[int(q.request_id) % len(users)]
            name_of = f"{user}-{k}.{q.request_id}"
            prompt = q.prompt[: stream.prefix] + own
            found.append(SimRequest(name_of, q.arrival, prompt, q.max_tokens, stream.priority))
    return sorted(found, key=lambda q: q.arrival)


def flood() -> list[SimRequest]:
    """Short requests, more than can be served, for `FLOOD_LASTS_S`; and one long prompt near the start.

    It is not important, not short, and alone with its first tokens, so no policy has a reason to like it.
    """
    rate = 110.0
    times = arrival_times(int(rate * FLOOD_LASTS_S), rate, 1.0, 77)
    lengths = Lengths.parse("uniform:4:60"), Lengths.parse("uniform:20:60")
    found = [
        SimRequest(f"mallory-{q.request_id}", q.arrival, q.prompt, q.max_tokens)
        for q in random_requests(times, *lengths, seed=77)
    ]
    found.append(SimRequest("ada-0", 1.0, [9] * 700, 8, priority=1))
    return sorted(found, key=lambda q: q.arrival)


# ---- the score -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """What came of a workload under a policy.

    Attributes:
        goodput: share of the requests that met both limits.
        p99_ttft_ms, p99_itl_ms: of all first tokens, of all gaps between tokens.
        fairness: Jain's index of the users' goodputs: 1 if all are served alike, 1/n if only one is.
        preemptions: how many.
        longest_wait_s: for a first token.
    """

    goodput: float
    p99_ttft_ms: float
    p99_itl_ms: float
    fairness: float
    preemptions: int
    longest_wait_s: float


class Ended(NamedTuple):
    """A request that got all its tokens: who sent it, and its TTFT and TPOT in seconds."""

    user: str
    ttft: float
    tpot: float


def jain(shares: list[float]) -> float:
    """Jain's index of fairness (Jain, Chiu and Hawe, 1984); 1 where nobody got anything."""
    squares = sum(x * x for x in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def score(ended: list[Ended], itl: list[float], preemptions: int) -> Score:
    """The score of a run; `itl` in seconds."""
    good: dict[str, list[bool]] = {}
    for one in ended:
        met = one.ttft <= SLO_TTFT_S and one.tpot <= SLO_TPOT_S
        good.setdefault(one.user, []).append(met)
    ttft = [one.ttft for one in ended]
    return Score(
        goodput=sum(map(sum, good.values())) / len(ended),
        p99_ttft_ms=1e3 * float(np.percentile(ttft, 99)),
        p99_itl_ms=1e3 * float(np.percentile(itl, 99)),
        fairness=jain([sum(met) / len(met) for met in good.values()]),
        preemptions=preemptions,
        longest_wait_s=max(ttft),
    )


class _Notes(ServingMetrics):
    """Also keeps what each request took."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[Ended] = []
        self.gaps: list[float] = []

    def tokens(self, lives: Any, now: float) -> None:
        self.gaps += [now - live.last for live in lives if live.made]
        super().tokens(lives, now)

    def finished(self, live: Live) -> None:
        super().finished(live)
        tpot = (live.last - live.first) / (live.made - 1) if live.made > 1 else 0.0
        user = live.request.request_id.split("-")[0]
        self.ended.append(Ended(user, live.first - live.arrival, tpot))


@lru_cache
def cost() -> LinearCost:
    """What a step takes: vLLM on a CPU, as `python -m benchmarks.simulator` measured it once."""
    return LinearCost.from_json(json.loads((HERE / "cost.json").read_text(encoding="utf-8")))


def run(
    make_scheduler: Callable[[type], type] | None,
    requests: list[SimRequest],
    policy: str = "fcfs",
    async_scheduling: bool = False,
) -> Score:
    """Simulate a workload under a learner's scheduler, or, with None, under the engine's own `policy`."""
    notes, preemptions = _simulated(make_scheduler, requests, policy, async_scheduling)
    return score(notes.ended, notes.gaps, preemptions)


def duration(requests: list[SimRequest]) -> float:
    """Seconds until the last token, first come, first served."""
    return _simulated(None, requests, "fcfs", False)[0].end


def run_parts(parts: SimParts, requests: list[SimRequest]) -> Score:
    """The same for a scheduler that is made already, for instance vLLM's."""
    notes, preemptions = _simulate(parts, requests)
    return score(notes.ended, notes.gaps, preemptions)


def _simulated(
    make_scheduler: Callable[[type], type] | None,
    requests: list[SimRequest],
    policy: str,
    async_scheduling: bool,
) -> tuple[_Notes, int]:
    base = AsyncScheduler if async_scheduling else Scheduler
    made = base if make_scheduler is None else make_scheduler(base)
    config = engine_config(CONFIG | {"policy": policy})
    config = replace(config, async_scheduling=async_scheduling)
    return _simulate(mini_parts(config, made, async_scheduling), requests)


def _simulate(parts: SimParts, requests: list[SimRequest]) -> tuple[_Notes, int]:
    notes = _Notes()
    simulator = Simulator(parts, cost(), notes)
    parts.scheduler.clock = lambda: simulator.now
    simulator.run(requests)
    if notes.failed:
        raise RuntimeError(f"{notes.failed} requests were refused: {notes.first_failure}")
    return notes, simulator.num_preemptions


@dataclass(frozen=True)
class Standing:
    """A row of the leaderboard: means and worst of the five workloads, and the flood.

    `waited` is the longest wait in the flood as a multiple of the longest under FCFS; 0 if it was not run.
    """

    goodput: float
    p99_ttft_ms: float
    p99_itl_ms: float
    fairness: float
    preemptions: int
    waited: float

    @property
    def starves(self) -> bool:
        return self.waited > STARVED


def stand(
    make_scheduler: Callable[[type], type] | None,
    policy: str = "fcfs",
    seeds: tuple[int, ...] = (1, 2),
    n: int = 200,
    with_flood: bool = True,
) -> Standing:
    """Run everything and make the row of a policy, or, with None, of the engine's own."""
    scores = [
        run(make_scheduler, workload(name, seed, n), policy) for seed in seeds for name in STREAMS
    ]
    waited = 0.0
    if with_flood:
        flooded = run(make_scheduler, flood(), policy)
        waited = flooded.longest_wait_s / LONGEST_WAIT_UNDER_FCFS_S
    return Standing(
        goodput=float(np.mean([one.goodput for one in scores])),
        p99_ttft_ms=max(one.p99_ttft_ms for one in scores),
        p99_itl_ms=max(one.p99_itl_ms for one in scores),
        fairness=float(np.mean([one.fairness for one in scores])),
        preemptions=sum(one.preemptions for one in scores),
        waited=waited,
    )


HELD, N = (11,), 160
"""The draws that are graded; those of the leaderboard are others."""
HELD_FCFS = Standing(0.3075, 2762.2, 15.33, 0.8406, 65, 0.0)
HELD_PRIORITY = Standing(0.4325, 2798.9, 14.94, 0.4064, 53, 0.0)
GOODPUT_FCFS = {"chat": 0.3625, "rag": 0.2125, "batch": 0.175, "mixed": 0.3375, "adversarial": 0.45}
"""What vLLM's two policies make of them, and FCFS of each, so that nobody waits for it in each grading.
Checked in `tests/authors/test_lab_03_08.py`."""
