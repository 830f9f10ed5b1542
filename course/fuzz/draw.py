"""Random worlds, and worlds aimed at what chance hardly hits. The same number gives the same world."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from course.fuzz.world import Job, Settings, Speculation, World

MAX_MODEL_LEN = 48
MAX_TOKENS = 12


def any_world(seed: int, mode: str, policy: str) -> World:
    """A few requests with shared beginnings, salts, siblings, aborts and stops, in a small pool."""
    rng = random.Random(f"any {seed}")
    vocabulary = rng.choice([1, 2, 3])
    stems = [[3 + rng.randrange(vocabulary) for _ in range(24)] for _ in range(2)]
    salts = rng.choice([[0], [0, 1], [1, 2]])
    jobs = []
    for _ in range(rng.randint(2, 7)):
        prompt = rng.choice(stems)[: rng.randint(0, 24)]
        prompt = prompt + [3 + rng.randrange(vocabulary) for _ in range(rng.randint(1, 4))]
        arrive = rng.choice([0, 0, 1, 2, 5, 9])
        jobs.append(
            Job(
                prompt=tuple(prompt),
                max_tokens=rng.randint(1, MAX_TOKENS) if rng.random() < 0.9 else MAX_MODEL_LEN,
                arrive=arrive,
                abort=arrive + rng.randint(0, 12) if rng.random() < 0.15 else None,
                late=rng.random() < 0.5,
                priority=rng.randint(0, 2),
                salt=rng.choice(salts),
                n=rng.choice([1, 1, 1, 2, 3]),
                ignore_eos=rng.random() < 0.5,
                stop=(3,) if rng.random() < 0.1 else (),
            )
        )
    max_num_seqs = rng.randint(1, 6)
    chunked = rng.random() < 0.9
    settings = Settings(
        block_size=rng.choice([1, 1, 2, 3, 4, 8]),
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + rng.choice([0, 2, 8, 40]) if chunked else 64,
        long_prefill_token_threshold=rng.choice([0, 0, 1, 2, 5]) if chunked else 0,
        enable_prefix_caching=rng.random() < 0.9,
        enable_chunked_prefill=chunked,
        scheduler_reserve_full_isl=rng.random() < 0.6,
        policy=policy,
    )
    resets = tuple(
        (rng.randint(1, 20), rng.random() < 0.6) for _ in range(rng.choice([0, 0, 0, 1, 3]))
    )
    world = World(settings, tuple(jobs), mode, vocabulary, resets, rng.random() < 0.4)
    return world.with_settings(num_blocks=world.least_blocks + rng.choice([0, 0, 1, 2, 6]))


def withdrawn_world(seed: int, mode: str, policy: str) -> World:
    """A long prompt in chunks, unimportant; behind it an important one; the pool just runs out.

    The important one comes so that it needs a block for an output in the step in which the long prompt
    is to get its last ones; the pool holds both prompts and hardly more.
    """
    rng = random.Random(f"withdrawn {seed}")

    def words(count: int) -> tuple[int, ...]:
        return tuple(3 + rng.randrange(50) for _ in range(count))

    size, chunk, chunks = rng.choice([1, 2, 4]), rng.randint(1, 3), rng.randint(2, 4)
    if size == 4:
        chunks = min(chunks, 3)
    low = Job(
        words((chunk * chunks - rng.randint(0, chunk - 1)) * size), rng.randint(2, 6), priority=5
    )
    room = rng.randint(0, min(size - 1, chunks - 2))  # slots left in its last block
    blocks_high = rng.randint(1, 3)
    high = Job(
        prompt=words(blocks_high * size - room),
        max_tokens=rng.randint(2, size + 3) + room,
        arrive=max(0, chunks - 2 - room - rng.choice([0, 0, 0, 1])),
        priority=rng.randint(0, 4),
        salt=rng.choice([0, 1]),
        n=rng.choice([1, 1, 1, 2]),
    )
    jobs = [low, high]
    if rng.random() < 0.3:  # somebody else who would find what low left behind
        arrive = high.arrive + rng.randint(1, 8)
        jobs.append(Job(low.prompt, 2, arrive=arrive, priority=rng.randint(0, 5)))
    blocks = 1 + len(low.prompt) // size + blocks_high * high.n + rng.choice([0, 0, 0, 1])
    if (
        rng.random() < 0.5
    ):  # a bystander: from 0.31 on, a request that is alone is not cut into chunks
        jobs.append(Job(words(1), rng.randint(4, 10), salt=2))
        blocks += -(-chunks // size)
    settings = Settings(
        block_size=size,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=5,
        long_prefill_token_threshold=chunk * size,
        scheduler_reserve_full_isl=rng.random() < 0.7,
        policy=policy,
    )
    world = World(settings, tuple(jobs), mode, 50, (), rng.random() < 0.3)
    return world.with_settings(num_blocks=max(world.least_blocks, blocks))


def equals_world(seed: int, mode: str, policy: str) -> World:
    """Siblings, equal in all but their ids, in a pool that is too small for two of them."""
    rng = random.Random(f"equals {seed}")
    size = rng.choice([1, 1, 2])
    prompt = tuple(3 + rng.randrange(3) for _ in range(rng.randint(2, 10)))
    jobs = [Job(prompt, rng.randint(2, 8), n=rng.randint(2, 3), priority=1)]
    if rng.random() < 0.3:
        jobs.append(Job(prompt[::-1], rng.randint(1, 4), arrive=rng.randint(0, 9), n=1))
    settings = Settings(
        block_size=size,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=rng.randint(2, 4),
        max_num_batched_tokens=rng.choice([4, 8, 16]),
        long_prefill_token_threshold=rng.choice([0, 1, 1, 2]),
        enable_prefix_caching=rng.random() < 0.5,
        scheduler_reserve_full_isl=rng.random() < 0.3,
        policy=policy,
    )
    world = World(settings, tuple(jobs), mode, 3)
    return world.with_settings(num_blocks=world.least_blocks + rng.choice([0, 0, 1, 2]))


def in_flight_world(seed: int, mode: str, policy: str) -> World:
    """Ends, aborts, resets and preemptions that come while a batch is in flight."""
    rng = random.Random(f"in flight {seed}")
    size = rng.choice([1, 2, 2, 4])
    stem = tuple(3 + rng.randrange(2) for _ in range(12))
    jobs = []
    for _ in range(rng.randint(2, 5)):
        arrive = rng.randint(0, 6)
        jobs.append(
            Job(
                prompt=stem[: rng.randint(1, 12)],
                max_tokens=rng.randint(1, 10),
                arrive=arrive,
                abort=arrive + rng.randint(0, 6) if rng.random() < 0.4 else None,
                late=rng.random() < 0.7,
                priority=rng.randint(0, 3),
                ignore_eos=rng.random() < 0.3,
                stop=(3,) if rng.random() < 0.2 else (),
            )
        )
    settings = Settings(
        block_size=size,
        max_model_len=rng.choice([14, 16, 20]),
        max_num_seqs=rng.randint(2, 4),
        max_num_batched_tokens=rng.choice([4, 6, 16]),
        long_prefill_token_threshold=rng.choice([0, 2, 3]),
        scheduler_reserve_full_isl=rng.random() < 0.5,
        policy=policy,
    )
    resets = tuple(
        (rng.randint(1, 14), rng.random() < 0.8) for _ in range(rng.choice([0, 1, 2, 4]))
    )
    world = World(settings, tuple(jobs), mode, 2, resets, rng.random() < 0.5)
    return world.with_settings(num_blocks=world.least_blocks + rng.choice([0, 0, 1, 3]))


GENERATORS: dict[str, Callable[[int, str, str], World]] = {
    "any": any_world,
    "withdrawn": withdrawn_world,
    "equals": equals_world,
    "in flight": in_flight_world,
}


def _with_drafts(name: str) -> Callable[[int, str, str], World]:
    """The worlds of a generator, and somebody drafts."""
    plain = GENERATORS[name]

    def drafting(seed: int, mode: str, policy: str) -> World:
        rng = random.Random(f"drafts {name} {seed}")
        world = plain(seed, mode, policy)
        methods = ("ngram", "eagle", "draft_model") if mode == "sync" else ("eagle", "draft_model")
        speculation = Speculation(
            method=rng.choice(methods),
            k=rng.choice([1, 1, 2, 3, 5]),
            acceptance=rng.choice([0, 30, 60, 90, 100]),
            short=rng.choice([0, 0, 30, 70]),
        )
        spare = world.settings.num_blocks - world.least_blocks
        world = replace(world, speculation=speculation)
        rows = speculation.rows * world.settings.max_num_seqs
        return world.with_settings(
            num_blocks=world.least_blocks + max(0, spare),
            max_num_batched_tokens=world.settings.max_num_batched_tokens + rows,
        )

    return drafting


WITH_DRAFTS = {f"drafts {name}": _with_drafts(name) for name in GENERATORS}


def worlds(
    seed: int, modes: tuple[str, ...], policy: str, with_drafts: bool = False
) -> Iterator[World]:
    """Without end: of every generator in turn, in the modes in turn; each with a name to find it by."""
    generators = WITH_DRAFTS if with_drafts else GENERATORS
    while True:
        mode = modes[seed % len(modes)]
        for name, generator in generators.items():
            world = generator(seed, mode, policy)
            yield replace(world, name=f"{name} {seed} {mode} {policy}")
        seed += 1


def named(name: str) -> World:
    """The world of a name that `worlds` gave. Raises ValueError for another."""
    words = name.split()
    kind = " ".join(words[:-3])
    generators = GENERATORS | WITH_DRAFTS
    if len(words) < 4 or kind not in generators or not words[-3].isdigit():
        raise ValueError(f"{name!r} is no name of a world, such as 'any 12 sync fcfs'")
    return replace(generators[kind](int(words[-3]), words[-2], words[-1]), name=name)
