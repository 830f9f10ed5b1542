"""Lab 03-07: with your scheduler nobody reads what nobody wrote, and nobody loses what is there."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.core.sched.upstream_scheduler import UpstreamScheduler
from mini_vllm.engine.parts import EngineParts

support = load_support(__file__)
RIGHT = next(a["text"] for a in support.lines("answers.jsonl") if a["day"] == "wednesday")
Event = tuple[int, str, list[int], int, int, int]  # before which step; then add_request's arguments


def words(first: int, count: int) -> list[int]:
    return list(range(first, first + count))


def play(engine: Any, events: list[Event], most: int = 300) -> list[dict[str, tuple[int, int]]]:
    """What each step computed, until everybody has ended."""
    planned = []
    for step in range(most):
        for arrives, *request in events:
            if arrives == step:
                engine.add_request(*request)
        planned.append(engine.step())
        if len(engine.finished) == len(events):
            return planned
    left = sorted({event[1] for event in events} - engine.finished)
    raise AssertionError(f"{left} have not ended after {most} steps")


SMALL = (9, 2, 4)
LOW: Event = (0, "low", words(10, 12), 4, 5, 1)
HIGH: Event = (1, "high", words(30, 4), 2, 0, 0)


def incident(lab: ModuleType, more: list[Event] | None = None, size: Any = SMALL) -> Any:
    """The incident in small with your scheduler, and whoever else comes."""
    engine = support.engine_with(lab.MendedScheduler)(*size)
    play(engine, [*(more or []), LOW, HIGH])
    return engine


# ---- the texts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("day", ["monday", "tuesday"])
def test_gil_is_told_what_he_is_told_alone(lab: ModuleType, day: str) -> None:
    """With your scheduler and the shipped model, Gil is told in the incident what he is told alone."""
    config = EngineConfig(**support.SETTINGS)
    engine = LLMEngine(config=config, parts=EngineParts(scheduler=lab.MendedScheduler))
    due = support.requests(day)
    ended: dict[str | None, int] = {None: 0}
    texts: dict[str, str] = {}
    step = 0
    while due or engine.has_unfinished_requests():
        for one in list(due):
            if one["after"] in ended and step >= ended[one["after"]] + one.get("at", 0):
                due.remove(one)
                params = SamplingParams(
                    temperature=0, max_tokens=one["max_tokens"], ignore_eos=True
                )
                prompt: Any = {"prompt_token_ids": one["prompt"], "cache_salt": one["who"]}
                engine.add_request(one["id"], prompt, params, priority=one["priority"])
        step += 1
        assert step < 200, f"{day}: not everybody has ended after {step} steps"
        for output in engine.step():
            texts[output.request_id] = output.outputs[0].text
            if output.finished:
                ended[output.request_id] = step
    for name in ("gil-2", "gil-4"):
        assert texts[name] == RIGHT, f"{day}: {name} is told {texts[name]!r}, alone it is {RIGHT!r}"


# ---- the slots -----------------------------------------------------------------------------------


def test_nobody_reads_what_nobody_wrote(lab: ModuleType) -> None:
    """No request reads what was never written, even if another computes the first of three withdrawn
    blocks."""
    engine = incident(lab)
    assert not engine.worker.wrong, f"a wrong slot was read: {engine.worker.wrong[0]}"
    low = words(10, 18)
    engine = support.engine_with(lab.MendedScheduler)(16, 2, 6)
    twin: Event = (1, "twin", low[:14] + words(60, 4), 3, 0, 0)
    play(engine, [(0, "low", low, 2, 5, 0), twin, (1, "high", words(30, 4), 3, 0, 0)])
    assert not engine.worker.wrong, (
        f"a wrong slot was read: {engine.worker.wrong[0]}. Three blocks were withdrawn, and twin has the "
        "tokens of the first of them as well. So a lookup gets past it, and what is behind has to go too"
    )


def test_a_block_that_the_step_would_have_filled_up(lab: ModuleType) -> None:
    """A half-filled block that the withdrawn step was to fill is not found: chunks of 3, blocks of 2."""
    engine = support.engine_with(lab.MendedScheduler)(9, 2, 3)
    play(engine, [LOW, (1, "high", words(30, 4), 3, 0, 0)])
    assert not engine.worker.wrong, (
        f"a wrong slot was read: {engine.worker.wrong[0]}. 9 tokens were computed: 4 blocks and half of "
        "another, which the step got no new block for, but was to fill"
    )


def test_others_do_not_find_it_either(lab: ModuleType) -> None:
    """Other requests do not find the victim's withdrawn blocks either, while the victim still waits."""
    engine = incident(lab, [(3, "again", words(10, 12), 4, 0, 1)])
    assert not engine.worker.wrong, (
        f"a wrong slot was read: {engine.worker.wrong[0]}. The victim is not the only one who can find "
        "its blocks"
    )


def aimed(seed: int) -> tuple[tuple[int, int, int], list[Event]]:
    """A pool that just runs out, while unimportant prompts go in in chunks."""
    rng = random.Random(seed)
    size = rng.choice([1, 2, 3])
    chunk = rng.randint(2, 3) * size + rng.choice([0, 0, 1])
    low = [rng.randrange(3, 40) for _ in range(rng.randint(4, 8) * size)]
    high = [rng.randrange(40, 60) for _ in range(rng.randint(1, 3) * size)]
    at = max(1, -(-len(low) // chunk) - 2)  # so that its first output falls on low's last chunk
    events = [
        (0, "low", low, rng.randint(1, 2), 5, 1),
        (at, "high", high, rng.randint(2, size + 1), rng.randint(0, 4), 0),
    ]
    if rng.random() < 0.4:
        other = low if rng.random() < 0.5 else [*low[: len(low) // 2], 61, 62, 63]
        after = at + rng.randint(0, 6)
        events.append((after, "third", other, 3, rng.randint(0, 5), rng.choice([1, 1, 2])))
    most = max(len(prompt) + wanted for _, _, prompt, wanted, _, _ in events)
    least = 1 - -most // size
    blocks = max(least, 1 + -(-(len(low) + len(high)) // size) + rng.choice([0, 0, 1]))
    return (blocks, size, chunk), events


def test_two_hundred_worlds(lab: ModuleType) -> None:
    """No request reads a wrong slot in 200 random workloads aimed at the step that preempts a served
    request."""
    hits = 0
    for seed in range(200):
        pool, events = aimed(seed)
        pin = support.Engine(*pool)
        play(pin, events)
        hits += bool(pin.worker.wrong)
        engine = support.engine_with(lab.MendedScheduler)(*pool)
        play(engine, events)
        assert not engine.worker.wrong, f"aimed({seed}): wrong slot read: {engine.worker.wrong[0]}"
        _keeps_what_it_had(engine, pin, f"aimed({seed})")
    assert hits >= 15, f"only {hits} of the worlds go wrong at the pin"


def _keeps_what_it_had(engine: Any, pin: Any, where: str) -> None:
    """Where the pin reads nothing wrong, there is nothing to un-publish that anybody needs."""
    if not pin.worker.wrong:
        for name, found in engine.found.items():
            assert sum(found) >= sum(pin.found[name]), (
                f"{where}: {name} finds {found} tokens, at the pin {pin.found[name]}, all of them sound"
            )


# ---- what is to be kept --------------------------------------------------------------------------


def test_what_was_computed_stays_published(lab: ModuleType) -> None:
    """Blocks that were computed before the step stay published: 8 tokens of low's, which are still there."""
    engine = incident(lab)
    assert engine.found["low"] == [0, 8], (
        f"low found {engine.found['low']} tokens, admitted for the first and the second time; 8 were "
        "computed before the step that preempted it, and are still there"
    )
    low = words(10, 18)
    engine = support.engine_with(lab.MendedScheduler)(16, 2, 6)
    twin: Event = (1, "twin", low[:14] + words(60, 4), 3, 0, 0)
    play(engine, [(0, "low", low, 2, 5, 0), twin, (1, "high", words(30, 4), 3, 0, 0)])
    assert engine.found["low"] == [0, 14], (
        f"low found {engine.found['low']} tokens. 12 were computed, and twin, who begins with the same 14, "
        "shares these and has computed the next block itself: a copy under the same hash, which is sound"
    )


def test_a_half_filled_block_costs_one_block_of_hits(lab: ModuleType) -> None:
    """A half-filled block costs one block of hits: of 9 computed tokens, 4 whole blocks are sound."""
    engine = support.engine_with(lab.MendedScheduler)(9, 2, 3)
    play(engine, [LOW, (1, "high", words(30, 4), 3, 0, 0)])
    assert engine.found["low"] == [0, 8], f"low found {engine.found['low']} tokens; 8 are sound"


def test_others_keep_their_hits(lab: ModuleType) -> None:
    """Other requests keep their hits: fay's prompt is in the cache before the step and after it."""
    question = words(70, 4)
    fay: Event = (0, "fay", question, 8, 0, 3)
    again: Event = (3, "fay again", [*question, 99], 1, 0, 3)
    stranger: Event = (3, "stranger", [*question, 99], 1, 0, 4)
    engine = incident(lab, [fay, again, stranger], (12, 2, 4))
    assert engine.preempted, "nobody was preempted, so this shows nothing; low should have been"
    assert engine.found["fay again"] == [4], (
        f"fay asks again while her first answer is still written, and found {engine.found['fay again']} "
        "tokens; 4 of hers were computed long ago, and she holds their blocks"
    )
    assert engine.found["stranger"] == [0], (
        f"stranger asks the same as fay under another salt, and found {engine.found['stranger']} tokens"
    )


def test_nothing_else_changes(lab: ModuleType) -> None:
    """Your scheduler decides as the pin does where no request is preempted."""
    incident(lab)
    for seed in range(200, 240):
        pool, events = aimed(seed)
        pin, engine = support.Engine(*pool), support.engine_with(lab.MendedScheduler)(*pool)
        theirs, yours = play(pin, events), play(engine, events)
        if not pin.preempted:
            assert yours == theirs, f"aimed({seed}): nobody is preempted, and your plans differ"


def test_without_a_prefix_cache(lab: ModuleType) -> None:
    """Without a prefix cache there is nothing to un-publish, and that is no error."""
    incident(lab)

    class NoCache(support.TurnsCachingOff):  # type: ignore[misc, name-defined]
        scheduler_class = lab.MendedScheduler

    engine = NoCache(*SMALL)
    play(engine, [LOW, HIGH])
    assert not engine.worker.wrong, engine.worker.wrong[0]
    assert engine.found["low"] == [0, 0], engine.found


def test_it_is_the_pins_scheduler_but_for_the_mend(lab: ModuleType) -> None:
    """Your fix is a subclass of the pin's scheduler."""
    incident(lab)
    assert issubclass(lab.MendedScheduler, UpstreamScheduler), (
        "MendedScheduler is to be a subclass of UpstreamScheduler, so that what differs from the pin can "
        "be seen at one glance"
    )
