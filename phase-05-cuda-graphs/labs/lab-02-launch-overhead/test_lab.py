"""Lab 05-02: the predictions, launches and waiting."""

from __future__ import annotations

import itertools
import random
from types import ModuleType

import pytest

from course.learner.labs import load_support

same = load_support(__file__).same


def names_of(kernels: object) -> list[tuple[str, bool]]:
    """A step's kernels one by one, and whether a piece may hold them: `Kernels` written out."""
    k = kernels
    before, after = [("before", True)] * k.before, [("after", True)] * k.after  # type: ignore[attr-defined]
    inside = k.layer - k.split  # type: ignore[attr-defined]
    head = (inside + 1) // 2
    layer = [("k", True)] * head + [("split", False)] * k.split + [("k", True)] * (inside - head)  # type: ignore[attr-defined]
    return before + layer * k.layers + after  # type: ignore[attr-defined]


# ---- predictions ---------------------------------------------------------------------------------

ANSWERS: dict[str, tuple[tuple[float, ...], float, str]] = {
    "launches eager, PIECEWISE, FULL": (
        (291, 73, 1), 0.0,
        "12 kernels per layer and three at the ends; then the pieces, and what stands between them; and a "
        "whole graph?",
    ),
    "ms eager, FULL": (
        (1.455, 1.0217), 0.03,
        "all of a step's launches at 5 us each, or the card's reading of all weights, whichever is longer",
    ),
    "times faster with Llama-3-8B": (
        (1.0,), 0.02,
        "what does the card do in a step, 16 GB, and how long does the host take for 387 launches?",
    ),
    "microseconds that 33 as 40 costs": (
        (0.0,), 0.0,
        "how many weights are read for 33 rows, and how many for 40? Which K and V has a padded row?",
    ),
}  # fmt: skip


@pytest.mark.parametrize("question", ANSWERS)
def test_the_predictions_hold(lab: ModuleType, question: str) -> None:
    """The four predictions about Kim's steps hold."""
    said = lab.predictions()
    assert sorted(said) == sorted(ANSWERS), f"answer {sorted(ANSWERS)}; yours: {sorted(said)}"
    want, room, hint = ANSWERS[question]
    got = said[question]
    assert isinstance(got, tuple | list), f"{question}: a tuple, also of one number, got {got!r}"
    assert len(got) == len(want), f"{question}: {len(want)} numbers, got {got!r}"
    for said_one, true_one in zip(got, want, strict=True):
        off = abs(said_one - true_one)
        assert off <= room * true_one, f"{question}: not {said_one:g}. Ask yourself: {hint}"


# ---- counting ------------------------------------------------------------------------------------


def test_eager_starts_every_kernel(lab: ModuleType) -> None:
    """An eager step launches each kernel of each layer, those at both ends and those after the model."""
    same(lab.launches(lab.Kernels(16), "NONE"), 195, "16 layers of 12, ends of 2 and 1, eager")
    same(
        lab.launches(lab.Kernels(3, 10, 2, before=4, after=5, beside=6), "NONE"),
        45,
        "3 layers of 10, ends of 4 and 5, 6 beside, eager",
    )


def test_full_is_one_graph(lab: ModuleType) -> None:
    """A FULL graph is one launch for the whole model; kernels after the model are in no graph."""
    for layers in (1, 16, 80):
        got = lab.launches(lab.Kernels(layers), "FULL")
        same(got, 1, f"one graph and nothing beside it, {layers} layers, FULL")
    same(
        lab.launches(lab.Kernels(5, beside=3), "FULL"), 4, "one graph and 3 kernels beside it, FULL"
    )


def test_pieces_reach_from_layer_to_layer(lab: ModuleType) -> None:
    """For any shape of model, PIECEWISE launches are counted right, run by run and kernel by kernel."""
    for layers, layer, split, before, after in itertools.product(
        (1, 2, 7, 32), (5, 12), (1, 2), (1, 3), (1, 2)
    ):
        kernels = lab.Kernels(layers, layer, split, before, after, beside=0)
        flat = names_of(kernels)
        pieces = sum(1 for inside, _ in itertools.groupby(flat, lambda one: one[1]) if inside)
        alone = sum(not inside for _, inside in flat)
        got = lab.launches(kernels, "PIECEWISE")
        depth = "1 layer" if layers == 1 else f"{layers} layers"
        held = "1 kernel" if split == 1 else f"{split} kernels"
        assert got == pieces + alone, (
            f"{depth} with {held} that no piece holds, {before} before and {after} after: "
            f"{pieces + alone} launches, not {got}. How far does a piece reach, and what is each kernel "
            "between two pieces?"
        )
    got = lab.launches(lab.Kernels(4, beside=3), "PIECEWISE") - lab.launches(
        lab.Kernels(4, beside=0), "PIECEWISE"
    )
    assert got == 3, f"the 3 kernels beside the model are launched too, PIECEWISE counts {got}"


def test_fusing_saves_no_launch_where_there_is_a_graph(lab: ModuleType) -> None:
    """Fewer kernels mean fewer launches only if kernels are launched one by one."""
    plain, fused = lab.Kernels(16), lab.Kernels(16, layer=10)
    saved = [
        lab.launches(plain, mode) - lab.launches(fused, mode)
        for mode in ("NONE", "PIECEWISE", "FULL")
    ]
    assert saved == [32, 0, 0], (
        f"two kernels a layer less, none of them alone between pieces: launches saved eager, PIECEWISE, "
        f"FULL {saved}, not [32, 0, 0]"
    )


def test_when_a_graph_has_paid(lab: ModuleType) -> None:
    """Break-even is the fewest steps whose launches, with those of the capture, are fewer than eager ones."""
    for layers, mode, passes, beside in itertools.product(
        (1, 4, 16), ("PIECEWISE", "FULL"), (0, 2, 4, 180), (0, 3)
    ):
        kernels = lab.Kernels(layers, beside=beside)
        flat = names_of(kernels)
        eager = len(flat) + beside
        pieces = 3 * layers + 1 if mode == "PIECEWISE" else 1
        want = next(
            k for k in itertools.count() if passes * eager + k * (pieces + beside) < k * eager
        )
        got = lab.break_even(kernels, mode, passes)
        assert got == want, (
            f"{layers} layers, {mode}, {passes} passes: ahead after {got} steps? {eager} launches eager, "
            f"{pieces + beside} with graphs, and each pass takes {eager}; it is ahead after {want}"
        )


def test_a_tie_has_not_paid(lab: ModuleType) -> None:
    """An equal number of launches is no break-even yet."""
    kernels = lab.Kernels(1, layer=8, split=2, before=1, after=1, beside=0)
    got = lab.break_even(kernels, "PIECEWISE", 3)
    assert got == 6, (
        f"10 launches eager, 4 with pieces, 3 passes: after 5 steps both have made 50, so it pays after 6, "
        f"not {got}"
    )


def test_some_graphs_never_pay(lab: ModuleType) -> None:
    """Graphs that save no launch never pay off."""
    kernels = lab.Kernels(1, layer=3, split=1, before=0, after=0, beside=0)
    for passes in (0, 2):
        got = lab.break_even(kernels, "PIECEWISE", passes)
        assert got is None, (
            f"three kernels, and three launches with pieces: nothing is ever saved, None; got {got}"
        )
    kernels = lab.Kernels(1, layer=4, split=1, before=0, after=0, beside=0)
    got = lab.break_even(kernels, "PIECEWISE", 2)
    assert got == 9, (
        f"four kernels, three launches: a step saves one, two passes cost 8, so 9; got {got}"
    )


# ---- who waits for whom --------------------------------------------------------------------------


def test_a_slow_host(lab: ModuleType) -> None:
    """With a slow host the card waits for each launch, and only the last kernel's time is added."""
    same(lab.finish_time([1.0] * 10, 5.0), 51.0, "10 kernels of 1 s, a launch takes 5 s")


def test_a_slow_card(lab: ModuleType) -> None:
    """With a slow card the host is ahead after the first launch."""
    same(lab.finish_time([5.0] * 10, 1.0), 51.0, "10 kernels of 5 s, a launch takes 1 s")


def test_slow_and_fast_kernels_in_turn(lab: ModuleType) -> None:
    """While a long kernel runs, the host gets ahead, and the short kernels after it start at once."""
    same(lab.finish_time([10.0, 1.0, 1.0, 1.0], 2.0), 15.0, "10 s and three of 1 s, launch 2 s")
    same(lab.finish_time([1.0, 1.0, 1.0, 10.0], 2.0), 18.0, "three of 1 s, then 10 s, launch 2 s")
    same(lab.finish_time([0.0], 2.0), 2.0, "a kernel of no length still has to be launched")
    same(lab.finish_time([], 2.0), 0.0, "no kernels")


def test_the_longest_path_decides(lab: ModuleType) -> None:
    """The longest path decides: for some kernel, all launches up to it, then every kernel from it on."""
    rng = random.Random(2)
    for _ in range(50):
        kernel_s = [rng.choice([0.1, 1.0, 3.0]) * rng.random() for _ in range(rng.randint(1, 30))]
        launch_s = rng.choice([0.05, 0.5, 2.0])
        want = max((i + 1) * launch_s + sum(kernel_s[i:]) for i in range(len(kernel_s)))
        same(
            lab.finish_time(kernel_s, launch_s),
            want,
            f"{len(kernel_s)} kernels, launch {launch_s} s",
        )


def test_waiting_in_the_middle(lab: ModuleType) -> None:
    """After an `.item()` the host's lead is gone."""
    for number, want in ((1, 13.0), (0, 14.0), (2, 12.0)):
        same(
            lab.finish_time([5.0, 1.0, 1.0, 1.0], 2.0, {number}),
            want,
            f"5 s and three of 1 s, launch 2 s, a wait after number {number}, counted from 0",
        )
    same(
        lab.finish_time([5.0] * 4, 1.0, {1}),
        22.0,
        "4 kernels of 5 s, launch 1 s, a wait after the second",
    )
    same(
        lab.finish_time([5.0] * 4, 1.0, range(4)),
        24.0,
        "a wait after every kernel: launch and kernel in turn, as with CUDA_LAUNCH_BLOCKING=1",
    )
    same(
        lab.finish_time([5.0] * 4, 1.0, {3}),
        21.0,
        "a wait after the last kernel delays none of this step",
    )
    same(
        lab.finish_time([1.0] * 4, 5.0, {1}),
        22.0,
        "kernels of 1 s, launch 5 s, a wait after the second",
    )


def test_planning_in_turn(lab: ModuleType) -> None:
    """Under synchronous scheduling the card is idle while the host plans."""
    same(lab.step_time(2.0, 5.0, 1.0, False), 6.0, "launching 2, card 5, planning 1, synchronous")
    same(lab.step_time(5.0, 2.0, 1.0, False), 6.0, "launching 5, card 2, planning 1, synchronous")


def test_planning_ahead(lab: ModuleType) -> None:
    """Under asynchronous scheduling the card's time hides all of the host's time, or none of it."""
    same(lab.step_time(2.0, 5.0, 1.0, True), 5.0, "launching 2, card 5, planning 1, asynchronous")
    same(lab.step_time(5.0, 2.0, 1.0, True), 6.0, "launching 5, card 2, planning 1, asynchronous")
    same(lab.step_time(4.5, 5.0, 1.0, True), 5.5, "launching 4.5, card 5, planning 1, asynchronous")
