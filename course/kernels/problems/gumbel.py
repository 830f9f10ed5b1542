"""The problem `gumbel`: a token for each row of logits, drawn by Gumbel noise that has no state.

    gumbel_sample(logits, idx_mapping, temperature, seeds, positions, block_size) -> tokens

`logits` [rows, vocabulary], float32 or float16, any stride between rows; `idx_mapping` int32 [rows], the slot
of each row's request; `temperature` float32 and `seeds` int64 [slots]; `positions` int64 [rows]; `tokens`
int64 [rows]. A row's token is the first largest of logits / temperature + noise, in float32; where the
temperature is 0, of the logits. Token t's noise is -log(-log(u)), where u is rand(randint(seed, position),
t), raised to the smallest normal float32. `randint` and `rand` are Triton's. `block_size` is how many tokens
a program should take, and changes nothing in the answer.

So draws vLLM's model runner V2. In the interpreter log is numpy's, so the answer is exact, and in the cases
with close races it changes with the last bit of a token's noise. A GPU has its own log and division. Left
out: noise in float64, and the processed logits that vLLM's kernel can store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from course.kernels.memory import guarded
from course.kernels.problems.case import Answer, Case
from course.kernels.problems.w4a16 import rows_of_wider
from mini_vllm.sample.gumbel import gumbel_noise, philox, uniform

ENTRY = "gumbel_sample"
NEEDED = ("logits",)
MOST_BYTES = 1.05
YARDSTICK = "the least of programs with a block each"
WIDE = "the logits"
FORMS = {"gumbel_sample": 0}
THEIR_FOLDER = "v1/worker/gpu/sample"
READS = ("mini_vllm/sample/gumbel.py",)  # the answers, and which races are close

TINY = np.finfo(np.float32).tiny
TEMPERATURES = (0.7, 0.0, 1.3, 1.0)
# Seed, position and token where `rand` gives exactly 0: one in two thousand million does.
ZEROS = ((558, 843, 298), (2200, 345, 1927), (2489, 900, 340))

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Spec:
    """What a case is drawn from."""

    rows: int
    vocabulary: int
    block: int = 1024
    dtype: torch.dtype = torch.float32
    # "random"; "negative": no logit is above 0; "equal": few values, so many tokens share the largest;
    # "close": two tokens are left in a row, and the last bit of a score decides, or of one that a kernel
    # rounds to float16; "one left": one; "zeros": nothing drawn
    mood: str = "random"
    seed: int = 0

    @property
    def label(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        mood = {
            "negative": ", all logits negative",
            "equal": ", many logits equal",
            "close": ", close races",
            "one left": ", one token left",
        }.get(self.mood, "")
        rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
        return f"{kind}{mood}, {rows} of {self.vocabulary} tokens, blocks of {self.block}"


_CASES = (
    Spec(6, 3000),
    Spec(6, 3000, 256),  # the same numbers, and so the same tokens
    Spec(4, 1000, mood="negative", seed=1),
    Spec(4, 2100, mood="equal", seed=2),
    Spec(30, 2050, mood="close", seed=13),
    Spec(4, 2048, mood="one left", seed=4),
    Spec(5, 1025, dtype=torch.float16, seed=5),
    Spec(16, 1025, dtype=torch.float16, mood="close", seed=11),
    Spec(1, 16, 16, seed=6),
    # The limits: a large block, and the vocabulary of a model.
    Spec(5, 9000, 4096, mood="negative", seed=7),
    Spec(1, 128256, seed=8),
)
_TRAFFIC = Spec(4, 8192, seed=9)
# A decode step of Llama-3-8B, sixteen requests.
_SHAPE = Spec(16, 128256, mood="zeros", seed=10)


def cases() -> list[Case]:
    return [_case(spec) for spec in _CASES]


def traffic() -> Case:
    return _case(_TRAFFIC)


def shape() -> Case:
    return _case(_SHAPE)


def _case(spec: Spec) -> Case:
    rng = np.random.default_rng(spec.seed)
    slots = spec.rows + 3
    mapping = rng.permutation(slots)[: spec.rows]
    if spec.rows > 4:
        mapping[-1] = mapping[-2]  # a request with a draft token has two rows
    temperature = rng.permutation(np.resize(np.array(TEMPERATURES, np.float32), slots))
    seeds = rng.integers(-(2**63), 2**63, slots)
    positions = rng.integers(0, 5000, spec.rows)
    if spec.mood in ("close", "one left"):
        temperature[temperature == 0] = 0.9
    elif spec.rows > 1:
        temperature[mapping[0]] = 0
    some = {"one left": spec.rows - 1, "close": len(ZEROS)}.get(spec.mood, 0)
    zeros = [ZEROS[(spec.seed + row) % len(ZEROS)] for row in range(some)]
    for row, (seed, position, _) in enumerate(zeros):
        seeds[mapping[row]], positions[row] = seed, position
    left = [token for _, _, token in zeros] + [spec.vocabulary - 1]
    logits = (rng.standard_normal((spec.rows, spec.vocabulary)) * 3).astype(np.float32)
    if spec.mood == "negative":
        logits -= 30
    elif spec.mood == "equal":
        logits = np.clip(logits, -1, 1).round()
    elif spec.mood == "close":
        for row, slot in enumerate(mapping):
            noise = gumbel_noise(int(seeds[slot]), int(positions[row]), np.arange(spec.vocabulary))
            first = left[row] if row < len(zeros) else None
            if spec.dtype == torch.float32:
                logits[row] = _close(rng, noise, temperature[slot], row, first)
            else:
                logits[row] = _close_in_float16(rng, noise, temperature[slot])
    elif spec.mood == "one left":
        logits[np.arange(spec.vocabulary) != np.array(left)[:, None]] = -np.inf
    inputs = {
        "logits": rows_of_wider(torch.from_numpy(logits).to(spec.dtype), float("nan")),
        "idx_mapping": guarded(torch.from_numpy(mapping).int()),
        "temperature": guarded(torch.from_numpy(temperature)),
        "seeds": guarded(torch.from_numpy(seeds)),
        "positions": guarded(torch.from_numpy(positions)),
        "block_size": spec.block,
    }
    programs = spec.rows * -(-spec.vocabulary // spec.block)
    least = {
        "logits": logits.size * inputs["logits"].element_size(),
        "idx_mapping": 4 * programs,
        "temperature": 4 * programs,
        "seeds": 8 * programs,
        "positions": 8 * programs,
        "out": 8 * spec.rows,
    }
    return Case(
        spec.label, inputs, lambda: answer(inputs), least, {},
        other=lambda: _case(replace(spec, seed=spec.seed + 1000)),
        flip=(lambda: inputs["logits"].neg_()) if spec.mood == "random" else None,
        flips=("logits",), answer_dtype=torch.int64,
    )  # fmt: skip


def _close(
    rng: np.random.Generator, noise: Array, temp: np.float32, row: int, zero: int | None
) -> Array:
    """Logits with two tokens left. In every third row they tie; in the others the second is one unit of the
    last place ahead, or behind. In every second row it is the token with the least noise; the first is
    `zero`, if that is a token."""
    logits = np.full(len(noise), -np.inf, np.float32)
    by = np.float32([0, np.inf, -np.inf][row % 3])
    while True:
        first, second = rng.choice(len(noise), 2, replace=False)
        if zero is not None:
            first = zero
        elif row % 2:
            second = noise.argmin()
        target = np.nextafter(noise[first], by) if by else noise[first]
        near = np.float32((target - noise[second]) * temp)
        tried = (near.view(np.int32) + np.arange(-64, 65, dtype=np.int32)).view(np.float32)
        hits = tried[tried / temp + noise[second] == target]
        # Those that multiplying by the reciprocal rounds to something else.
        sharp = hits[hits * (1 / temp) + noise[second] != target]
        if first != second and len(hits):
            logits[first], logits[second] = 0, rng.choice(sharp if len(sharp) else hits)
            return logits


def _close_in_float16(rng: np.random.Generator, noise: Array, temp: np.float32) -> Array:
    """Logits with two tokens left, the later one ahead by less than float16 can tell."""
    logits = np.full(len(noise), -np.inf, np.float32)
    while True:
        first, second = np.sort(rng.choice(len(noise), 2, replace=False))
        near = np.float16((noise[first] - noise[second]) * temp)
        tried = (near.view(np.int16) + np.arange(-4, 5, dtype=np.int16)).view(np.float16)
        scores = tried.astype(np.float32) / temp + noise[second]
        hits = tried[(scores > noise[first]) & (np.float16(scores) == np.float16(noise[first]))]
        if first != second and len(hits):
            logits[first], logits[second] = 0, hits[0]
            return logits


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
        "of equal scores in a block the last lane wins; the first must",
        {"pick": lambda row, scores: _last_lane(row, scores)},
    ),
    (
        "rows with temperature 0 are divided by it, and their scores are inf or nan; they are greedy",
        {"greedy": lambda x, noise: x / np.float32(0) + noise},
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
        "of equal scores the last one wins; the first must, whatever blocks they lie in",
        {"pick": lambda row, scores: len(scores) - 1 - int(scores[::-1].argmax())},
    ),
    (
        "of blocks whose best scores are equal the last one wins; the first must",
        {"pick": lambda row, scores: _last_block(row, scores)},
    ),
]


def _last_block(row: Row, scores: Array) -> int:
    blocks = scores.reshape(-1, row.block)
    best = blocks.max(1)
    block = len(best) - 1 - int(best[::-1].argmax())
    return block * row.block + int(blocks[block].argmax())


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


# -- vLLM's kernel ----------------------------------------------------------------------------------


def vllm(case: Case, segments: int) -> torch.Tensor:
    """`gumbel_sample` of vLLM's model runner V2 on a case; `segments` means nothing."""
    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

    given = case.inputs
    names = ("logits", "idx_mapping", "temperature", "seeds", "positions")
    drawn: torch.Tensor = gumbel_sample(*(given[name] for name in names), True)
    return drawn
