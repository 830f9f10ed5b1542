"""Statements and questions about small numbers, true because the program computes them.

The numbers stay small and come back often: a model of 0.8 million weights learns them by heart
more than it learns to count.
"""

from __future__ import annotations

import random
from collections.abc import Callable

# A kind returns (statement, question, answer).
Triple = tuple[str, str, str]


def count(n: int, noun: str) -> str:
    """`1 block`, `3 blocks`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def blocks_of_prompt(rng: random.Random) -> Triple:
    """How many blocks of 16 a prompt needs."""
    tokens = rng.randint(1, 100)
    full, rest = divmod(tokens, 16)
    need = full + (rest > 0)
    lead = rng.choice(["A prompt", "A request"])
    text = f"{lead} of {count(tokens, 'token')} needs {count(need, 'block')} of 16."
    if rest == 0:
        tail = "All of them are full." if need > 1 else "It is full."
    elif full == 0:
        tail = f"It is partly empty, with {count(rest, 'token')} in it."
    else:
        filled = (
            f"{count(full, 'full block')} {'holds' if full == 1 else 'hold'} {full * 16} tokens"
        )
        tail = f"{filled}, and the last one holds {rest}."
    return (
        f"{text} {tail}",
        f"How many blocks of 16 does a prompt of {count(tokens, 'token')} need?",
        f"It needs {count(need, 'block')}. {tail}",
    )


def capacity(rng: random.Random) -> Triple:
    """How many tokens some blocks hold."""
    blocks, size = rng.randint(2, 12), rng.choice([8, 16, 32])
    total = blocks * size
    text = rng.choice(
        [
            f"{blocks} blocks of {size} hold {total} tokens, since {blocks} × {size} = {total}.",
            f"With {size} tokens per block, {blocks} blocks hold {total} tokens.",
        ]
    )
    return text, f"How many tokens do {blocks} blocks of {size} hold?", f"They hold {total} tokens."


def chunks(rng: random.Random) -> Triple:
    """How many steps a chunked prefill takes."""
    budget = rng.choice([64, 128, 256, 512])
    steps = rng.randint(1, 6)
    prompt = budget * steps
    text = (
        f"With a budget of {budget} tokens, a prompt of {prompt} tokens "
        f"is prefilled in {count(steps, 'step')}."
    )
    return (
        text,
        f"How many steps does a prompt of {prompt} tokens take with a budget of {budget}?",
        f"It takes {count(steps, 'step')} of {budget} tokens.",
    )


def head_groups(rng: random.Random) -> Triple:
    """How many query heads share a KV head."""
    kv, group = rng.choice([1, 2, 4, 8]), rng.choice([2, 4, 8])
    query = kv * group
    heads = f"{query} query heads and {count(kv, 'KV head')}"
    return (
        f"With {heads}, {group} query heads share each KV head.",
        f"How many query heads share a KV head with {heads}?",
        f"Each KV head is shared by {group} query heads.",
    )


def weight_bytes(rng: random.Random) -> Triple:
    """How large the weights are."""
    size = rng.choice([1, 3, 7, 8, 13, 14, 32, 70])
    name, bits = rng.choice(
        [("bfloat16", 16), ("float16", 16), ("FP8", 8), ("INT8", 8), ("INT4", 4)]
    )
    total = size * bits / 8
    shown = f"{total:g} GB"
    return (
        f"A model with {size} billion parameters takes {shown} in {name}.",
        f"How much memory does a model with {size} billion parameters take in {name}?",
        f"Its weights take {shown}.",
    )


def slot(rng: random.Random) -> Triple:
    """The slot of a token."""
    block, offset = rng.randint(1, 9), rng.randint(0, 15)
    value = block * 16 + offset
    return (
        f"With a block size of 16, offset {offset} of block {block} is slot {value}.",
        f"Which slot is offset {offset} of block {block}, if a block has 16 slots?",
        f"It is slot {block} × 16 + {offset} = {value}.",
    )


def rate(rng: random.Random) -> Triple:
    """Tokens per second from the time of a step."""
    ms = rng.choice([1, 2, 4, 5, 8, 10, 20, 25, 40, 50, 100])
    per_second = 1000 // ms
    return (
        f"A decode step of {ms} ms gives each request {per_second} tokens per second.",
        f"How many tokens per second does a request get if a step takes {ms} ms?",
        f"It gets {per_second} tokens per second.",
    )


def tokens_left(rng: random.Random) -> Triple:
    """What is left of a budget after the decodes."""
    budget, decodes = rng.choice([64, 128, 256]), rng.choice([1, 2, 4, 8, 10, 16, 20, 32])
    left = budget - decodes
    return (
        f"A step with a budget of {budget} tokens and {count(decodes, 'decode')} "
        f"has {left} tokens left for prefill.",
        f"How many tokens are left for prefill with a budget of {budget} "
        f"and {count(decodes, 'decode')}?",
        f"{left} tokens are left, because each decode takes one.",
    )


KINDS: tuple[tuple[Callable[[random.Random], Triple], int], ...] = (
    (blocks_of_prompt, 6),
    (capacity, 2),
    (chunks, 1),
    (head_groups, 1),
    (weight_bytes, 2),
    (slot, 2),
    (rate, 1),
    (tokens_left, 1),
)


def _triple(rng: random.Random) -> Triple:
    kinds, weights = zip(*KINDS, strict=True)
    kind: Callable[[random.Random], Triple] = rng.choices(kinds, weights)[0]
    return kind(rng)


def statement(rng: random.Random) -> str:
    """One true statement of one or two sentences."""
    return _triple(rng)[0]


def question(rng: random.Random) -> tuple[str, str]:
    """One question and its true answer."""
    _, asked, answer = _triple(rng)
    return asked, answer
