"""Why a world goes wrong: a repair under which it does not.

A repair changes one thing about the scheduler, or about the world. If the world ends well with it, and
not without, the repair names the cause. That is a proof of sorts: reading alone has been wrong before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from course.fuzz.drive import Make, play
from course.fuzz.engine import Engine
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
        table = manager.get_block_ids(request.request_id)[0]
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


def count_results(engine: Engine) -> None:
    """In a forced reset, drop as many results as are on their way; upstream counts their tokens."""
    scheduler = engine.scheduler
    schedule, update = scheduler.schedule, scheduler.update_from_output
    reset, on_their_way = scheduler.reset_prefix_cache, Counter[str]()

    def schedule_and_count() -> Any:
        output = schedule()
        for request_id in output.num_scheduled_tokens:
            if not scheduler.requests[request_id].is_prefill_chunk:
                on_their_way[request_id] += 1
        return output

    def update_and_count(output: Any, result: Any) -> Any:
        for request_id, tokens in zip(result.req_ids, result.sampled_token_ids, strict=True):
            on_their_way[request_id] -= bool(tokens)
        return update(output, result)

    def reset_by_results(reset_running_requests: bool = False) -> Any:
        running = list(scheduler.running) if reset_running_requests else []
        done = reset(reset_running_requests=reset_running_requests)
        for request in running:
            request.async_tokens_to_discard = on_their_way[request.request_id]
        return done

    scheduler.schedule, scheduler.update_from_output = schedule_and_count, update_and_count
    scheduler.reset_prefix_cache = reset_by_results


def leave_void_results_alone(engine: Engine) -> None:
    """Let a result that is dropped change nothing. Upstream first takes its rejected drafts back, from a
    request that has begun anew."""
    scheduler = engine.scheduler
    update = scheduler.update_from_output

    def update_without_void(output: Any, result: Any) -> Any:
        sampled = list(result.sampled_token_ids)
        for index, request_id in enumerate(result.req_ids):
            request = scheduler.requests.get(request_id)
            if sampled[index] and getattr(request, "async_tokens_to_discard", 0):
                request.async_tokens_to_discard -= 1
                sampled[index] = []
        return update(output, replace(result, sampled_token_ids=sampled))

    scheduler.update_from_output = update_without_void


def void_results(engine: Engine) -> None:
    """Both of the last two."""
    leave_void_results_alone(engine)
    count_results(engine)


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
COUNTED = "a forced reset drops a result for each token in flight"
TAKEN_BACK = "a forced reset drops too many, and what they rejected is taken back all the same"
CAUSES = (
    Cause(WITHDRAWN, evict_uncomputed),
    Cause(TWICE, add_up_what_is_void),
    Cause(COUNTED, count_results),
    Cause(TAKEN_BACK, void_results),
    # The last, because it makes another world of it, in which another fault may not show by chance.
    Cause(EQUAL, world=lambda world: replace(world, distinct=True)),
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


def both(one: Cause, other: Cause) -> Cause:
    """Two repairs at once, for a world that two faults spoil."""

    def engine(made: Engine) -> None:
        for cause in (one, other):
            if cause.engine is not None:
                cause.engine(made)

    def changed(world: World) -> World:
        for cause in (one, other):
            world = cause.world(world) if cause.world is not None else world
        return world

    return Cause(f"{one.name}; and {other.name}", engine, changed)


def cause_of(world: World, make: Make) -> str:
    """The name of the first repair that helps, or of two at once; `UNKNOWN` if none do."""
    for cause in (*CAUSES, *(both(*pair) for pair in combinations(CAUSES, 2))):
        if goes_wrong(world, make, cause) is None:
            return cause.name
    return UNKNOWN
