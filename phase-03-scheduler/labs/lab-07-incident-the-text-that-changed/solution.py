"""Lab 03-07: the incident, its test and its mend. The reference solution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from mini_vllm.core.request import Request
from mini_vllm.core.sched.upstream_scheduler import UpstreamScheduler

CAUSES = {
    "A": "Two requests held the same block at the same time.",
    "B": "Two different texts had the same hash, so that one was found for the other.",
    "C": "The salt was not part of the hash, so that another person's prefix was found.",
    "D": "A block was published for a computation that did not take place.",
    "E": "After the preemption tokens were computed again at wrong positions.",
    "F": "The preemption dropped tokens, so that the request went on with another prompt.",
}


class Diagnosis(NamedTuple):
    """What the trace says. Steps, blocks, positions and ids as in `incident/tuesday.jsonl`."""

    changed: tuple[str, ...]
    withdrawn_in: int
    victim: str
    block: int
    found: int
    computed: int
    written_by: str
    cause: str


class Engine(Protocol):
    """What the test gets to see of an engine. Every request ignores EOS."""

    outputs: dict[str, list[int]]
    finished: set[str]
    found: dict[str, list[int]]
    preempted: list[str]

    def add_request(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int,
        priority: int = 0,
        salt: int = 0,
    ) -> None:
        """It arrives now. A lower priority is more important; salt 0 is none."""

    def step(self) -> dict[str, tuple[int, int]]:
        """One step; the positions [first, end) that it computed, by request."""


MakeEngine = Callable[[int, int, int], Engine]


def diagnose() -> Diagnosis:
    """In step 6 Gil was given positions 64 to 95 and blocks 2 and 1 for them, both published; then hal-3
    needed a block. Block 1 went to Hal. Block 2 stayed, under Gil's hash, with what Eve had left there."""
    return Diagnosis(
        changed=("gil-2", "gil-4"),
        withdrawn_in=6,
        victim="gil-2",
        block=2,
        found=80,
        computed=64,
        written_by="eve-1",
        cause="D",
    )


# -- given for your test: workloads, and a run of one ----------------------------------------------

ROOMY = (40, 2, 0)  # for `make_engine`: room for anybody alone, whose prompt then comes as a whole
MOST_STEPS = 80


class Job(NamedTuple):
    """A request of a case. It arrives before that step; the rest is as in `add_request`."""

    arrives: int
    prompt: list[int]
    max_tokens: int
    priority: int = 0
    salt: int = 0


class Case(NamedTuple):
    """A workload, and the engine that it is for."""

    num_gpu_blocks: int
    block_size: int
    chunk: int
    jobs: dict[str, Job]


def run(engine: Engine, jobs: dict[str, Job]) -> Engine:
    """Play the jobs on the engine for MOST_STEPS steps, and return it."""
    for step in range(MOST_STEPS):
        for name, job in jobs.items():
            if job.arrives == step:
                engine.add_request(name, *job[1:])
        engine.step()
    return engine


def words(first: int, count: int) -> list[int]:
    """A prompt: `count` tokens, no two alike."""
    return list(range(first, first + count))


LOW = words(10, 18)
GIVEN = (
    # The incident, small. `again` asks the same while `low` waits, `other` under another salt.
    Case(
        9,
        2,
        4,
        {
            "low": Job(0, LOW[:12], 4, 5, 1),
            "high": Job(1, words(30, 4), 2),
            "again": Job(3, LOW[:12], 4, 0, 1),
            "other": Job(20, LOW[:12], 4, 9, 2),
        },
    ),
    # Three blocks are withdrawn, and `twin` has the tokens of the first of them and computes it, too.
    Case(
        16,
        2,
        6,
        {
            "low": Job(0, LOW, 2, 5),
            "twin": Job(1, LOW[:14] + words(60, 4), 3),
            "high": Job(1, words(30, 4), 3),
        },
    ),
)


# Chunks that end inside a block: the withdrawn step was to fill one that `low` had already.
HALF_A_BLOCK = Case(9, 2, 3, {"low": Job(0, LOW[:12], 4, 5), "high": Job(1, words(30, 4), 3)})
CASES = (*GIVEN, HALF_A_BLOCK)
FINDS = (8, 14, 8)  # what `low` finds at least whenever it comes back


def incident_test(make_engine: MakeEngine) -> None:
    """Everybody says what they say alone, and finds what is there and theirs."""
    for case, finds in zip(CASES, FINDS, strict=True):
        engine = run(make_engine(*case[:3]), case.jobs)
        for name, job in case.jobs.items():
            assert name in engine.finished, f"{name} has not ended after {MOST_STEPS} steps"
            alone = run(make_engine(*ROOMY), {name: job})
            got, right = engine.outputs[name], alone.outputs[name]
            assert got == right, f"{name} says {got} in company, and {right} alone"
            assert len(got) == job.max_tokens, f"{name} got {len(got)} of {job.max_tokens} tokens"
        for found in engine.found["low"][1:]:
            assert found >= finds, f"low came back and found {found} of {finds} tokens"
        if "other" in case.jobs:
            found = engine.found["other"][0]
            assert found == 0, f"other found {found} tokens of another salt"


class MendedScheduler(UpstreamScheduler):
    """The pin's, but that a victim keeps no hash on what the withdrawn plan was to compute."""

    def _evict_uncomputed_blocks(self, request: Request) -> None:
        """`num_computed_tokens` has not moved yet, so it tells what earlier steps computed."""
        block_ids = self.kv_cache_manager.get_block_ids(request.request_id)[0]
        num_computed_blocks = request.num_computed_tokens // self.config.block_size
        self.kv_cache_manager.evict_blocks(set(block_ids[num_computed_blocks:]))
