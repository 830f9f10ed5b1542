"""Lab 01-02, side by side: from records to events, and both engines step by step.

What vLLM said lies in capture/, written by capture.py. Nothing here compares which tokens it sampled
there: the decisions do not depend on them, and the shipped weights may change.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_module, load_support
from mini_vllm import SamplingParams
from mini_vllm.request import RequestStatus

support = load_support(__file__)
TRACER = support.HERE.parent / "lab-01-trace-a-request" / "solution.py"


@pytest.fixture(scope="module")
def mini(lab: ModuleType) -> list[dict[str, Any]]:
    """The records of mini_vllm on the workload."""
    records: list[dict[str, Any]] = support.engines.run_mini_vllm(
        lab, support.engines.load_workload()
    )
    return records


@pytest.fixture(scope="module")
def real() -> list[dict[str, Any]]:
    """The records of vLLM on the workload, as captured."""
    records: list[dict[str, Any]] = support.engines.read_capture()[1]
    return records


@pytest.fixture(scope="module")
def photos(loaded: tuple[Any, Any]) -> list[Any]:
    """The events of mini_vllm on the workload, as lab 01-01 photographs them."""
    workload = support.engines.load_workload()
    tracer = load_module(TRACER, "lab_01_02_tracer").Tracer(
        support.engine(loaded, **workload["settings"])
    )

    class Driven:
        has_unfinished_requests = tracer.engine.has_unfinished_requests
        add_request = staticmethod(tracer.add_request)
        step = staticmethod(tracer.step)

        @staticmethod
        def abort_request(request_ids: list[str]) -> None:
            for request_id in request_ids:
                tracer.abort_request(request_id)

    support.engines.drive(Driven, workload["requests"], SamplingParams)
    events: list[Any] = tracer.events
    return events


RULES = {
    "request_id": "The user's id: without the last dash and its eight digits, and nothing else taken off.",
    "num_computed_before": "The counter as it stood before the step; 0 for a request that comes in.",
    "num_cached_tokens": "Prefix hits: num_computed_tokens of a new or resumed request's record.",
    "num_computed_tokens": "Hits and scheduled tokens are added; a preemption sets it to 0.",
    "num_tokens": "It grows by the tokens of the outputs, and a preemption takes none away.",
    "block_ids": "Added to for a running request, replaced for a resumed one, none once it has ended.",
    "status": "RUNNING if scheduled, PREEMPTED until it is back, FINISHED[reason] at the end.",
}


def blind(events: list[Any]) -> list[Any]:
    """The events with the number of new tokens in the place of the tokens."""
    return [e._replace(new_token_ids=len(e.new_token_ids)) for e in events]


def agree(got: list[Any], want: list[Any]) -> None:
    """The same events, in the same order, field by field."""
    for step in sorted({e.step for e in want}):
        mine, due = ([e.request_id for e in events if e.step == step] for events in (got, want))
        assert mine == due or sorted(mine) != sorted(due), (
            f"step {step}: the events are of {mine}, should be of {due}. Order: scheduled, then the rest "
            "of running, then waiting."
        )
        missing = [request_id for request_id in due if request_id not in mine]
        assert not missing, f"step {step}: the event of {missing} is missing; yours are of {mine}"
    for mine, photo in zip(got, want, strict=False):
        for field in photo._fields:
            assert getattr(mine, field) == getattr(photo, field), (
                f"step {photo.step}, request {photo.request_id!r}: {field} should be "
                f"{getattr(photo, field)!r}, got {getattr(mine, field)!r}. "
                f"{RULES.get(field, 'See the recipe of to_events.')} Event due: {photo}"
            )
    support.same(len(got), len(want), "As many events as lab 01-01's tracer writes down.")


# ---- from records to events ----------------------------------------------------------------------


def test_the_events_are_those_of_lab_01(
    lab: ModuleType, photos: list[Any], mini: list[dict[str, Any]]
) -> None:
    """From messages alone, the list that lab 01-01 photographs: event for event, tokens too."""
    assert lab.Event._fields == photos[0]._fields, "Event is given; leave its fields alone"
    agree(lab.to_events(mini), photos)


def test_ids_are_the_users(lab: ModuleType, real: list[dict[str, Any]]) -> None:
    """vLLM appends a dash and eight digits to an id; dashes of the user's own stay."""
    raw = {r["request_id"] for r in real if r["call"] == "add_request"}
    assert all(re.search(r"-[0-9a-f]{8}$", request_id) for request_id in raw), raw
    got = list(dict.fromkeys(event.request_id for event in lab.to_events(real)))
    support.same(
        got,
        ["short", "long", "long-again", "gone", "late"],
        f"vLLM's ids were {sorted(raw)}: take off the last dash and its eight digits, nothing else.",
    )
    for given in ("run-7", "a-deadbeef-run", "my-somename", "x-12345678901"):
        arrival = [{"call": "add_request", "request_id": given, "num_tokens": 3}]
        support.same(
            [event.request_id for event in lab.to_events(arrival)], [given],
            "This id has no tail: a tail is a dash and exactly eight hexadecimal digits, at the very end.",
        )  # fmt: skip


def test_two_ways_to_get_blocks(lab: ModuleType, real: list[dict[str, Any]]) -> None:
    """New blocks are added to a running request's table, and replace a resumed one's."""
    events = [e for e in lab.to_events(real) if e.request_id == "long-again"]
    grown = {e.step: e.block_ids for e in events}
    support.same(
        grown[4], (2, 3, 7, 8), "Admitted with two blocks of another request, and two of its own."
    )
    support.same(grown[5], (), "Preempted: it holds nothing.")
    support.same(
        grown[9],
        (2, 3, 7, 6),
        "Resumed: what it is sent is its whole table. Block 8 is another's now.",
    )
    short = {e.step: e.block_ids for e in lab.to_events(real) if e.request_id == "short"}
    support.same(
        (short[4], short[5]), ((1,), (1, 8)), "A running request is sent only what is added."
    )


def test_a_stop_is_not_a_length(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """The finish reason decides the status."""
    it, records = support.watched(lab, loaded)
    it.add_request("a", support.PROMPT, support.greedy(1))
    token = support.run(it)[0].outputs[0].token_ids[0]
    it.add_request("b", support.PROMPT, support.greedy(5, stop_token_ids=[token]))
    support.run(it)
    last = lab.to_events(records)[-1]
    support.same(
        (last.status, last.finish_reason), ("FINISHED_STOPPED", "stop"), "A stop token ended it."
    )


def test_the_dead_are_passed_over(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """finish_requests may name ids that have ended already, or never were: no event."""
    it, records = support.watched(lab, loaded)
    it.add_request("a", support.PROMPT, support.greedy(1))
    it.add_request("b", support.PROMPT, support.greedy(4))
    it.step()
    scheduler = it.engine_core.scheduler
    for _ in range(2):
        scheduler.finish_requests(["nobody", "a", "b"], RequestStatus.FINISHED_ABORTED)
    got = [(e.step, e.request_id, e.status) for e in lab.to_events(records)]
    support.same(
        got,
        [
            (0, "a", "WAITING"),
            (0, "b", "WAITING"),
            (1, "a", "FINISHED_LENGTH_CAPPED"),
            (1, "b", "RUNNING"),
            (1, "b", "FINISHED_ABORTED"),
        ],
        "A request ends once.",
    )


# ---- side by side --------------------------------------------------------------------------------


def test_both_engines_take_the_same_steps(
    lab: ModuleType, photos: list[Any], mini: list[dict[str, Any]], real: list[dict[str, Any]]
) -> None:
    """The real vLLM and mini_vllm: 68 events, every counter, every block id."""
    theirs, ours = lab.to_events(real), lab.to_events(mini)
    agree(blind(theirs), blind(photos))
    agree(blind(ours), blind(photos))
    found = lab.first_difference(theirs, ours, tokens=False)
    assert found is None, f"the lists are equal up to the tokens' values, and you report: {found}"


def test_the_log_says_what_the_events_say(
    lab: ModuleType, mini: list[dict[str, Any]], real: list[dict[str, Any]]
) -> None:
    """Every Iteration line of vLLM follows from the events: vLLM's own, and mini_vllm's."""
    said = lab.parse_iterations(support.engines.read_log("in_process"))
    for name, records in (("vLLM", real), ("mini_vllm", mini)):
        computed = lab.iterations_of(lab.to_events(records))
        for line, mine in zip(said, computed, strict=False):
            support.same(
                mine, line,
                f"Computed from the events of {name}. A request that has sampled before is in the "
                "generation group for good, even if a preemption makes it compute its prompt again; one "
                "that has not is context, in its second chunk, too.",
            )  # fmt: skip
        assert len(said) == 22, (
            f"the log has 22 iteration lines, and parse_iterations found {len(said)}"
        )
        support.same(len(computed), len(said), "One line a step.")


def test_the_busy_loop_does_one_step_more(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """With the core in its own process, a last, empty step tells the workers who has finished."""
    it, records = support.watched(lab, loaded)
    it.add_request("a", support.PROMPT, support.greedy(4))
    support.run(it)
    computed = lab.iterations_of(lab.to_events(records))
    said = lab.parse_iterations(support.engines.read_log("busy_loop"))
    support.same(
        computed,
        said[:4],
        "Iterations are numbered from 0, steps from 1. The same request: four tokens, four steps, 13 "
        "tokens in the first.",
    )
    support.same(
        [tuple(i) for i in said[4:]], [(4, 0, 0, 0, 0)], "Then one iteration with nothing in it."
    )


def test_iterations_group_by_what_was_sampled_before(lab: ModuleType) -> None:
    """The first token's own step is context; waiting requests are in no group."""

    def event(step: int, request_id: str, scheduled: int, new: int) -> Any:
        blank = (0, 0, scheduled, 0, 0, (7,) * new, (), None)
        return lab.Event(step, request_id, "RUNNING", *blank)

    events = [
        event(0, "a", 0, 0), event(1, "a", 5, 0), event(1, "b", 3, 1), event(1, "c", 0, 0),
        event(2, "a", 4, 1), event(2, "b", 1, 1), event(3, "b", 9, 0), event(3, "a", 1, 1),
    ]  # fmt: skip
    support.same(
        [tuple(i) for i in lab.iterations_of(events)],
        [(0, 2, 8, 0, 0), (1, 1, 4, 1, 1), (2, 0, 0, 2, 10)],
        "(number, context requests and tokens, generation requests and tokens). Number 0 is step 1.",
    )


def test_first_difference_names_the_place(lab: ModuleType, photos: list[Any]) -> None:
    """Step, request, field and both values, of the first event that is not equal."""
    ours = list(photos)
    support.same(lab.first_difference(ours, list(ours)), None, "Equal lists have no difference.")
    for place, field, value in (
        (0, "status", "RUNNING"),
        (7, "num_computed_tokens", -1),
        (20, "block_ids", (99,)),
        (67, "finish_reason", "stop"),
    ):
        theirs = list(ours)
        theirs[place] = ours[place]._replace(**{field: value})
        theirs[-1] = theirs[-1]._replace(num_tokens=-5) if place != 67 else theirs[-1]
        support.same(
            lab.first_difference(theirs, ours),
            (ours[place].step, ours[place].request_id, field, value, getattr(ours[place], field)),
            "The first event that differs, its first field that does; vLLM's value, then ours.",
        )


def test_tokens_may_be_left_out(lab: ModuleType, photos: list[Any]) -> None:
    """Without tokens it counts them; with tokens it compares them."""
    ours = list(photos)
    place = next(i for i, e in enumerate(ours) if e.new_token_ids)
    other, none = list(ours), list(ours)
    other[place] = ours[place]._replace(new_token_ids=(-1,))
    none[place] = ours[place]._replace(new_token_ids=())
    where = (ours[place].step, ours[place].request_id, "new_token_ids")
    support.same(
        lab.first_difference(other, ours),
        (*where, (-1,), ours[place].new_token_ids),
        "By default another token is a difference.",
    )
    support.same(
        lab.first_difference(other, ours, tokens=False), None, "One token here, one there."
    )
    support.same(
        lab.first_difference(none, ours, tokens=False),
        (*where, 0, 1),
        "A token that is missing is a difference even so.",
    )


def test_one_list_is_longer(lab: ModuleType, photos: list[Any]) -> None:
    """Events too many are a difference, on whichever side."""
    ours = list(photos)
    extra = ours[10]
    place = (extra.step, extra.request_id, "event")
    support.same(
        lab.first_difference(ours[:12], ours[:10]), (*place, extra.status, None),
        "vLLM has events that we have not: its status, and None. zip stops at the shorter list.",
    )  # fmt: skip
    support.same(
        lab.first_difference(ours[:10], ours[:12]), (*place, None, extra.status),
        "We have events that vLLM has not: None, and our status.",
    )  # fmt: skip
    support.same(lab.first_difference([], []), None, "Two empty lists are equal.")


def test_a_difference_reads_as_a_sentence(lab: ModuleType) -> None:
    """What capture.py prints of a difference: place, field, both values."""
    events = [lab.Event(3, "a", s, 0, 0, 0, 0, 1, (), (), None) for s in ("RUNNING", "WAITING")]
    support.same(
        str(lab.first_difference(events[:1], events[1:])),
        "step 3, request 'a', status: vLLM 'RUNNING', mini_vllm 'WAITING'",
        "Difference is given; return one.",
    )
