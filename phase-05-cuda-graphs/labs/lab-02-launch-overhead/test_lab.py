"""Lab 05-02: launches, waiting, and where a graph pays."""

from __future__ import annotations

import itertools
import math
import random
from types import ModuleType

import pytest


def same(got: object, want: float, what: str) -> None:
    """`got` is `want` up to rounding; else the numbers, and what they are of."""
    assert type(got) in (int, float), f"{what}: return a number, got {got!r}"
    assert math.isclose(got, want, rel_tol=1e-9, abs_tol=1e-15), (
        f"{what}: {got:.6g}, not {want:.6g}"
    )


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
        (195, 49, 1), 0.0,
        "12 kernels a layer and three at the ends; then the pieces, and what stands between them; then one",
    ),
    "ms eager, FULL": (
        (0.975, 0.738), 0.03,
        "195 launches of 5 us, or the card's reading of 2.47 GB, whichever is longer",
    ),
    "times faster with Llama-3-8B": (
        (1.0,), 0.02,
        "what does the card do in a step, 16 GB, and how long does the host take for 387 launches?",
    ),
    "microseconds that 33 as 40 costs": (
        (0.0,), 0.0,
        "how many weights are read for 33 rows, and how many for 40? Which K and V has a padded row?",
    ),
    "passes of a start": (
        (180,), 0.0,
        "two for each of 86 graphs, and the measurement takes graphs of both modes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("question", ANSWERS)
def test_the_predictions_hold(lab: ModuleType, question: str) -> None:
    """Five numbers about Kim's model, by hand."""
    said = lab.predictions()
    assert sorted(said) == sorted(ANSWERS), f"answer {sorted(ANSWERS)}; yours: {sorted(said)}"
    want, room, hint = ANSWERS[question]
    got = said[question]
    assert len(got) == len(want), f"{question}: {len(want)} numbers, got {got!r}"
    for said_one, true_one in zip(got, want, strict=True):
        off = abs(said_one - true_one)
        assert off <= room * true_one, f"{question}: not {said_one:g}. Ask yourself: {hint}"


# ---- counting ------------------------------------------------------------------------------------


def test_eager_starts_every_kernel(lab: ModuleType) -> None:
    """Each kernel of each layer, the ends, and what comes behind the model."""
    same(lab.launches(lab.Kernels(16), "NONE"), 195, "16 layers of 12, ends of 2 and 1, eager")
    same(
        lab.launches(lab.Kernels(3, 10, 2, before=4, after=5, beside=6), "NONE"),
        45,
        "3 layers of 10, ends of 4 and 5, 6 beside, eager",
    )


def test_full_is_one_graph(lab: ModuleType) -> None:
    """One launch for the model, whatever it has; what stands behind it is in no graph."""
    for layers in (1, 16, 80):
        got = lab.launches(lab.Kernels(layers), "FULL")
        same(got, 1, f"one graph and nothing beside it, {layers} layers, FULL")
    same(
        lab.launches(lab.Kernels(5, beside=3), "FULL"), 4, "one graph and 3 kernels beside it, FULL"
    )


def test_pieces_reach_from_layer_to_layer(lab: ModuleType) -> None:
    """Runs of kernels are counted, one by one, for many shapes of a model."""
    for layers, layer, split, before, after in itertools.product(
        (1, 2, 7, 32), (5, 12), (1, 2), (1, 3), (1, 2)
    ):
        kernels = lab.Kernels(layers, layer, split, before, after, beside=0)
        flat = names_of(kernels)
        pieces = sum(1 for inside, _ in itertools.groupby(flat, lambda one: one[1]) if inside)
        alone = sum(not inside for _, inside in flat)
        got = lab.launches(kernels, "PIECEWISE")
        assert got == pieces + alone, (
            f"{layers} layers with {split} kernels that no piece holds: {pieces} pieces and {alone} between "
            f"them are {pieces + alone} launches, not {got}. The last kernels of a layer and the first of "
            "the next are in one piece"
        )
    got = lab.launches(lab.Kernels(4, beside=3), "PIECEWISE") - lab.launches(
        lab.Kernels(4, beside=0), "PIECEWISE"
    )
    assert got == 3, f"the 3 kernels beside the model are launched too, PIECEWISE counts {got}"


def test_fusing(lab: ModuleType) -> None:
    """Neighbours in this order become one."""
    got = lab.fuse(["add", "norm", "down", "add", "norm", "add"], "add", "norm")
    assert got == ["add+norm", "down", "add+norm", "add"], f"fused: {got}"
    got = lab.fuse(["norm", "add", "up", "norm"], "add", "norm")
    assert got == ["norm", "add", "up", "norm"], f"nothing here is an add with a norm behind: {got}"
    got = lab.fuse(["add", "norm", "norm"], "add", "norm")
    assert got == ["add+norm", "norm"], f"the first norm is used up, the second stays: {got}"
    got = lab.fuse(["up", "up", "up"], "up", "up")
    assert got == ["up+up", "up"], f"three equal ones make a pair and one: {got}"
    assert lab.fuse([], "add", "norm") == [], "of no kernels none remain"


LAYER = [
    "norm",
    "qkv",
    "rope",
    "kv_write",
    "attention",
    "o_proj",
    "add",
    "norm",
    "gate_up",
    "silu",
    "down",
    "add",
]


def test_fusing_reaches_over_the_layers_edge(lab: ModuleType) -> None:
    """The last add of a layer and the first norm of the next are neighbours, too."""
    names = ["embedding", "angles", *LAYER * 16, "norm"]
    before = list(names)
    fused = lab.fuse(names, "add", "norm")
    assert names == before, "the list that came in was changed"
    assert len(fused) == 195 - 32, (
        f"each of 32 adds has a norm behind it, in the next layer or at the end: 163 kernels, not "
        f"{len(fused)}"
    )
    assert fused.count("norm") == 1, (
        f"only the first norm has no add before it, not {fused.count('norm')}"
    )


def test_fusing_saves_no_launch_where_there_is_a_graph(lab: ModuleType) -> None:
    """Fewer kernels make fewer launches only where kernels are launched one by one."""
    plain, fused = lab.Kernels(16), lab.Kernels(16, layer=10)
    saved = [
        lab.launches(plain, mode) - lab.launches(fused, mode)
        for mode in ("NONE", "PIECEWISE", "FULL")
    ]
    assert saved == [32, 0, 0], (
        f"two kernels a layer less, none of them alone between pieces: launches saved eager, PIECEWISE, "
        f"FULL {saved}, not [32, 0, 0]"
    )


@pytest.mark.parametrize(
    ("graphs", "passes"),
    [
        ({"PIECEWISE": 51, "FULL": 35}, 180),
        ({"PIECEWISE": 51}, 106),
        ({"FULL": 2}, 8),
        ({"FULL": 1}, 4),
        ({"PIECEWISE": 3, "FULL": 1}, 14),
        ({"PIECEWISE": 0}, 0),
        ({}, 0),
    ],
)
def test_a_start_runs_the_model(lab: ModuleType, graphs: dict[str, int], passes: int) -> None:
    """Warm-ups, captures, and the two of each mode that only measure."""
    same(lab.passes_before_serving(graphs), passes, f"passes for {graphs}")


def test_when_a_graph_has_paid(lab: ModuleType) -> None:
    """The fewest steps whose launches, those of the capture included, are fewer than eager."""
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
    """As many launches are not fewer."""
    kernels = lab.Kernels(1, layer=8, split=2, before=1, after=1, beside=0)
    got = lab.break_even(kernels, "PIECEWISE", 3)
    assert got == 6, (
        f"10 launches eager, 4 with pieces, 3 passes: after 5 steps both have made 50, so it pays after 6, "
        f"not {got}"
    )


def test_some_graphs_never_pay(lab: ModuleType) -> None:
    """A capture that saves nothing."""
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
    """The card waits for each launch; only the last kernel comes on top."""
    same(lab.finish_time([1.0] * 10, 5.0), 51.0, "10 kernels of 1 s, a launch takes 5 s")


def test_a_slow_card(lab: ModuleType) -> None:
    """The host is ahead after the first launch."""
    same(lab.finish_time([5.0] * 10, 1.0), 51.0, "10 kernels of 5 s, a launch takes 1 s")


def test_slow_and_fast_kernels_in_turn(lab: ModuleType) -> None:
    """While a long kernel runs the host gets ahead, and short ones follow at once."""
    same(lab.finish_time([10.0, 1.0, 1.0, 1.0], 2.0), 15.0, "10 s and three of 1 s, launch 2 s")
    same(lab.finish_time([1.0, 1.0, 1.0, 10.0], 2.0), 18.0, "three of 1 s, then 10 s, launch 2 s")
    same(lab.finish_time([0.0], 2.0), 2.0, "a kernel of no length still has to be launched")
    same(lab.finish_time([], 2.0), 0.0, "no kernels")


def test_the_longest_path_decides(lab: ModuleType) -> None:
    """For some kernel: all launches up to it, then everything from it on."""
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
    """Synchronous: while the host plans, the card has nothing to do."""
    same(lab.step_time(2.0, 5.0, 1.0, False), 6.0, "launching 2, card 5, planning 1, synchronous")
    same(lab.step_time(5.0, 2.0, 1.0, False), 6.0, "launching 5, card 2, planning 1, synchronous")


def test_planning_ahead(lab: ModuleType) -> None:
    """Asynchronous: the host's time is hidden, all of it or none."""
    same(lab.step_time(2.0, 5.0, 1.0, True), 5.0, "launching 2, card 5, planning 1, asynchronous")
    same(lab.step_time(5.0, 2.0, 1.0, True), 6.0, "launching 5, card 2, planning 1, asynchronous")
    same(lab.step_time(4.5, 5.0, 1.0, True), 5.5, "launching 4.5, card 5, planning 1, asynchronous")


# ---- the card ------------------------------------------------------------------------------------


def test_the_card_is_lab_00_04s(lab: ModuleType) -> None:
    """Weights once, K and V of all; from some number of rows on, arithmetic."""
    card = lab.Card("2 TB/s, 320 TFLOP/s", 320e12, 2e12)
    model = lab.Model("8e9", 8_000_000_000, 131_072, lab.Kernels(32))
    same(lab.device_time(card, model, 1), 8e-3, "16 GB of weights at 2 TB/s, in seconds")
    same(lab.device_time(card, model, 64), 8e-3, "64 rows read the same weights")
    same(
        lab.device_time(card, model, 320), 16e-3, "twice the ridge of 160 rows: arithmetic decides"
    )
    same(
        lab.device_time(card, model, 1, 61_440),
        8e-3 + 61_440 * 131_072 / 2e12,
        "K and V of 61,440 tokens",
    )
    for given, layers, size in ((lab.KIMS, 16, 64), (lab.LLAMA_3_8B, 32, 128)):
        want = (2 * given.params + 1000 * 4 * layers * 8 * size) / 3350e9
        same(
            lab.device_time(lab.H100, given, 1, 1000),
            want,
            f"{given.name}, 1,000 tokens of context",
        )
        same(
            lab.device_time(lab.H100, given, 2000),
            4000 * given.params / 989.5e12,
            f"{given.name}, 2,000 rows",
        )
    half = lab.Model("4 bits", 8_000_000_000, 131_072, lab.Kernels(32), 0.5)
    same(lab.device_time(card, half, 1), 2e-3, "half a byte a weight")


def test_launching_or_computing(lab: ModuleType) -> None:
    """Kim's step, batch 1: the host decides without a graph, the card with one."""
    read = 2 * 1_235_814_400 / 3350e9
    for mode, launched in (("NONE", 195), ("PIECEWISE", 49), ("FULL", 1)):
        for launch_s in (3e-6, 5e-6, 20e-6):
            got = lab.decode_time(lab.H100, lab.KIMS, mode, 1, launch_s)
            same(
                got,
                max(launched * launch_s, read),
                f"{mode}, {launch_s * 1e6:g} us a launch, seconds",
            )


def test_padding_reads_no_more(lab: ModuleType) -> None:
    """33 as 40: the same weights, and the K and V of 33."""
    for context in (0, 1000):
        got = lab.decode_time(lab.H100, lab.KIMS, "FULL", 33, 5e-6, context, padded=40)
        want = (2 * 1_235_814_400 + 33 * context * 32_768) / 3350e9
        same(got, want, f"33 requests of {context} tokens in a graph of 40 rows, seconds")


def test_padding_computes_more(lab: ModuleType) -> None:
    """Where arithmetic decides, a padded row costs what a row costs."""
    got = lab.decode_time(lab.H100, lab.KIMS, "FULL", 481, 5e-6, padded=496)
    same(got, 2 * 1_235_814_400 * 496 / 989.5e12, "481 requests in a graph of 496 rows, seconds")


def test_nothing_is_padded_without_a_graph(lab: ModuleType) -> None:
    """Eager runs what is there."""
    got = lab.decode_time(lab.H100, lab.KIMS, "NONE", 481, 1e-6, padded=496)
    same(got, 2 * 1_235_814_400 * 481 / 989.5e12, "481 requests, eager, seconds")


def test_planning_counts(lab: ModuleType) -> None:
    """The host's other work, under both kinds of scheduling."""
    read = 2 * 1_235_814_400 / 3350e9
    for async_scheduling, want in ((False, read + 0.3e-3), (True, read)):
        got = lab.decode_time(
            lab.H100,
            lab.KIMS,
            "FULL",
            1,
            5e-6,
            planning_s=0.3e-3,
            async_scheduling=async_scheduling,
        )
        kind = "asynchronous" if async_scheduling else "synchronous"
        same(got, want, f"a planning of 0.3 ms, {kind}, seconds")
    got = lab.decode_time(lab.H100, lab.KIMS, "FULL", 1, 5e-6, planning_s=0.3e-3)
    same(got, read, "planning 0.3 ms, and nothing said of scheduling: asynchronous, seconds")
    got = lab.decode_time(lab.H100, lab.KIMS, "NONE", 1, 5e-6, planning_s=0.3e-3)
    same(got, 195 * 5e-6 + 0.3e-3, "planning 0.3 ms and 195 launches, asynchronous, seconds")


@pytest.mark.parametrize(
    ("launch_us", "context", "want"),
    [
        (3, 0, 1), (4, 1000, 5), (5, 1000, 25), (6, 1000, 45), (5, 100, 243), (5, 0, 391),
        (20, 4000, 81), (20, 0, None),
    ],
)  # fmt: skip
def test_where_graphs_stop_to_matter(
    lab: ModuleType, launch_us: int, context: int, want: int | None
) -> None:
    """Kim's model: the first batch whose card works as long as the host launches."""
    got = lab.first_batch_without_gain(lab.H100, lab.KIMS, launch_us * 1e-6, context)
    assert got == want, (
        f"{launch_us} us a launch, {context} tokens each: from batch {got} on? 195 launches take "
        f"{195 * launch_us / 1e3:g} ms, and the card takes as long from {want} on"
    )


def test_as_long_is_no_gain(lab: ModuleType) -> None:
    """At the very batch where both take equally long."""
    card = lab.Card("round", 1e30, 1000.0)
    kernels = lab.Kernels(1, layer=4, before=0, after=0, beside=0)
    model = lab.Model("round", 1000, 125, kernels)
    got = lab.first_batch_without_gain(card, model, 1.0, context=4)
    assert got == 4, (
        f"2 s, and half a second a request: 4 requests make the 4 s of four launches, not {got}"
    )
    got = lab.first_batch_without_gain(card, model, 1.0, context=4, most=3)
    assert got is None, f"up to 3 there is none, got {got}"
    got = lab.first_batch_without_gain(card, model, 1.0, context=4, most=4)
    assert got == 4, f"`most` itself is tried, got {got}"
    nothing = lab.Model("a cache alone", 0, 125, kernels)
    for launch_s, want in ((256.0, 1024), (256.1, None)):
        got = lab.first_batch_without_gain(card, nothing, launch_s, context=8)
        assert got == want, (
            f"1 s a request, {4 * launch_s:g} s of launches: {want} of 1,024, not {got}"
        )


def test_an_empty_cache_unless_it_is_said(lab: ModuleType) -> None:
    """Nobody has read anything yet, as for `decode_time`."""
    got = lab.first_batch_without_gain(lab.H100, lab.KIMS, 5e-6)
    assert got == 391, f"empty caches, 5 us a launch: 391, not {got}"


def test_a_large_model_never_waits(lab: ModuleType) -> None:
    """Llama-3-8B, from 3 to 6 us a launch: the card has more to do, at batch 1 already."""
    got = lab.launches(lab.LLAMA_3_8B.kernels, "NONE")
    assert got == 387, f"32 layers of 12 kernels and 3 at the ends are 387 launches, not {got}"
    for launch_us in (3, 4, 5, 6):
        got = lab.first_batch_without_gain(lab.H100, lab.LLAMA_3_8B, launch_us * 1e-6)
        assert got == 1, f"387 launches of {launch_us} us, 4.79 ms of reading: batch 1, not {got}"
