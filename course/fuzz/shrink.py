"""The smallest world that still goes wrong: fewest requests, shortest prompts, fewest blocks.

Greedy: a list of changes that make a world smaller or plainer, each kept if what went wrong still does,
round after round until none is kept. Nothing here knows what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from course.fuzz.world import Job, Settings, Speculation, World

PLAIN = Settings(num_blocks=0)


def size(world: World) -> tuple[int, ...]:
    """What the shrinker makes smaller, the most important first."""
    jobs = world.jobs
    return (
        sum(job.n for job in jobs),
        sum(len(job.prompt) for job in jobs),
        sum(job.max_tokens for job in jobs),
        world.settings.num_blocks,
        len(world.resets) + sum(job.abort is not None for job in jobs),
        sum(job.arrive for job in jobs),
    )


def shrink(world: World, goes_wrong: Callable[[World], bool], limit: int = 3000) -> World:
    """The smallest world found with at most `limit` trials; `world` must go wrong itself."""
    trials = 0
    again = True
    while again and trials < limit:
        again = False
        for smaller in _smaller(world):
            if not smaller.fair or smaller == world:
                continue
            trials += 1
            if goes_wrong(smaller):
                world, again = smaller, True
                break  # begin with the coarse changes again
            if trials >= limit:
                break
    return replace(world, name="")


def _smaller(world: World) -> Iterator[World]:
    """Worlds a little smaller or plainer, the coarse changes first."""
    jobs = world.jobs
    for i in range(len(jobs)):
        if len(jobs) > 1:
            yield replace(world, jobs=jobs[:i] + jobs[i + 1 :])
    if world.probes:
        yield replace(world, probes=False)
    for i in range(len(world.resets)):
        yield replace(world, resets=world.resets[:i] + world.resets[i + 1 :])
    for i, job in enumerate(jobs):
        for smaller in _smaller_job(job):
            yield replace(world, jobs=(*jobs[:i], smaller, *jobs[i + 1 :]))
    least = world.least_blocks
    for num_blocks in (least, world.settings.num_blocks - 1):
        if least <= num_blocks < world.settings.num_blocks:
            yield world.with_settings(num_blocks=num_blocks)
    if world.speculation is not None:
        yield replace(world, speculation=None)
        for spec in _plainer_speculation(world.speculation):
            yield replace(world, speculation=spec)
    yield from _plainer(world)


def _plainer_speculation(spec: Speculation) -> Iterator[Speculation]:
    for k in {spec.k // 2, spec.k - 1}:
        if 1 <= k < spec.k:
            yield replace(spec, k=k)
    if spec.short:
        yield replace(spec, short=0)
    if spec.method != "eagle":
        yield replace(spec, method="eagle")
    for acceptance in (0, 100):
        if spec.acceptance not in (0, acceptance):
            yield replace(spec, acceptance=acceptance)


def _smaller_job(job: Job) -> Iterator[Job]:
    if job.n > 1:
        yield replace(job, n=1)
        yield replace(job, n=job.n - 1)
    if job.abort is not None:
        yield replace(job, abort=None, late=False)
    if job.salt:
        yield replace(job, salt=0)
    if job.stop:
        yield replace(job, stop=())
    if not job.ignore_eos:
        yield replace(job, ignore_eos=True)
    for length in {len(job.prompt) // 2, len(job.prompt) - 2, len(job.prompt) - 1}:
        if 1 <= length < len(job.prompt):
            yield replace(job, prompt=job.prompt[:length])
    for max_tokens in {job.max_tokens // 2, job.max_tokens - 1}:
        if 1 <= max_tokens < job.max_tokens:
            yield replace(job, max_tokens=max_tokens)
    for arrive in {0, job.arrive - 1}:
        if 0 <= arrive < job.arrive:
            abort = None if job.abort is None else max(arrive, job.abort - job.arrive + arrive)
            yield replace(job, arrive=arrive, abort=abort)
    if job.priority:
        yield replace(job, priority=0)
        yield replace(job, priority=job.priority - 1)
    if job.late and job.abort is None:
        yield replace(job, late=False)
    plain = tuple(range(10, 10 + len(job.prompt)))
    if job.prompt != plain:
        yield replace(job, prompt=plain)


def _plainer(world: World) -> Iterator[World]:
    """One setting after the other as it would be, the mode `async` instead of its variations."""
    for name in (
        "max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold",
        "enable_chunked_prefill", "scheduler_reserve_full_isl", "enable_prefix_caching", "max_model_len",
    ):  # fmt: skip
        value = getattr(PLAIN, name)
        if getattr(world.settings, name) != value:
            yield world.with_settings(**{name: value})
    if world.mode not in ("sync", "async"):
        yield replace(world, mode="async")
    if world.vocabulary != 3:
        yield replace(world, vocabulary=3)
    for i, (turn, running) in enumerate(world.resets):
        if turn > 0:
            earlier = (*world.resets[:i], (turn - 1, running), *world.resets[i + 1 :])
            yield replace(world, resets=earlier)
