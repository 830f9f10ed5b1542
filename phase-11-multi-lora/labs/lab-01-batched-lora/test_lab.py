"""Lab 11-01: the predictions, one adapter, a step's rows beside vLLM's, and tenants on the engine."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
RECORDED = support.recorded()
STEPS, RUNS = support.STEPS, support.RUNS


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers to the six questions hold, before anything is run."""
    facts: dict[str, tuple[Any, float, str]] = {
        "smaller": ((51.2, 199.1), 0.5, "How many numbers do A and B have together?"),
        "factor": ((0.25, 2.0), 0.001, "What is alpha divided by in each case?"),
        "reads": (7.53, 0.05, "How many numbers does the shared base have, and each adapter?"),
        "products": ((22, 9, 5), 0, "What does Cy's adapter have for o, and where does a run end?"),
        "side by side": (17, 0, "How many projections does each of the three adapters have here?"),
        "minus one": (([3, 6, 8], []), 0, "Which element of a Python list is number -1?"),
    }
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"six questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, (fact, near, ask) in facts.items():
        wrong = wrong_in(said[name], list(fact) if isinstance(fact, tuple) else fact, near)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- one adapter ---------------------------------------------------------------------------------


def numbers(seed: int, *shape: int) -> Any:
    return support.draw(support.random.Random(seed), *shape)


@pytest.mark.parametrize(
    ("alpha", "rank", "use_rslora", "factor"),
    [
        (8, 4, False, 2.0),
        (16, 64, False, 0.25),
        (4, 16, True, 1.0),
        (16, 64, True, 2.0),
        (8, 2, True, 32**0.5),
    ],
)
def test_b_is_scaled_once(
    lab: ModuleType, alpha: float, rank: int, use_rslora: bool, factor: float
) -> None:
    """The factor is in the B that `scaled` returns, and not in the one it was given."""
    given = numbers(1, 3, rank)
    before = given.copy()
    got = lab.scaled(given, alpha, rank, use_rslora)
    ratio = float(got.ravel()[0] / before.ravel()[0])
    assert np.allclose(got, before * factor), (
        f"alpha {alpha}, rank {rank}, use_rslora {use_rslora}: B is multiplied by {ratio:.4g}"
    )
    assert got.dtype == np.float32, f"B is {got.dtype} and not float32"
    assert np.array_equal(given, before), (
        "the B that was read has changed; loaded a second time, it is scaled twice"
    )


@pytest.mark.parametrize(("size_in", "size"), [(6, 6), (8, 5), (5, 8)])
def test_the_delta(lab: ModuleType, size_in: int, size: int) -> None:
    """x times A, then times B: `[n, size]`, as with the product of both."""
    x, a, b = numbers(2, 4, size_in), numbers(3, 2, size_in), numbers(4, size, 2)
    want = x.astype(float) @ (b.astype(float) @ a.astype(float)).T
    got = lab.lora_delta(x, a, b)
    assert got.shape == (4, size), f"the delta is {list(got.shape)}, and should be {[4, size]}"
    off = np.abs(got - want).max()
    assert off <= 1e-5, (
        f"in {size_in}, size {size}: off by {off:.3g} from x (BA)T; largest is {np.abs(want).max():.3g}"
    )


def test_the_delta_stays_low_rank(lab: ModuleType) -> None:
    """`[size, in]` is never made: n * r * (in + size) multiplications."""
    tally = support.Tally()
    x, a, b = (
        support.count_in(tally, numbers(i, *shape))
        for i, shape in enumerate([(3, 40), (2, 40), (30, 2)])
    )
    lab.lora_delta(x, a, b)
    most = 3 * 2 * (40 + 30)
    assert tally.multiplications <= most, (
        f"3 rows of 40, rank 2, size 30: {tally.multiplications} multiplications, and {most} suffice"
    )


@pytest.mark.parametrize("has", ["qkv", "qv", "vq", "k", "v", ""])
def test_pieces_start_where_their_projection_does(lab: ModuleType, has: str) -> None:
    """Whatever the adapter lacks, its pieces stand under their own projection's columns."""
    starts = {"q": 0, "k": 8, "v": 12}
    sizes = support.PACKED
    pairs = {name: (numbers(5, 2, 6), numbers(i, sizes[name], 2)) for i, name in enumerate(has)}
    pieces = lab.place(sizes, pairs)
    got = [piece.start for piece in pieces]
    ordered = [name for name in sizes if name in has]
    right = got == [starts[name] for name in ordered]
    assert right, (
        f"the adapter has {ordered}; the projections start at {starts}, and your pieces at {got}"
    )
    for name, piece in zip(ordered, pieces, strict=True):
        lora_a, lora_b = pairs[name]
        same = np.array_equal(piece.lora_a, lora_a) and np.array_equal(piece.lora_b, lora_b)
        assert same, f"the piece at {piece.start} does not have {name}'s A and B"


@pytest.mark.parametrize("has", ["qkv", "qv", ""])
def test_one_adapters_layer(lab: ModuleType, has: str) -> None:
    """The base's product and the deltas: as with W + BA."""
    step = support.make_step(20, [0] * 4, [has])
    want, before = step.expected(), step.weight.copy()
    got = lab.single_layer(step.x, step.weight, lab.place(step.sizes, step.adapters[0]))
    assert np.array_equal(step.weight, before), (
        f"an adapter with {list(has)}: the base's weight has changed, and other tenants' rows need it"
    )
    check(got, want, step, f"an adapter with {list(has)}")


# ---- a step's rows -------------------------------------------------------------------------------


def check(got: Any, want: Any, step: Any, where: str) -> None:
    """Fails if a row is off, and says which ones, and by how much."""
    shape = None if got is None else list(got.shape)
    assert shape == list(want.shape), f"{where}: the result is {shape}, not {list(want.shape)}"
    near = support.NEAR * np.abs(want).max()
    off = np.abs(np.asarray(got) - want)
    rows = np.flatnonzero(off.max(axis=1) > near).tolist()
    names, start = [], 0
    for name, size in step.sizes.items():
        if off[:, start : start + size].max(initial=0) > near:
            names.append(name)
        start += size
    slots = [step.slot_of_row[row] for row in rows]
    assert not rows, (
        f"{where}; slots of the rows {step.slot_of_row}: rows {rows} of slots {slots} are wrong in "
        f"{' and '.join(names)}, by up to {off.max():.3g}"
    )


@pytest.mark.parametrize(
    "slot_of_row", [[0, 0, 1], [2, 0, 2, -1, 0, 2], [1, -1, -1, 1], [-1, -1], [5]]
)
def test_all_rows_of_a_slot_are_one_group(lab: ModuleType, slot_of_row: list[int]) -> None:
    """Also rows that are apart; rows without an adapter are in no group."""
    got = {
        int(slot): np.asarray(rows).tolist() for slot, rows in lab.group_rows(slot_of_row).items()
    }
    want: dict[int, list[int]] = {}
    for row, slot in enumerate(slot_of_row):
        if slot >= 0:
            want.setdefault(slot, []).append(row)
    right = got == want
    assert right, f"slots of the rows {slot_of_row}: your groups are {got}"


@cache
def result(lab: ModuleType, name: str) -> Any:
    """A step by the lab's functions."""
    step = STEPS[name]
    slots = [lab.place(step.sizes, pairs) for pairs in step.adapters]
    return lab.step_layer(step.x, step.weight, list(step.slot_of_row), slots)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_the_merged_weights(lab: ModuleType, name: str) -> None:
    """Each row is what its tenant's own W + BA gives."""
    check(result(lab, name), STEPS[name].expected(), STEPS[name], repr(name))


@pytest.mark.parametrize("name", STEPS)
def test_rows_with_an_adapter_are_vllms(lab: ModuleType, name: str) -> None:
    """Within 1e-5 of what vLLM's own operations gave."""
    step = STEPS[name]
    got, theirs = result(lab, name), np.array(RECORDED["steps"][name])
    rows = [i for i, slot in enumerate(step.slot_of_row) if slot >= 0]
    off = np.abs(got[rows] - theirs[rows]).max(initial=0)
    assert off <= support.NEAR * np.abs(theirs).max(), f"{name!r}: off by {off:.3g} from vLLM"


@pytest.mark.parametrize("name", STEPS)
def test_it_is_added_in_place(lab: ModuleType, name: str) -> None:
    """To whatever stands in y; rows without an adapter keep every bit."""
    step = STEPS[name]
    slots = [lab.place(step.sizes, pairs) for pairs in step.adapters]
    y = numbers(30, len(step.x), len(step.weight))
    before = y.copy()
    lab.add_grouped(y, step.x, list(step.slot_of_row), slots)
    base = step.x.astype(float) @ step.weight.T.astype(float)
    check(y, before + (step.expected() - base), step, f"{name!r}, add_grouped")
    bare = [i for i, slot in enumerate(step.slot_of_row) if slot < 0]
    assert np.array_equal(y[bare], before[bare]), (
        f"{name!r}: rows {bare} have no adapter, and have changed"
    )


@pytest.mark.parametrize("name", STEPS)
def test_a_step_takes_no_more_products(lab: ModuleType, name: str) -> None:
    """One with the base, two for each piece of each adapter that has rows."""
    step = STEPS[name]
    size_in = step.x.shape[1]
    products, multiplications = 1, step.x.size * len(step.weight)
    for slot in {slot for slot in step.slot_of_row if slot >= 0}:
        rows = step.slot_of_row.count(slot)
        for a, b in step.adapters[slot].values():
            products += 2
            multiplications += rows * len(a) * (size_in + len(b))
    tally = support.count_step(lab, step)
    assert tally.products <= products, (
        f"{name!r}; slots of the rows {step.slot_of_row}: {tally.products} products, and {products} suffice"
    )
    assert tally.multiplications <= multiplications, (
        f"{name!r}; slots of the rows {step.slot_of_row}: {tally.multiplications} multiplications, and "
        f"{multiplications} suffice"
    )


# ---- what the CPU build does ---------------------------------------------------------------------


@pytest.mark.parametrize("name", STEPS)
def test_what_rows_without_an_adapter_get(lab: ModuleType, name: str) -> None:
    """The base's row, or with a slot's delta: what vLLM's CPU build returned."""
    step, theirs = STEPS[name], np.array(RECORDED["steps"][name])
    got = lab.borrowed(list(step.slot_of_row), step.filled)
    bare = [i for i, slot in enumerate(step.slot_of_row) if slot < 0]
    assert set(got) <= set(bare), (
        f"{name!r}: of the rows {list(got)} not all are without an adapter"
    )
    negative = [row for row, slot in got.items() if slot < 0]
    assert not negative, (
        f"{name!r}: {got}; for rows {negative} say the slot's own number, counted from 0"
    )
    wrong = [
        row
        for row in bare
        if np.abs(step.row_with(row, got.get(row, -1)) - theirs[row]).max()
        > support.NEAR * np.abs(theirs).max()
    ]
    assert not wrong, (
        f"{name!r}; slots of the rows {step.slot_of_row}, filled {step.filled}: {got} by you, and vLLM's CPU "
        f"build returned something else for rows {wrong}"
    )
    zeros = [row for row, slot in got.items() if not step.filled[slot]]
    assert not zeros, (
        f"{name!r}: {got}; rows {zeros} get nothing but zeros, and do not belong there"
    )
    assert list(got) == sorted(got), f"{name!r}: rows come ascending, not {list(got)}"


# ---- tenants on the engine -----------------------------------------------------------------------


def differing(run: Any, mine: list[list[int]], others: list[list[int]]) -> str:
    """The first request whose tokens differ, for a message; "" if none does."""
    for (name, _, _), ours, theirs in zip(run.requests, mine, others, strict=True):
        if ours != theirs:
            first = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
            return f"{name} gets {support.text_of(ours)!r}, right up to token {first}"
    return ""


def test_three_tenants_in_one_batch(lab: ModuleType) -> None:
    """Your functions in the engine: tokens of each tenant's merged weights, and of real vLLM."""
    run = RUNS["four slots"]
    mine = support.play(lab, run)
    apart = differing(run, mine, support.merged_tokens(run))
    assert not apart, f"not the tokens of merged weights: {apart}"
    assert mine == RECORDED["runs"]["four slots"], "real vLLM says something else"


@pytest.mark.parametrize("name", ["three slots", "Cy's adapter removed"])
def test_the_engine_as_the_cpu_build(lab: ModuleType, name: str) -> None:
    """With `borrowed` in the engine, the tokens of vLLM's CPU build, Eve's too."""
    run = RUNS[name]
    apart = differing(run, support.play(lab, run, as_cpu_build=True), RECORDED["runs"][name])
    assert not apart, f"{name!r}, with your borrowed: not the tokens of vLLM's CPU build: {apart}"
