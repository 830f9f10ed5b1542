"""Data-parallel engines behind a router, each with its own scheduler and KV cache, on one time line.

Each replica is a `Simulator` with a clock of its own. The fleet always moves the one that is furthest back,
and routes a request when no clock is before its arrival: so each decision sees what had happened by
then, and nothing later. One replica does what `Simulator.run` does, to the last figure.

Requests are taken as they come and forgotten when they end. What remains is a few numbers a replica, the
metrics' sketches, and the replicas' blocks, which are there from the start; a block's hash, and a route's,
come as the caches fill.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import numpy as np

from mini_vllm.sim.metrics import ServingMetrics
from mini_vllm.sim.router import WAITING_WEIGHT, Router
from mini_vllm.sim.simulator import Simulator, frozen_garbage
from mini_vllm.sim.workload import SimRequest

PUBLISH_S = 0.1
"""Between two publications of the engines' counts
(`vllm/v1/engine/coordinator.py:145 DPCoordinatorProc.__init__`, `min_stats_update_interval_ms`)."""
MOST_REPLICAS = 10_000


class Fleet:
    """Runs requests through replicas behind a router.

    An engine's counts are those before its latest step, as its busy loop sends them
    (`vllm/v1/engine/core.py:1819 DPEngineCoreProc.run_busy_loop`), and those after its last; the router
    gets all of them each `PUBLISH_S`. Left out: vLLM's coordinator holds the counts of one step together,
    and publishes nothing where nothing changed. Nor do these engines step together, with dummy batches,
    as those of a mixture of experts do.

    Args:
        make_replica: a simulator from its number and the fleet's metrics, which all share.
        num_replicas: 1 to `MOST_REPLICAS`.
        router: made for as many.
        metrics: where the run is written down. Most running, most waiting and most of the KV cache in use
            are one replica's; its timeline has all replicas' steps mixed.

    Raises ValueError for another number of replicas.
    """

    def __init__(
        self,
        make_replica: Callable[[int, ServingMetrics], Simulator],
        num_replicas: int,
        router: Router,
        metrics: ServingMetrics,
    ) -> None:
        if not 1 <= num_replicas <= MOST_REPLICAS:
            raise ValueError(f"replicas must be 1 to {MOST_REPLICAS}, got {num_replicas}")
        self.metrics = metrics
        self.router = router
        self.replicas = [make_replica(index, metrics) for index in range(num_replicas)]
        self.requests = [0] * num_replicas
        self.prompt_tokens = [0] * num_replicas
        self.cached_tokens = [0] * num_replicas
        self.output_tokens = [0] * num_replicas
        self._idle = [True] * num_replicas
        self._coming_up: list[tuple[float, int]] = []  # a heap: when each busy replica goes on
        self._scores = np.zeros(num_replicas, np.int64)  # of the counts that each engine sent last
        self._published = 0  # the latest publication, in units of PUBLISH_S

    def run(self, requests: Iterable[SimRequest]) -> None:
        """Run until every request has ended. Raises as `Simulator.run` does."""
        coming = iter(requests)
        following = next(coming, None)
        heap = self._coming_up
        with frozen_garbage():
            while heap or following is not None:
                if following is not None and (not heap or following.arrival <= heap[0][0]):
                    self._route(following)
                    before, following = following, next(coming, None)
                    if following is not None and following.arrival < before.arrival:
                        raise ValueError(
                            f"request {following.request_id!r} arrives at {following.arrival}, "
                            f"before the one in front of it, at {before.arrival}"
                        )
                else:
                    self._go_on(*heap[0])

    def _route(self, q: SimRequest) -> None:
        """Give a request to a replica. One in a step has played that to its end already, so
        that the request is there for the next."""
        self._publish(q.arrival)
        index = self.router.choose(q.prompt)
        replica = self.replicas[index]
        if self._idle[index]:
            self._idle[index] = False
            replica.now = max(replica.now, q.arrival)
            heapq.heappush(self._coming_up, (replica.now, index))
        failed = self.metrics.failed
        replica.add(q)
        if self.metrics.failed == failed:
            self.requests[index] += 1
            self.prompt_tokens[index] += len(q.prompt)

    def _go_on(self, time: float, index: int) -> None:
        """The replica that is furthest back makes a step, or is found idle."""
        replica, metrics, heap = self.replicas[index], self.metrics, self._coming_up
        if replica.now > time:  # it took requests in, which took its host time: others come first
            heapq.heapreplace(heap, (replica.now, index))
            return
        self._publish(time)
        scheduler = replica.parts.scheduler
        waiting = len(scheduler.waiting) + len(scheduler.skipped_waiting)
        self._scores[index] = WAITING_WEIGHT * waiting + len(scheduler.running)
        metrics.settle(time)
        if not replica.busy:
            self._idle[index] = True
            heapq.heappop(heap)
            return
        cached, made = metrics.cached_tokens, metrics.output_tokens
        replica.step()
        self.cached_tokens[index] += metrics.cached_tokens - cached
        self.output_tokens[index] += metrics.output_tokens - made
        heapq.heapreplace(heap, (replica.now, index))

    def _publish(self, now: float) -> None:
        """Before anything happens at `now`: had the counts been published since the last time?"""
        publication = int(now / PUBLISH_S)
        if publication > self._published:
            self._published = publication
            self.router.refresh(self._scores)

    def result(self) -> dict[str, Any]:
        """The fleet's figures under the single simulator's keys, and how the replicas differ."""
        result = self.metrics.result(sum(replica.num_preemptions for replica in self.replicas))
        result["device_busy_share"] /= len(self.replicas)
        rates = [
            100 * cached / prompt if prompt else 0.0
            for cached, prompt in zip(self.cached_tokens, self.prompt_tokens, strict=True)
        ]
        return result | {
            "replicas": len(self.replicas),
            "replica_requests": _spread(self.requests),
            "replica_output_tokens": _spread(self.output_tokens),
            "replica_prefix_hit_rate": _spread(rates),
        }


def _spread(values: list[Any]) -> dict[str, float]:
    return {"min": min(values), "median": median(values), "max": max(values)}
