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
    blocks_wanted: int
    longest_prompt: int
    held_up: tuple[str, ...]
    needless_from: int
    blocks_missing: int
    cause: str


class Engine(Protocol):
    """What the test gets to see of an engine. Every request ignores EOS."""

    max_model_len: int
    outputs: dict[str, int]
    finished: dict[str, str]

    def add_request(self, request_id: str, prompt_tokens: int, max_tokens: int) -> None:
        """ValueError where it is refused, as any prompt of max_model_len tokens or more is."""

    def step(self) -> None:
        """One step of the scheduler, with everything sampled. Does nothing when nobody is there."""


MakeEngine = Callable[[int, int, int], Engine]


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
        blocks_wanted=32,
        longest_prompt=496,
        held_up=("mail-4", "greeting-5"),
        needless_from=198,
        blocks_missing=1,
        cause="E",
    )


BLOCK_SIZE, BLOCKS = 4, 8
ROOM = (BLOCKS - 1) * BLOCK_SIZE  # 28 tokens
LENGTHS = (ROOM, BLOCKS * BLOCK_SIZE)  # max_model_len: what has room, and what only seems to
CASES = (  # prompt tokens, max_tokens
    (ROOM, 1),  # the longest prompt that has room: its one output is never computed
    (ROOM + 1, 1),  # one more
    (ROOM - 3, 4),  # grows into the last slot
    (ROOM - 3, 5),  # and one token beyond
    (ROOM - 1, 9),  # would grow on, but max_model_len may stop it
    (3, 9),
)
MOST_STEPS = 60


def incident_test(make_engine: MakeEngine) -> None:
    """Requests at the boundary, each with another behind it, in a pool that just holds one."""
    for length in LENGTHS:
        refused = None
        try:
            make_engine(BLOCKS, BLOCK_SIZE, length)
        except ValueError as error:
            refused = error
        if refused is not None:
            assert length > ROOM, f"will not start with max_model_len {length}: {refused}"
            continue
        for prompt, max_tokens in CASES:
            _check_one(make_engine(BLOCKS, BLOCK_SIZE, length), length, prompt, max_tokens)


def _check_one(engine: Engine, length: int, prompt: int, max_tokens: int) -> None:
    """One request, and a short one behind it."""
    limit = engine.max_model_len
    assert limit >= min(length, ROOM), f"max_model_len is {limit}, {min(length, ROOM)} has room"
    what = f"a prompt of {prompt} with max_tokens {max_tokens}, max_model_len {limit},"
    total = min(prompt + max_tokens, limit)
    has_room = prompt < limit and total - 1 <= ROOM
    refused = None
    try:
        engine.add_request("first", prompt, max_tokens)
    except ValueError as error:
        refused = error
    if refused is not None:
        assert not has_room, f"{what} was refused, but has room: {refused}"
        return
    engine.add_request("behind", 1, 1)
    for _ in range(MOST_STEPS):
        engine.step()
    ended = engine.finished.get("first")
    assert ended is not None, f"{what} was accepted and has not ended after {MOST_STEPS} steps"
    behind = engine.finished.get("behind")
    assert behind is not None, f"{what} has ended, but who came behind it never did"
    assert behind == "length", f"{what} has ended, but who came behind it was told of an error"
    if ended == "error":
        assert not has_room, f"{what} has room, and ended with an error"
    else:
        got = engine.outputs["first"]
        assert got == total - prompt, f"{what} got {got} of {total - prompt} tokens"


def blocks_at_most(prompt_tokens: int, max_tokens: int, block_size: int, max_model_len: int) -> int:
    """The last token that is sampled ends the request, so it is never computed and needs no slot."""
    return cdiv(min(prompt_tokens + max_tokens, max_model_len) - 1, block_size)


def admit(
    prompt_tokens: int,
    max_tokens: int,
    *,
    num_gpu_blocks: int,
    block_size: int,
    max_model_len: int,
) -> None:
    """ValueError unless the request, alone in the pool, can run to its limits."""
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
