"""The answers of the problem `gumbel`, and what an output looks like that one mistake has made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from course.kernels.case import Answer, Case
from mini_vllm.sample.gumbel import philox, uniform

TINY = np.finfo(np.float32).tiny

Array = np.ndarray[Any, Any]


def answer(inputs: dict[str, Any], **wrong: Any) -> Answer:
    """Each row's token, which is to be met exactly.

    `wrong` puts one mistake in (see `MISTAKES`), to recognise it in a kernel's output.
    """
    logits = inputs["logits"].float().numpy()
    names = ("idx_mapping", "temperature", "seeds", "positions")
    mapping, temperature, seeds, positions = (inputs[name].numpy() for name in names)
    rows = enumerate(mapping.tolist())
    drawn = [
        _draw(Row(row, logits[row], *_own(row, slot, temperature, seeds, wrong), int(positions[row]),
                  inputs["block_size"]), **wrong)
        for row, slot in rows
    ]  # fmt: skip
    tokens = torch.tensor(drawn, dtype=torch.float64)
    return tokens, torch.zeros_like(tokens)


def _own(
    row: int, slot: int, temperature: Array, seeds: Array, wrong: dict[str, Any]
) -> tuple[np.float32, int]:
    """Temperature and seed of a row's request."""
    return (
        temperature[wrong.get("temperature_of", lambda row, slot: slot)(row, slot)],
        int(seeds[wrong.get("seed_of", lambda row, slot: slot)(row, slot)]),
    )


@dataclass(frozen=True)
class Row:
    """What a row's token is drawn from."""

    number: int
    logits: Array  # float32
    temperature: np.float32
    seed: int
    position: int
    block: int


Pick = Callable[[Row, Array], int]


def _first_largest(row: Row, scores: Array) -> int:
    return int(scores.argmax())


def _draw(
    row: Row,
    *,
    key: Callable[[Row], int] = lambda row: int(philox(row.seed, row.position)),
    offset: Callable[[Row, Array], Array] = lambda row, tokens: tokens,
    least: np.float32 = TINY,
    score: Callable[[Array, np.float32, Array], Array] = lambda x, t, noise: x / t + noise,
    greedy: Callable[[Array, Array], Array] = lambda x, noise: x,
    fill: float = -np.inf,  # the logits of lanes behind the vocabulary
    pick: Pick = _first_largest,
    **others: Any,
) -> int:
    padding = -len(row.logits) % row.block
    logits = np.concatenate([row.logits, np.full(padding, fill, np.float32)])
    u = np.maximum(uniform(key(row), offset(row, np.arange(len(logits)))), least)
    with np.errstate(all="ignore"):
        noise = -np.log(-np.log(u))
        if row.temperature == 0:
            scores = greedy(logits, noise)
        else:
            scores = score(logits, row.temperature, noise)
    return pick(row, scores)


def _within(row: Row, first: int, last: int) -> Pick:
    return lambda _, scores: first + int(scores[first:last].argmax())


def _without_the_last(row: Row, scores: Array) -> int:
    """Of the full blocks."""
    full = len(row.logits) // row.block * row.block
    return int(scores[: full or None].argmax())


# What an output looks like that one mistake has made: the mistake in words, and what `answer` does for it.
MISTAKES: list[tuple[str, dict[str, Any]]] = [
    (
        "the noise is drawn by a token's place in its block; then tokens of different blocks share it, and "
        "it changes with the size of a block. It belongs to the token's id",
        {"offset": lambda row, tokens: tokens % row.block},
    ),
    (
        "the noise is drawn by the element's place in the whole batch of logits; then a request gets other "
        "tokens in another row",
        {"offset": lambda row, tokens: row.number * len(row.logits) + tokens},
    ),
    (
        "the position does not enter the noise; then a request has the same noise at each of its tokens",
        {"key": lambda row: row.seed},
    ),
    (
        "seed and position are added; then seed 7 draws at position 4 what seed 8 draws at 3",
        {"key": lambda row: row.seed + row.position},
    ),
    (
        "position and seed are exchanged in randint(seed, position)",
        {"key": lambda row: int(philox(row.position, row.seed))},
    ),
    (
        "only 32 bits of the seed enter the noise",
        {"key": lambda row: int(philox(row.seed & 0xFFFFFFFF, row.position))},
    ),
    (
        "only 32 bits of the position enter the noise",
        {"key": lambda row: int(philox(row.seed, row.position & 0xFFFFFFFF))},
    ),
    (
        "row i takes temperature and seed from slot i; its request is in slot idx_mapping[i]",
        {"temperature_of": lambda row, slot: row, "seed_of": lambda row, slot: row},
    ),
    (
        "row i takes its seed from slot i; its request is in slot idx_mapping[i]",
        {"seed_of": lambda row, slot: row},
    ),
    (
        "row i takes its temperature from slot i; its request is in slot idx_mapping[i]",
        {"temperature_of": lambda row, slot: row},
    ),
    (
        "rows with temperature 0 get noise, too; they are greedy",
        {"greedy": lambda x, noise: x + noise},
    ),
    (
        "the temperature is left out, or logits and noise are divided by it, which changes no row's order: "
        "only the logits are",
        {"score": lambda x, t, noise: x + noise},
    ),
    (
        "the logits are multiplied by the temperature, and they are divided by it",
        {"score": lambda x, t, noise: x * t + noise},
    ),
    (
        "the logits are multiplied by 1 / temperature, which is rounded; divided by the temperature they are "
        "other numbers in the last bit",
        {"score": lambda x, t, noise: x * (np.float32(1) / t) + noise},
    ),
    ("the noise is subtracted, or its sign is wrong", {"score": lambda x, t, noise: x / t - noise}),
    ("no noise is added: all rows are greedy", {"score": lambda x, t, noise: x / t}),
    (
        "rows with a small temperature are taken for greedy; only those with 0 are",
        {"score": lambda x, t, noise: x if t < 0.1 else x / t + noise},
    ),
    (
        "where u is 0 it stays 0, so log(u) is -inf and its token loses against all others: raise u to the "
        "smallest normal float32 first",
        {"least": np.float32(0)},
    ),
    (
        "where u is 0, another small number takes its place, so the token's noise is greater than it must "
        "be: raise u to the smallest normal float32",
        {"least": np.float32(1e-7)},
    ),
    (
        "the scores are rounded to the type of the logits; they are float32",
        {"score": lambda x, t, noise: np.float16(x / t + noise).astype(np.float32)},
    ),
    (
        "the best scores of the blocks are kept in the type of the logits; they are float32",
        {"pick": lambda row, scores: _best_in_half(row, scores)},
    ),
    (
        "of equal scores in a block the last lane wins; the first must",
        {"pick": lambda row, scores: _last_lane(row, scores)},
    ),
    (
        "rows with temperature 0 are divided by it, and their scores are inf or nan; they are greedy",
        {"greedy": lambda x, noise: x / np.float32(0) + noise},
    ),
    (
        "the token's id passes through 16 bits",
        {"pick": lambda row, scores: (int(scores.argmax()) + 32768) % 65536 - 32768},
    ),
    (
        "the token's id passes through float16, which has no odd numbers from 2,048 on",
        {"pick": lambda row, scores: int(np.float16(min(scores.argmax(), 65504)))},
    ),
    (
        "the place in the block is returned, and not the token's id",
        {"pick": lambda row, scores: int(scores.argmax()) % row.block},
    ),
    (
        "lanes behind the vocabulary take part, with 0 for a logit; they must lose against everything",
        {"fill": 0.0},
    ),
    (
        "the last block, which is not full, is left out: the number of blocks is rounded down",
        {"pick": _without_the_last},
    ),
    (
        "only the first block is seen",
        {"pick": lambda row, scores: int(scores[: row.block].argmax())},
    ),
    (
        "where all logits of a row are far below 0, no token wins: the search must begin at -inf",
        {"pick": lambda row, scores: int(scores.argmax()) if scores.max() > -10000 else 0},
    ),
    (
        "where all logits of a row are -inf no token wins, and the first must",
        {"pick": lambda row, scores: int(scores.argmax()) if scores.max() > -np.inf else -1},
    ),
    (
        "of equal scores the last one wins; the first must, whatever blocks they lie in",
        {"pick": lambda row, scores: len(scores) - 1 - int(scores[::-1].argmax())},
    ),
    (
        "of blocks whose best scores are equal the last one wins; the first must",
        {"pick": lambda row, scores: _last_block(row, scores)},
    ),
]
# One mistake with several numbers that people choose for it.
MISTAKES += [
    (
        "lanes behind the vocabulary hold a number, and win where all logits are less; they must hold -inf",
        {"fill": fill},
    )
    for fill in (-1e4, -1e9, -1e30)
]
MISTAKES += [
    (
        "small temperatures are raised; the logits are divided by the temperature as it is",
        {"score": lambda x, t, noise, least=least: x / max(t, np.float32(least)) + noise},
    )
    for least in (0.02, 0.05, 0.1)
]
MISTAKES += [
    (
        "large temperatures are lowered; the logits are divided by the temperature as it is",
        {"score": lambda x, t, noise, most=most: x / min(t, np.float32(most)) + noise},
    )
    for most in (1, 2, 5, 100)
]
MISTAKES += [
    (
        "only the first blocks are seen: there are more than lanes that merge them",
        {"pick": lambda row, scores, count=count: int(scores[: count * row.block].argmax())},
    )
    for count in (64, 128, 256)
]


def _last_block(row: Row, scores: Array) -> int:
    blocks = scores.reshape(-1, row.block)
    best = blocks.max(1)
    block = len(best) - 1 - int(best[::-1].argmax())
    return block * row.block + int(blocks[block].argmax())


def _best_in_half(row: Row, scores: Array) -> int:
    blocks = scores.reshape(-1, row.block)
    with np.errstate(over="ignore"):
        best = int(blocks.max(1).astype(np.float16).argmax())
    return best * row.block + int(blocks[best].argmax())


def _last_lane(row: Row, scores: Array) -> int:
    blocks = scores.reshape(-1, row.block)
    best = int(blocks.max(1).argmax())
    lane = row.block - 1 - int(blocks[best][::-1].argmax())
    return best * row.block + lane


def explain(case: Case, got: torch.Tensor) -> str | None:
    """The one mistake that gives `got`, or None."""
    for words, wrong in MISTAKES:
        expected, _ = answer(case.inputs, **wrong)
        if bool((got.double() == expected).all()) and bool((expected != case.expected).any()):
            return words
    return None
