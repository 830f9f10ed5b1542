"""What an output of decode attention looks like that one mistake has made, so that a message can name it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from course.kernels.case import Case
from course.kernels.paged import EPSILON, Paged, answer

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


def online_mistakes(part: int = 0) -> list[tuple[str, dict[str, Any]]]:
    """`ONLINE` for each size of tile that a kernel may have."""
    return [
        (f"{words} (tiles of {tile})", {"online": online(tile, acc, total, part)})
        for words, acc, total in ONLINE
        for tile in TILES
    ]


def tile_tail(tile: int) -> Callable[[int], int]:
    """How many keys are missing from the last tile."""
    return lambda length: -length % tile


# What an output looks like that one mistake has made: the mistake in words, and what `answer` does for it.
MISTAKES: list[tuple[str, dict[str, Any]]] = [
    ("the scores are not multiplied by the scale", {"scale": lambda scale, size: 1.0}),
    (
        "the scores are multiplied by 1/head_size, where 1/sqrt(head_size) belongs: `scale` has the root "
        "already, and is applied once",
        {"scale": lambda scale, size: 1 / size},
    ),
    ("the scale is applied twice", {"scale": lambda scale, size: scale * scale}),
    (
        "the scores are multiplied by 1/sqrt(head_size), and not by the scale that the call hands over",
        {"scale": lambda scale, size: size**-0.5},
    ),
    (
        "the scores are divided by the scale; they are multiplied by it",
        {"scale": lambda scale, size: 1 / scale},
    ),
    (
        "exp2 is taken of scores as they are: 2**x is exp(x) only for scores times log2(e), 1.4427",
        {"scale": lambda scale, size: scale * LN_2},
    ),
    (
        "exp is taken of scores that are multiplied by log2(e), which only exp2 wants",
        {"scale": lambda scale, size: scale * LOG2_E},
    ),
    (
        "the table is off by one: entry i + 1 of a row is read for logical block i",
        {"shift": 1},
    ),
    (
        "the table is off by one: entry i - 1 of a row is read for logical block i",
        {"shift": -1},
    ),
    ("the table's row is off by one: sequence i reads the row of sequence i + 1", {"row": 1}),
    ("the table's row is off by one: sequence i reads the row of sequence i - 1", {"row": -1}),
    ("the table is not followed: logical block i is read as physical block i", {"no_table": True}),
    (
        "query head h reads KV head h % num_kv_heads; it is h // (num_heads // num_kv_heads)",
        {"modulo": True},
    ),
    (
        "the last token of each sequence is left out, but seq_len counts this step's token already",
        {"longer": -1},
    ),
    (
        "a last block that is not full is left out: the number of blocks is rounded down",
        {"drop": lambda length, size: length % size},
    ),
]
MISTAKES += [
    (
        "keys behind the end enter the softmax with score 0, as lanes do that were masked off with other=0; "
        f"their scores must be -inf (tiles of {tile})",
        {"zeros": tile_tail(tile)},
    )
    for tile in (4, 8, 16, 32, 64, 128)
]


def only(first: int = 0, last: int = 0) -> Online:
    """The weights of a softmax over the first or the last keys of a sequence alone."""

    def weigh(scores: torch.Tensor) -> torch.Tensor:
        at = torch.arange(scores.shape[-1])
        lost = at >= first if first else at < len(at) - last
        return scores.masked_fill(lost, float("-inf")).softmax(-1)

    return weigh


MISTAKES += online_mistakes()
MISTAKES += [
    (f"only the {which} {count} keys of a sequence are seen", {"online": only(**{which: count})})
    for count in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    for which in ("first", "last")
]
HALF = (
    "the numbers are right to some three digits: something on their way is kept in half precision, a sum, a "
    "weight or a part"
)


LOW = (
    "right but where every score is below -10,000: the maximum begins with a number, or a key that must not "
    "count has one for its score. Both must be -inf, or so low that no score is"
)

HIGH = (
    "scores of 100,000 and -100,000 are too much for it: float16 ends at 65,504, and of each score the "
    "largest must be subtracted before exp is taken"
)


def extreme(case: Case, got: torch.Tensor) -> str | None:
    """`LOW`, where all that is wrong has scores so low; `HIGH`, where there are such and an answer is no
    number."""
    drawn: Paged = case.about["paged"]
    rows = torch.tensor(case.about.get("starts", range(len(drawn.seq_lens) + 1))).diff()
    # Of its first key, which each token sees: in such a case all keys have one score.
    key = drawn.keys[drawn.table[:, 0].long(), 0].double().repeat_interleave(rows, 0)
    key = key.repeat_interleave(drawn.query.shape[1] // key.shape[1], 1)
    scores = (drawn.query.double() * key).sum(-1) * drawn.scale
    lowest = (scores < -10_000).view(case.expected.shape[:-1])
    bad = ~((got.double() - case.expected).abs() <= case.tolerance)
    if not lowest.any():
        return None
    if not bad[~lowest].any():
        return LOW
    return None if bool(got.isfinite().all()) else HIGH


def nearly(case: Case, got: torch.Tensor) -> str | None:
    """`HALF`, for float32 that is as exact as float16 can be."""
    loose = EPSILON[torch.float16] / EPSILON[torch.float32] * case.tolerance
    if case.dtype == torch.float32 and bool(((got.double() - case.expected).abs() <= loose).all()):
        return HALF
    return None


def explain(paged: Paged, got: torch.Tensor) -> str | None:
    """The one mistake that gives `got`, or None."""
    right = answer(paged)[0]
    for words, wrong in MISTAKES:
        expected, tolerance = answer(paged, **wrong)
        anything = ~expected.isfinite()  # it read poison
        near = (got.double() - expected).abs() <= 4 * tolerance
        tells = (expected - right).abs() > 8 * tolerance
        if tells.any() and bool((near | anything).all()):
            return words
    return None
