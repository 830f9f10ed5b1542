"""Lab 02-08: find the cause in a log and a trace, catch it in a test, mend it. Your part."""

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
        blocks_wanted: the blocks that `never_began` needed to be admitted.
        longest_prompt: tokens in the longest prompt that this engine could have begun.
        held_up: who waited behind `never_began` in the queue, in that order.
        needless_from: mail-7 waited at first because the pool was full, which is nobody's fault. The
            first step in which it still got nothing although all its tokens would have fitted and
            nobody was preempted.
        blocks_missing: with so many blocks more, and max_model_len as it was, every request that this
            engine accepts would have run.
        cause: a key of CAUSES.
    """

    never_began: str
    never_ended: str
    outputs_of_it: int
    usable_blocks: int
    blocks_wanted: int
    longest_prompt: int
    held_up: tuple[str, ...]
    needless_from: int
    blocks_missing: int
    cause: str


class Engine(Protocol):
    """What your test gets to see of an engine. Every request ignores EOS.

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
        """One step of the scheduler, with everything sampled. Does nothing when nobody is there."""


MakeEngine = Callable[[int, int, int], Engine]
"""(num_gpu_blocks, block_size, max_model_len) to a new engine; ValueError where it will not start.

vLLM 0.22.1 will not where max_model_len is more than all blocks together, `num_gpu_blocks * block_size`.
"""


def diagnose() -> Diagnosis:
    """Your answers, as numbers and ids: `return Diagnosis(never_began="…", …)`.

    Read `incident/server.log` and `incident/trace.jsonl`, by eye or by program; the README says what the
    fields of the trace mean.
    """
    raise NotImplementedError


def incident_test(make_engine: MakeEngine) -> None:
    """The test that would have caught it. Return for an engine that is right, AssertionError for one
    that is not.

    An engine is right if

    - a request that it accepts ends, within steps that you bound: with all its tokens, or with "error".
      All are `min(max_tokens, max_model_len - prompt)`;
    - so do the requests that came behind it;
    - it does not refuse, nor end with "error", what its pool has room for, be that full just now or not:
      who has to wait is waited for. "Room" is what the engine that
      you tested gave out in the incident, no more: it was built for 32 blocks, and the trace tells how many
      it could give;
    - it starts, and keeps the `max_model_len` that you ask for, if so many tokens have room. If not, it may
      refuse to start (ValueError from `make_engine`) or lower it, but not below what has room. Whether it
      reckons a slot for a sequence's last token *here* is its own business: either is right.

    Where exactly a thing goes wrong by one, only the case at the boundary can tell. So try requests that
    just fit and requests that just do not: by their prompts, by growing, and some that only `max_model_len`
    or only `max_tokens` stops in time. Choose a small pool and small blocks. Each engine may be asked for
    3,000 steps and no more.

    Args:
        make_engine: call it as often as you like; each engine is new.
    """
    raise NotImplementedError


def blocks_at_most(prompt_tokens: int, max_tokens: int, block_size: int, max_model_len: int) -> int:
    """The most blocks that a request can come to hold, if nothing but its limits ends it.

    A token needs a slot once it is *computed*. The whole prompt is; of the outputs, look at the trace: how
    many of its tokens has a request computed when it finishes? (The line before has `computed`, and the
    last one what it scheduled.)

    Args:
        prompt_tokens: 1 to max_model_len - 1.
        max_tokens: the output tokens asked for, at least 1. Of these, max_model_len may allow fewer.
        block_size: tokens a block.
        max_model_len: tokens of prompt and output together at which a request ends.
    """
    raise NotImplementedError


def admit(
    prompt_tokens: int,
    max_tokens: int,
    *,
    num_gpu_blocks: int,
    block_size: int,
    max_model_len: int,
) -> None:
    """The mend, at the door: return if the request can always run to its end, else ValueError.

    It refuses exactly those requests that, run to their limits, need more blocks than such an engine can
    give one request that has it to itself. The message of the error holds `needs N blocks` and
    `can give M`, so that the client learns what to change.

    Before that, ValueError for values that no request or engine has, with the name and the value in the
    message (`max_tokens … 0`): anything below 1, and a prompt that leaves no room for an output token,
    that is, of `max_model_len` tokens or more.

    Args:
        num_gpu_blocks: what the engine was started with: `incident/` has 32.
    """
    raise NotImplementedError


def fit_max_model_len(num_gpu_blocks: int, block_size: int, longest: int) -> int:
    """The mend, at the start: the largest max_model_len under which `admit` never has to refuse.

    Args:
        num_gpu_blocks: as above.
        block_size: tokens a block.
        longest: the model's own limit, at least 2; the answer is never above it.

    Raises ValueError, with num_gpu_blocks and its value in the message, if the pool is too small for one
    token of prompt and one of output.
    """
    raise NotImplementedError
