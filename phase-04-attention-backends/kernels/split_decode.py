"""The problem `split-decode`: decoding with keys split across programs, and a second kernel that merges.

    split_decode(query, key_cache, value_cache, block_table, seq_lens, scale, keys_per_split) -> out

As the problem `decode`, and one number more: split i of a sequence has its keys from `i * keys_per_split`
on, so many or fewer. No program may take keys of two splits, and a kernel must store the result.
A call has at most 129 splits of a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from course.kernels import mistakes, paged
from course.kernels.case import Case
from course.kernels.paged import MANY, Paged, Spec
from course.kernels.record import Launch

ENTRY = "split_decode"
NEEDED = ("key_cache", "value_cache")
MOST_BYTES = 1.25

ALLOWS = paged.ALLOWS | {
    "sequences": (1, 33),
    "keys_per_split": (1, 2**20),
    "splits of a sequence": (1, 129),
    "keys of the last split": (1, 257),
}

# What is drawn, and keys_per_split.
_CASES = (
    (Spec((37, 1, 64, 16, 50)), 24),
    (Spec((33, 5, 80), heads=8, kv_heads=1, head_size=128, block_size=32, dtype=torch.float16,
          layout="heads first", seed=1), 32),
    (Spec((9, 4, 41), heads=6, head_size=32, block_size=4, layout="apart", poison=1e4, room=0,
          seed=2), 10),
    (Spec((70, 3), heads=3, kv_heads=3, mood="loud", seed=3), 24),
    (Spec((45, 130), heads=15, kv_heads=3, head_size=32, mood="cold", layout="heads first", seed=4), 33),
    (Spec((400, 17), heads=4, head_size=32, dtype=torch.float16, mood="flat", block_size=64, seed=5), 16),
    (Spec((66, 9), heads=2, kv_heads=1, head_size=32, block_size=4, dtype=torch.float16, layout="far",
          seed=8), 1000),
    # The limits: 16 query heads a KV head, the most splits, the heads of a model, scales that are no root.
    (Spec((150, 33), heads=16, kv_heads=1, scale=0.02, seed=9), 24),
    (Spec((4120, 40), heads=2, kv_heads=1, head_size=16, room=0, seed=10), 32),
    (Spec((1000, 20), heads=4, kv_heads=1, head_size=32, dtype=torch.float16, narrow=True, seed=11), 16),
    (Spec((40, 17), heads=32, kv_heads=8, head_size=128, dtype=torch.float16, seed=12), 16),
    (Spec((70, 40), block_size=8, dtype=torch.float16, mood="extreme", layout="gaps", seed=13), 16),
    (Spec((257,), heads=1, kv_heads=1, head_size=256, block_size=256, dtype=torch.float16, room=0,
          seed=14), 2**20),
    (Spec((5,), heads=40, kv_heads=40, head_size=16, block_size=2, scale=1.5, room=0, seed=15), 5),
    (Spec((2, 1, 3) * 11, heads=1, kv_heads=1, head_size=16, block_size=1, room=0, spare=MANY,
          poison=float("inf"), seed=16), 1),
)  # fmt: skip
_TRAFFIC = Spec((1900, 300), heads=8, dtype=torch.float16, seed=7), 256
# A decode step of Llama-3-8B.
_SHAPE = Spec((4096, 4096), heads=32, kv_heads=8, head_size=128, dtype=torch.float16), 512


def cases() -> list[Case]:
    return [_case(*drawn) for drawn in _CASES]


def traffic() -> Case:
    return _case(*_TRAFFIC)


def shape() -> Case:
    return _case(*_SHAPE)


def vllm(case: Case, segments: int) -> torch.Tensor:
    return paged.unified_attention(case.about["paged"], segments)


def measure(case: Case) -> dict[str, tuple[float, float]]:
    split, lens = case.inputs["keys_per_split"], case.about["paged"].seq_lens.tolist()
    return paged.measure(case) | {
        "keys_per_split": (split, split),
        "splits of a sequence": paged.ends(-(-length // split) for length in lens),
        "keys of the last split": paged.ends((length - 1) % split + 1 for length in lens),
    }


def _case(spec: Spec, keys_per_split: int) -> Case:
    case = paged.batch_case(spec)
    case.inputs["keys_per_split"] = keys_per_split
    case.label += f", {keys_per_split} keys a split"
    case.other = lambda: _case(spec.other(), keys_per_split)
    return case


def rules(case: Case, launches: list[Launch], got: torch.Tensor) -> Iterator[str]:
    """What a result that is right may have left out: the split. The first program that loads keys of two."""
    table, size = case.inputs["block_table"], case.inputs["key_cache"].shape[1]
    split = case.inputs["keys_per_split"]
    logical = np.zeros(len(case.inputs["key_cache"]), dtype=np.int64)
    for row, length in enumerate(case.inputs["seq_lens"].tolist()):
        blocks = -(-length // size)
        logical[table[row, :blocks].numpy()] = np.arange(blocks)
    for launch in launches:
        seen: dict[int, tuple[int, int]] = {}
        for access in launch.accesses:
            if access.region.name != "key_cache" or not access.addresses.size:
                continue
            (block, slot, *_), _ = access.region.place(access.addresses)
            position = logical[block] * size + slot
            low, high = seen.get(access.program, (position[0], position[0]))
            low, high = min(low, int(position.min())), max(high, int(position.max()))
            seen[access.program] = low, high
            if low // split != high // split:
                yield (
                    f"the numbers are right, but {launch.name}, program {launch.program(access.program)}, "
                    f"takes keys {low} to {high} of a sequence, and a split has {split}: one program, one "
                    "split"
                )
                return


@dataclass(frozen=True)
class State:
    """The parts of one head of one sequence, in float64: the base of what goes wrong in a merge."""

    largest: torch.Tensor  # [splits]
    total: torch.Tensor  # [splits]
    acc: torch.Tensor  # [splits, head_size]
    full: int  # splits that have all of their keys

    @property
    def weight(self) -> torch.Tensor:
        return (self.largest - self.largest.max()).exp()

    def merged(self) -> torch.Tensor:
        """The result, as it should be."""
        return self.weight @ self.acc / (self.weight @ self.total)

    def first(self, count: int) -> State:
        """The first `count` splits alone."""
        return State(self.largest[:count], self.total[:count], self.acc[:count], self.full)


def states(drawn: Paged, row: int, head: int, keys_per_split: int, reach: int) -> State:
    """Each split's largest score, sum and unfinished result, of `reach` keys from its first on: as many as
    `keys_per_split`, where splits do not overlap."""
    length, size = int(drawn.seq_lens[row]), drawn.keys.shape[1]
    kv = head * drawn.keys.shape[2] // drawn.query.shape[1]
    at = torch.arange(length)
    block = drawn.table[row, at // size].long()
    key, value = (c[block, at % size, kv].double() for c in (drawn.keys, drawn.values))
    scores = key @ drawn.query[row, head].double() * drawn.scale
    parts = []
    for first in range(0, length, keys_per_split):
        mine = slice(first, first + reach)
        weights = (scores[mine] - scores[mine].max()).exp()
        parts.append((scores[mine].max(), weights.sum(), weights @ value[mine]))
    largest, total, acc = (torch.stack(column) for column in zip(*parts, strict=True))
    return State(largest, total, acc, length // keys_per_split)


def _weighed(s: State, weight: torch.Tensor) -> torch.Tensor:
    return weight @ s.acc / (weight @ s.total)


# What a merge does wrong: in words, and the result it gives.
MERGES: list[tuple[str, Any]] = [
    (
        "the parts are added as they are. Each was computed with a maximum of its own, and must be "
        "multiplied by exp(own maximum - largest maximum) first",
        lambda s: s.acc.sum(0) / s.total.sum(),
    ),
    (
        "the unfinished results are brought to one maximum, and the sums are not: both were computed with "
        "their split's own",
        lambda s: s.weight @ s.acc / s.total.sum(),
    ),
    (
        "the sums are brought to one maximum, and the unfinished results are not: both were computed with "
        "their split's own",
        lambda s: s.acc.sum(0) / (s.weight @ s.total),
    ),
    (
        "each split divides by its own sum, and the merge takes the mean. A split in which all weights are "
        "small then counts as much as any other",
        lambda s: (s.acc / s.total[:, None]).mean(0),
    ),
    (
        "each split divides by its own sum, and the merge multiplies by exp(own maximum - largest maximum) "
        "as if it had not: the division has taken the sum away, which is part of the weight",
        lambda s: s.weight @ (s.acc / s.total[:, None]) / s.weight.sum(),
    ),
    (
        "each split divides by its own sum, and the merge divides by all sums again",
        lambda s: s.weight @ (s.acc / s.total[:, None]) / (s.weight @ s.total),
    ),
    (
        "the parts are weighed by powers of 2 of maxima that are in powers of e: exp2 wants scores times "
        "log2(e)",
        lambda s: _weighed(s, s.weight.log2().mul(0.6931471805599453**2).exp()),
    ),
    ("only the first split enters the result", lambda s: s.first(1).merged()),
    (
        "the last split of a sequence, if it is not full, is left out: the number of splits is rounded down",
        lambda s: s.first(max(1, s.full)).merged(),
    ),
]


def explain(case: Case, got: torch.Tensor) -> str | None:
    """The one mistake that gives `got`, or None."""
    drawn, split = case.about["paged"], case.inputs["keys_per_split"]
    if words := mistakes.extreme(case, got):
        return words
    rows, heads = case.expected.shape[:2]
    places = [(row, head) for row in range(rows) for head in range(heads)]

    def gives(own: list[State], merge: Any) -> bool:
        merged = torch.stack([merge(state) for state in own]).view(case.expected.shape)
        near = (got.double() - merged).abs() <= 4 * case.tolerance
        return bool(near.all()) and bool(
            ((merged - case.expected).abs() > 8 * case.tolerance).any()
        )

    exact = [states(drawn, *place, split, split) for place in places]
    for words, merge in MERGES:
        if gives(exact, merge):
            return str(words)
    for count in range(2, max(len(state.total) for state in exact)):
        if gives(exact, lambda s, n=count: s.first(n).merged()):
            return f"only the first {count} splits of a sequence enter the result"
    for tile in (16, 32, 64, 128):
        reach = -(-split // tile) * tile
        if gives([states(drawn, *place, split, reach) for place in places], State.merged):
            return (
                f"the last tile of a split reaches into the next split, whose program counts these keys once "
                f"more (tiles of {tile}): the mask must end where the split does"
            )
    right = paged.answer(drawn)[0]
    for words, wrong in mistakes.online_mistakes(split):
        expected, tolerance = paged.answer(drawn, **wrong)
        near = (got.double() - expected).abs() <= 4 * tolerance
        if bool(near.all()) and bool(((expected - right).abs() > 8 * tolerance).any()):
            return words
    return mistakes.explain(drawn, got) or mistakes.nearly(case, got)
