"""A softmax that is computed tile by tile, and what goes wrong in it: the weights that a mistake gives.

Each function here makes a function from scores, the last axis the keys, to the weights of the values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Online = Callable[[torch.Tensor], torch.Tensor]


def running(scores: torch.Tensor, tile: int, part: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """For each key, the largest score up to the end of its tile, and that of its whole part.

    `part` is how many keys a program has, 0 for all; tiles begin where it begins.
    """
    n = scores.shape[-1]
    part = part or n
    tiles = -(-part // tile)
    width = -(-n // part) * part
    filled = torch.nn.functional.pad(scores, (0, width - n), value=float("-inf"))
    filled = torch.nn.functional.pad(
        filled.unflatten(-1, (-1, part)), (0, tiles * tile - part), value=float("-inf")
    )
    up_to = filled.unflatten(-1, (tiles, tile)).amax(-1).cummax(-1).values

    def by_key(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.repeat_interleave(tile, -1)[..., :part].flatten(-2)[..., :n]

    return by_key(up_to), by_key(up_to[..., -1:].expand(up_to.shape))


def online(tile: int, acc: Any, total: Any, part: int = 0) -> Online:
    """The weights of a softmax that is computed tile by tile. `acc` and `total` give what a key counts in the
    result and in the sum, from its score, the maximum that it met and the last one of its program."""

    def weigh(scores: torch.Tensor) -> torch.Tensor:
        met, last = running(scores, tile, part)
        outer = (last - scores.amax(-1, keepdim=True)).exp()
        return (
            outer
            * acc(scores, met, last)
            / (outer * total(scores, met, last)).sum(-1, keepdim=True)
        )

    return weigh


def _true(score: Any, met: Any, last: Any) -> Any:
    return (score - last).exp()


def _stale(score: Any, met: Any, last: Any) -> Any:
    return (score - met).exp()


LOG2_E, LN_2 = 1.4426950408889634, 0.6931471805599453


def _mixed(score: Any, met: Any, last: Any) -> Any:
    return ((score - met) * LN_2 + (met - last)).exp()


def _mixed_back(score: Any, met: Any, last: Any) -> Any:
    return ((score - met) + (met - last) * LOG2_E).exp()


# What a softmax that is computed tile by tile does wrong: in words, and what a key then counts.
ONLINE: list[tuple[str, Any, Any]] = [
    (
        "the softmax rescale of the result is missing: when a tile raises the maximum, what was summed "
        "before must be multiplied by exp(old maximum - new maximum)",
        _stale,
        _true,
    ),
    (
        "the softmax rescale of the sum is missing: when a tile raises the maximum, the sum of the weights "
        "so far must be multiplied by exp(old maximum - new maximum)",
        _true,
        _stale,
    ),
    (
        "the softmax rescale is missing: when a tile raises the maximum, the sum and the result so far must "
        "be multiplied by exp(old maximum - new maximum)",
        _stale,
        _stale,
    ),
    (
        "the weights are powers of 2 and the rescale is a power of e: both must have one base, and exp2 "
        "wants scores times log2(e)",
        _mixed,
        _mixed,
    ),
    (
        "the rescale is exp of a difference that is in powers of 2 already: both must have one base",
        _mixed_back,
        _mixed_back,
    ),
]
TILES = (1, 8, 16, 32, 64, 128, 256)


def mistakes(part: int = 0) -> list[tuple[str, dict[str, Any]]]:
    """`ONLINE` for each size of tile that a kernel may have."""
    return [
        (f"{words} (tiles of {tile})", {"online": online(tile, acc, total, part)})
        for words, acc, total in ONLINE
        for tile in TILES
    ]


def only(first: int = 0, last: int = 0) -> Online:
    """The weights of a softmax over the first or the last keys of a sequence alone."""

    def weigh(scores: torch.Tensor) -> torch.Tensor:
        at = torch.arange(scores.shape[-1])
        lost = at >= first if first else at < len(at) - last
        return scores.masked_fill(lost, float("-inf")).softmax(-1)

    return weigh
