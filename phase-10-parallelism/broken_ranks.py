"""Ranks, and what is wrong without one of their rules: set-up for the deep dive.

Each function runs the shipped model, or a scheduler, with one rule left out, and says what came of it. The
ranks are threads, each with an engine of its own: all of them decide the same.

    python phase-10-parallelism/broken_ranks.py
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from course.parity.decisions import mini_parts
from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.distributed.communicator import Communicator, Ledger, RankDiedError
from mini_vllm.distributed.parallel_state import Pipeline, RankGroups
from mini_vllm.engine.batch_queue import BatchQueue
from mini_vllm.executor.abstract import ExecuteFuture
from mini_vllm.model_loader import load_model
from mini_vllm.model_loader.shards import ShardedWeights
from mini_vllm.tokenizer import Tokenizer

Array = NDArray[Any]
PROMPT = "Why "


class Ranks:
    """What threads that are ranks share: a place for each one's array, and a barrier."""

    def __init__(self, size: int) -> None:
        self.board: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)

    def run(self, main: Callable[[Communicator], Any]) -> list[Any]:
        """Call `main` in a thread for each rank; what each returned. Raises the first error."""
        results: list[Any] = list(self.board)
        errors: list[BaseException] = []

        def run_rank(rank: int) -> None:
            try:
                results[rank] = main(ThreadCommunicator(rank, self))
            except BaseException as error:
                errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=run_rank, args=(r,)) for r in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results


class ThreadCommunicator(Communicator):
    """One thread's end of `Ranks`."""

    def __init__(self, rank: int, ranks: Ranks) -> None:
        super().__init__(rank, len(ranks.board))
        self._ranks = ranks

    def exchange(self, array: Array) -> list[Array]:
        self._ranks.board[self.rank] = array
        try:
            self._ranks.barrier.wait()
            arrays = list(self._ranks.board)
            self._ranks.barrier.wait()  # before one of them writes again
        except threading.BrokenBarrierError as error:
            raise RankDiedError(f"rank {self.rank} waits for one that has ended") from error
        return arrays


def on_ranks(size: int, own_seeds: bool = False, **asked: Any) -> list[tuple[str, Ledger]]:
    """What each rank's engine writes after "Why ", and what its communicator counted.

    Args:
        own_seeds: the engine's seed is the rank's number; else 0 on each.
        asked: the request's parameters.
    """
    params = SamplingParams(**{"temperature": 0, "max_tokens": 40} | asked)
    tokenizer = Tokenizer.from_folder(DEFAULT_MODEL)

    def main(communicator: Communicator) -> tuple[str, Ledger]:
        rank = communicator.rank
        groups = RankGroups(rank, communicator, Pipeline(0, 1, None, None, communicator))
        config = EngineConfig(seed=rank if own_seeds else 0)
        engine = LLMEngine(load_model(DEFAULT_MODEL, groups=groups), config, tokenizer=tokenizer)
        engine.add_request("gil", PROMPT, params)
        outputs: list[Any] = []
        while engine.has_unfinished_requests():
            outputs = engine.step() or outputs
        return outputs[0].outputs[0].text, communicator.ledger

    return Ranks(size).run(main)


def text(size: int = 1) -> str:
    """Greedily, by rank 0 of so many."""
    return on_ranks(size)[0][0]


# --- 1: which ranks are neighbours ---


def machines(*axes: str) -> dict[str, int]:
    """Sixteen ranks on two machines of eight, laid out by these axes, the last one varying fastest: how many
    machines the ranks span that differ in one of them only."""
    sizes = {"stage": 2, "shard": 8}
    ranks = np.arange(16).reshape([sizes[axis] for axis in axes])
    found = {}
    for axis in sizes:
        groups = np.moveaxis(ranks, axes.index(axis), -1).reshape(-1, sizes[axis])
        found[axis] = max(len(set(group // 8)) for group in groups)
    return found


# --- 2: what a rank has of a layer ---


def kv_heads_in_turn(size: int) -> str:
    """Rank r takes KV head r modulo their number."""
    cut = ShardedWeights._cut_rows

    def in_turn(self: ShardedWeights, projection: str, weight: Array) -> Array:
        if not projection.endswith(("k_proj", "v_proj")):
            return cut(self, projection, weight)
        rows = self._rank_config.num_key_value_heads * self._rank_config.head_dim
        place = self._rank % (len(weight) // rows)
        return weight[place * rows : (place + 1) * rows]

    with patch.object(ShardedWeights, "_cut_rows", in_turn):
        return text(size)


def said(size: int) -> None:
    """Print what rank 0 put on the wire in 24 steps: each kind of call, the shape, how often."""
    ledger = on_ranks(size, max_tokens=24, ignore_eos=True)[0][1]
    for (kind, shape, nbytes), times in ledger.calls.items():
        print(f"{kind:10}  {shape!s:9}  {nbytes:5} bytes  {times:4} times")


# --- 4: what each rank does for itself ---


def own_streams(size: int) -> list[str]:
    """Each rank draws from a random stream of its own."""
    return [written for written, _ in on_ranks(size, own_seeds=True, temperature=1.0)]


def one_seed(size: int) -> list[str]:
    return [written for written, _ in on_ranks(size, temperature=1.0)]


# --- 5: how many steps are in flight ---


class Stages:
    """An executor whose stages need a tick for each step; asking for a result waits for it.

    Attributes:
        now: the tick that has come.
        rows: by stage, the step at which it works in each tick: a letter, or a dot for none.
        live: the requests, by id.
    """

    def __init__(self, stages: int, depth: int, make_output: Callable[..., Any]) -> None:
        self.max_concurrent_batches = depth
        self.now = 0
        self.rows = ["" for _ in range(stages)]
        self.live: dict[str, Any] = {}
        self._make_output = make_output
        self._steps = 0
        self._result: Any = None

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        names = list(scheduler_output.num_scheduled_tokens)
        tick = self.now
        if names:
            letter = chr(ord("a") + self._steps % 26)
            self._steps += 1
            for stage, row in enumerate(self.rows):
                tick = max(tick, len(row))
                self.rows[stage] = row.ljust(tick, ".") + letter
                tick += 1
        requests = [self.live[name] for name in names]
        sampled = [[9] if r.num_computed_tokens >= r.num_tokens else [] for r in requests]
        self._result = Waited(self, tick, self._make_output(names, sampled))
        return Waited(self, self.now, None) if names else self._result

    def sample_tokens(self, grammar_output: None = None, non_block: bool = False) -> Any:
        return self._result


class Waited(ExecuteFuture):
    """A result that is there at a tick."""

    def __init__(self, stages: Stages, tick: int, value: Any) -> None:
        super().__init__()
        self._stages, self._tick, self._value = stages, tick, value

    def done(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> Any:
        self._stages.now = max(self._stages.now, self._tick)
        return self._value


def two_stages(steps_in_flight: int) -> None:
    """Print what two stages do for a prompt of 96 tokens, 16 to a step, and an answer of 4 tokens."""
    config: Any = {
        "block_size": 16, "num_blocks": 20, "max_num_seqs": 4, "max_num_batched_tokens": 16,
        "long_prefill_token_threshold": 0, "enable_prefix_caching": False, "max_model_len": 128,
        "policy": "fcfs",
    }  # fmt: skip
    parts = mini_parts(config)
    scheduler: Any = parts.scheduler
    executor: Any = Stages(2, steps_in_flight, parts.make_output)
    arrival: Any = {
        "id": "ada", "prompt": list(range(10, 106)), "max_tokens": 4, "ignore_eos": True,
        "priority": 0, "abort": None, "step": 0,
    }  # fmt: skip
    executor.live["ada"] = request = parts.make_request(arrival, 0)
    scheduler.add_request(request)
    queue = BatchQueue(scheduler, executor, lambda future: future.done())
    while scheduler.has_requests() or queue.batches:
        queue.step()
    for stage, row in enumerate(executor.rows):
        print(f"stage {stage}  {row}")


if __name__ == "__main__":
    print("stages outside:          ", machines("stage", "shard"))
    print("shards outside:          ", machines("shard", "stage"))
    print("one rank:                ", text())
    print("four ranks:              ", text(4))
    print("KV heads in turn:        ", kv_heads_in_turn(4))
    said(2)
    print("one seed:                ", one_seed(4))
    print("a random stream each:    ", own_streams(4))
    for depth in (1, 2):
        print(f"steps in flight: {depth}")
        two_stages(depth)
