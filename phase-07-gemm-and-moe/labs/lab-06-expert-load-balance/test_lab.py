"""Lab 07-06: expert maps, the load that is balanced, packs and copies, and how many slots are enough."""

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
    """The predictions are about a map, three placements of a load, when packing fails, and a window."""
    want = {
        "8 experts on 3 GPUs": ([3, 3, 2], "all are placed, and the first GPUs have one more"),
        "90 and seven tens": (
            [1.5, 1.5, 1.125],
            "a GPU has half of the slots, whatever lies in them; which expert gets slot 8, and which slot 9?",
        ),
        "GPUs where one expert is too much": (
            [3, 9],
            "a token chooses an expert once at most, so what share of all choices can one have? And what "
            "share is a GPU's?",
        ),
        "window and step": (
            [1.0, 1.6],
            "add both steps up; then look at one, where the mean is 50",
        ),
    }
    got = lab.predictions()
    assert got.keys() == want.keys(), f"the names are {sorted(want)}, yours {sorted(got)}"
    for name, (numbers, why) in want.items():
        wrong = wrong_in(got[name], numbers, 1e-3)
        assert not wrong, f"{name}: {wrong}; think of this: {why}"


# ---- where the experts lie -----------------------------------------------------------------------


def test_a_map_by_hand(lab: ModuleType) -> None:
    """8 experts on 3 GPUs lie in contiguous blocks of 3, 3 and 2."""
    want = [
        (3, [0, 1, 2, -1, -1, -1, -1, -1]),
        (3, [-1, -1, -1, 0, 1, 2, -1, -1]),
        (2, [-1, -1, -1, -1, -1, -1, 0, 1]),
    ]
    for gpu, (held, local) in enumerate(want):
        got = lab.expert_map(3, gpu, 8)
        assert (int(got[0]), plain(got[1])) == (held, local), (
            f"GPU {gpu} of 3 holds {got[0]} of 8 experts, {plain(got[1])}; it is {held}, {local}"
        )
        assert got[1].dtype == np.int32, f"the map is {got[1].dtype}, not int32"


def test_maps_are_vllms(lab: ModuleType) -> None:
    """The maps are vLLM's, for sizes that divide and sizes that do not, and for more GPUs than experts."""
    for experts, gpus, maps in ANSWERS["maps"]:
        for gpu, (held, local) in enumerate(maps):
            got = lab.expert_map(gpus, gpu, experts)
            assert int(got[0]) == held, (
                f"GPU {gpu} of {gpus} holds {held} of {experts} experts, you say {got[0]}"
            )
            assert plain(got[1]) == local, (
                f"{experts} experts, GPU {gpu} of {gpus}: vLLM's map is {local}, not {plain(got[1])}"
            )
    assert plain(lab.expert_map(1, 0, 4)[1]) == [0, 1, 2, 3], "one GPU holds everything"


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
        ([0, 1, 2, 3, 0, 4, 5, 6, 7, 0], 2, 3),
        (list(range(8)), 1, 4),
        ([0, 0, 1, 6, 2, 3, 4, 5, 7, 2], 2, 4),
    ]
    for phy2log, gpus, want in cases:
        got = lab.experts_read(step, np.array(phy2log), gpus)
        assert got == want, (
            f"tokens {step.tolist()} in slots {phy2log} on {gpus} GPUs: one of them reads {want} slots, "
            f"the others no more; you say {got}"
        )


# ---- balancing -----------------------------------------------------------------------------------


def test_packs_by_hand(lab: ModuleType) -> None:
    """Items are packed heaviest first, into the lightest pack that has room; ties go to the lower number."""
    pack, place = lab.balanced_packing(TENS, 2)
    assert plain(pack) == [0, 1, 1, 1, 1, 0, 0, 0], (
        f"90 and seven tens in two packs of four: [0, 1, 1, 1, 1, 0, 0, 0], not {plain(pack)}"
    )
    assert plain(place) == [0, 0, 1, 2, 3, 1, 2, 3], (
        f"each pack counts its items from 0 as they come: [0, 0, 1, 2, 3, 1, 2, 3], not {plain(place)}"
    )
    pack, place = lab.balanced_packing(np.array([1, 7, 3, 5, 2, 6]), 3)
    assert plain(pack) == [0, 0, 2, 2, 1, 1], (
        f"1, 7, 3, 5, 2, 6 in three packs: [0, 0, 2, 2, 1, 1], not {plain(pack)}"
    )
    assert plain(place) == [1, 0, 1, 0, 1, 0], (
        f"7, 6 and 5 come first into their packs: places [1, 0, 1, 0, 1, 0], not {plain(place)}"
    )


def test_many_equally_heavy_items_keep_their_order(lab: ModuleType) -> None:
    """128 items with four different loads go into eight packs by the same greedy rule, item by item."""
    load = np.random.RandomState(8).randint(1, 5, 128)
    loads, want = [0] * 8, [-1] * 128
    for item in sorted(range(128), key=lambda item: -load[item]):
        open_ = [pack for pack in range(8) if want.count(pack) < 16]
        want[item] = min(open_, key=lambda pack: loads[pack])
        loads[want[item]] += int(load[item])
    pack, _ = lab.balanced_packing(load, 8)
    assert plain(pack) == want, (
        "128 items have four different loads, so many are equally heavy: the lower number first. With eight "
        "items alone it does not show which sort keeps the order of equal ones"
    )


def test_packs_of_one_stay(lab: ModuleType) -> None:
    """Packs of one item leave nothing to choose, so nothing moves: item i is in pack i."""
    pack, place = lab.balanced_packing(np.array([3, 9, 1, 5]), 4)
    assert plain(pack) == [0, 1, 2, 3], (
        f"3, 9, 1, 5 in four packs: item i stays in pack i, they are not sorted; not {plain(pack)}"
    )
    assert plain(place) == [0, 0, 0, 0], f"each is the first of its pack, not {plain(place)}"


def test_copies_by_hand(lab: ModuleType) -> None:
    """Each further slot goes to the expert whose copies have the most tokens each at that point."""
    phy2log, copies = lab.replicate_experts(TENS, 10)
    assert (plain(phy2log)[8:], plain(copies)) == ([0, 0], [3, 1, 1, 1, 1, 1, 1, 1]), (
        f"90 is 45 per copy, then still the most: slots 8 and 9 hold 0 and 0, not {plain(phy2log)[8:]}; "
        f"copies {plain(copies)}"
    )
    phy2log, copies = lab.replicate_experts(np.array([40, 50, 30]), 6)
    assert plain(phy2log) == [0, 1, 2, 1, 0, 2], (
        f"40, 50, 30: slot 3 goes to 50, then 40 has the most per copy, then 30; {plain(phy2log)}"
    )
    assert plain(copies) == [2, 2, 2], f"each has two copies, not {plain(copies)}"
    phy2log, _ = lab.replicate_experts(np.array([6, 6, 3]), 5)
    assert plain(phy2log)[3:] == [0, 1], (
        f"6, 6, 3: of two that have equally much the first gets slot 3, [0, 1], not {plain(phy2log)[3:]}"
    )


def test_placements_are_vllms(lab: ModuleType) -> None:
    """Copies, packs and placements of random loads are those of vLLM's DefaultEplbPolicy."""
    for case in ANSWERS["placements"]:
        load, slots, gpus = np.array(case["load"]), case["slots"], case["gpus"]
        what = f"{len(load)} experts, {slots} slots, {gpus} GPUs"
        _, copies = lab.replicate_experts(load.copy(), slots)
        assert plain(copies) == case["copies"], (
            f"{what}: copies {plain(copies)}, not {case['copies']}"
        )
        if "pack" in case:
            pack, place = lab.balanced_packing(load.copy(), gpus)
            assert plain(pack) == case["pack"], f"{what}: packs {plain(pack)}, not {case['pack']}"
            assert plain(place) == case["place"], (
                f"{what}: places {plain(place)}, not {case['place']}"
            )
        placed = plain(lab.rebalance(load.copy(), slots, gpus))
        assert placed == case["placed"], f"{what}: slots hold {placed}, not {case['placed']}"


def test_a_placement_by_hand(lab: ModuleType) -> None:
    """A copy weighs its share of tokens; pack 0's slots come first, in the order they were filled."""
    placed = plain(lab.rebalance(np.array([40, 100, 31, 20]), 6, 2))
    assert sorted(placed) == [0, 1, 1, 1, 2, 3], (
        f"loads 40, 100, 31, 20 in six slots: expert 1 has three, the others one; {placed}"
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


def test_no_more_slots_than_needed(lab: ModuleType) -> None:
    """The answer is the least number of slots within the limit that the GPUs share equally, or None."""
    for gpus, limit, want in (
        (2, 1.5, 8), (2, 1.2, 10), (2, 1.06, 12), (4, 1.2, 12), (4, 1.1, 16), (3, 1.2, 12), (8, 1.05, 16),
    ):  # fmt: skip
        got = lab.fewest_slots(TENS, gpus, limit)
        assert got == want, (
            f"90 and seven tens on {gpus} GPUs, limit {limit}: {want} slots, not {got}"
        )
    even = lab.fewest_slots(np.full(8, 10), 3, 1.125)
    assert even == 9, f"3 GPUs cannot share 8 slots, but 9; 30 over 80 / 3 is 1.125: 9, not {even}"
    most = lab.fewest_slots(np.array([50, 20, 10, 10]), 3, 1.05)
    assert most is None, f"six slots give 1.11, nine are more than two per expert: None, not {most}"
    hopeless = lab.fewest_slots(np.array([1000, 1, 1, 1]), 4, 1.01)
    assert hopeless is None, f"one expert of 1000 on 4 GPUs, limit 1.01: {hopeless}, not None"


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
