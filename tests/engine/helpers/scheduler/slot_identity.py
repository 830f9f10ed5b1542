"""Does every read of the KV cache find what it thinks it finds? A fuzz without a model.

    python -m tests.engine.helpers.scheduler.slot_identity [STEPS] [--seed N] [--upstream]
                                                           [--async-scheduling] [--groups]

The memory (`slot_memory.py`) holds no keys and values. Each slot remembers the token written to it, its
position and everything before it, the cache salt included. A step writes what the scheduler's output tells
a worker to write, through the block tables as a worker holds them, and then every scheduled request reads
all its positions. What a read finds must be the request's own sequence. With several KV cache groups each
has its table, writes to its own blocks of the one memory, and reads only what its kind of attention sees.

Worlds are drawn in two ways: any workload in a tiny pool; and one aimed at preemption in the middle of
a step, where chance alone hardly hits (under `priority`: a prompt in chunks at low importance, a pool
that just runs out, an important request behind it).
"""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mini_vllm.config.engine import EngineConfig
from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager
from mini_vllm.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)
from mini_vllm.core.request import RequestStatus
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.core.sched.upstream_scheduler import UpstreamAsyncScheduler, UpstreamScheduler
from mini_vllm.engine.parts import EngineParts
from tests.engine.helpers.engine.workloads import DEFAULT_PARTS, make_request, scheduler_of
from tests.engine.helpers.scheduler.slot_memory import (
    FULL,
    MAX_MODEL_LEN,
    Group,
    SlotMemory,
    WrongSlot,
)

STEPS = 1_000_000
MAX_TOKENS = 12
UPSTREAM_PARTS = EngineParts(scheduler=UpstreamScheduler)
ASYNC_PARTS = EngineParts(scheduler=AsyncScheduler)
UPSTREAM_ASYNC_PARTS = EngineParts(scheduler=UpstreamAsyncScheduler)


GROUPS: list[list[Group]] = [
    [FULL, ("window", 3)], [FULL, ("window", 8)], [FULL, ("window", 1)], [("window", 5)],
    [FULL, ("window", 6), ("window", 6)], [("window", 4), ("window", 9)], [FULL, ("chunk", 8)],
]  # fmt: skip
"""What `with_groups` draws from."""


class NoProgress(AssertionError):
    """A workload that should have ended long ago still runs."""


# -- worlds ---------------------------------------------------------------------------------------


@dataclass
class Job:
    """A request: it arrives before step `arrive`, and is aborted before step `abort`."""

    prompt: list[int]
    max_tokens: int
    arrive: int = 0
    abort: int | None = None
    priority: int = 0
    salt: str | None = None
    n: int = 1


@dataclass
class World:
    """A workload and the settings it runs in."""

    settings: dict[str, Any]
    jobs: list[Job]
    vocabulary: int = 3
    reset: int = -1  # before this step all running requests are preempted, and the cache forgotten
    groups: Sequence[Group] = (FULL,)


def any_world(seed: int, policy: str | None = None) -> World:
    """A few requests with shared beginnings, salts and children, in a pool that is too small."""
    rng = random.Random(f"any {seed}")
    vocabulary = rng.choice([1, 2, 3])
    stems = [[3 + rng.randrange(vocabulary) for _ in range(24)] for _ in range(2)]
    salts = rng.choice([[None], [None, "a"], ["a", "b"]])
    jobs = []
    for _ in range(rng.randint(2, 7)):
        prompt = rng.choice(stems)[: rng.randint(0, 24)]
        prompt = prompt + [3 + rng.randrange(vocabulary) for _ in range(rng.randint(1, 4))]
        arrive = rng.choice([0, 0, 1, 2, 5, 9])
        jobs.append(
            Job(
                prompt=prompt,
                max_tokens=rng.randint(1, MAX_TOKENS),
                arrive=arrive,
                abort=arrive + rng.randint(0, 12) if rng.random() < 0.15 else None,
                priority=rng.randint(0, 2),
                salt=rng.choice(salts),
                n=rng.choice([1, 1, 1, 2, 3]),
            )
        )
    block_size = rng.choice([1, 1, 2, 3, 4, 8])
    max_num_seqs = rng.randint(1, 6)
    chunked = rng.random() < 0.9
    settings = {
        "block_size": block_size,
        "num_gpu_blocks": _least_pool(jobs, block_size) + rng.choice([0, 0, 1, 2, 6]),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_seqs + rng.choice([0, 2, 8, 40]) if chunked else 64,
        "long_prefill_token_threshold": rng.choice([0, 0, 1, 2, 5]) if chunked else 0,
        "enable_chunked_prefill": chunked,
        "enable_prefix_caching": rng.random() < 0.9,
        "scheduler_reserve_full_isl": rng.random() < 0.6,
        "scheduling_policy": policy or rng.choice(["fcfs", "priority"]),
    }
    reset = rng.randint(1, 12) if rng.random() < 0.1 else -1
    return World(settings, jobs, vocabulary, reset)


def aimed_world(seed: int) -> World:
    """A long prompt in chunks, unimportant; behind it an important one; the pool just runs out.

    The important one fills whole blocks, so that its first output needs another; the pool holds both
    prompts and little more, so that it finds none in the step in which the long prompt takes the last.
    """
    rng = random.Random(f"aimed {seed}")
    block_size = rng.choice([1, 2, 4])

    def words(count: int) -> list[int]:
        return [3 + rng.randrange(50) for _ in range(count)]

    num_blocks_low, num_blocks_high = rng.randint(4, 8), rng.randint(1, 3)
    chunk = rng.randint(2, 3)
    low = Job(words(num_blocks_low * block_size), rng.randint(2, 6), priority=5)
    high = Job(
        prompt=words(num_blocks_high * block_size),
        max_tokens=rng.randint(2, block_size + 3),
        arrive=max(1, -(-num_blocks_low // chunk) - rng.randint(1, 2)),
        priority=rng.randint(0, 4),
        salt=rng.choice([None, "a"]),
        n=rng.choice([1, 1, 1, 2]),
    )
    jobs = [low, high]
    if rng.random() < 0.3:  # somebody else who would find what low left behind
        arrive = high.arrive + rng.randint(1, 8)
        jobs.append(Job(list(low.prompt), 2, arrive=arrive, priority=rng.randint(0, 5)))
    settings = {
        "block_size": block_size,
        "num_gpu_blocks": max(
            1 + num_blocks_low + num_blocks_high * high.n + rng.choice([0, 0, 0, 1]),
            _least_pool(jobs, block_size),
        ),
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "long_prefill_token_threshold": chunk * block_size,
        "scheduler_reserve_full_isl": rng.random() < 0.7,
        "scheduling_policy": "priority",
    }
    return World(settings, jobs, 50)


def with_groups(world: World, seed: int) -> World:
    """The same workload in a model of several KV cache groups, in a pool that just serves them.

    A chunk is a number of whole blocks: else neither vLLM nor this engine is right (see
    `ChunkedLocalAttentionManager`).
    """
    rng = random.Random(f"groups {seed}")
    size = world.settings["block_size"]
    groups = [
        (kind, -(-tokens // size) * size if kind == "chunk" else tokens)
        for kind, tokens in rng.choice(GROUPS)
    ]
    least = _least_pool(world.jobs, world.settings["block_size"])
    spare = world.settings["num_gpu_blocks"] - least
    needed = 1 + sum(_most_blocks(world, group) for group in groups)
    settings = world.settings | {"num_gpu_blocks": needed + spare + rng.choice([0, 0, 0, 2])}
    return World(settings, world.jobs, world.vocabulary, world.reset, groups)


def _most_blocks(world: World, group: Group) -> int:
    """What the longest request can hold of a group."""
    block_size = world.settings["block_size"]
    every = _least_pool(world.jobs, block_size) - 1
    if group == FULL:
        return every
    budget = world.settings["max_num_batched_tokens"]
    spec = _spec(group, block_size)
    return min(every, spec.max_admission_blocks_per_request(budget, MAX_MODEL_LEN))


def _spec(group: Group, block_size: int) -> KVCacheSpec:
    kind, size = group
    if kind == "window":
        return SlidingWindowSpec(block_size, sliding_window=size)
    if kind == "chunk":
        return ChunkedLocalAttentionSpec(block_size, attention_chunk_size=size)
    return FullAttentionSpec(block_size)


def _scheduler_of(world: World, parts: EngineParts, config: EngineConfig) -> Scheduler:
    if list(world.groups) == [FULL]:
        return scheduler_of(parts, config)
    assert config.num_gpu_blocks is not None
    specs = [_spec(group, config.block_size) for group in world.groups]
    groups = [KVCacheGroupSpec([str(i)], spec) for i, spec in enumerate(specs)]
    manager = HybridKVCacheManager(
        KVCacheConfig(config.num_gpu_blocks, groups),
        MAX_MODEL_LEN,
        config.token_budget,
        config.enable_prefix_caching,
    )
    return parts.make_scheduler(config, manager)


def _least_pool(jobs: list[Job], block_size: int) -> int:
    """The null block, and what the longest request needs when it is alone."""
    longest = max(min(len(job.prompt) + job.max_tokens, MAX_MODEL_LEN) for job in jobs)
    return 1 - -longest // block_size


def run_world(world: World, parts: EngineParts = DEFAULT_PARTS) -> int:
    """Drive a scheduler through a world, an `AsyncScheduler` with two plans in flight; the number of
    steps, or turns, it took.

    Raises WrongSlot or NoProgress.
    """
    config = EngineConfig(max_model_len=MAX_MODEL_LEN, **world.settings)
    scheduler = _scheduler_of(world, parts, config)
    assert config.num_gpu_blocks is not None
    memory = SlotMemory(config.num_gpu_blocks, config.block_size, world.vocabulary, world.groups)
    # Alone, one after the other and a token a step, they would take this long.
    alone = sum(job.n * (len(job.prompt) + job.max_tokens) for job in world.jobs)
    limit = 50 + 20 * alone
    last = max(max(job.arrive, job.abort or 0) for job in world.jobs)
    step = 0
    ahead = isinstance(scheduler, AsyncScheduler)
    in_flight: deque[SchedulerOutput] = deque()
    while step <= last or scheduler.has_unfinished_requests() or in_flight:
        if step == world.reset:
            assert scheduler.reset_prefix_cache(reset_running_requests=True)
        for index, job in enumerate(world.jobs):
            ids = [f"{child}_{index}" for child in range(job.n)]
            if job.abort == step:
                scheduler.finish_requests(ids, RequestStatus.FINISHED_ABORTED)
            if job.arrive == step and job.abort != step:
                for request_id in ids:
                    memory.salts[request_id] = job.salt
                    request = make_request(
                        scheduler, request_id, job.prompt, max_tokens=job.max_tokens,
                        priority=job.priority, arrival_time=float(step), cache_salt=job.salt,
                    )  # fmt: skip
                    scheduler.add_request(request)
        if scheduler.has_requests() or not ahead:
            in_flight.append(scheduler.schedule())
        if in_flight and not (ahead and len(in_flight) < 2 and in_flight[0].num_scheduled_tokens):
            output = in_flight.popleft()
            scheduler.update_from_output(output, memory.execute(output))
        step += 1
        if step > limit:
            waiting = sorted(scheduler.requests)
            raise NoProgress(f"{waiting} unfinished after {step} steps, {alone} alone")
    scheduler.kv_cache_manager.check_invariants()
    return step


def worlds(seed: int, groups: bool = False) -> Iterator[tuple[str, World]]:
    """Without end: both policies in turn, and as many aimed ones; each with a name to find it by."""
    while True:
        for name, world in (
            (f"any_world({seed}, 'fcfs')", any_world(seed, "fcfs")),
            (f"any_world({seed}, 'priority')", any_world(seed, "priority")),
            (f"aimed_world({seed})", aimed_world(seed)),
        ):
            if groups:
                yield f"with_groups({name}, {seed})", with_groups(world, seed)
            else:
                yield name, world
        seed += 1


def fuzz(
    num_steps: int,
    seed: int = 0,
    parts: EngineParts = DEFAULT_PARTS,
    report: Callable[[str], None] | None = None,
    groups: bool = False,
) -> tuple[int, int, list[str]]:
    """Run worlds until they have taken `num_steps` steps: steps, worlds, and what went wrong.

    A world that goes wrong counts the steps of no other; the next one starts fresh.
    """
    steps = count = 0
    wrong: list[str] = []
    for name, world in worlds(seed, groups):
        if steps >= num_steps:
            break
        count += 1
        try:
            steps += run_world(world, parts)
        except (WrongSlot, NoProgress) as error:
            steps += 1
            wrong.append(f"{name}: {type(error).__name__}: {error}")
            if report is not None:
                report(wrong[-1])
    return steps, count, wrong


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", nargs="?", type=int, default=STEPS, help=f"how many ({STEPS:,})")
    parser.add_argument("--seed", type=int, default=0, help="the first world (0)")
    parser.add_argument("--upstream", action="store_true", help="with vLLM 0.22.1's own behaviour")
    parser.add_argument("--async-scheduling", action="store_true", help="two plans in flight")
    parser.add_argument("--groups", action="store_true", help="models of several KV cache groups")
    args = parser.parse_args(argv)
    start = time.process_time()
    parts = UPSTREAM_PARTS if args.upstream else DEFAULT_PARTS
    if args.async_scheduling:
        parts = UPSTREAM_ASYNC_PARTS if args.upstream else ASYNC_PARTS
    steps, count, wrong = fuzz(args.steps, args.seed, parts, print, args.groups)
    spent = time.process_time() - start
    print(f"{steps:,} steps, {count:,} worlds, {len(wrong)} violations, {spent:.0f} s of CPU")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
