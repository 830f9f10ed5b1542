"""What the exercises that change the engine measure: run it before the change, and after it.

    python phase-02-paged-attention/changes_02.py {visitors,turns,together}

No model runs: a prompt's blocks are found or not, whatever stands in them. Blocks hold 16 tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from both_pools import CONFIG, World

from course.parity.decisions import mini_parts


def new_world(blocks: int) -> World:
    """A pool with so many blocks to give out."""
    sizes = {"block_size": 16, "num_blocks": blocks + 1, "max_num_seqs": 8}
    tokens = {"max_num_batched_tokens": 8192, "max_model_len": 2048}
    return World(mini_parts(CONFIG | sizes | tokens))


def found(blocks: int, prompts: Iterable[Sequence[int]]) -> str:
    """One prompt after the other, for one token of answer each: how many tokens the cache had."""
    world, there, all_tokens = new_world(blocks), 0, 0
    for number, prompt in enumerate(prompts):
        world.ask(str(number), prompt, max_tokens=1)
        all_tokens += len(prompt)
        there += len(prompt) - world.step()[str(number)]
    return f"{there:6,} of {all_tokens:,} tokens found"


def text(name: int, tokens: int) -> list[int]:
    """A prompt that shares no block with another's."""
    return [1000 * name + position for position in range(tokens)]


def visitors() -> None:
    """A document of 40 blocks every 30 requests, the others of 10 tokens, in a pool of 63 blocks."""
    prompts = [text(n if n % 30 else 0, 10 if n % 30 else 640) for n in range(300)]
    print("a document, visitors  ", found(63, prompts))


def turns() -> None:
    """Documents of ten blocks in a pool of 100, in turn: twelve; nine, and from some day on nine others."""
    print("12 documents in turn  ", found(100, [text(n % 12, 160) for n in range(60)]))
    days = [text(day * 9 + n % 9, 160) for day in range(2) for n in range(45)]
    print("9, then 9 others      ", found(100, days))


def together() -> None:
    """Eight requests with one prompt of 1,000 tokens, at once and a step apart: tokens computed."""
    for title, apart in (("at once", False), ("a step apart", True)):
        world, computed = new_world(600), 0
        for number in range(8):
            world.ask(str(number), text(1, 1000))
            if apart:
                computed += sum(world.step().values())
        while world.scheduler.has_unfinished_requests():
            computed += sum(world.step().values())
        print(f"{title:12} {computed:6,} tokens computed")


if __name__ == "__main__":
    {"visitors": visitors, "turns": turns, "together": together}[sys.argv[1]]()
