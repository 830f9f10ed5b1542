"""Which replica of a fleet a request goes to: in turn, to the least loaded, or to where its prefix is.

A router knows what a front end knows: the counts that the engines last published, its own choices since,
and the prompt. It does not look into an engine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from mini_vllm.utils.untrusted import shorten_repr

WAITING_WEIGHT = 4
"""A waiting request weighs as much as four that run
(`vllm/v1/engine/core_client.py:1382 DPLBAsyncMPClient.get_core_engine_for_request`)."""
MOST_INDEXED = 200_000
"""Blocks that the prefix router remembers, the latest used; about 60 MB."""
MOST_HOLDERS = 16
"""Replicas that it remembers for one block, the latest."""
MOST_IMBALANCE = 32
"""How much greater than the least the score of the prefix's holder may be: eight waiting requests."""


class Router(Protocol):
    """Chooses a replica for each request, in the order of arrival."""

    def choose(self, prompt: list[int]) -> int: ...
    def refresh(self, scores: Any) -> None:
        """The engines' counts, as an array of `WAITING_WEIGHT` x waiting + running, have been published."""


class RoundRobin:
    """One after the other; blind to load and content."""

    def __init__(self, num_replicas: int) -> None:
        self._num_replicas = num_replicas
        self._next = 0

    def choose(self, prompt: list[int]) -> int:
        chosen = self._next
        self._next = (chosen + 1) % self._num_replicas
        return chosen

    def refresh(self, scores: Any) -> None:
        """Nothing depends on them."""


class LeastLoaded:
    """As vLLM's front end balances data-parallel engines itself, with one API server.

    The least score wins, of equal ones the first (the search begins at 0 for the only client), and the
    chosen engine counts one more waiting request until the next counts are published.

    Mode: `vllm serve` with asynchronous clients and internal load balancing, where
    `EngineCoreClient.make_async_mp_client` makes this client (`vllm/v1/engine/core_client.py:130`). At the
    pin only the engines of a mixture of experts publish counts (`vllm/v1/engine/core.py:1827` and 1838 in
    `DPEngineCoreProc.run_busy_loop`). With a dense model (`vllm/v1/engine/core.py:1139`) the front end has
    only its own increments; so there this router is better informed than vLLM's. Mended
    later (vllm-project/vllm pull request 49204); and ties no longer go to the first (47420).
    Source: `vllm/v1/engine/core_client.py:1382 DPLBAsyncMPClient.get_core_engine_for_request`.
    """

    def __init__(self, num_replicas: int) -> None:
        self.scores = np.zeros(num_replicas, np.int64)

    def choose(self, prompt: list[int]) -> int:
        return self._count(int(self.scores.argmin()))

    def _count(self, chosen: int) -> int:
        self.scores[chosen] += WAITING_WEIGHT
        return chosen

    def refresh(self, scores: Any) -> None:
        self.scores[:] = scores


class PrefixRouter(LeastLoaded):
    """To the replica that was last sent the longest part of this prompt, if it is not too busy.

    The index is approximate: it follows what was sent where, not what the engines have evicted since, and
    it forgets the blocks that no prompt used for longest. Among several holders the least loaded one
    is taken. Where its score exceeds the fleet's least by more than `most_imbalance`, or there is none, the
    least loaded replica gets the request, and holds the prefix from then on. vLLM has no such router.

    Args:
        block_size: tokens in a block, as the engines cache them.
        most_indexed: blocks to remember.
        most_imbalance: see `MOST_IMBALANCE`.
    """

    def __init__(
        self,
        num_replicas: int,
        block_size: int,
        most_indexed: int = MOST_INDEXED,
        most_imbalance: int = MOST_IMBALANCE,
    ) -> None:
        super().__init__(num_replicas)
        self.index: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        self._block_size = block_size
        self._most_indexed = most_indexed
        self._most_imbalance = most_imbalance

    def choose(self, prompt: list[int]) -> int:
        hashes = self._hashes(prompt)
        holders = self._holders(hashes)
        chosen = int(self.scores.argmin())
        if holders:
            best = min(holders, key=lambda replica: (self.scores[replica], replica))
            if self.scores[best] - self.scores[chosen] <= self._most_imbalance:
                chosen = best
        self._remember(hashes, chosen)
        return self._count(chosen)

    def _hashes(self, prompt: list[int]) -> list[int]:
        """Of the full blocks, each with all before it. Python's hash of integers is the same in each run."""
        size, parent = self._block_size, 0
        hashes = []
        for begin in range(0, len(prompt) - size + 1, size):
            parent = hash((parent, *prompt[begin : begin + size]))
            hashes.append(parent)
        return hashes

    def _holders(self, hashes: list[int]) -> tuple[int, ...]:
        holders: tuple[int, ...] = ()
        for block in hashes:
            found = self.index.get(block, ())
            if holders and found != holders:
                found = tuple([replica for replica in holders if replica in found])
            if not found:
                break
            holders = found
        return holders

    def _remember(self, hashes: list[int], replica: int) -> None:
        index = self.index
        for block in reversed(hashes):  # so that a prompt's first blocks are forgotten last
            known = index.get(block, ())
            if replica not in known:
                index[block] = (*known, replica)[-MOST_HOLDERS:]
            index.move_to_end(block)
        while len(index) > self._most_indexed:
            index.popitem(last=False)


ROUTERS: dict[str, Callable[[int, int], Router]] = {
    "round-robin": lambda num_replicas, block_size: RoundRobin(num_replicas),
    "least-loaded": lambda num_replicas, block_size: LeastLoaded(num_replicas),
    "prefix": PrefixRouter,
}
"""How to make each, from the number of replicas and the block size."""


def make_router(name: str, num_replicas: int, block_size: int) -> Router:
    """Raises ValueError for a name that is not in `ROUTERS`."""
    if name not in ROUTERS:
        raise ValueError(f"router must be one of {', '.join(ROUTERS)}, got {shorten_repr(name)}")
    return ROUTERS[name](num_replicas, block_size)
