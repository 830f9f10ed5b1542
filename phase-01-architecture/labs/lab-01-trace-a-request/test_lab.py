"""Lab 01-01: what the event list must say of requests that come, run and end."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from course.learner.labs import load_support
from mini_vllm import SamplingParams

support = load_support(__file__)


# ---- one request ---------------------------------------------------------------------------------


def test_waiting_before_the_first_step(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """Adding a request queues it and computes nothing: one WAITING event at step 0."""
    t = support.tracer(lab, loaded)
    t.add_request("a", support.PROMPT, support.greedy(3))
    support.count(t.events, 1, "add_request writes the first event itself, before any step.")
    support.expect(
        t.events[0],
        "Between add_request and the first schedule() the request only stands in the queue.",
        step=0, request_id="a", status="WAITING", num_computed_before=0, num_cached_tokens=0,
        num_scheduled_tokens=0, num_computed_tokens=0, num_tokens=support.P, new_token_ids=(),
        block_ids=(), finish_reason=None,
    )  # fmt: skip
    assert t.requests["a"].priority == 0, "the default priority is vLLM's: 0"
    t.add_request("b", support.PROMPT, support.greedy(3), priority=7)
    assert t.requests["b"].priority == 7, (
        f"b was added with priority=7 and has {t.requests['b'].priority}. The engine's add_request has "
        "arrival_time in the fourth place, priority in the fifth: hand it on by its name, priority=priority"
    )
    del t.requests["b"]
    assert list(t.requests) == ["a"], (
        f"keep the Request in `requests` from the moment it is added; got {list(t.requests)}"
    )


def test_prefill_in_one_step(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A prompt that fits the budget takes the counter from 0 to 13 and samples in the same step."""
    t = support.tracer(lab, loaded)
    t.add_request("a", support.PROMPT, support.greedy(3))
    outputs = t.step()
    assert [o.request_id for o in outputs] == ["a"], "step returns what engine.step() returns"
    support.count(t.events, 2, "One event a step for a living request.")
    support.expect(
        t.events[1],
        "The whole prompt is computed in one step. All its tokens have caught up by then, so the same "
        "step samples: 13 computed, 14 exist.",
        step=1, status="RUNNING", num_computed_before=0, num_cached_tokens=0,
        num_scheduled_tokens=support.P, num_computed_tokens=support.P,
        num_tokens=support.P + 1, finish_reason=None,
    )  # fmt: skip
    new = t.events[1].new_token_ids
    assert len(new) == 1, f"the step that catches up samples one token, got {new}"
    assert new == tuple(outputs[0].outputs[0].token_ids), (
        f"the step sampled {outputs[0].outputs[0].token_ids}, the event says {new}: the tokens that "
        "the request did not have before the step"
    )
    assert len(t.events[1].block_ids) == 1, (
        f"13 tokens lie in one block of 16; the event says {t.events[1].block_ids}: read the block "
        "table after the step, from the KV cache manager"
    )


def test_decode_grows_by_one(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """After the prompt each step computes one token and samples one; blocks come as needed."""
    t = support.tracer(lab, loaded)
    t.add_request("a", support.PROMPT, support.greedy(6))
    events = support.run(t)
    for k, event in enumerate(events[2:], 1):
        support.expect(
            event,
            "A decode step computes the one token that the step before has sampled.",
            step=k + 1, num_computed_before=support.P + k - 1, num_scheduled_tokens=1,
            num_cached_tokens=0, num_computed_tokens=support.P + k, num_tokens=support.P + k + 1,
        )  # fmt: skip
    held = [len(event.block_ids) for event in events]
    assert held == [0, 1, 1, 1, 1, 2, 0], (
        f"blocks held should be 0 (waiting), 1 up to 16 computed tokens, 2 for the 17th, and 0 once it "
        f"is finished; got {held}"
    )


def test_steps_are_max_tokens(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """With a prompt that fits one step, n tokens take n steps, and the text is the engine's."""
    t = support.tracer(lab, loaded)
    t.add_request("a", support.PROMPT, support.greedy(7))
    finished = []
    while t.engine.has_unfinished_requests():
        finished = t.step()
    support.count(
        t.events, 8, "One before the first step and one a step; the prompt's step samples too."
    )
    assert finished, "the last step returns the finished request's output, and step returned none"
    sampled = [token for event in t.events for token in event.new_token_ids]
    assert sampled == finished[0].outputs[0].token_ids, (
        "the new tokens of all events, in order, are the output that the engine returns; got "
        f"{sampled} for {finished[0].outputs[0].token_ids}"
    )


def test_the_finish_is_recorded(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """The last event is FINISHED_*, though nothing in the scheduler knows the request any more."""
    t = support.tracer(lab, loaded)
    t.add_request("a", support.PROMPT, support.greedy(3))
    events = support.run(t)
    assert events[-1].status.startswith("FINISHED"), (
        f"the last event says {events[-1].status} at step {events[-1].step}. The update takes a "
        "finished request out of `running` and `requests` before step() returns: whoever only looks "
        "there never sees the end. Hold the Request object from before the step."
    )
    support.expect(
        events[-1],
        "max_tokens is reached: 3 outputs exist, and the last of them is never computed.",
        step=3, status="FINISHED_LENGTH_CAPPED", num_computed_tokens=support.P + 2, num_tokens=support.P + 3,
        block_ids=(), finish_reason="length",
    )  # fmt: skip
    assert [e.finish_reason for e in events[:-1]] == [None] * 3, "only the last event has a reason"


def test_stopped_is_another_finish(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A stop token ends the request as FINISHED_STOPPED, with the reason stop."""
    t = support.tracer(lab, loaded)
    t.add_request("a", support.PROMPT, support.greedy(1))
    token = support.run(t)[-1].new_token_ids[0]
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, stop_token_ids=[token])
    t.add_request("b", support.PROMPT, params)
    last = support.run(t)[-1]
    support.expect(
        last,
        "Status and reason are the request's own: do not write 'length' for every end.",
        request_id="b", step=2, status="FINISHED_STOPPED", finish_reason="stop",
        new_token_ids=(token,),
    )  # fmt: skip


def test_chunked_prefill(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A prompt over the budget takes several steps, and only the last of them samples."""
    t = support.tracer(lab, loaded, max_num_batched_tokens=5, max_num_seqs=2)
    t.add_request("a", support.PROMPT, support.greedy(2))
    events = support.run(t)
    got = [(e.num_computed_before, e.num_scheduled_tokens, e.num_tokens) for e in events[1:]]
    want = [(0, 5, 13), (5, 5, 13), (10, 3, 14), (13, 1, 15)]
    assert got == want, (
        f"before, scheduled and tokens over the steps should be {want}, got {got}: with a budget of 5 "
        "the 13 tokens go 5, 5, 3, and num_tokens stands still until the prompt has caught up"
    )
    sampled = [len(event.new_token_ids) for event in events]
    assert sampled == [0, 0, 0, 1, 1], (
        f"tokens sampled should be [0, 0, 0, 1, 1], got {sampled}: a chunk in mid-prompt samples nothing"
    )


def test_a_prefix_hit_is_not_scheduled(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """Cached tokens count as computed without being run: before + cached + scheduled = after."""
    t = support.tracer(lab, loaded)
    t.add_request("a", support.POOL, support.greedy(1))
    support.run(t)
    t.add_request("b", support.POOL, support.greedy(1))
    support.run(t)
    support.count(t.events, 4, "Two requests of one step each, each with its WAITING event.")
    support.expect(
        t.events[2], "It arrives after one step, and has nothing yet: the cache is asked when it is "
        "admitted.", step=1, request_id="b", status="WAITING", num_cached_tokens=0,
    )  # fmt: skip
    support.expect(
        t.events[3],
        "The first block of the prompt was left in the cache by 'a': 16 tokens come from there, and 8 "
        "are run. The counter goes from 0 to 24 all the same.",
        step=2, num_computed_before=0, num_cached_tokens=16, num_scheduled_tokens=8,
        num_computed_tokens=24, num_tokens=25,
    )  # fmt: skip


def test_step_and_run_hand_on_what_there_is(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """`step` returns the engine's outputs, `run` the list of all events."""
    t = support.tracer(lab, loaded, max_num_batched_tokens=10, max_num_seqs=2)
    t.add_request("a", support.PROMPT, support.greedy(2))
    kinds = [type(t.step()).__name__ for _ in range(2)]
    assert kinds == ["list", "list"], (
        f"step returns what engine.step() returns, a list, empty in mid-prompt; got {' and '.join(kinds)}"
    )
    got = t.run()
    assert got is t.events or got == t.events, (
        f"run returns all events, those of earlier steps too: {len(t.events)} of them; it returned "
        f"{'a ' + type(got).__name__ if not isinstance(got, list) else len(got)}"
    )
    assert not t.engine.has_unfinished_requests(), (
        "run stopped before the engine had nothing left to do"
    )


# ---- several -------------------------------------------------------------------------------------


def test_two_requests_share_steps(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """Two requests run in the same steps, and each has a life of its own."""
    t = support.tracer(lab, loaded)
    t.add_request("a", support.PROMPT, support.greedy(2))
    t.add_request("b", support.POOL, support.greedy(4))
    events = support.run(t)
    got = [(e.step, e.request_id) for e in events]
    want = [(0, "a"), (0, "b"), (1, "a"), (1, "b"), (2, "a"), (2, "b"), (3, "b"), (4, "b")]
    assert got == want, (
        f"(step, request) should be {want}, got {got}: both run in steps 1 and 2, and 'a' has no event "
        "after the one in which it finished"
    )
    assert support.of(events, "a")[1].num_scheduled_tokens == 13, (
        "'a' computes its own prompt of 13"
    )
    assert support.of(events, "b")[1].num_scheduled_tokens == 24, (
        "'b' computes its own prompt of 24"
    )


def test_waiting_shows_every_step(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A request in the queue has an event each step too: that is where its time goes."""
    t = support.tracer(lab, loaded, max_num_seqs=1)
    t.add_request("a", support.PROMPT, support.greedy(3))
    t.add_request("b", support.LATER, support.greedy(1))
    t.add_request("c", support.POOL, support.greedy(1))
    events = support.run(t)
    got = [e.status for e in support.of(events, "b")]
    assert got == ["WAITING"] * 4 + ["FINISHED_LENGTH_CAPPED"], (
        f"'b' waits while 'a' runs alone for 3 steps, so it is WAITING at steps 0 to 3 and done in step "
        f"4; got {got}. Queue time is what users feel first: it needs events."
    )
    second = [e.request_id for e in events if e.step == 2]
    assert second == ["a", "b", "c"], (
        f"step 2 should list ['a', 'b', 'c'], got {second}: the scheduled ones, then the queue from its "
        "head"
    )


def test_a_late_arrival(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A request may come at any time; its first event carries the steps done by then."""
    t = support.tracer(lab, loaded)
    t.add_request("a", support.PROMPT, support.greedy(4))
    t.step()
    t.step()
    t.add_request("b", support.LATER, support.greedy(1))
    support.run(t)
    support.expect(
        support.of(t.events, "b")[0], "Two steps were done when it came.", step=2, status="WAITING"
    )
    support.expect(
        support.of(t.events, "b")[1],
        "It joins the next step, beside a request in mid-decode: that is continuous batching.",
        step=3, status="FINISHED_LENGTH_CAPPED", num_scheduled_tokens=24,
    )  # fmt: skip
