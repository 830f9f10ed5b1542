"""Lab 01-02, the two groups: each line of the log follows from the events of lab 01-01."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support

support = load_support(__file__)


def event(step: int, request_id: str, scheduled: int, new: int, status: str = "RUNNING") -> Any:
    """An event of lab 01-01 in which only what counts here is filled in."""
    blank = (0, 0, scheduled, 0, 0, (7,) * new, (), None)
    return support.listening.Event(step, request_id, status, *blank)


def test_a_prompt_is_context_until_its_first_token(lab: ModuleType) -> None:
    """Every chunk of a prompt is context, and so is the step that samples the first token."""
    support.same_counts(
        lab.iterations_of([event(1, "a", 19, 0), event(2, "a", 31, 0), event(3, "a", 14, 1)]),
        [(0, 1, 19, 0, 0), (1, 1, 31, 0, 0), (2, 1, 14, 0, 0)],
        "A prompt in three chunks. vLLM asks one thing: had the request sampled a token before this step? "
        "Not in its second chunk, and not in the step that samples the first token either.",
    )
    support.same_counts(
        lab.iterations_of([event(1, "a", 1, 1), event(2, "a", 1, 1)]),
        [(0, 1, 1, 0, 0), (1, 0, 0, 1, 1)],
        "A prompt of one token is context too: the number of tokens does not decide the group.",
    )


def test_a_request_that_has_sampled_is_generation_for_good(lab: ModuleType) -> None:
    """A request back from a preemption computes its prompt anew, and counts as generation."""
    support.same_counts(
        lab.iterations_of(
            [
                event(1, "a", 5, 1),
                event(2, "a", 0, 0, "PREEMPTED"),
                event(3, "a", 4, 0),
                event(4, "a", 3, 1),
            ]
        ),
        [(0, 1, 5, 0, 0), (1, 0, 0, 0, 0), (2, 0, 0, 1, 4), (3, 0, 0, 1, 3)],
        "Preempted in step 2, back in step 3. It has sampled a token, so it is generation from then on, "
        "whatever it has to compute.",
        {0: "It has not sampled yet: context.", 1: "It waits: in no group."},
    )


def test_a_group_counts_requests_and_their_tokens(lab: ModuleType) -> None:
    """Each of a step's requests is grouped by its own history; a waiting one is in no group."""
    events = [
        event(0, "a", 0, 0, "WAITING"), event(1, "a", 5, 0), event(1, "b", 3, 1),
        event(1, "c", 0, 0, "WAITING"), event(2, "a", 4, 1), event(2, "b", 1, 1),
        event(3, "b", 9, 0), event(3, "a", 1, 1),
    ]  # fmt: skip
    support.same_counts(
        lab.iterations_of(events),
        [(0, 2, 8, 0, 0), (1, 1, 4, 1, 1), (2, 0, 0, 2, 10)],
        "c waits and is in no group; a and b change groups each in its own time.",
    )


def test_every_step_has_a_line(lab: ModuleType) -> None:
    """Lines are numbered from 0; step 0 has none, and a step in which nothing ran has zeros."""
    waiting = [event(step, "a", 0, 0, "WAITING") for step in range(3)]
    got = lab.iterations_of([*waiting, event(3, "a", 2, 1)])
    due = [(0, 0, 0, 0, 0), (1, 0, 0, 0, 0), (2, 1, 2, 0, 0)]
    support.same_counts(
        got,
        due,
        "vLLM writes a line for each step that it takes, empty or not. What is added before the first step "
        "(step 0) belongs to none.",
    )
    support.same_lines(
        got, due, "Lines are numbered from 0 as they are written: step 1 is Iteration(0)."
    )
    support.same_lines(
        lab.iterations_of([event(5, "a", 2, 1), event(9, "a", 1, 1)]),
        [(0, 1, 2, 0, 0), (1, 0, 0, 1, 1)],
        "Lines are counted as they are written: a step without any event was not taken, and has no number.",
    )
    support.same_lines(lab.iterations_of(iter([])), [], "No events, no lines.")


@pytest.mark.parametrize("engine", ["vLLM", "mini_vllm"])
def test_the_log_says_what_the_events_say(lab: ModuleType, engine: str) -> None:
    """Every Iteration line of the real vLLM follows from the events, vLLM's own and mini_vllm's."""
    if engine == "vLLM":
        records = support.engines.read_capture()[1]
    else:
        records = support.engines.run_mini_vllm(support.engines.load_workload())
    said = lab.parse_iterations(support.engines.read_log("in_process"))
    assert [line[0] for line in said or ()] == list(range(22)), (
        "First mend parse_iterations, on which this stands: it does not find the lines Iteration(0) to "
        "Iteration(21), with numbers as ints."
    )
    rule = f"Computed from the events of {engine}; the log said otherwise."
    support.same_counts(
        lab.iterations_of(support.listening.to_events(records)),
        said,
        rule,
        {19: f"{rule} Line 19 is the one of the README."},
    )
