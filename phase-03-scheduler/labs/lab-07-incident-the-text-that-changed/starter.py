"""Lab 03-07: find the cause in log and trace, catch it in a test, fix it. Your part."""

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
    """What the trace says. Steps, blocks, positions and ids as in `incident/tuesday.jsonl`.

    Attributes:
        changed: Tuesday's requests with a different answer than on Wednesday, when the same question was
            asked alone.
        withdrawn_in: the step that scheduled tokens for a request and took them back before computing them.
        victim: that request.
        block: the block that this step published, that no step computed for the victim, and that is still
            published when the victim comes back.
        found: the number of tokens that the victim found in the cache when it came back.
        computed: how many of the victim's tokens had been computed before `withdrawn_in`.
        written_by: the request whose keys and values were in `block` when the victim read it.
        cause: a key of CAUSES.
    """

    changed: tuple[str, ...]
    withdrawn_in: int
    victim: str
    block: int
    found: int
    computed: int
    written_by: str
    cause: str


class Engine(Protocol):
    """What your test gets to see of an engine. Policy `priority`, greedy, every request ignores EOS.

    It has no weights, but it has a KV cache: what a slot holds depends on the token and on what was read
    before it, and the next token depends on everything that was read. So the same request always gets the
    same tokens, unless it reads something that is not its own.

    Attributes:
        outputs: the output tokens so far, by request id.
        finished: the ids of requests that have ended.
        found: how many tokens each request found in the prefix cache, by request id, one number for each
            admission: `[0, 8]` was admitted, preempted, and found 8 when it came back.
        preempted: the ids of the victims so far, in order, with repetitions.
    """

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
        """A request arrives now. A lower priority is more important; salt 0 means none.

        Prompt and output are at most 64 tokens together, and need no more blocks than there are, which is
        one less than `num_gpu_blocks`; ValueError otherwise.
        """

    def step(self) -> dict[str, tuple[int, int]]:
        """Run one step. Returns the positions [first, end) computed, by request; empty without requests."""


MakeEngine = Callable[[int, int, int], Engine]
"""Makes a new engine from (num_gpu_blocks, block_size, chunk).

`chunk` is the `long_prefill_token_threshold`, 0 for none. A step holds 64 tokens, and 8 requests may run.
"""


def diagnose() -> Diagnosis:
    """Your answers, as numbers and ids: `return Diagnosis(changed=("…",), …)`.

    Read `incident/`, by eye or by program; the README says what the fields of the trace mean.
    """
    raise NotImplementedError


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


def incident_test(make_engine: MakeEngine) -> None:
    """The test that would have caught it. Return for an engine that is right; raise AssertionError for one
    that is not.

    An engine is right if

    - every request ends, with all its tokens, and they are the tokens that it gets alone. (Alone: in a new
      engine, with room for it and no other request.) This also holds for a later request with the same text;
    - a request that is admitted, for the first time or again, finds at least the whole blocks of its prompt
      that *earlier* steps have computed, for itself or for another request with the same tokens and the same
      salt, unless these blocks have been given to another request since. A prompt's last token is always
      computed anew. What the same step computes it may find or not;
    - no request finds anything that was computed under another salt.

    Which request it preempts, and in which order it serves them, is up to the engine. So where your test
    says how much a request finds when it comes back, it must not insist that it was preempted.

    Play the cases of `GIVEN` and one of your own: even a test that checks all that an engine promises lets
    one of the twelve bad fixes pass with the given cases alone. The failing test's message names that fix
    and says what it does. Each engine may run at most 3,000 steps.

    Args:
        make_engine: call it as often as you like; each engine is new.
    """
    raise NotImplementedError


class MendedScheduler(UpstreamScheduler):
    """The pin's scheduler, fixed.

    After the fix no request finds what was not computed, and what was computed is found as before: whole
    blocks that earlier steps filled stay published, whichever request holds them. The order of decisions
    stays as it is.

    `UpstreamScheduler` is `mini_vllm`'s scheduler with what vLLM 0.22.1 does in the incident. You can use
    `self.kv_cache_manager.get_block_ids(request_id)[0]`, a list in the order of the table (`[0]`: of the
    lists, one for each KV cache group, the only one);
    `self.kv_cache_manager.evict_blocks(block_ids)`, which takes a set of blocks, removes their hashes and
    leaves the blocks with the requests that hold them; and `self.config.block_size`.
    """

    def _evict_uncomputed_blocks(self, request: Request) -> None:
        """Called for a victim for which this step has scheduled tokens, when these are taken back and before
        its blocks are freed (`_preempt_request`). In the pin's scheduler it does nothing.

        If you would rather fix the fault elsewhere, remove this method.

        Args:
            request: the victim. Its `num_computed_tokens` advances only when the step's schedule is complete.
        """
        raise NotImplementedError
