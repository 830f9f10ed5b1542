"""Lab 01-04: the probe's record of a step and the measures that are given, held here."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module
from mini_vllm import EngineConfig, LLMEngine
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.model_loader import load_model

LAB = ROOT / "phase-01-architecture/labs/lab-04-watch-the-batch"
by_hand = load_module(LAB / "test_lab.py", "test_lab_01_04_by_hand")
running = load_module(LAB / "test_lab_running.py", "test_lab_01_04_running")
batch = running.batch


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "solution.py", "test_lab_01_04_solution")


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model(DEFAULT_MODEL)


@pytest.fixture
def desk(lab: ModuleType, model: Any) -> Any:
    return by_hand.Desk(lab, model)


def test_a_step_keeps_the_schedulers_order(desk: Any) -> None:
    """Counts and joined in scheduling order; the step's own copy of the counts; index and budget."""
    scheduled = {"c": 2, "a": 4, "b": 1}
    step = desk.step(scheduled, new={"c": (2, 0), "a": (9, 0), "b": (1, 0)}, sampled=("c", "b"))
    assert list(step.num_scheduled_tokens.items()) == [("c", 2), ("a", 4), ("b", 1)], (
        f"num_scheduled_tokens is {step.num_scheduled_tokens}, should be {scheduled}, in that order"
    )
    assert step.joined == ("c", "a", "b"), f"joined is {step.joined}, should be c, a, b"
    scheduled["c"] = 99
    assert step.num_scheduled_tokens["c"] == 2, (
        "the step holds the scheduler's own dict: whoever changes that changes your trace. Copy it"
    )
    assert step.index == 1, f"the step's index is {step.index}, the record says 1"
    assert step.budget == 8, (
        f"budget is {step.budget}, should be 8: the scheduler's max_num_scheduled_tokens"
    )


def test_who_came_went_and_waits(desk: Any) -> None:
    """Joined: new and resumed. Finished: by reason. Preempted and waiting: as the engine has them."""
    step = desk.step(
        {"a": 4, "b": 2}, new={"a": (4, 0), "b": (9, 0)}, sampled=("a",), ends=("a",),
        waiting=("z", "d"),
    )  # fmt: skip
    assert (step.joined, step.sampled, step.finished, step.waiting) == (
        ("a", "b"), ("a",), ("a",), ("z", "d"),
    ), (
        f"joined {step.joined}, sampled {step.sampled}, finished {step.finished}, waiting "
        f"{step.waiting}; should be a and b, a, a, and z before d, as they stand in the queue"
    )  # fmt: skip
    step = desk.step({"c": 4}, new={"c": (4, 0)}, preempted=("b",), sampled=("c",))
    assert (step.joined, step.finished, step.preempted, step.waiting) == (("c",), (), ("b",), ()), (
        f"joined {step.joined}, finished {step.finished}, preempted {step.preempted}, waiting "
        f"{step.waiting}; should be c, nobody, b, nobody. A token is not an end: look at finish_reason"
    )
    step = desk.step({"c": 1, "b": 2}, known={"c": 4, "b": 0}, resumed=("b",), sampled=("c",))
    assert step.joined == ("b",), (
        f"joined is {step.joined}, should be ('b',): who comes back from a preemption joins the "
        "batch again; who was in it all the time does not"
    )


def test_joined_and_preempted_have_an_order(desk: Any) -> None:
    """Joined in scheduling order, whoever is new and whoever came back; the preempted sorted."""
    desk.step({"r": 4, "x": 2}, new={"r": (9, 0), "x": (9, 0)})
    desk.step({"x": 2}, known={"x": 2}, preempted=("r",))
    step = desk.step(
        {"x": 1, "r": 4, "n": 3}, new={"n": (3, 0)}, known={"x": 4, "r": 0}, resumed=("r",)
    )
    assert step.joined == ("r", "n"), (
        f"joined is {step.joined}, should be ('r', 'n'): r came back from a preemption and was "
        "scheduled before n, which is new. Go through num_scheduled_tokens, not through the two "
        "lists one after the other"
    )
    step = desk.step({}, preempted=("n", "r", "x"))
    assert step.preempted == ("n", "r", "x"), (
        f"preempted is {step.preempted}, should be ('n', 'r', 'x'), sorted: the engine keeps a "
        "set, and in what order a set comes out is chance"
    )


def test_a_preempted_request_waits(lab: ModuleType, model: Any) -> None:
    """After a preemption the request stands in the queue again, and a step's `waiting` has it."""
    config = EngineConfig(
        block_size=4, num_gpu_blocks=8, max_model_len=24, max_num_seqs=2, max_num_batched_tokens=32
    )
    engine = LLMEngine(model, config)
    probe = lab.BatchProbe(engine)
    running.drive(
        engine,
        [
            (0, "a", running.prompt_of(9, 0), 12),
            (0, "b", running.prompt_of(9, 90), 12),
            (0, "c", running.prompt_of(3, 180), 2),
        ],
    )
    out = [step for step in probe.steps if step.preempted]
    assert [step.preempted for step in out[:1]] == [("b",)], (
        f"the engine did not preempt b as it does without the probe: preempted is "
        f"{[step.preempted for step in out] or 'empty in every step'}. Has observe changed the record, "
        "or is the set not taken over?"
    )
    assert out[0].waiting == ("b", "c"), (
        f"b was preempted in step {out[0].index}, and waiting is {out[0].waiting}, should be ('b', "
        "'c'): it waits for its return at the head of the line, before c, which has not run yet. "
        "Take everybody in scheduler.waiting, whatever the status"
    )


def test_a_probe_put_on_late_keeps_the_engines_index(lab: ModuleType, model: Any) -> None:
    """A probe on an engine that has done steps numbers its own as the engine does."""
    engine = LLMEngine(model, EngineConfig(num_gpu_blocks=20, max_model_len=64))
    running.drive(engine, [(0, "before", running.prompt_of(5, 0), 3)])
    probe = lab.BatchProbe(engine)
    running.drive(engine, [(0, "after", running.prompt_of(5, 90), 2)])
    indices = [step.index for step in probe.steps]
    assert indices == [4, 5], (
        f"the engine had done 3 steps when the probe came, so those it sees are 4 and 5; it wrote {indices}. "
        "Take record.index: who lays your trace beside a log would look at other steps"
    )
    assert list(probe.ledgers) == ["after"], (
        f"one request was admitted since the probe was put on; there are ledgers of {list(probe.ledgers)}"
    )


def test_a_mixed_step_has_both(lab: ModuleType) -> None:
    """A prefill and a decode; neither alone, and not an empty step."""
    cases = [((), (), False), (("a",), (), False), ((), ("a", "b"), False), (("a",), ("b",), True)]
    for prefills, decodes, want in cases:
        got = lab.is_mixed(batch(lab, 1, {}, prefills=prefills, decodes=decodes))
        assert got is want, (
            f"is_mixed is {got!r} for prefills {prefills} and decodes {decodes}, should be {want}: "
            "at least one of each"
        )


def test_the_gap_is_between_tokens(lab: ModuleType) -> None:
    """From one token to the next: all that was computed in between, the next one's step included."""
    steps = [
        batch(lab, 1, {"b": 90}),
        batch(lab, 2, {"a": 50}, sampled=("a",)),
        batch(lab, 3, {"a": 1, "b": 3}, sampled=("a",)),
        batch(lab, 4, {"b": 7}),
        batch(lab, 5, {"a": 1, "b": 5}, sampled=("a",)),
        batch(lab, 6, {"a": 1, "b": 10}, sampled=("a", "b")),
        batch(lab, 7, {"b": 99}, sampled=("b",)),
    ]
    gaps = [lab.longest_gap(steps, "a"), lab.longest_gap(steps, "b"), lab.longest_gap(steps, "c")]
    assert gaps == [13, 99, 0], (
        f"the longest gaps of a, b and c are {gaps}, should be [13, 99, 0]. a's gaps are 4, 7 + 6 and "
        "11: step 4 counts, though a was not in it. What lies before the first token and after the "
        "last is no gap; c has no token"
    )
    assert lab.longest_gap(steps[:3], "a") == 4, "two tokens have one gap, 1 + 3"
    assert lab.longest_gap(steps[:2], "a") == 0, "one token has no gap"


def test_budget_and_batch_are_means_over_steps(lab: ModuleType) -> None:
    """Tokens over budgets, requests over steps; 0.0 where there are no steps."""
    steps = [
        batch(lab, 1, {"a": 8, "b": 2}),
        batch(lab, 2, {"a": 1, "b": 1, "c": 1}, budget=20),
        batch(lab, 3, {}),
        batch(lab, 4, {"c": 1}),
    ]
    got = (lab.budget_use(steps), lab.batch_size(steps))
    assert got == (14 / 50, 6 / 4), (
        f"budget_use and batch_size are {got}, should be 14/50 and 6/4: 14 tokens of budgets that sum "
        "to 50, and 2 + 3 + 0 + 1 requests in 4 steps. Empty steps count"
    )
    assert (lab.budget_use([]), lab.batch_size([])) == (0.0, 0.0), "without steps both are 0.0"


def test_static_batching_waits_for_the_longest(lab: ModuleType) -> None:
    """Groups in order of arrival; each takes as long as its longest."""
    cases = [([4, 30, 6, 8], 2, 38), ([4, 30, 6, 8], 4, 30), ([5, 1, 9], 2, 14), ([7], 3, 7), ([], 2, 0),
             ([3, 2, 1], 1, 6)]  # fmt: skip
    for lengths, seats, want in cases:
        got = lab.static_steps(lengths, seats)
        assert got == want, (
            f"outputs of {lengths} tokens in {seats} seats: {got} steps, should be {want}. The first "
            f"{seats} run until the longest of them is through, then the next {seats}"
        )


def test_continuous_batching_beats_static(lab: ModuleType, model: Any) -> None:
    """The same requests, seats and tokens: fewer steps, because a seat is filled at once."""
    engine = LLMEngine(model, EngineConfig(max_num_seqs=2))
    probe = lab.BatchProbe(engine)
    lengths = [4, 12, 3, 5, 9, 2]
    running.drive(
        engine, [(0, f"r{i}", running.prompt_of(6, 20 * i), n) for i, n in enumerate(lengths)]
    )
    counts = (lab.static_steps(lengths, 2), len(probe.steps))
    assert counts == (26, 21), (
        f"static and continuous batching took {counts} steps, should be (26, 21). Static: 12 + 5 + 9"
    )
    assert lab.batch_size(probe.steps) == sum(lengths) / 21, (
        "prompts of one chunk: each request is in as many steps as it has tokens"
    )
