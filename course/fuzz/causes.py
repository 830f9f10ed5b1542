"""Why a world goes wrong: a repair under which it does not.

A repair changes one thing about the scheduler, or about the world. If the world ends well with it, and
not without, the repair names the cause. That is a proof of sorts: reading alone has been wrong before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from course.fuzz.drive import Make, play
from course.fuzz.engines import Engine
from course.fuzz.memory import Wrong
from course.fuzz.world import World


@dataclass(frozen=True)
class Cause:
    """A known cause.

    Attributes:
        name: in a few words.
        engine: a change to an engine that takes the cause away, or None.
        world: a change to a world that does, or None.
    """

    name: str
    engine: Callable[[Engine], None] | None = None
    world: Callable[[World], World] | None = None


def evict_uncomputed(engine: Engine) -> None:
    """Take a victim's blocks out of the prefix cache that it was to fill in this step and does not.

    `num_computed_tokens` moves after `schedule()`, so here it tells what was planned before.
    """
    scheduler = engine.scheduler
    preempt, manager = scheduler._preempt_request, scheduler.kv_cache_manager

    def preempt_cleanly(request: Any, *args: Any, **kwargs: Any) -> None:
        table = engine._block_ids(manager.get_block_ids(request.request_id))
        computed = request.num_computed_tokens // engine.settings.block_size
        manager.evict_blocks(set(table[computed:]))
        preempt(request, *args, **kwargs)

    scheduler._preempt_request = preempt_cleanly


def add_up_what_is_void(engine: Engine) -> None:
    """In a forced reset, add to the tokens that are still to be dropped; upstream begins anew."""
    scheduler = engine.scheduler
    reset = scheduler.reset_prefix_cache

    def reset_and_add(reset_running_requests: bool = False) -> Any:
        running = list(scheduler.running) if reset_running_requests else []
        before = [getattr(request, "async_tokens_to_discard", 0) for request in running]
        done = reset(reset_running_requests=reset_running_requests)
        for request, count in zip(running, before, strict=True):
            request.async_tokens_to_discard += count
        return done

    scheduler.reset_prefix_cache = reset_and_add


def company(engine: Engine) -> None:
    """Let `schedule()` count one request more than there are.

    No repair, the contrary: from 0.31 on vLLM does not cut the prompt of a request that is alone, and
    this takes only that back.
    """
    scheduler = engine.scheduler
    schedule, counts = scheduler.schedule, scheduler.get_request_counts

    def schedule_in_company(*args: Any) -> Any:
        scheduler.get_request_counts = lambda: (counts()[0], counts()[1] + 1)
        try:
            return schedule(*args)
        finally:
            del scheduler.get_request_counts

    scheduler.schedule = schedule_in_company


WITHDRAWN = "a victim of the same step leaves published blocks that nobody computed"
EQUAL = "equals preempt each other"
TWICE = "a second forced reset forgets what the first was to drop"
CAUSES = (
    Cause(WITHDRAWN, evict_uncomputed),
    Cause(EQUAL, world=lambda world: replace(world, distinct=True)),
    Cause(TWICE, add_up_what_is_void),
)
COMPANY = Cause("as if there were one request more", company)
UNKNOWN = "unknown"


def goes_wrong(world: World, make: Make, repair: Cause | None = None) -> Wrong | None:
    """What goes wrong in a world, under a repair if there is one."""

    def repaired(which: World) -> Engine:
        engine = make(which)
        if repair is not None and repair.engine is not None:
            repair.engine(engine)
        return engine

    try:
        play(repair.world(world) if repair and repair.world else world, repaired)
    except Wrong as error:
        return error
    return None


def cause_of(world: World, make: Make) -> str:
    """The name of the first repair that helps; `UNKNOWN` if none does."""
    for cause in CAUSES:
        if goes_wrong(world, make, cause) is None:
            return cause.name
    return UNKNOWN
