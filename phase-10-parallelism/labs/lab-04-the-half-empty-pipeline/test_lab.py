"""Lab 10-04: the predictions, the queue beside vLLM's, the rule, and what no rule can go below."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
RECORDED = support.recorded()
Workload = support.Workload


@cache
def served(
    lab: ModuleType, name: str, work: Any = None, cost: str = "per token", spread: bool = True
) -> Any:
    """A workload, by the lab's queue and, with `spread`, its rule; nothing is left over from another."""
    return support.play(lab, work or support.WORKLOADS[name], cost, spread)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers to the six questions hold, before anything is run."""
    facts: dict[str, tuple[Any, str]] = {
        "four together": ((16, 8), "What can the second call schedule?"),
        "two apart": ((17, 1), "What is in flight when Bo comes, and when is Ada's next step?"),
        "idle": ((1 / 9, 1 / 2), "How many of the eight steps can be in the pipeline at once?"),
        "half the slots": ((32, 16), "When may the third request run?"),
        "a long prompt": (0, "Does the second chunk need a token that is not known yet?"),
        "split": (17, "How many steps are there now, and when does the last one leave?"),
    }
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"six questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact, 0.001)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- the queue -----------------------------------------------------------------------------------


def check_schedules(got: list[list[Any]], vllms: list[list[Any]]) -> None:
    """Fails at the first call of `schedule()` that is not vLLM's."""
    for call, (mine, theirs) in enumerate(zip(got, vllms, strict=False)):
        assert mine[0] == theirs[0], (
            f"call {call} of schedule() comes with {mine[0]} in flight; in vLLM with {theirs[0]}"
        )
        assert mine[1] == theirs[1], f"call {call} schedules {mine[1]}; in vLLM it is {theirs[1]}"
    assert len(got) == len(vllms), f"{len(got)} calls of schedule(); vLLM makes {len(vllms)}"


@pytest.mark.parametrize("name", support.WORKLOADS)
def test_the_schedules_are_vllms(lab: ModuleType, name: str) -> None:
    """`step` goes as in real vLLM: what is in flight before each call, what it schedules, the tokens."""
    played = served(lab, name, cost="flat", spread=False)
    check_schedules(played.pattern(), RECORDED[name]["schedules"])
    assert played.tokens == RECORDED[name]["tokens"], "the tokens are not vLLM's"


def test_a_full_pipeline_has_no_holes(lab: ModuleType) -> None:
    """`step` does not wait while there is room: two requests a step apart keep both stages busy."""
    played = served(lab, "two apart", cost="flat", spread=False)
    drawn = support.draw(played)
    assert played.ticks == 17, (
        f"16 steps on 2 stages take 17 ticks, and yours {played.ticks}\n{drawn}"
    )


def test_a_turn_that_only_fills_says_none(lab: ModuleType) -> None:
    """`step` returns None while there is room, else what the oldest step brought; None if none is left."""
    told: list[Any] = []

    class Noting(lab.BatchQueue):  # type: ignore[misc, name-defined]
        def step(self) -> Any:
            told.append(super().step())
            return told[-1]

    support.play(_with_queue(lab, Noting), support.WORKLOADS["two apart"])
    brought = [None if one is None else [output.request_id for output in one] for one in told]
    assert brought[:3] == [None, ["ada"], ["bo"]], (
        "the first turn fills, the second takes Ada's step in, the third Bo's; yours returned "
        f"{brought[:3]}"
    )
    queue = lab.BatchQueue(_Idle(), _Idle())
    assert queue.step() is None, "no requests and nothing in flight: there is nothing to return"


class _Idle:
    """A scheduler without requests, and an executor that is asked for nothing."""

    max_concurrent_batches = 2

    def has_requests(self) -> bool:
        return False


def _with_queue(lab: ModuleType, queue: type) -> Any:
    class Lab:
        BatchQueue = queue
        hold_back = staticmethod(lab.hold_back)

    return Lab


# ---- the rule ------------------------------------------------------------------------------------

CLOSE = 1.3
"""Times the lower bound that a rule may take, where the requests have little to compute but answers."""
SPLITS = {
    "two": support.WORKLOADS["two"],
    "four": support.WORKLOADS["four"],
    "four, 2 slots": support.WORKLOADS["four, 2 slots"],
    "four, 4 stages": support.WORKLOADS["four, 4 stages"],
    "six, 4 slots": Workload((4,) * 6, max_num_seqs=4),
}


@pytest.mark.parametrize("name", SPLITS)
def test_the_batch_is_split(lab: ModuleType, name: str) -> None:
    """Requests that came together fill the pipeline: close to the bound, with equal tokens."""
    work = SPLITS[name]
    alone, ruled = (served(lab, name, work, spread=spread) for spread in (False, True))
    assert ruled.tokens == alone.tokens, f"{name}: your rule changes the tokens"
    bound = max(
        sum(prompt + wanted - 1 for prompt, wanted in work.lengths()),
        max(prompt - 1 + work.stages * wanted for prompt, wanted in work.lengths()),
    )
    assert ruled.ticks <= CLOSE * bound, (
        f"{name}: {ruled.ticks} ticks with your rule, {alone.ticks} without, and {bound} are the least; "
        f"{ruled.empty} of your {len(ruled.schedules)} schedules are empty\n{support.draw(ruled)}"
    )


def test_what_is_left_is_split_again(lab: ModuleType) -> None:
    """Two of four finish early. The other two must not end up in one batch, or wait for each other."""
    ruled = served(lab, "four unequal")
    late = [given for _, given in ruled.schedules[-12:]]
    both = sum(len(given) > 1 for given in late)
    assert not both, (
        f"Cy and Eve are alone at the end, and {both} of the last 12 schedules have both: {late}"
    )
    assert ruled.ticks <= CLOSE * 44, f"{ruled.ticks} ticks, and 44 are the least"


def test_no_request_starves(lab: ModuleType) -> None:
    """All start in the first p schedules of p stages, and after that none sits out p in a row."""
    for name, work in {**SPLITS, "five, 3 stages": Workload((4,) * 5, stages=3)}.items():
        if work.max_num_seqs < len(work.prompts):
            continue  # they wait for a slot
        working = [given for _, given in served(lab, name, work).schedules if given]
        for name_of in support.NAMES[: len(work.prompts)]:
            places = [i for i, given in enumerate(working) if name_of in given]
            assert places[0] < work.stages, (
                f"{name}: {name_of} starts in schedule {places[0]}, counted from 0, of those with tokens; "
                f"{work.stages} schedules are enough for all"
            )
            longest = max(b - a for a, b in pairwise(places))
            assert longest <= work.stages, (
                f"{name}: {name_of} sits out {longest - 1} schedules in a row, while the others have theirs"
            )


def test_a_lone_request_is_left_alone(lab: ModuleType) -> None:
    """No rule makes one request faster, and yours does not make it slower."""
    for name in ("one", "one, 4 stages", "a long prompt"):
        alone, ruled = (served(lab, name, spread=spread) for spread in (False, True))
        assert ruled.pattern() == alone.pattern(), f"{name}: your rule changes what is scheduled"


def test_spread_requests_stay_spread(lab: ModuleType) -> None:
    """Where arrival has spread the requests already, the rule costs little."""
    for name in ("two apart", "four apart", "four apart, 4 stages", "long prompts"):
        alone, ruled = (served(lab, name, spread=spread) for spread in (False, True))
        assert ruled.tokens == alone.tokens, f"{name}: your rule changes the tokens"
        assert ruled.ticks <= 1.15 * alone.ticks, (
            f"{name}: {ruled.ticks} ticks with your rule and {alone.ticks} without"
        )


@pytest.mark.parametrize("first", [2, 5])
def test_late_requests_join_evenly(lab: ModuleType, first: int) -> None:
    """Others come while some are running: they start soon, and no schedule has more than half of all."""
    played = served(lab, "late", Workload((4,) * 6, first=first))
    for call, (_, given) in enumerate(played.schedules):
        assert len(given) <= 3, (
            f"{first} requests come first, {6 - first} later. Call {call} schedules {len(given)} of the 6, "
            f"and a stage's share is 3: {list(given)}"
        )
    working = [given for _, given in played.schedules if given]
    for name in support.NAMES:
        start = next(i for i, given in enumerate(working) if name in given)
        assert start < 4, (
            f"{first} requests come first, {6 - first} two steps later. {name} starts in schedule {start}, "
            "counted from 0, of those with tokens; by schedule 3 all can have started"
        )


@pytest.mark.parametrize("prompt", [24, 40])
def test_prompts_in_chunks_are_split_too(lab: ModuleType, prompt: int) -> None:
    """A request whose prompt comes in chunks is one of a schedule's requests, like one that decodes."""
    work = Workload((prompt,) * 4, max_num_batched_tokens=32)
    for call, (_, given) in enumerate(served(lab, "chunks", work).schedules):
        assert len(given) <= 2, (
            f"prompts of {prompt}, a budget of 32: call {call} schedules {len(given)} of the 4 requests, and "
            f"a stage's share is 2: {given}"
        )


def test_where_a_step_costs_the_same(lab: ModuleType) -> None:
    """If a step takes a tick whatever is in it, a split gains nothing; it may cost a tick per stage."""
    for name, work in SPLITS.items():
        alone, ruled = (served(lab, name, work, "flat", spread) for spread in (False, True))
        assert alone.ticks <= ruled.ticks + work.stages, f"{name}: {alone.ticks}, {ruled.ticks}"
        assert ruled.ticks <= alone.ticks + work.stages, (
            f"{name}: {ruled.ticks} ticks with your rule and {alone.ticks} without, a tick a step"
        )


@pytest.mark.parametrize(
    ("lengths", "stages", "least"),
    [
        ([(4, 8)], 2, 19),
        ([(4, 8)] * 4, 2, 44),
        ([(4, 4), (4, 4), (4, 12), (4, 12)], 2, 44),
        ([(4, 8)], 4, 35),
        ([(96, 8)], 2, 111),
        ([(1, 1)], 3, 3),
        ([(4, 8), (4, 40)], 4, 163),
    ],
)
def test_the_lower_bound(
    lab: ModuleType, lengths: list[tuple[int, int]], stages: int, least: int
) -> None:
    """The larger of what a stage has to do and what the longest request takes alone."""
    got = lab.lower_bound(lengths, stages)
    right = got == least  # not in the assert: the grade would print both numbers a second time
    assert right, f"{lengths} on {stages} stages: {least} ticks at least, not {got}"


def test_nothing_goes_below_it(lab: ModuleType) -> None:
    """Every recorded workload takes at least as long."""
    for name, work in support.WORKLOADS.items():
        bound = lab.lower_bound(work.lengths(), work.stages)
        ticks = served(lab, name, spread=False).ticks
        assert ticks >= bound, f"{name} takes {ticks} ticks, fewer than your bound of {bound}"
