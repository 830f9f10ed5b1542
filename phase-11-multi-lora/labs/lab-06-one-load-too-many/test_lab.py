"""Lab 11-06: the predictions, the pin's walk as recorded, the fix, the optimum, and what a load costs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
SEEDS = range(60)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers to the README's questions hold, before anything is run."""
    facts: dict[str, tuple[Any, str]] = {
        "newcomer": ((1, 2), "Which is the oldest when 4 comes: after 3 was touched, and before?"),
        "chain": ((1, 8), "Which does the newcomer throw out, and what does the walk meet next?"),
        "room in memory": ((1, 2), "An adapter that left its slot: is it read from disk again?"),
        "still luck": ((3, 4), "Which of 1 and 2 is the oldest when 3 comes?"),
        "far sight": ((5, 4), "When 3 comes: which of 1 and 2 is needed later?"),
        "cliff": ((6, 1), "How many of the 4,000 gaps are long? And how many may p99 leave out?"),
    }
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, f"six questions; the README and your answers do not both have these: {apart}"
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- the pin ---------------------------------------------------------------------------------------


def follow(
    lab: ModuleType, what: str, steps: Sequence[tuple[list[int], list[int]]], slots: int
) -> None:
    """Walk as vLLM walked, and load what it loaded."""
    resident: list[int] = []
    for now, (walk, theirs) in enumerate(steps):
        before = list(resident)
        ours = list(lab.pinned_step(resident, tuple(walk), slots))
        assert ours == theirs, (
            f"{what}, step {now}: slots {before}, oldest first, walk {walk}: loaded {theirs}; yours {ours}"
        )
        assert set(walk) <= set(resident), (
            f"{what}, step {now}: walk {walk}, and afterwards the slots hold {resident}"
        )
        assert len(resident) <= slots, f"{what}, step {now}: {slots} slots hold {resident}"


@pytest.mark.parametrize("hash_seed", support.HASH_SEEDS)
def test_the_loads_are_those_recorded(lab: ModuleType, hash_seed: int) -> None:
    """vLLM's own walks and loads, under three seeds of its strings' hashes."""
    five = support.recorded()["five"][str(hash_seed)]
    follow(lab, f"hash seed {hash_seed}, five steps", five, 2)
    follow(lab, f"hash seed {hash_seed}, the day", support.recorded_day(hash_seed), support.SLOTS)


def test_the_loads_are_those_of_the_engines_manager(lab: ModuleType) -> None:
    """Random steps on one to five slots."""
    for seed in SEEDS:
        max_loras, steps = support.random_steps(seed)
        manager, played = support.Manager(max_loras), []
        for step in steps:
            before = len(manager.loads)
            support.walk_as_given(manager, [support.Request(n) for n in step])
            played.append((step, manager.loads[before:]))
        follow(lab, f"random steps {seed}", played, max_loras)


# ---- the fix ---------------------------------------------------------------------------------------


def test_a_step_loads_what_is_missing_and_no_more(lab: ModuleType) -> None:
    """Memory has room for what the slots hold, or for more; each step is walked in a random order."""
    for seed in SEEDS:
        max_loras, steps = support.random_steps(seed)
        manager = support.Manager(max_loras, max_loras + (0, 0, 1, 3)[seed % 4])
        for step in steps:
            in_memory = manager.list_adapters()
            slots = list(manager._adapter_manager.lora_index_to_id)
            loads, fills = len(manager.loads), len(manager.fills)
            lab.apply_adapters(manager, [support.Request(n) for n in step])
            in_slots = manager._adapter_manager.lora_index_to_id
            assert set(step) <= set(in_slots), (
                f"the step needs {step}, and the slots have {in_slots}"
            )
            for what, done, missing in (
                ("loads", manager.loads[loads:], sorted(set(step) - in_memory)),
                ("slots filled", manager.fills[fills:], sorted(set(step) - set(slots))),
            ):
                assert len(done) == len(missing), (
                    f"the step needs {step}; slots {slots}, memory {sorted(in_memory)}: {what} must be "
                    f"{len(missing)}, not {len(done)}: {done}"
                )
            assert manager.loads[loads:] == sorted(manager.loads[loads:]), (
                f"the step needs {step}; slots {slots}, memory {sorted(in_memory)}: of those to load the "
                f"smaller id comes first, not {manager.loads[loads:]}"
            )


def test_the_order_of_the_set_makes_no_difference(lab: ModuleType) -> None:
    """The same steps, handed over in other orders: the same loads."""
    for seed in SEEDS:
        max_loras, steps = support.random_steps(seed)
        once = support.loads_of(lab.apply_adapters, steps, max_loras)
        rng = random.Random(seed)
        shuffled = [rng.sample(step, len(step)) for step in steps]
        again = support.loads_of(lab.apply_adapters, shuffled, max_loras)
        for now, (first, then) in enumerate(zip(once, again, strict=True)):
            assert first == then, (
                f"{max_loras} slots, the first steps {steps[: now + 1]}: the last loads {first}; each step "
                f"handed over in another order, {shuffled[: now + 1]}, it loads {then}"
            )


def test_too_many_are_refused(lab: ModuleType) -> None:
    """A step that needs more adapters than there are slots is an error, and nothing is loaded."""
    manager = support.Manager(2)
    lab.apply_adapters(manager, [support.Request(n) for n in (1, 2)])
    with pytest.raises(RuntimeError):
        lab.apply_adapters(manager, [support.Request(n) for n in (1, 2, 3)])
    assert 3 not in manager.loads, f"a step that is refused loads nothing: {manager.loads}"


# ---- the optimum -----------------------------------------------------------------------------------


def test_the_optimum_is_the_fewest_of_all_ways(lab: ModuleType) -> None:
    """Beside every way to evict, tried one by one."""
    for seed in SEEDS:
        max_loras, steps = support.random_steps(seed)
        steps = steps[:12]
        loads = list(lab.optimum(steps, max_loras))
        least = support.fewest(steps, max_loras)
        assert len(loads) == len(steps), f"{len(steps)} steps, and {len(loads)} numbers: {loads}"
        assert sum(loads) == least, (
            f"{max_loras} slots, steps {steps}: {least} loads can do; yours are {sum(loads)}, by step {loads}"
        )


def test_nothing_goes_below_the_optimum(lab: ModuleType) -> None:
    """On the day: the optimum, then the fix, then the pin."""
    day = [step.adapters for step in support.day()]
    best = sum(lab.optimum(day, support.SLOTS))
    fixed = sum(support.loads_of(lab.apply_adapters, day, support.SLOTS))
    pinned = [
        sum(len(loaded) for _, loaded in support.recorded_day(seed)) for seed in support.HASH_SEEDS
    ]
    assert best < fixed < min(pinned), (
        f"loads of the day: {best} at best, {fixed} with the fix, {pinned} at the pin; they must rise"
    )


# ---- the price -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "loads", "load_ticks", "right"),
    [
        ([3], [0], 5, [1, 1, 1]),
        ([3], [1], 5, [6, 6, 6]),
        ([1, 2], [2, 0], 10, [21, 1, 1]),
        ([2, 1, 2], [0, 3, 1], 4, [1, 1, 5, 5, 13]),
    ],
)
def test_every_request_of_the_step_waits(
    lab: ModuleType, sizes: list[int], loads: list[int], load_ticks: int, right: list[int]
) -> None:
    """A gap for each request of each step."""
    found = list(lab.gaps(sizes, loads, load_ticks))
    assert sorted(found) == sorted(right), (
        f"steps of {sizes} requests with {loads} loads, {load_ticks} ticks each: {right}; yours {found}"
    )


@pytest.mark.parametrize(
    ("values", "right"),
    [
        ([7], 7),
        ([1] * 98 + [9, 9], 9),
        ([9] + [1] * 99, 1),
        (list(range(1, 101)), 99),
        (list(range(1, 151)), 149),
        (list(range(200, 0, -1)), 198),
    ],
)
def test_p99(lab: ModuleType, values: list[int], right: int) -> None:
    """The smallest value that 99 % do not exceed."""
    found = lab.p99(values)
    assert found == right, (
        f"{len(values)} values from {min(values)} to {max(values)}: {right}; yours {found}"
    )
