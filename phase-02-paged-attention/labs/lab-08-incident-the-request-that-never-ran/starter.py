"""Lab 02-08: find the cause in a log and a trace, catch it in a test, fix it. Your part."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

CAUSES = {
    "A": "The pool was full: others held the blocks that the request needed.",
    "B": "The request was longer than max_model_len and should have been refused at the door.",
    "C": "Finished requests had not given back all their blocks.",
    "D": "The prefix cache held the blocks and did not let go of them.",
    "E": "What was checked at the start is not what can be given out.",
    "F": "Two requests preempted each other, again and again.",
}


class Diagnosis(NamedTuple):
    """What the trace says. Steps and ids as in `incident/trace.jsonl`.

    Attributes:
        never_began: the request that was accepted and never got a token's worth of work.
        never_ended: the one that was accepted, did begin, and never came to its end.
        outputs_of_it: the output tokens that `never_ended` had when it stopped getting on.
        usable_blocks: the most blocks that were free at any time.
        needless_from: mail-7 waited at first because the pool was full, which is no fault. The
            first step in which it still got nothing although all its tokens would have fitted and
            no request was preempted.
        blocks_missing: with this many more blocks, and max_model_len as it was, every request that this
            engine accepts would have run.
        cause: a key of CAUSES.
    """

    never_began: str
    never_ended: str
    outputs_of_it: int
    usable_blocks: int
    needless_from: int
    blocks_missing: int
    cause: str


class Engine(Protocol):
    """What `try_case` gets to see of an engine. Every request ignores EOS.

    Attributes:
        max_model_len: the most tokens of a sequence, prompt and output. May be less than was asked for.
        outputs: request id to output tokens so far.
        finished: request id to how it ended: "length" (all its tokens) or "error" (its client was told
            that it cannot be served). Not there: it has not ended.
    """

    max_model_len: int
    outputs: dict[str, int]
    finished: dict[str, str]

    def add_request(self, request_id: str, prompt_tokens: int, max_tokens: int) -> None:
        """ValueError where it is refused, as any prompt of max_model_len tokens or more is."""

    def step(self) -> None:
        """One step of the scheduler, with everything sampled. Does nothing when there is no request."""


MakeEngine = Callable[[int, int, int], Engine]
"""(num_gpu_blocks, block_size, max_model_len) to a new engine; ValueError where it will not start.

vLLM 0.22.1 will not where max_model_len is more than all blocks together, `num_gpu_blocks * block_size`.
"""


class Case(NamedTuple):
    """One request for an engine of BLOCKS blocks of BLOCK_SIZE tokens, started with this max_model_len."""

    max_model_len: int
    prompt_tokens: int
    max_tokens: int


class Outcome(NamedTuple):
    """What became of a case.

    Attributes:
        started: False if the engine would not start; then the rest says nothing.
        max_model_len: the engine's, which may be less than the case asks for.
        refused: the request was refused at the door; then what follows says nothing.
        ended, outputs: how it ended, None if not within MOST_STEPS, and its output tokens.
        behind: how the request behind it ended, likewise. That one has 1 token and wants 1.
    """

    started: bool
    max_model_len: int = 0
    refused: bool = False
    ended: str | None = None
    outputs: int = 0
    behind: str | None = None


BLOCKS, BLOCK_SIZE = 8, 4
MOST_STEPS = 60


def cdiv(a: int, b: int) -> int:
    """`a / b` rounded up."""
    return -(a // -b)


def diagnose() -> Diagnosis:
    """Your answers, as numbers and ids: `return Diagnosis(never_began="…", …)`.

    Read `incident/server.log` and `incident/trace.jsonl`, by eye or by program; the README says what the
    fields of the trace mean.
    """
    raise NotImplementedError


def cases() -> list[Case]:
    """The requests that `incident_test` tries.

    Only a case at the boundary can show an error of one. So try requests that
    just fit and requests that just do not: by their prompts, by growing, and some that only `max_model_len`
    or only `max_tokens` stops in time. `max_model_len` is from 2 to what all BLOCKS together hold. 20 cases
    are plenty.
    """
    raise NotImplementedError


def judge(case: Case, outcome: Outcome) -> None:
    """Return if the engine handled this case right, AssertionError if it did not.

    An engine is right if

    - a request that it accepts ends: with all its tokens, or with "error". All are
      `min(max_tokens, max_model_len - prompt)`, with the engine's own max_model_len;
    - the request behind it gets its token;
    - it does not refuse, nor end with "error", what its pool has room for. "Room" is what the engine of the
      incident gave out, no more: it was built for 32 blocks, and the trace tells how many it could give;
    - it starts, and keeps the `max_model_len` that the case asks for, if so many tokens have room. If not, it
      may refuse to start or lower it, but not below what has room. Whether it reckons a slot for a
      sequence's last token *here* is its own business: either is right.
    """
    raise NotImplementedError


def try_case(make_engine: MakeEngine, case: Case) -> Outcome:
    """Run a case on a new engine, with a short request behind it. Given."""
    try:
        engine = make_engine(BLOCKS, BLOCK_SIZE, case.max_model_len)
    except ValueError:
        return Outcome(started=False)
    limit = engine.max_model_len
    try:
        engine.add_request("first", case.prompt_tokens, case.max_tokens)
    except ValueError:
        return Outcome(True, limit, refused=True)
    engine.add_request("behind", 1, 1)
    for _ in range(MOST_STEPS):
        engine.step()
    ends = engine.finished
    return Outcome(
        True, limit, False, ends.get("first"), engine.outputs["first"], ends.get("behind")
    )


def incident_test(make_engine: MakeEngine) -> None:
    """The test that would have caught it: AssertionError for an engine that is not right. Given."""
    for case in cases():
        judge(case, try_case(make_engine, case))


def blocks_at_most(prompt_tokens: int, max_tokens: int, block_size: int, max_model_len: int) -> int:
    """The most blocks that a request can come to hold, if nothing but its limits ends it.

    A token needs a slot once it is *computed*. The whole prompt is; of the outputs, look at the trace: how
    many of its tokens has a request computed when it finishes? (The line before has `computed`, and the
    last one what it scheduled.)

    Args:
        prompt_tokens: 1 to max_model_len - 1.
        max_tokens: the output tokens asked for, at least 1. Of these, max_model_len may allow fewer.
        block_size: tokens per block.
        max_model_len: tokens of prompt and output together at which a request ends.
    """
    raise NotImplementedError


def check_values(
    prompt_tokens: int, max_tokens: int, num_gpu_blocks: int, block_size: int, max_model_len: int
) -> None:
    """ValueError for what no request and no engine has: a value below 1, or a prompt that leaves no room for
    an output token. Given."""
    values = {
        "prompt_tokens": prompt_tokens,
        "max_tokens": max_tokens,
        "num_gpu_blocks": num_gpu_blocks,
        "block_size": block_size,
        "max_model_len": max_model_len,
    }
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if prompt_tokens >= max_model_len:
        raise ValueError(
            f"prompt_tokens must be below max_model_len {max_model_len}, got {prompt_tokens}"
        )


def admit(
    prompt_tokens: int,
    max_tokens: int,
    *,
    num_gpu_blocks: int,
    block_size: int,
    max_model_len: int,
) -> None:
    """The fix, at the door: return if the request can always run to its end, else ValueError.

    It refuses exactly those requests that, run to their limits, need more blocks than such an engine can
    give one request that has it to itself. The message of the error holds `needs N blocks` and
    `can give M`, so that the client learns what to change.

    Before that, `check_values` must accept the values.

    Args:
        num_gpu_blocks: what the engine was started with: `incident/` has 32.
    """
    raise NotImplementedError


def fit_max_model_len(num_gpu_blocks: int, block_size: int, longest: int) -> int:
    """The fix, at the start: the largest max_model_len under which `admit` never has to refuse.

    Args:
        num_gpu_blocks: as above.
        block_size: tokens per block.
        longest: the model's own limit, at least 2; the answer is never above it.

    Raises ValueError, with num_gpu_blocks and its value in the message, if the pool is too small for one
    token of prompt and one of output.
    """
    raise NotImplementedError
