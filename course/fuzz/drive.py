"""A world from its first turn to its last, and what is checked on the way.

A turn is one call of the engine's step: `EngineCore.step` in mode `sync`, and
`EngineCore.step_with_batch_queue`, with two places as a rule, in the others, written out here because the
original wants an executor and a model (`vllm/v1/engine/core.py`).
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from course.fuzz.engine import Engine, Leak
from course.fuzz.memory import Memory, Plan, Wrong, WrongPlan, WrongSlot
from course.fuzz.world import Job, Speculation, World, answer

QUIET = 40  # turns in which nothing at all happens while somebody waits

Make = Callable[[World], Engine]


class WrongTokens(Wrong):
    """A request gave other tokens than it gives alone."""


class NoProgress(Wrong):
    """A workload that should have ended long ago still runs."""


class Crash(Wrong):
    """The scheduler raised."""


__all__ = ["Crash", "Leak", "NoProgress", "Run", "WrongPlan", "WrongSlot", "WrongTokens", "play"]


@dataclass
class Turn:
    """For a report: what a turn planned, who was preempted, and whose tokens came in."""

    planned: dict[str, tuple[int, int]]  # id -> (start, tokens)
    preempted: list[str]
    taken_in: dict[str, list[int]]


class Run:
    """A world on an engine, turn by turn.

    Attributes:
        steps: calls of `schedule()` so far.
        given: request id -> the tokens that its user has.
        log: what happened, if `keep_log`.
    """

    def __init__(self, world: World, make: Make, keep_log: bool = False) -> None:
        s = world.settings
        self.world = world
        self.engine = make(world)
        self.memory = Memory(
            s.num_blocks,
            s.block_size,
            s.max_model_len,
            world.vocabulary,
            world.speculation,
            ahead=world.mode != "sync",
        )
        self.memory.salts = self.engine.salts
        self.queue: deque[tuple[Any, Plan, list[list[int]]]] = deque()
        self.steps = self.turn = 0
        self.preemptions = 0
        self.given: dict[str, list[int]] = {}
        self.jobs: dict[str, Job] = {}
        self.ended: set[str] = set()
        self.log: list[Turn] | None = [] if keep_log else None
        self._planned = self._quiet = 0  # requests in the latest plan; turns without any
        self._known, self._since = (0, 0), (0, 0)  # what has come of it, and since when no more

    # -- turns

    def play(self, jobs: tuple[Job, ...], name: str = "") -> None:
        """Let jobs arrive and go on until all have ended. Their turns count from now."""
        world, first = self.world, self.turn
        alone = sum(job.n * (len(job.prompt) + job.max_tokens) for job in jobs)
        patience = 60 + 3 * alone
        last = first + max(max(job.arrive, job.abort or 0) for job in jobs)
        last = max([last, *(turn for turn, _ in world.resets if not name)])
        while self.turn <= last or self.engine.has_requests or self.queue:
            at = self.turn - first
            late: list[str] = []
            for index, job in enumerate(jobs):
                ids = [f"{child}_{name}{index}" for child in range(job.n)]
                if job.arrive == at:
                    self._add(ids, job, float(first + at))
                if job.abort == at:
                    (late.extend if job.late else self._abort)(ids)
            if not name:
                for turn, running in world.resets:
                    if turn == at:
                        self.engine.reset_prefix_cache(running)
                        if running:
                            self.memory.forget_tables()
            self.step(late)
            self._watch(patience)
            self.turn += 1
        self.check_end()

    def step(self, late: list[str]) -> None:
        """One turn of the engine; `late` are aborted between a batch and the news of it."""
        engine, happened = self.engine, Turn({}, [], {})
        if self.log is not None:
            self.log.append(happened)
        if engine.has_requests:
            output, plan = engine.schedule()
            self.steps += 1
            self._planned = len(plan.entries)
            self._check_plan(plan)
            happened.planned = {e.request_id: (e.start, e.num_tokens) for e in plan.entries}
            happened.preempted = sorted(plan.preempted)
            self.preemptions += len(plan.preempted)
            self.queue.append((output, plan, self.memory.execute(plan)))
            if engine.published is not None:
                self._check_published(engine.published)
            if plan.entries and len(self.queue) < self.world.in_flight and not self._is_done():
                self._abort(late)
                return
        elif not self.queue:
            return
        output, plan, sampled = self.queue.popleft()
        self._abort(late)
        happened.taken_in = engine.update(output, plan, sampled)
        self.memory.hear(plan)
        if self.world.speculation is not None and self.world.mode == "sync":
            self._propose(plan, self.world.speculation)
        for request_id, tokens in happened.taken_in.items():
            self.given[request_id] += tokens

    def _propose(self, plan: Plan, spec: Speculation) -> None:
        """Drafts for the next step, or now and then, where drafts run short, not even an empty list."""
        if hash((self.turn, 14)) % 200 < spec.short:
            self.memory.drop_drafts(plan)
        else:
            self.engine.propose(plan, self.memory.proposals(plan))

    def _is_done(self) -> bool:
        """Is the device done with the oldest batch when the engine looks?"""
        mode = self.world.mode
        return mode in ("sync", "early") or (mode == "mixed" and hash((self.turn, 5)) % 3 == 0)

    def _add(self, ids: list[str], job: Job, at: float) -> None:
        for request_id in ids:
            arrival = at + len(self.jobs) / 4096 if self.world.distinct else at
            self.jobs[request_id], self.given[request_id] = job, []
            self.engine.add(request_id, job, arrival)

    def _abort(self, ids: list[str]) -> None:
        known = [request_id for request_id in ids if request_id in self.engine.requests]
        if known:
            self.engine.abort(known)

    # -- checks

    def _check_plan(self, plan: Plan) -> None:
        s, engine = self.world.settings, self.engine
        total = sum(entry.num_tokens for entry in plan.entries)
        if total > self.world.budget or len(engine.scheduler.running) > s.max_num_seqs:
            raise WrongPlan(f"{total} tokens for {len(engine.scheduler.running)} running requests")
        for entry in plan.entries:
            # A reset preempts everybody, and who is admitted again at once gets a new table (0.28 on
            # lists both in one plan).
            if entry.request_id in plan.preempted and not entry.whole_table:
                raise WrongPlan(f"{entry.request_id} is planned and preempted at once")

    def _check_published(self, published: dict[int, list[int]]) -> None:
        """What may be found in the prefix cache is what its hash was made of: no rejected draft."""
        size, slots = self.memory.block_size, self.memory.slots
        for block_id, right in list(published.items()):
            if self.engine.pool.blocks[block_id].block_hash is None:
                del published[block_id]
            elif slots[block_id * size : (block_id + 1) * size] != right:
                raise WrongSlot(f"block {block_id} is published, and holds something else")

    def _watch(self, patience: int) -> None:
        """Raise NoProgress if no user has got anything for long, or nothing is even planned."""
        engine = self.engine
        given = sum(map(len, self.given.values())) + len(engine.requests)
        known = (given, len(engine.scheduler.requests))
        if known != self._known:
            self._known, self._since = known, (self.turn, self.preemptions)
        idle = engine.scheduler.has_unfinished_requests() and not self.queue
        self._quiet = self._quiet + 1 if idle and not self._planned else 0
        turns, preemptions = self.turn - self._since[0], self.preemptions - self._since[1]
        if self._quiet <= QUIET and turns <= patience:
            return
        waiting, free = sorted(engine.scheduler.requests), engine.pool.get_num_free_blocks()
        how = "stuck" if self._quiet > QUIET else "thrash" if preemptions else "slow"
        raise NoProgress(
            f"{how}: no token for {turns} turns, in which {preemptions} requests were preempted; "
            f"{waiting} are unfinished, {free} blocks are free"
        )

    def check_end(self) -> None:
        """Every request has given what it gives alone, and nothing is held any more."""
        for request_id, tokens in self.given.items():
            job = self.jobs[request_id]
            right = answer(job, self.world.settings, self.world.vocabulary)
            kept = list(self.engine.requests[request_id].output_token_ids)
            if job.abort is not None:
                right, kept = right[: len(tokens)], kept[: len(tokens)]
            if tokens != right or kept != right:
                raise WrongTokens(
                    f"{request_id} gave {tokens} and kept {kept}; alone it is {right}"
                )
        self.engine.check_drained()


def play(world: World, make: Make, keep_log: bool = False) -> Run:
    """A world to its end. Raises Wrong, with the run so far as its attribute `run`."""
    run = Run(world, make, keep_log)
    try:
        run.play(world.jobs)
        if world.probes:
            run.play(_probes(world), "again")
    except Wrong as error:
        error.run = run  # type: ignore[attr-defined]
        raise
    except Exception as error:
        found = Crash(_place(error))
        found.run = run  # type: ignore[attr-defined]
        raise found from error
    return run


def _probes(world: World) -> tuple[Job, ...]:
    """Every job again, one after the other, with its answer in the prompt: they read what was left."""
    probes = []
    for index, job in enumerate(world.jobs):
        tokens = (*job.prompt, *answer(job, world.settings, world.vocabulary))
        room = min(
            world.settings.max_model_len, (world.least_blocks - 1) * world.settings.block_size
        )
        prompt = tokens[: room - 1]
        if prompt:
            probes.append(
                replace(job, prompt=prompt, max_tokens=1, arrive=3 * index, abort=None, n=1)
            )
    return tuple(probes)


def _place(error: Exception) -> str:
    """The exception, and the innermost line of the scheduler's own code that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if "/vllm/" in f.filename or "/mini_vllm/" in f.filename]
    at = f" in {Path(inside[-1].filename).name} {inside[-1].name}" if inside else ""
    return f"{type(error).__name__}: {error}{at}"
