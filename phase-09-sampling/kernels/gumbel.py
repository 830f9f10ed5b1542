"""The problem `gumbel`: a token for each row of logits, drawn by Gumbel noise that has no state.

    gumbel_sample(logits, idx_mapping, temperature, seeds, positions, block_size) -> tokens

`logits` [rows, vocabulary], float32 or float16, finite or -inf, any stride between rows that keeps offsets
below 2**31, as vLLM's kernel needs it; `idx_mapping` int32 [rows], the slot of each row's request;
`temperature` float32 [slots], 0 or from 0.01 on, to which `SamplingParams` raises what is less; `seeds` int64
[slots], any; `positions` int64 [rows], from 0 on; `tokens` int64 [rows]. A row's token is the first largest
of logits / temperature + noise, in float32; where the temperature is 0, of the logits. Token t's noise is
-log(-log(u)), where u is rand(randint(seed, position), t), raised to the smallest normal float32. `randint`
and `rand` are Triton's. `block_size`, a power of two, is how many tokens a program should take, and changes
nothing in the answer.

So draws vLLM's model runner V2. In the interpreter log is numpy's, so the answer is exact, and in the cases
with close races it changes with the last bit of a token's noise. A GPU has its own log and division. Left
out: noise in float64, and the processed logits that vLLM's kernel can store.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from course.kernels.case import Case
from course.kernels.memory import FAR, guarded, rows_of_wider, spread
from course.kernels.problems.gumbel_answer import MISTAKES, answer, explain
from mini_vllm.sample.gumbel import gumbel_noise

__all__ = ["MISTAKES", "answer", "cases", "explain", "shape", "traffic", "vllm"]

ENTRY = "gumbel_sample"
NEEDED = ("logits",)
MOST_BYTES = 1.05
YARDSTICK = "the least of programs with a block each"
WIDE = "the logits"
FORMS = {"gumbel_sample": 0}
THEIR_FOLDER = "v1/worker/gpu/sample"
BENCHMARK = "phase-09-sampling/labs/lab-07-triton-gumbel/show.py --device cuda"
READS = ("mini_vllm/sample/gumbel.py",)  # the answers, and which races are close

TEMPERATURES = (0.7, 0.0, 1.3, 1.0, 0.01, 10.0, 1e30)
SEEDS = (0, -1, -(2**63), 2**63 - 1)
POSITIONS = (0, 2**31, 2**32 + 5, 2**40 + 3)
# Seed, position and token where `rand` gives exactly 0, as one in two thousand million does, or the most
# that it can give.
EXTREMES = ((558, 843, 298), (2200, 345, 1927), (2489, 900, 340), (154, 524, 1069))

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Spec:
    """What a case is drawn from."""

    rows: int
    vocabulary: int
    block: int = 1024
    dtype: torch.dtype = torch.float32
    # "random"; "negative": no logit is above 0, and some rows are far below; "large": what float16 holds at
    # most; "equal": few values, so many tokens share the largest; "late": the winner stands in one of the
    # last blocks, or in a greedy row in one of the middle, and is met again in the last; "close": two tokens
    # are left in a row, and the last bit of a score decides, or of one that a kernel rounds to float16; "one
    # left": one, and in the last row none; "zeros": nothing drawn
    mood: str = "random"
    gap: int = 16  # numbers between rows; FAR: the last row ends just before element 2**31
    free: int = 3  # slots without a row
    seed: int = 0

    @property
    def label(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        mood = {
            "negative": ", all logits negative",
            "large": ", large logits",
            "equal": ", many logits equal",
            "late": ", the best in a late block",
            "close": ", close races",
            "one left": ", one token left, or none",
        }.get(self.mood, "")
        mood += ", rows gigabytes apart" if self.gap == FAR else ""
        rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
        return f"{kind}{mood}, {rows} of {self.vocabulary} tokens, blocks of {self.block}"


_CASES = (
    Spec(6, 3000),
    Spec(40, 16, 16, seed=6),
    Spec(4, 1000, mood="negative", gap=0, seed=1),
    Spec(4, 2100, mood="equal", gap=FAR, free=300, seed=2),
    Spec(24, 2050, mood="close", seed=13),
    Spec(6, 2048, mood="one left", seed=4),
    # As many blocks as of Gemma 3's vocabulary, 257, and one more. Qwen 3's has 149.
    Spec(1, 263300, mood="late", seed=1008),
    Spec(16, 3000, dtype=torch.float16, mood="close", seed=11),
    Spec(5, 4500, 2048, torch.float16, "large", seed=5),
    Spec(6, 3000, 512),  # the numbers of the first case, and so the same tokens
    Spec(1, 7, 16, seed=3),
    Spec(5, 9000, 4096, mood="negative", seed=7),  # a large block
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
    slots = spec.rows + spec.free
    mapping = rng.permutation(slots)[: spec.rows]
    if spec.rows > 4:
        mapping[-1] = mapping[-2]  # a request with a draft token has two rows
    if spec.rows > 30:
        mapping[-9:] = mapping[-1]  # and with eight it has nine
    temperature = rng.permutation(np.resize(np.array(TEMPERATURES, np.float32), slots))
    seeds = rng.integers(-(2**63), 2**63, slots)
    positions = rng.integers(0, 5000, spec.rows)
    # The case of the second call, 1000 seeds on, draws where the first one's is greedy.
    late = spec.mood == "late" and spec.seed // 1000 % 2
    if spec.mood in ("close", "one left") or late:
        temperature[temperature == 0] = 0.9
    elif spec.rows > 1 or spec.mood == "late":
        temperature[mapping[0]] = 0
    if spec.dtype == torch.float16:
        temperature[temperature > 10] = 10
    first = {"random": 1, "close": len(EXTREMES)}.get(spec.mood, spec.rows)
    for at, (seed, position) in enumerate(zip(SEEDS, POSITIONS, strict=True), first):
        if at < spec.rows:
            seeds[mapping[at]], positions[at] = seed, position
            temperature[mapping[at]] = TEMPERATURES[2 * (at % 2)]
    some = len(EXTREMES) if spec.mood in ("one left", "close") else 0
    known = [EXTREMES[(spec.seed + row) % len(EXTREMES)] for row in range(some)]
    for row, (seed, position, _) in enumerate(known):
        seeds[mapping[row]], positions[row] = seed, position
    left = [token for _, _, token in known] + [spec.vocabulary - 1]
    logits = (rng.standard_normal((spec.rows, spec.vocabulary)) * 3).astype(np.float32)
    if spec.mood == "negative":
        logits -= 30
        for row, scale in enumerate((1e38, 1.0, 1e5, 1e30)):
            if scale > 1:
                logits[row] = -scale * (1 + rng.random(spec.vocabulary))
    elif spec.mood == "large":
        logits = np.clip(logits * 20000, -65504, 65504)
    elif spec.mood == "late":
        if late:
            logits[:, -900:-800] += 60
        else:
            logits[:, [spec.vocabulary * 2 // 3, -1]] = 60
    elif spec.mood == "equal":
        logits = np.clip(logits, -1, 1).round()
    elif spec.mood == "close":
        for row, slot in enumerate(mapping):
            noise = gumbel_noise(int(seeds[slot]), int(positions[row]), np.arange(spec.vocabulary))
            fixed = left[row] if row < len(known) else None
            if spec.dtype == torch.float32:
                logits[row] = _close(rng, noise, temperature[slot], row, fixed)
            else:
                logits[row] = _close_in_float16(rng, noise, temperature[slot])
    elif spec.mood == "one left":
        logits[:-1][np.arange(spec.vocabulary) != np.array(left)[:, None]] = -np.inf
        logits[-1] = -np.inf
    tensor = torch.from_numpy(logits).to(spec.dtype)
    if spec.gap == FAR:
        tensor = spread(tensor, ((1 << 31) - 1 - spec.vocabulary) // (spec.rows - 1))
    else:
        tensor = rows_of_wider(tensor, float("nan"), spec.gap)
    inputs = {
        "logits": tensor,
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
    rng: np.random.Generator, noise: Array, temp: np.float32, row: int, known: int | None
) -> Array:
    """Logits with two tokens left. In every third row they tie; in the others the second is one unit of the
    last place ahead, or behind. In every second row it is the token with the least noise or the most; the
    first is `known`, if that is a token."""
    logits = np.full(len(noise), -np.inf, np.float32)
    by = np.float32([0, np.inf, -np.inf][row % 3])
    while True:
        first, second = rng.choice(len(noise), 2, replace=False)
        if known is not None:
            first = known
        elif row % 2:
            second = noise.argmin() if row % 4 == 1 else noise.argmax()
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


# -- the contract against the cases -----------------------------------------------------------------

# What the contract allows, as far as a case can go: each quantity's least and largest value.
ALLOWS: dict[str, tuple[float, float]] = {
    "bits of a logit": (16, 32),
    "rows": (1, 40),
    "vocabulary": (7, 263300),
    "block_size": (16, 4096),
    "blocks": (1, 258),
    "blocks of all rows": (1, 258),  # fewer and more than three processors
    "block of the winner": (0, 256),
    "rows of a slot": (1, 9),
    "slots": (4, 304),
    "gap between rows": (0, 7e8),
    "last row ends at": (7, 2.1e9),
    "temperatures": (0, 1e30),
    "temperatures above 0": (0.01, 1e30),
    "seeds": (-(2**63), 2**63 - 1),
    "seeds, without a sign": (0, 2**63),
    "positions": (0, 2**40),
    "logits": (-np.inf, 65504),
    "largest logit of a row": (-np.inf, 65504),
    "largest finite logit of a row": (-1e38, 65504),
}


def measure(case: Case) -> dict[str, tuple[float, float]]:
    """The least and the largest value in this case of each quantity of `ALLOWS`."""
    logits, mapping, temperature, seeds, positions, block = case.inputs.values()
    rows, vocabulary = logits.shape
    blocks, slots = -(-vocabulary // block), mapping.long()
    one = {
        "bits of a logit": 8 * logits.element_size(),
        "rows": rows,
        "vocabulary": vocabulary,
        "block_size": block,
        "blocks": blocks,
        "blocks of all rows": rows * blocks,
        "slots": len(temperature),
        "gap between rows": logits.stride(0) - vocabulary,
        "last row ends at": (rows - 1) * logits.stride(0) + vocabulary,
    }
    warm, best = temperature[slots], logits.float().amax(1)
    several = {
        "block of the winner": case.expected // block,
        "rows of a slot": mapping.unique(return_counts=True)[1],
        "temperatures": warm,
        "temperatures above 0": warm[warm > 0],
        "seeds": seeds[slots].double(),
        "seeds, without a sign": seeds[slots].double().abs(),
        "positions": positions.double(),
        "logits": logits.float(),
        "largest logit of a row": best,
        "largest finite logit of a row": best[best.isfinite()],
    }
    found = {name: (float(value), float(value)) for name, value in one.items()}
    for name, tensor in several.items():
        if tensor.numel():
            found[name] = float(tensor.min()), float(tensor.max())
    return found


# -- vLLM's kernel ----------------------------------------------------------------------------------


def vllm(case: Case, segments: int) -> torch.Tensor:
    """`gumbel_sample` of vLLM's model runner V2 on a case; `segments` means nothing."""
    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

    given = case.inputs
    names = ("logits", "idx_mapping", "temperature", "seeds", "positions")
    drawn: torch.Tensor = gumbel_sample(*(given[name] for name in names), True)
    return drawn
