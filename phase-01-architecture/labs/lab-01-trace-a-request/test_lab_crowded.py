"""Lab 01-01, where it gets crowded: preemption, the other ways out, and reading a trace that has both."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support

support = load_support(__file__)


# ---- preemption ----------------------------------------------------------------------------------


def crowded(lab: ModuleType, loaded: tuple[Any, Any]) -> Any:
    """Two requests that outgrow five blocks: the second has to give way."""
    t = support.tracer(lab, loaded, num_gpu_blocks=6, max_model_len=64)
    t.add_request("a", support.POOL, support.greedy(12))
    t.add_request("b", support.LATER, support.greedy(12))
    support.run(t)
    return t


def test_counters_are_monotonic_until_preempted(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """num_computed_tokens grows in every step except at a preemption; num_tokens never shrinks."""
    t = crowded(lab, loaded)
    for request_id, drops_wanted in (("a", 0), ("b", 1)):
        mine = support.of(t.events, request_id)
        drops = [
            late.step
            for early, late in pairwise(mine)
            if late.num_computed_tokens < early.num_computed_tokens
        ]
        assert drops or not drops_wanted or any(e.num_scheduled_tokens == 0 for e in mine[1:]), (
            f"{request_id!r} was preempted in step 10, and no event says so: events of it stand at "
            f"steps {[e.step for e in mine]}. A victim is in `waiting` after the step: look there, too."
        )
        assert len(drops) == drops_wanted, (
            f"the counter of {request_id!r} falls {len(drops)} times, at steps {drops}; it should be "
            f"{drops_wanted}. Only a preemption takes computed tokens away."
        )
        tokens = [event.num_tokens for event in mine]
        assert tokens == sorted(tokens), (
            f"num_tokens of {request_id!r} falls: {tokens}. Tokens that were sampled stay, whatever "
            "becomes of their KV."
        )


def test_preempted_goes_back_to_zero(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """The victim loses its blocks and its counter, keeps its tokens, and waits as PREEMPTED."""
    mine = support.of(crowded(lab, loaded).events, "b")
    fall = next((e for e in mine if e.status == "PREEMPTED"), None)
    assert fall is not None, (
        "no event says PREEMPTED. The victim was not scheduled in that step: look at the queue, too."
    )
    support.expect(
        fall,
        "At 32 computed tokens each holds 2 blocks; 'a' takes the fifth, and 'b' finds none. Its 32 "
        "tokens of KV are given up, so it had 32 before the step and has 0 after it.",
        step=10, num_computed_before=32, num_cached_tokens=0, num_scheduled_tokens=0,
        num_computed_tokens=0, num_tokens=33, new_token_ids=(), block_ids=(), finish_reason=None,
    )  # fmt: skip
    again = mine[mine.index(fall) + 1]
    support.expect(
        again,
        "It stays in the queue, still PREEMPTED, until 'a' is done.",
        step=11, status="PREEMPTED", num_computed_before=0, num_computed_tokens=0,
    )  # fmt: skip


def test_preempted_comes_back_with_hits(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A preempted request that returns finds its own blocks in the cache, and computes the rest."""
    t = crowded(lab, loaded)
    mine = support.of(t.events, "b")
    falls = [i for i, e in enumerate(mine) if e.status == "PREEMPTED"]
    assert falls, (
        "no event says PREEMPTED: after a preemption the request is in the queue. Look there."
    )
    fall = falls[-1]
    assert fall + 1 < len(mine), "after PREEMPTED 'b' has no event more: it comes back in step 13"
    back = mine[fall + 1]
    support.expect(
        back,
        "Its two full blocks were freed, not wiped: 32 tokens are found again and 1 is computed. The "
        "cached tokens are what the counter grew by without being scheduled.",
        step=13, status="RUNNING", num_computed_before=0, num_cached_tokens=32,
        num_scheduled_tokens=1, num_computed_tokens=33, num_tokens=34,
    )  # fmt: skip
    alone = support.tracer(lab, loaded)
    alone.add_request("b", support.LATER, support.greedy(12))
    calm = [token for e in support.run(alone) for token in e.new_token_ids]
    assert [token for e in mine for token in e.new_token_ids] == calm, (
        "a preempted request says the same as one that was left alone; collect the new tokens of each "
        "event exactly once"
    )


def test_a_return_in_chunks_samples_once(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """Without the prefix cache a victim comes back in chunks; only the last of them samples."""
    t = support.tracer(
        lab, loaded, num_gpu_blocks=6, max_model_len=64, enable_prefix_caching=False,
        max_num_batched_tokens=20, max_num_seqs=2,
    )  # fmt: skip
    t.add_request("a", support.POOL, support.greedy(12))
    t.add_request("b", support.LATER, support.greedy(12))
    support.run(t)
    mine = support.of(t.events, "b")
    chunks = [
        e for e in mine if e.num_scheduled_tokens and e.num_computed_tokens < e.num_tokens - 1
    ]
    assert any(e.num_tokens > 24 for e in chunks), (
        "'b' should come back in several chunks, with tokens that it sampled before the preemption; its "
        f"events: {[(e.step, e.status, e.num_scheduled_tokens) for e in mine]}"
    )
    for e in chunks:
        support.expect(
            e,
            "A chunk that does not catch up samples nothing. The last output token is an old one, from "
            "before the preemption: new is what the request did not have before the step.",
            new_token_ids=(),
        )
    sampled = sum(len(e.new_token_ids) for e in mine)
    assert sampled == 12, f"'b' samples 12 tokens in all, each once; its events have {sampled}"


def test_running_without_being_scheduled(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A RUNNING request that gets no tokens in a step has its event all the same."""
    t = support.tracer(
        lab, loaded, num_gpu_blocks=5, max_model_len=48, scheduling_policy="priority"
    )
    t.add_request("first", "A KV", support.greedy(6), priority=0)
    t.add_request("victim", support.LATER + "Soon.", support.greedy(6), priority=5)
    t.step()
    t.add_request("behind", "The KV", support.greedy(6), priority=1)
    support.run(t)
    sixth = [e for e in t.events if e.step == 5]
    got = [(e.request_id, e.status, e.num_scheduled_tokens) for e in sixth]
    want = [("first", "RUNNING", 1), ("behind", "RUNNING", 0), ("victim", "PREEMPTED", 0)]
    assert got == want, (
        f"step 5 should be {want}, got {got}. The victim is the least important and finds no block, so "
        "it preempts itself, and those behind it in `running` get nothing in this step. Scheduled ones "
        "first, then the rest of `running`, then the queue: look at all three."
    )
    support.expect(
        sixth[1],
        "Nothing was scheduled for it, so nothing was cached or computed either.",
        num_computed_before=9, num_cached_tokens=0, num_computed_tokens=9, num_tokens=10,
    )  # fmt: skip


# ---- the ways out, and nothing at all ------------------------------------------------------------


def test_abort_while_running(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """An abort between steps adds one event, without a step, with the counters as they were."""
    t = support.tracer(lab, loaded)
    t.add_request("a", support.PROMPT, support.greedy(9))
    t.step()
    t.step()
    t.abort_request("a")
    support.count(t.events, 4, "WAITING, two steps, the abort.")
    support.expect(
        t.events[-1],
        "Nobody steps for an abort. The blocks are free at once, the counters stay where they were.",
        step=2, status="FINISHED_ABORTED", num_computed_before=support.P + 1, num_cached_tokens=0,
        num_scheduled_tokens=0, num_computed_tokens=support.P + 1, num_tokens=support.P + 2, new_token_ids=(),
        block_ids=(), finish_reason="abort",
    )  # fmt: skip
    support.run(t)
    support.count(t.events, 4, "After its end a request has no events.")


def test_abort_while_waiting(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A request that is aborted in the queue has a last event although it never ran."""
    t = support.tracer(lab, loaded)
    t.add_request("a", support.PROMPT, support.greedy(9))
    t.abort_request("a")
    support.expect(
        t.events[-1], "It never ran: nothing was computed.", step=0, status="FINISHED_ABORTED",
        num_computed_before=0, num_computed_tokens=0, num_tokens=support.P, finish_reason="abort",
    )  # fmt: skip


def test_an_idle_step_leaves_no_event(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A step() with nothing to do adds no event: the last record is not written down again."""
    t = support.tracer(lab, loaded)
    assert t.step() == [], "an engine without requests does nothing"
    assert not t.events, f"an engine without requests has no events, got {len(t.events)}"
    t.add_request("a", support.PROMPT, support.greedy(1))
    support.run(t)
    before = list(t.events)
    assert t.step() == [], "an idle engine returns no outputs"
    assert t.events == before, (
        f"an idle step added {len(t.events) - len(before)} events: `last` still holds the step "
        "before, which you have written down already"
    )


def test_a_refused_request_leaves_no_trace(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A request that the engine refuses is neither in `requests` nor in `events`."""
    t = support.tracer(lab, loaded)
    t.add_request("a", support.PROMPT, support.greedy(1))
    kept = t.requests["a"]
    for request_id, prompt in (("a", support.POOL), ("b", {"prompt_token_ids": []})):
        with pytest.raises(ValueError):
            t.add_request(request_id, prompt, support.greedy(1))
    with pytest.raises(ValueError):
        t.abort_request("b")
    support.count(t.events, 1, "Let the engine judge first, then write.")
    assert [*t.requests.items()] == [("a", kept)], (
        f"`requests` should still hold the first 'a' and nothing else, got {list(t.requests)}"
    )


# ---- reading a trace -----------------------------------------------------------------------------


def test_life_and_path(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """`life` gives one request's events; `path` its statuses, each once as long as it lasts."""
    t = crowded(lab, loaded)
    assert lab.life(t.events, "b") == support.of(t.events, "b"), (
        "life: this request's events, in order"
    )
    longer = [e._replace(request_id="b2") for e in support.of(t.events, "a")]
    assert lab.life([*t.events, *longer], "b") == support.of(t.events, "b"), (
        "life of 'b' took in events of 'b2': compare the whole id, not its beginning"
    )
    assert lab.life(t.events, "nobody") == [], "an id that is not there has no events"
    for request_id, want in (
        ("a", ["WAITING", "RUNNING", "FINISHED_LENGTH_CAPPED"]),
        ("b", ["WAITING", "RUNNING", "PREEMPTED", "RUNNING", "FINISHED_LENGTH_CAPPED"]),
    ):
        got = lab.path(t.events, request_id)
        assert got == want, (
            f"the path of {request_id!r} should be {want}, got {got}: a status that lasts stands there "
            "once, one that comes back stands there again"
        )


def test_token_steps_show_the_gap(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A request samples one token per step; a preempted one has a gap where it waited."""
    t = crowded(lab, loaded)
    got = lab.token_steps(t.events, "a")
    assert got == list(range(1, 13)), f"'a' samples in steps 1 to 12, got {got}"
    got = lab.token_steps(t.events, "b")
    assert got == [*range(1, 10), 13, 14, 15], (
        f"'b' samples in steps 1 to 9, then not until it is back in step 13; got {got}"
    )


def test_the_queue_counts_to_the_first_token(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A request that waits for several steps waits from its arrival, not from its admission."""
    t = support.tracer(lab, loaded, max_num_seqs=1)
    t.add_request("a", support.PROMPT, support.greedy(6))
    t.step()
    t.add_request("queued", support.LATER, support.greedy(2))
    support.run(t)
    got = lab.steps_to_first_token(t.events, "queued")
    assert got == 6, (
        f"'queued' comes after step 1, waits while 'a' runs alone in steps 2 to 6, and samples in step 7: 6 "
        f"steps to its first token, got {got}. The user's clock starts at the arrival, so the queue counts"
    )
    assert lab.token_steps(t.events, "queued") == [7, 8], (
        f"'queued' samples in steps 7 and 8, got {lab.token_steps(t.events, 'queued')}"
    )


def test_steps_to_first_token(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """The steps to the first token count from arrival, not from step 0; chunks and queue count."""
    t = support.tracer(lab, loaded, max_num_batched_tokens=10, max_num_seqs=2)
    t.add_request("a", support.PROMPT, support.greedy(3))
    t.step()
    t.step()
    t.add_request("b", support.POOL, support.greedy(1))
    t.add_request("never", support.LATER, support.greedy(1))
    t.abort_request("never")
    support.run(t)
    for request_id, want, why in (
        ("a", 2, "13 tokens at 10 a step are two chunks"),
        (
            "b",
            3,
            "it came after step 2, shares step 3 with a decode (9 tokens of 24), and samples in 5",
        ),
        ("never", None, "it was aborted before it sampled"),
    ):
        got = lab.steps_to_first_token(t.events, request_id)
        assert got == want, f"{request_id!r}: {want} steps to the first token, got {got}; {why}"
