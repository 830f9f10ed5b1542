"""Lab 02-08: the incident, its test and its mend. The reference solution."""

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
    """What the trace says. Steps and ids as in `incident/trace.jsonl`."""

    never_began: str
    never_ended: str
    outputs_of_it: int
    usable_blocks: int
    needless_from: int
    blocks_missing: int
    cause: str


class Engine(Protocol):
    """What `try_case` gets to see of an engine. Every request ignores EOS."""

    max_model_len: int
    outputs: dict[str, int]
    finished: dict[str, str]

    def add_request(self, request_id: str, prompt_tokens: int, max_tokens: int) -> None:
        """ValueError where it is refused, as any prompt of max_model_len tokens or more is."""

    def step(self) -> None:
        """One step of the scheduler, with everything sampled. Does nothing when there is no request."""


MakeEngine = Callable[[int, int, int], Engine]


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
    """Block 0 is the null block: of 32 blocks 31 can be given out, 496 tokens' worth, and the start let
    requests of 512 in."""
    return Diagnosis(
        never_began="contract-3",
        never_ended="minutes-6",
        outputs_of_it=27,
        usable_blocks=31,
        needless_from=198,
        blocks_missing=1,
        cause="E",
    )


ROOM = (BLOCKS - 1) * BLOCK_SIZE  # 28 tokens


def cases() -> list[Case]:
    """Requests at the boundary, under a max_model_len that has room and one that only seems to."""
    requests = (
        (ROOM, 1),  # the longest prompt that has room: its one output is never computed
        (ROOM + 1, 1),  # one more
        (ROOM - 3, 4),  # grows into the last slot
        (ROOM - 3, 5),  # and one token beyond
        (ROOM - 1, 9),  # would grow on, but max_model_len may stop it
        (3, 9),
    )
    lengths = (ROOM, BLOCKS * BLOCK_SIZE)
    return [Case(length, prompt, most) for length in lengths for prompt, most in requests]


def judge(case: Case, outcome: Outcome) -> None:
    """What an engine promised to the client, and to whoever stood behind."""
    length, prompt, max_tokens = case
    if not outcome.started:
        assert length > ROOM, f"will not start with max_model_len {length}"
        return
    limit = outcome.max_model_len
    assert limit >= min(length, ROOM), f"max_model_len is {limit}, {min(length, ROOM)} has room"
    what = f"a prompt of {prompt} with max_tokens {max_tokens}, max_model_len {limit},"
    total = min(prompt + max_tokens, limit)
    has_room = prompt < limit and total - 1 <= ROOM
    if outcome.refused:
        assert not has_room, f"{what} was refused, but has room"
        return
    assert outcome.ended, f"{what} was accepted and has not ended after {MOST_STEPS} steps"
    assert outcome.behind, f"{what} has ended, but who came behind it never did"
    assert outcome.behind == "length", f"{what} has ended, but who came behind was told of an error"
    if outcome.ended == "error":
        assert not has_room, f"{what} has room, and ended with an error"
    else:
        got = outcome.outputs
        assert got == total - prompt, f"{what} got {got} of {total - prompt} tokens"


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
    """The last token that is sampled ends the request, so it is never computed and needs no slot."""
    return cdiv(min(prompt_tokens + max_tokens, max_model_len) - 1, block_size)


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
    """ValueError unless the request, alone in the pool, can run to its limits."""
    check_values(prompt_tokens, max_tokens, num_gpu_blocks, block_size, max_model_len)
    needs = blocks_at_most(prompt_tokens, max_tokens, block_size, max_model_len)
    if needs > num_gpu_blocks - 1:
        raise ValueError(
            f"a prompt of {prompt_tokens} tokens with max_tokens {max_tokens} needs {needs} blocks of "
            f"{block_size} at its longest; of {num_gpu_blocks} blocks this engine can give "
            f"{num_gpu_blocks - 1}, because block 0 is never given out"
        )


def fit_max_model_len(num_gpu_blocks: int, block_size: int, longest: int) -> int:
    """As many tokens as there are slots, and one more that is never computed."""
    if num_gpu_blocks < 2:
        raise ValueError(f"num_gpu_blocks must be at least 2, got {num_gpu_blocks}")
    return min(longest, (num_gpu_blocks - 1) * block_size + 1)
