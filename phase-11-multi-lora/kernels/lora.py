"""The problem `lora`: the deltas of rows that are sorted by slot, added to the base's result.

    add_lora(y, x, lora_a, lora_b, slice_starts, widths, sorted_rows, counts, starts, slots) -> out

`y` [rows, outputs], float16 or float32, without gaps, the base's result; `x` [rows, K] in y's dtype, any
stride between rows; `lora_a` [slices, slots, rank, K] and `lora_b` [slots, outputs, rank], both in y's
dtype and without gaps, B scaled. Slice s of the outputs begins at `slice_starts`[s], int32 [slices + 1];
`widths`, a list, is how wide each is. The rows of group g are `sorted_rows`[starts[g] : starts[g] +
counts[g]] in any order, and their slot is `slots`[g], or -1 where they have no adapter; `counts` and
`slots` are int32 [slots + 1], `starts` int32 [slots + 2]. Behind the groups in use `slots` holds -1, and
the other two may hold anything. That is what vLLM's `LoRAKernelMeta` makes. `out` is y, and in a row with
an adapter y plus its delta: x times A of the slice, in float32, then rounded to y's dtype and multiplied
with B. The rank is a power of two from 8 on. Slots that no row has, and rows of x without an adapter, may
hold NaN. All offsets stay below 2**31.

The bench keeps inputs as they are, so `out` begins as a copy of y, which is counted. Left out: bfloat16,
adapters of experts, and vLLM's `offset_start`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from course.kernels.case import Answer, Case
from course.kernels.memory import guarded, rows_of_wider
from course.kernels.mistakes import nearly
from course.kernels.paged import EPSILON
from course.kernels.problems.lora_vllm import Starter, groups_of, vllm
from course.kernels.record import Launch

__all__ = [
    "Starter",
    "answer",
    "cases",
    "explain",
    "measure",
    "rules",
    "shape",
    "sort_rows",
    "traffic",
    "vllm",
]

ENTRY = "add_lora"
NEEDED = ("lora_a", "lora_b")
MOST_BYTES = 1.05
YARDSTICK = "the least of both kernels with 16 rows a program"
TENSOR_CORE = True
WIDE = "A and B"
FORMS = {"lora_shrink": 0, "lora_expand": 1}  # each with the other half in float64
THEIR_FOLDER = "lora/ops/triton_ops"
BENCHMARK = "phase-11-multi-lora/labs/lab-02-triton-lora/show.py --device cuda"

ROWS, OUTPUTS = 16, 64  # of a program, for the yardstick


@dataclass(frozen=True)
class Spec:
    """What a case is drawn from."""

    without: int  # rows that have no adapter
    counts: tuple[int, ...]  # rows of each slot
    rank: int
    inputs: int
    widths: tuple[int, ...]  # of the slices
    dtype: torch.dtype = torch.float16
    gap: int = 16  # between rows of x, as in `w4a16`
    # Behind the groups in use counts and starts hold anything, a group's rows are in no order, and x is NaN
    # in rows without an adapter.
    wild: bool = True
    # "random"; "far": sixteen products add up to more than float16 holds, and the sum comes back; "zeros":
    # nothing is drawn
    mood: str = "random"
    seed: int = 0

    @property
    def label(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        mood = ", sums that go far out and come back" if self.mood == "far" else ""
        counts = " ".join(map(str, self.counts))
        return (
            f"{kind}{mood}, rows of each slot {counts}, {self.without} without, rank {self.rank}, "
            f"{self.inputs} inputs, outputs {' '.join(map(str, self.widths))}"
        )


# vLLM's kernels take no float32, so these stand behind the cases that are held against them.
_CASES = (
    Spec(5, (7, 1, 0, 10), 8, 96, (48,), wild=False),
    Spec(3, (0, 20, 1, 0), 16, 80, (96, 32, 32), seed=1),
    Spec(0, (1,), 16, 40, (72,), seed=2),
    Spec(1, (2, 0, 2), 32, 136, (33, 70), gap=0, seed=3),
    Spec(6, (0, 35, 0), 64, 256, (24,), mood="far", seed=4),
    Spec(60, (0, 0, 0, 3), 8, 7, (130, 1), seed=5),
    Spec(2, (1,) * 12, 16, 64, (64, 64, 64), seed=6),
    Spec(9, (0, 0), 16, 32, (20,), seed=7),
    Spec(2, (9, 0, 17), 8, 72, (40, 16, 24), torch.float32, seed=8),
    Spec(10, (100, 3), 32, 128, (72,), seed=9),
    Spec(1, (4,), 64, 2048, (1,), torch.float32, seed=10),
)
_TRAFFIC = Spec(9, (20, 1, 0, 16), 16, 512, (256, 128, 128), seed=11)
# A decode step of Noor's Llama-3-8B: q, k and v of a layer, eight tenants.
_SHAPE = Spec(0, (8,) * 8, 16, 4096, (4096, 1024, 1024), mood="zeros", seed=12)


def cases() -> list[Case]:
    return [_case(spec) for spec in _CASES]


def traffic() -> Case:
    return _case(_TRAFFIC)


def shape() -> Case:
    return _case(_SHAPE)


def sort_rows(slot_of: torch.Tensor, slots: int) -> dict[str, torch.Tensor]:
    """The lists of a step, from each row's slot, as vLLM's `LoRAKernelMeta.prepare_tensors` makes them."""
    found, counts = torch.unique(slot_of, return_counts=True)
    kind = {"dtype": torch.int32, "device": slot_of.device}
    lists = {
        "sorted_rows": torch.sort(slot_of, stable=True)[1].int(),
        "counts": torch.zeros(slots + 1, **kind),
        "starts": torch.zeros(slots + 2, **kind),
        "slots": torch.full((slots + 1,), -1, **kind),
    }
    lists["counts"][: len(found)] = counts
    lists["starts"][1 : len(found) + 1] = counts.cumsum(0)
    lists["slots"][: len(found)] = found
    return lists


def _case(spec: Spec) -> Case:
    rng = torch.Generator().manual_seed(spec.seed)
    ids = torch.tensor([-1, *range(len(spec.counts))], dtype=torch.int32)
    slot_of = ids.repeat_interleave(torch.tensor([spec.without, *spec.counts]))
    slot_of = slot_of[torch.randperm(len(slot_of), generator=rng)]
    rows, slots, slices = len(slot_of), len(spec.counts), len(spec.widths)
    outputs = sum(spec.widths)
    y, x, a, b = _draw(spec, rows, rng)
    live = torch.tensor(spec.counts) > 0
    a[:, ~live] = float("nan")
    b[~live] = float("nan")
    lists = sort_rows(slot_of, slots)
    if spec.wild:
        x[slot_of < 0] = float("nan")
        used = len(slot_of.unique())
        for name in ("counts", "starts"):
            left = lists[name][used + (name == "starts") :]
            left.random_(-(2**31), 2**31 - 1, generator=rng)
        for start, count in groups_of(lists, used):
            own = lists["sorted_rows"][start : start + count]
            own.copy_(own[torch.randperm(count, generator=rng)])
    edges = torch.tensor([0, *spec.widths]).cumsum(0).int()
    inputs: dict[str, Any] = {
        "y": guarded(y.to(spec.dtype)),
        "x": rows_of_wider(x.to(spec.dtype), float("nan"), spec.gap),
        "lora_a": guarded(a.to(spec.dtype)),
        "lora_b": guarded(b.to(spec.dtype)),
        "slice_starts": guarded(edges),
        "widths": list(spec.widths),
        **{name: guarded(tensor) for name, tensor in lists.items()},
    }
    item = inputs["x"].element_size()
    with_one = sum(spec.counts)
    tiles = sum(-(-count // ROWS) for count in spec.counts)
    started = -(-rows // ROWS) * (slots + 1)
    blocks = [-(-width // OUTPUTS) for width in spec.widths]
    both = slices + sum(blocks)  # programs of a tile, in the one kernel and the other
    least = {
        "y": rows * outputs * item,
        "x": with_one * spec.inputs * item * slices,
        "lora_a": tiles * spec.rank * spec.inputs * item * slices,
        "lora_b": tiles * spec.rank * outputs * item,
        "slice_starts": tiles * sum(blocks) * 8,
        "sorted_rows": with_one * both * 4,
        "counts": started * both * 4,
        "starts": tiles * both * 4,
        "slots": started * both * 4,
        # As the lab's kernels name what they make.
        "mid_ptr": with_one * spec.rank * 4 * both,
        "out_ptr": (rows + 2 * with_one) * outputs * item,
    }
    matrix = int(live.sum()) * spec.rank * item
    return Case(
        spec.label, inputs, lambda: answer(inputs), least,
        {"lora_a": live.expand(slices, -1), "lora_b": live, "x": slot_of >= 0},
        {"mood": spec.mood, "vllm needs": [inputs["sorted_rows"]],
         "config": {} if spec in (_TRAFFIC, _SHAPE) else {"split_k": 1}},
        dead="which belongs to no row that has an adapter: a group's slot is slots[g], and -1 is none",
        distinct={"lora_a": matrix * spec.inputs * slices, "lora_b": matrix * outputs},
        other=lambda: _case(replace(spec, seed=spec.seed + 1000)),
        flip=lambda: inputs["lora_b"].neg_(), flips=("lora_b",),
    )  # fmt: skip


def _draw(spec: Spec, rows: int, rng: torch.Generator) -> tuple[torch.Tensor, ...]:
    outputs, slices, slots = sum(spec.widths), len(spec.widths), len(spec.counts)
    sizes = (
        (rows, outputs), (rows, spec.inputs), (slices, slots, spec.rank, spec.inputs),
        (slots, outputs, spec.rank),
    )  # fmt: skip
    if spec.mood == "zeros":
        return tuple(torch.zeros(size) for size in sizes)
    y, x, a, b = (torch.randn(size, generator=rng) for size in sizes)
    if spec.mood == "far":
        half = spec.inputs // 2
        x = 2000 * (1 + 0.003 * x)
        x[:, half:] *= -1
        a = 4 + 0.3 * a
        a[..., half:] = a[..., :half]
        b /= 100
    return 10 * y, x, a, b


def answer(inputs: dict[str, Any], **wrong: Any) -> Answer:
    """`out` in float64, and a tolerance for each number; both [rows, outputs].

    `wrong` puts one mistake in (see `MISTAKES`), to recognise it in a kernel's output.
    """
    y, x, a, b = (inputs[name] for name in ("y", "x", "lora_a", "lora_b"))
    edges, slots = inputs["slice_starts"].tolist(), inputs["slots"].tolist()
    out, size = y.double().clone(), torch.zeros(y.shape, dtype=torch.float64)
    exact, coarse = EPSILON[torch.float32], EPSILON[y.dtype]
    if not inputs["slots"].numel() or max(slots) < 0:
        return out, coarse * out.abs()
    used = max(g for g, slot in enumerate(slots) if slot >= 0) + 1
    for group, (start, count) in enumerate(groups_of(inputs, used)):
        slot = wrong.get("slot", lambda slot, group: slot)(slots[group], group)
        if slot < 0 and not wrong.get("none too"):
            continue
        slot = min(slot, a.shape[1] - 1)  # a mistake may point past the last
        place = start + torch.arange(count)
        rows = inputs["sorted_rows"][place].long()
        place, rows = (wrong.get("some", lambda n: n)(n) for n in (place, rows))
        read = wrong.get("read", lambda place, rows: rows)(place, rows)
        into = wrong.get("into", lambda place, rows: rows)(place, rows)
        of_x = x[read].double()
        of_x[:, x.shape[1] - wrong.get("drop", lambda n: 0)(x.shape[1]) :] = 0
        for piece, (left, right) in enumerate(pairwise(edges)):
            of_a = a[wrong.get("piece", lambda piece: piece)(piece), slot].double()
            first = wrong.get("first", lambda left: left)(left)
            of_b = b[slot, first : first + right - left].double()
            of_b = of_b * wrong.get("ranks", lambda of_b: torch.ones_like(of_b))(of_b)
            mid = of_x @ of_a.T
            delta = mid @ of_b.T
            rounded = mid.square() * coarse**2
            rounded += ((of_x.abs() @ of_a.abs().T) * exact / 4).square()
            into_out = out[into, left:right]
            out[into, left:right] = wrong.get("add", torch.add)(into_out, delta)
            size[into, left:right] = 4 * (rounded @ of_b.square().T).sqrt() + coarse * delta.abs()
    return out, size + coarse * out.abs()


def _only(first: int, last: int | None) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda one: one[first:last]


def _low_ranks(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda of_b: (torch.arange(of_b.shape[1]) < count).double().expand_as(of_b)


# What an output looks like that one mistake has made: the mistake in words, and what `answer` does for it.
MISTAKES: list[tuple[str, dict[str, Any]]] = [
    (
        "rows without an adapter get the last slot's delta; their group has slot -1, and keeps y",
        {"none too": True},
    ),
    (
        "group g takes the adapter in slot g; its slot is slots[g]",
        {"slot": lambda slot, group: group if slot >= 0 else -1},
    ),
    (
        "group g takes the adapter in slot g - 1; its slot is slots[g]",
        {"slot": lambda slot, group: group - 1 if slot >= 0 else -1},
    ),
    ("the delta takes y's place; it is added to it", {"add": lambda y, delta: delta}),
    ("the delta is added twice", {"add": lambda y, delta: y + 2 * delta}),
    ("the delta is subtracted", {"add": lambda y, delta: y - delta}),
    (
        "no delta is added: out is y",
        {"add": lambda y, delta: y},
    ),
    (
        "x is read in the order of the list; the row is sorted_rows[start + i]",
        {"read": lambda place, rows: place},
    ),
    (
        "the deltas are stored in the order of the list; the row is sorted_rows[start + i]",
        {"into": lambda place, rows: place},
    ),
    (
        "x is read, and the deltas stored, in the order of the list; the row is sorted_rows[start + i]",
        {"read": lambda place, rows: place, "into": lambda place, rows: place},
    ),
    ("the first row of each group is left out", {"some": _only(1, None)}),
    ("the last row of each group is left out", {"some": _only(0, -1)}),
    ("all slices are multiplied with the first slice's A", {"piece": lambda piece: 0}),
    (
        "each slice takes the first rows of B; its rows begin where its outputs do",
        {"first": lambda left: 0},
    ),
]
MISTAKES += [
    (f"only the first {count} rows of each group get their delta", {"some": _only(0, count)})
    for count in (1, 8, 16, 32)
]
MISTAKES += [
    (f"only the first {count} of the ranks are used", {"ranks": _low_ranks(count)})
    for count in (8, 16, 32)
]
MISTAKES += [
    (
        f"the last inputs are left out: K is rounded down to a multiple of {tile}",
        {"drop": lambda n, tile=tile: n % tile},
    )
    for tile in (16, 32, 64)
]


def explain(case: Case, got: torch.Tensor) -> str | None:
    """The one mistake that gives `got`, or None."""
    if not got.isfinite().all():
        if case.about["mood"] == "far":
            return (
                "sums on their way pass 65,504, the most that float16 holds, and never come back: "
                "accumulate in float32, also within a tl.dot"
            )
        return None
    for words, wrong in MISTAKES:
        expected, tolerance = answer(case.inputs, **wrong)
        near = (got.double() - expected).abs() <= 4 * tolerance
        tells = (expected - case.expected).abs() > 8 * case.tolerance
        if bool((near | expected.isnan()).all()) and bool(tells.any()):
            return words
    return nearly(case, got)


def rules(case: Case, launches: list[Launch], got: torch.Tensor) -> Iterator[str]:
    """Loads for nothing that are too few for the judge of bytes."""
    live = case.live["x"].numpy()
    for launch in launches:
        adds = {at.program for at in launch.accesses if at.region.name == "out_ptr"}
        for at in launch.accesses:
            if not at.addresses.size:
                continue
            who = (
                f"the numbers are right, but {launch.name}, program {launch.program(at.program)}, "
            )
            if at.region.name == "x" and not live[at.region.place(at.addresses)[0][0]].all():
                yield (
                    f"{who}loads x in line {at.line} of a row that has no adapter: which of its lanes have "
                    "no row, and what do they load?"
                )
                return
            if at.region.name == "mid_ptr" and at.kind == "load" and at.program not in adds:
                yield f"{who}loads mid in line {at.line} and has no output to add to"
                return


# -- the contract against the cases -----------------------------------------------------------------

# What the contract allows, as far as a case can go: each quantity's least and largest value.
ALLOWS: dict[str, tuple[float, float]] = {
    "bits of x": (16, 32),
    "rows": (1, 113),
    "rows without an adapter": (0, 60),
    "rows of a slot": (0, 100),
    "slots": (1, 12),
    "slots in use": (0, 12),
    "a slot in use": (0, 11),
    "rank": (8, 64),
    "inputs": (7, 2048),
    "slices": (1, 3),
    "width of a slice": (1, 256),
    "slices that begin within 16 bytes": (0, 1),
    "groups behind those in use": (0, 3),
    "counts behind the groups in use": (-2e9, 2e9),
    "steps back in a group's rows": (0, 1),
    "gap between rows of x": (0, 16),
    "sum of 16 products with A": (1, 65505),
    "product with A": (1, 800),
}


def measure(case: Case) -> dict[str, tuple[float, float]]:
    """The least and the largest value in this case of each quantity of `ALLOWS`."""
    _, x, a, _, edges, _, rows, counts, _, slots = case.inputs.values()
    used = int((slots >= 0).sum())
    none = len(rows) - int(counts[:-1][slots[:-1] >= 0].sum()) - int(counts[-1] * (slots[-1] >= 0))
    groups = used + (none > 0)
    slot_of = torch.full((len(rows),), -1)
    for group, (start, count) in enumerate(groups_of(case.inputs, groups)):
        slot_of[rows[start : start + count].long()] = int(slots[group])
    of = torch.bincount(slot_of[slot_of >= 0], minlength=len(slots) - 1)
    one = {
        "bits of x": 8 * x.element_size(),
        "rows": len(x),
        "rows without an adapter": none,
        "slots": len(slots) - 1,
        "slots in use": used,
        "rank": a.shape[2],
        "inputs": x.shape[1],
        "slices": len(a),
        "groups behind those in use": len(slots) - groups,
        "gap between rows of x": x.stride(0) - x.shape[1],
    }
    several: dict[str, torch.Tensor] = {
        "rows of a slot": of,
        "a slot in use": slots[slots >= 0],
        "width of a slice": edges.diff(),
        "slices that begin within 16 bytes": edges[:-1] % 8 != 0,
        "counts behind the groups in use": counts[groups:],
    }
    if used:
        first, last = groups_of(case.inputs, groups)[-1]
        several["steps back in a group's rows"] = rows[first : first + last].diff() < 0
        mine = slot_of >= 0
        of_rows = a[:, slot_of[mine]].double()
        several["sum of 16 products with A"] = torch.einsum(
            "mk,smrk->smr", x[mine, :16].double(), of_rows[..., :16]
        ).abs()
        several["product with A"] = torch.einsum("mk,smrk->smr", x[mine].double(), of_rows).abs()
    found = {name: (float(value), float(value)) for name, value in one.items()}
    for name, t in several.items():
        if t.numel():
            found[name] = float(t.min()), float(t.max())
    return found
