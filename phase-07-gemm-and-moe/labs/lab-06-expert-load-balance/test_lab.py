"""Lab 07-06: the load that is balanced, what a step reads, copies, and when one pays."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
ANSWERS = support.answers()
TENS = np.array([90, 10, 10, 10, 10, 10, 10, 10])


def plain(value: Any) -> Any:
    """Numbers and lists of numbers as one reads them, arrays of numpy's included."""
    return value.tolist() if hasattr(value, "tolist") else value


def test_the_predictions_hold(lab: ModuleType) -> None:
    """The predictions are about what is read, three placements, a favourite, and when a copy pays."""
    want = {
        "slots read": (
            [2, 4, 3],
            "which slots' experts have any token, and on which GPU are they?",
        ),
        "50 and seven tens": (
            [4 / 3, 4 / 3, 19 / 18],
            "a GPU has half of the slots, whatever lies in them; which expert gets slot 8, and which slot 9?",
        ),
        "GPUs where one expert is too much": (
            [3, 9],
            "a token chooses an expert once at most, so what share of all choices can one have? And what "
            "share is a GPU's?",
        ),
        "tokens where copies pay": (
            [1500],
            "how long does a GPU read with ten slots, and with how many tokens, each counted once per expert "
            "that it chose, does the busier GPU of eight slots compute as long?",
        ),
    }
    got = lab.predictions()
    assert got.keys() == want.keys(), f"the names are {sorted(want)}, yours {sorted(got)}"
    for name, (numbers, why) in want.items():
        wrong = wrong_in(got[name], numbers, 5e-3)
        assert not wrong, f"{name}: {wrong}; think of this: {why}"


# ---- what is balanced ----------------------------------------------------------------------------


def test_copies_count_together_over_the_window(lab: ModuleType) -> None:
    """The window's load adds up the tokens of every step and every copy, under the expert's number."""
    window = np.array([[5, 1, 2, 0, 4], [7, 0, 3, 1, 6]], np.int32)
    got = lab.window_load(window, np.array([2, 0, 2, 1, 2]), 4)
    assert plain(got) == [1, 1, 27, 0], (
        f"slots hold experts 2, 0, 2, 1, 2; steps {window.tolist()}: [1, 1, 27, 0], not {plain(got)}"
    )
    assert np.asarray(got).dtype == np.int64, f"int64, not {np.asarray(got).dtype}"


def test_imbalance_by_hand(lab: ModuleType) -> None:
    """Imbalance is the busiest GPU over the mean GPU, not of experts; copies share their expert's tokens."""
    cases: list[tuple[list[int], list[int], int, float]] = [
        ([90, 10, 10, 10, 10, 10, 10, 10], list(range(8)), 2, 1.5),
        ([90, 10, 10, 10, 10, 10, 10, 10], list(range(8)), 4, 2.5),
        ([90, 20, 10, 10], [0, 1, 0, 2, 3, 0], 2, 80 / 65),
        ([3, 5], [1, 0], 1, 1.0),
    ]
    for load, phy2log, gpus, want in cases:
        got = lab.imbalance(np.array(load), np.array(phy2log), gpus)
        assert got == pytest.approx(want), (
            f"loads {load} in slots {phy2log} on {gpus} GPUs: {want:.3f}, you say {got}"
        )
    idle = lab.imbalance(np.zeros(4, np.int64), np.arange(4), 2)
    assert idle == 1.0, f"no GPU waits for another if none has anything to do: {idle}, not 1.0"


def test_weights_are_read_once_per_step(lab: ModuleType) -> None:
    """What a step reads does not depend on how many tokens an expert has, but on whether it has any."""
    step = np.array([60, 1, 0, 0, 0, 0, 2, 1])
    cases = [
        (list(range(8)), 2, 2),
        ([0, 1, 6, 7, 2, 3, 4, 5], 2, 4),
        (list(range(8)), 1, 4),
    ]
    for phy2log, gpus, want in cases:
        got = lab.experts_read(step, np.array(phy2log), gpus)
        assert got == want, (
            f"tokens {step.tolist()} in slots {phy2log} on {gpus} GPUs: one of them reads {want} slots, "
            f"the others no more; you say {got}"
        )


def test_a_copy_is_read_too(lab: ModuleType) -> None:
    """Each slot has weights of its own, so a copy is read like any other expert, even beside the first."""
    step = np.array([60, 1, 0, 0, 0, 0, 2, 1])
    for phy2log, want in (
        ([0, 1, 2, 3, 0, 4, 5, 6, 7, 0], 3),
        ([0, 0, 1, 6, 2, 3, 4, 5, 7, 2], 4),
        ([0, 0, 0, 2, 3, 1, 4, 5, 2, 3], 3),
    ):
        got = lab.experts_read(step, np.array(phy2log), 2)
        assert got == want, (
            f"tokens {step.tolist()} in slots {phy2log} on 2 GPUs: {want} slots, copies included; you say "
            f"{got}"
        )


def test_reading_needs_not_follow_the_tokens(lab: ModuleType) -> None:
    """The GPU that reads most may be the one with the fewest tokens."""
    rng = np.random.default_rng(5)
    for experts, gpus, slots in ((8, 2, 10), (8, 4, 12), (16, 4, 16), (60, 6, 66)):
        for _ in range(20):
            step = rng.integers(0, 200, experts) * (rng.random(experts) < 0.4)
            extra = rng.integers(0, experts, slots - experts)
            phy2log = rng.permutation(np.concatenate([np.arange(experts), extra]))
            each = slots // gpus
            by_gpu = [
                sum(int(step[expert]) > 0 for expert in phy2log[gpu * each : (gpu + 1) * each])
                for gpu in range(gpus)
            ]
            got = lab.experts_read(step, phy2log, gpus)
            assert got == max(by_gpu), (
                f"{experts} experts in {slots} slots on {gpus} GPUs: they read {by_gpu} slots, so "
                f"{max(by_gpu)}; you say {got}"
            )


# ---- balancing -----------------------------------------------------------------------------------


def test_copies_by_hand(lab: ModuleType) -> None:
    """Each further slot goes to the expert whose copies have the most tokens each at that point."""
    phy2log, copies = lab.replicate_experts(TENS, 10)
    assert (plain(phy2log)[8:], plain(copies)) == ([0, 0], [3, 1, 1, 1, 1, 1, 1, 1]), (
        f"90 is 45 per copy, then still the most: slots 8 and 9 hold 0 and 0, not {plain(phy2log)[8:]}; "
        f"copies {plain(copies)}"
    )
    phy2log, copies = lab.replicate_experts(np.array([40, 50, 30]), 6)
    assert plain(phy2log) == [0, 1, 2, 1, 0, 2], (
        f"40, 50, 30: slot 3 goes to 50, then 40 has the most per copy, then 30: "
        f"[0, 1, 2, 1, 0, 2], not {plain(phy2log)}"
    )
    assert plain(copies) == [2, 2, 2], f"each has two copies, not {plain(copies)}"
    phy2log, _ = lab.replicate_experts(np.array([6, 6, 3]), 5)
    assert plain(phy2log)[3:] == [0, 1], (
        f"6, 6, 3: of two that have equally much the first gets slot 3, [0, 1], not {plain(phy2log)[3:]}"
    )


def test_placements_are_vllms(lab: ModuleType) -> None:
    """Copies and placements of random loads are those of vLLM's DefaultEplbPolicy."""
    for case in ANSWERS["placements"]:
        load, slots, gpus = np.array(case["load"]), case["slots"], case["gpus"]
        what = f"{len(load)} experts, {slots} slots, {gpus} GPUs"
        _, copies = lab.replicate_experts(load.copy(), slots)
        assert plain(copies) == case["copies"], (
            f"{what}: copies {plain(copies)}, not {case['copies']}"
        )
        placed = plain(lab.rebalance(load.copy(), slots, gpus))
        assert placed == case["placed"], f"{what}: slots hold {placed}, not {case['placed']}"


def test_a_placement_by_hand(lab: ModuleType) -> None:
    """A copy weighs its share of tokens; pack 0's slots come first, in the order they were filled."""
    placed = plain(lab.rebalance(np.array([40, 100, 31, 20]), 6, 2))
    assert sorted(placed) == [0, 1, 1, 1, 2, 3], (
        f"loads 40, 100, 31, 20 in six slots: expert 1 has three, the others one; you say {placed}"
    )
    assert placed == [0, 1, 3, 1, 1, 2], (
        f"loads 40, 100, 31, 20 on two GPUs: slots hold [0, 1, 3, 1, 1, 2], not {placed}"
    )
    placed = plain(lab.rebalance(np.array([33, 100, 31, 20]), 6, 2))
    assert placed == [1, 1, 3, 1, 0, 2], (
        "loads 33, 100, 31, 20 on two GPUs: a third of 100 is more than 33, so slots hold "
        f"[1, 1, 3, 1, 0, 2], not {placed}"
    )


# ---- when a copy pays ----------------------------------------------------------------------------


def test_a_step_waits_for_reading_or_for_tokens(lab: ModuleType) -> None:
    """The longer of the two counts, on the slowest GPU; a copy lowers one and raises the other."""
    one, ten = list(range(8)), [0, 0, 2, 7, 6, 0, 1, 4, 5, 3]
    for scale, phy2log, token_us, want, why in (
        (1, one, 1.0, 200.0, "120 us of computing, 4 slots of 50 us"),
        (1, ten, 1.0, 250.0, "90 us of computing, 5 slots of 50 us"),
        (4, one, 1.0, 480.0, "480 us of computing, 4 slots of 50 us"),
        (4, ten, 1.0, 360.0, "360 us of computing, 5 slots of 50 us"),
        (4, ten, 0.25, 250.0, "90 us of computing, 5 slots of 50 us"),
    ):
        got = lab.step_us(scale * TENS, np.array(phy2log), 2, token_us, 50.0)
        assert got == pytest.approx(want), (
            f"{(scale * TENS).tolist()} in slots {phy2log} on 2 GPUs, {token_us} us per token: {why}, so "
            f"{want:g} us; you say {got}"
        )
    few = np.array([60, 0, 0, 0, 5, 5, 5, 0])
    got = lab.step_us(few, np.arange(8), 2, 1.0, 10.0)
    assert got == pytest.approx(60.0), (
        f"tokens {few.tolist()}: GPU 0 computes 60 us and reads one slot, GPU 1 15 us and three; "
        f"60, not {got}"
    )
    got = lab.step_us(few, np.arange(8), 2, 1.0, 25.0)
    assert got == pytest.approx(75.0), (
        f"tokens {few.tolist()}, 25 us per slot: GPU 1 has few tokens and reads for 75 us; you say {got}"
    )


def test_a_copy_pays_where_tokens_set_the_pace(lab: ModuleType) -> None:
    """With few tokens each copy is one more to read; with many the favourite gets as many as it needs."""
    for tokens, gpus, want in (
        (1, 2, 8), (3, 2, 10), (4, 2, 12), (1, 4, 8), (2, 4, 12), (10, 4, 16), (1, 3, 9), (10, 8, 16),
    ):  # fmt: skip
        steps = np.array([tokens * TENS] * 3)
        got = lab.choose_slots(steps, gpus, 1.0, 50.0)
        assert got == want, (
            f"steps of {(tokens * TENS).tolist()} on {gpus} GPUs, 1 us per token, 50 us per slot: {want} "
            f"slots, not {got}"
        )
    even = lab.choose_slots(np.full((2, 8), 10), 2, 1.0, 1.0)
    assert even == 8, (
        f"equally many tokens everywhere: no copy makes it faster, 8 slots, not {even}"
    )
    most = lab.choose_slots(np.array([[5000, 2000, 1000, 1000]]), 3, 1.0, 50.0)
    assert most == 6, f"3 GPUs share six slots; nine are more than two per expert: 6, not {most}"


def test_each_step_reads_anew(lab: ModuleType) -> None:
    """Many small steps read in each of them; the same tokens in one step are another matter."""
    large = np.array([[1800, 200, 200, 200, 200, 200, 200, 200]])
    small = np.repeat(large // 20, 20, axis=0)
    for steps, want in ((large, 16), (small, 8)):
        got = lab.choose_slots(steps, 2, 1.0, 50.0)
        assert got == want, (
            f"{len(steps)} steps of {steps[0].tolist()} on 2 GPUs, 1 us per token, 50 us per slot and step: "
            f"{want} slots, not {got}"
        )


def test_a_window_has_one_placement(lab: ModuleType) -> None:
    """The experts are placed once for a window, not per step, even where no expert has a copy."""
    windows = [[[20, 120, 120, 20], [200, 120, 20, 200]], [[60, 160, 40, 160], [80, 60, 160, 160]]]
    got = [lab.choose_slots(np.array(steps), 2, 1.0, 50.0) for steps in windows]
    assert got == [8, 4], (
        f"two steps with different favourites, {windows[0]}, then {windows[1]}, on 2 GPUs, 1 us per token, "
        "50 us per slot: one placement serves both steps; 8, then 4 slots, "
        f"not {got[0]}, then {got[1]}"
    )


def test_what_the_recording_wants(lab: ModuleType) -> None:
    """Sums on four GPUs: no copy in steps of 64 tokens, four or eight in one of 2,048, on an H200."""
    for layer, steps in enumerate(support.routing()["sums"]):
        got = lab.choose_slots(steps, 4, support.TOKEN_US, support.SLOT_US)
        assert got == 8, (
            f"layer {layer}, steps of 64 tokens: two slots are read in 147 us, and no GPU computes as "
            f"long; 8 slots, not {got}"
        )
        whole = steps.sum(axis=0)[None]
        got = lab.choose_slots(whole, 4, support.TOKEN_US, support.SLOT_US)
        assert got == (12, 16, 12, 16)[layer], (
            f"layer {layer}, one step of 2,048 tokens {whole[0].tolist()}: "
            f"{(12, 16, 12, 16)[layer]} slots are fastest, you say {got}"
        )


def test_a_placement_is_for_its_window(lab: ModuleType) -> None:
    """A placement on four GPUs is good for the text whose tokens were counted, and bad for another text."""
    loads = {
        kind: [lab.window_load(steps, np.arange(8), 8) for steps in layers]
        for kind, layers in support.routing().items()
    }
    table = {
        (placed, served): np.mean(
            [
                lab.imbalance(load, lab.rebalance(counted, 8, 4), 4)
                for counted, load in zip(loads[placed], loads[served], strict=True)
            ]
        )
        for placed in loads
        for served in loads
    }
    for served in loads:
        own, others = table[served, served], [table[k, served] for k in loads if k != served]
        assert own < min(others), (
            f"{served}: {own:.2f} where it was counted itself, {min(others):.2f} for another text's placement"
        )
