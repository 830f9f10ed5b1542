"""A fleet: what each router chooses, that time has one order, and that one replica is the simulator."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from mini_vllm.config.engine import EngineConfig
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.sim import (
    ROUTERS,
    Fleet,
    Lengths,
    LinearCost,
    ServingMetrics,
    SimRequest,
    Simulator,
    arrival_times,
    make_router,
    mini_parts,
    random_requests,
)
from mini_vllm.sim.fleet import PUBLISH_S
from mini_vllm.sim.router import MOST_HOLDERS, LeastLoaded, PrefixRouter

BLOCK = 16


def linear(add: float = 0.0, scatter: tuple[float, ...] = ()) -> LinearCost:
    return LinearCost(
        "test", "made up", (1e-3, *[0] * 6), (5e-3, 0, 0, 0, 1e-4, 0, 0), add, scatter=scatter
    )


def engine(index: int, metrics: ServingMetrics, cost: Any = None, ahead: bool = False) -> Simulator:
    config = EngineConfig(num_gpu_blocks=60, max_model_len=256, max_num_seqs=8)
    parts = mini_parts(config, AsyncScheduler if ahead else Scheduler, async_scheduling=ahead)
    return Simulator(parts, cost or linear(), metrics, seed=index)


def workload(
    count: int, rate: float, prefix_len: int = 0, num_prefixes: int = 1, seed: int = 0
) -> Iterator[SimRequest]:
    return random_requests(
        arrival_times(count, rate, 0.5, seed),
        Lengths.parse("uniform:8:56"), Lengths.parse("uniform:2:14"), prefix_len, num_prefixes, seed,
    )  # fmt: skip


def run(router: str, replicas: int, requests: Iterator[SimRequest]) -> tuple[dict[str, Any], Fleet]:
    fleet = Fleet(engine, replicas, make_router(router, replicas, BLOCK), ServingMetrics())
    fleet.run(requests)
    for replica in fleet.replicas:
        replica.parts.scheduler.kv_cache_manager.check_invariants()
        assert replica.parts.scheduler.kv_cache_manager.usage == 0, "blocks were not given back"
    return fleet.result(), fleet


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("rate", [20.0, 400.0, float("inf")])
def test_one_replica_is_the_simulator(router: str, ahead: bool, rate: float) -> None:
    """To the last bit: with scatter, with time for adding, with refused requests, busy and idle."""
    cost = linear(add=2e-3, scatter=(0.5, 1.0, 1.5))

    def requests() -> Iterator[SimRequest]:
        for q in workload(150, rate, prefix_len=32, num_prefixes=3):
            too_long = int(q.request_id) % 40 == 7
            yield SimRequest(q.request_id, q.arrival, q.prompt * 40, 1) if too_long else q

    alone = engine(0, ServingMetrics(), cost, ahead)
    alone.run(requests())
    fleet = Fleet(
        lambda index, metrics: engine(index, metrics, cost, ahead),
        1, make_router(router, 1, BLOCK), ServingMetrics(),
    )  # fmt: skip
    fleet.run(requests())
    wanted, found = alone.result(), fleet.result()
    assert {key: found[key] for key in wanted} == wanted
    assert fleet.metrics.timeline.rows == alone.metrics.timeline.rows
    assert wanted["failed"] == 4
    assert found["replica_requests"]["max"] == wanted["completed"]


def test_round_robin_gives_each_its_turn() -> None:
    router = make_router("round-robin", 3, BLOCK)
    assert [router.choose([1]) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    found, fleet = run("round-robin", 4, workload(42, 100.0))
    assert fleet.requests == [11, 11, 10, 10]
    assert found["completed"] == 42


def test_least_loaded_is_what_vllms_loop_chooses() -> None:
    """Against the loop over `[waiting, running]` pairs, at 2,000 requests with counts that change."""
    rng = random.Random(1)
    router, counts = LeastLoaded(7), [[0, 0] for _ in range(7)]
    for _ in range(2000):
        if rng.random() < 0.1:
            counts = [[rng.randrange(4), rng.randrange(12)] for _ in range(7)]
            router.refresh([4 * waiting + running for waiting, running in counts])
        wanted, least = 0, 10**9
        for index, (waiting, running) in enumerate(counts):
            if waiting * 4 + running < least:
                wanted, least = index, waiting * 4 + running
        counts[wanted][0] += 1
        assert router.choose([1]) == wanted


class Recording(LeastLoaded):
    """Keeps what was published, and how many requests had been routed by then."""

    def __init__(self, num_replicas: int) -> None:
        super().__init__(num_replicas)
        self.seen: list[list[int]] = []

    def refresh(self, scores: Any) -> None:
        super().refresh(scores)
        self.seen.append(scores.tolist())


def test_the_router_sees_counts_as_they_were_published() -> None:
    """Steps of 0.07 s, so at 0.1 each replica is in its second one; at 1.0 both have long been idle."""
    cost = LinearCost("test", "made up", (0.0,) * 7, (0.07, *[0.0] * 6))
    router = Recording(2)
    fleet = Fleet(lambda index, metrics: engine(index, metrics, cost), 2, router, ServingMetrics())
    times = [0.0, 0.0, 0.0, 0.05, 1.0]
    fleet.run(SimRequest(str(i), time, [i] * 8, 5) for i, time in enumerate(times))
    assert fleet.requests == [3, 2], "0, 1, 0, then 1 as it has fewer; the last finds all idle"
    # At 0.1 both have been in their second step since 0.07. The fourth request began to wait then.
    assert router.seen[0] == [2, 4 + 1]
    assert [0, 0] in router.seen, "what an engine sends after its last step"
    assert PUBLISH_S == 0.1


def test_the_prefix_router_follows_the_longest_prefix_until_it_is_too_busy() -> None:
    router = PrefixRouter(3, 4, most_imbalance=8)
    short, long = [1] * 4, [1] * 4 + [2] * 4
    assert router.choose(short) == 0
    router.refresh([9, 0, 0])
    assert router.choose(long) == 1, "the holder's score is too great, so the least loaded gets it"
    router.refresh([0, 8, 0])
    assert router.choose([*long, 5]) == 1, "two blocks there, one at 0; 8 more is allowed"
    assert router.choose([*long, 6]) == 0, "12 more is not"
    router.refresh([4, 3, 0])
    assert router.choose(long) == 1, "both hold it now: the less loaded"
    assert router.choose([9] * 4) == 2, "nothing known: the least loaded"
    assert router.choose([1] * 3) == 0, "no full block, and the least: 4, 7, 4"


def test_the_prefix_routers_index_is_bounded() -> None:
    router = PrefixRouter(40, 4, most_indexed=10, most_imbalance=-1)
    for index in range(100):
        router.choose([7] * 4 + [100 + index] * 8)
    assert len(router.index) == 10
    assert max(len(holders) for holders in router.index.values()) == MOST_HOLDERS
    assert hash((0, 7, 7, 7, 7)) in router.index, "what is used again is kept"


def test_routing_by_prefix_finds_more_in_the_caches() -> None:
    """Forty prefixes of six blocks: a replica's 59 blocks have room for few, the fleet's for all."""
    found = {
        router: run(router, 8, workload(800, 150.0, prefix_len=96, num_prefixes=40))[0]
        for router in ROUTERS
    }
    hits = {router: result["cached_prompt_tokens"] for router, result in found.items()}
    assert hits["prefix"] > 2 * hits["round-robin"] > 0, hits
    assert hits["prefix"] > 2 * hits["least-loaded"], hits
    assert found["prefix"]["mean_ttft_ms"] < found["round-robin"]["mean_ttft_ms"]
    assert {result["completed"] for result in found.values()} == {800}


@pytest.mark.parametrize("router", ROUTERS)
def test_the_same_seed_gives_the_same_fleet(router: str) -> None:
    def figures(seed: int) -> dict[str, Any]:
        return run(router, 5, workload(200, 300.0, 32, 4, seed))[0]

    assert figures(1) == figures(1) != figures(2)


def test_the_replicas_add_up() -> None:
    found, fleet = run("least-loaded", 5, workload(200, 300.0, 32, 4))
    assert sum(fleet.requests) == found["completed"] == 200
    assert sum(fleet.prompt_tokens) == found["total_input_tokens"]
    assert sum(fleet.output_tokens) == found["total_output_tokens"]
    assert sum(fleet.cached_tokens) == found["cached_prompt_tokens"]
    assert 0 < found["device_busy_share"] <= 1


def test_nothing_is_kept_of_what_has_ended() -> None:
    """Six times the requests, the same memory, but for the sketches' few new buckets."""

    def kept(count: int) -> int:
        metrics, router = ServingMetrics(), PrefixRouter(4, BLOCK, most_indexed=300)
        fleet = Fleet(engine, 4, router, metrics)
        tracemalloc.start()
        fleet.run(workload(count, 200.0, 32, 10))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert metrics.completed == count
        return peak

    small, large = kept(300), kept(1800)
    assert large < small + 150_000, (small, large)


def test_requests_out_of_order_and_fleets_of_no_size_are_refused() -> None:
    with pytest.raises(ValueError, match="before the one in front"):
        run("round-robin", 2, iter([SimRequest("a", 1.0, [1], 1), SimRequest("b", 0.5, [1], 1)]))
    for count in (0, 10_001):
        with pytest.raises(ValueError, match="replicas must be 1 to 10000"):
            run("round-robin", count, iter(()))
    with pytest.raises(ValueError, match="router must be one of round-robin, least-loaded, prefix"):
        make_router("random", 2, BLOCK)


def test_a_request_at_the_end_of_a_step_is_in_the_next() -> None:
    """Two replicas and arrivals that fall on the ends of steps: the same as each one alone."""
    cost = LinearCost("test", "made up", (0.0,) * 7, (0.25, *[0.0] * 6))
    times = list(itertools.chain.from_iterable([t, t] for t in (0.0, 0.25, 0.25, 1.0, 3.0)))
    requests = [SimRequest(str(i), time, [i] * 8, 1 + i // 2) for i, time in enumerate(times)]
    fleet = Fleet(
        lambda index, metrics: engine(index, metrics, cost),
        2, make_router("round-robin", 2, BLOCK), ServingMetrics(),
    )  # fmt: skip
    fleet.run(requests)
    alone = engine(0, ServingMetrics(), cost)
    alone.run(requests[::2])
    one, both = alone.result(), fleet.result()
    assert both["completed"] == 2 * one["completed"]
    for name in ("duration", "mean_ttft_ms", "p99_itl_ms", "mean_e2el_ms", "max_running"):
        assert both[name] == one[name], name
    assert both["max_concurrent_requests"] == 2 * one["max_concurrent_requests"]
