"""Lab 01-01: what the event list of a request must say, from its arrival to its end."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mini_vllm
from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.checkpoint import load_model
from mini_vllm.tokenizer import Tokenizer

FOLDER = Path(mini_vllm.__file__).parent / "checkpoints" / "tiny-llama"
PROMPT = "The KV cache"  # 13 tokens with <bos>
P = 13
POOL = "The pool has five blocks"[:23]  # 24 tokens each, with nothing in common but <bos>
LATER = "Later the last one goes."[:23]


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    return load_model(FOLDER), Tokenizer.from_folder(FOLDER)


def tracer(lab: ModuleType, loaded: tuple[Any, Any], **settings: Any) -> Any:
    model, tokenizer = loaded
    t = lab.Tracer(LLMEngine(model, EngineConfig(**settings), tokenizer=tokenizer))
    run, step = t.run, t.step

    def checked_run() -> Any:
        got = run()
        assert got == t.events, f"run returns all events, the list `events`; it returned {got!r}"
        assert got, "run was called with a request in the engine, and no event was written"
        return got

    def checked_step() -> Any:
        got = step()
        assert isinstance(got, list), (
            f"step returns what engine.step() returns, a list of outputs; it returned {got!r}"
        )
        return got

    t.run, t.step = checked_run, checked_step
    return t


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def of(events: list[Any], request_id: str) -> list[Any]:
    return [event for event in events if event.request_id == request_id]


def expect(event: Any, why: str, **fields: Any) -> None:
    """`event` has these values; else name the first that it has not, and the rule."""
    for name, want in fields.items():
        got = getattr(event, name)
        assert got == want, (
            f"request {event.request_id!r} at step {event.step}: {name} should be {want!r}, got "
            f"{got!r}. {why}"
        )


def count(events: list[Any], want: int, why: str) -> None:
    assert len(events) == want, (
        f"expected {want} events, got {len(events)}: "
        f"{[(e.step, e.request_id, e.status) for e in events]}. {why}"
    )


# ---- one request ---------------------------------------------------------------------------------


def test_waiting_before_the_first_step(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """Adding a request queues it and computes nothing: one WAITING event at step 0."""
    t = tracer(lab, loaded)
    t.add_request("a", PROMPT, greedy(3))
    count(t.events, 1, "add_request writes the first event itself, before any step.")
    expect(
        t.events[0],
        "Between add_request and the first schedule() the request only stands in the queue.",
        step=0, request_id="a", status="WAITING", num_computed_before=0, num_cached_tokens=0,
        num_scheduled_tokens=0, num_computed_tokens=0, num_tokens=P, new_token_ids=(),
        block_ids=(), finish_reason=None,
    )  # fmt: skip
    assert t.requests["a"].priority == 0, "the default priority is vLLM's: 0"
    t.add_request("b", PROMPT, greedy(3), priority=7)
    assert t.requests["b"].priority == 7, (
        f"b was added with priority=7 and has {t.requests['b'].priority}. The engine's add_request has "
        "arrival_time in the fourth place, priority in the fifth: hand it on by its name, priority=priority"
    )
    del t.requests["b"]
    assert list(t.requests) == ["a"], (
        f"keep the Request in `requests` from the moment it is added; got {list(t.requests)}"
    )


def test_prefill_in_one_step(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A prompt that fits the budget: counter 0 to 13, and the first token in the same step."""
    t = tracer(lab, loaded)
    t.add_request("a", PROMPT, greedy(3))
    outputs = t.step()
    assert [o.request_id for o in outputs] == ["a"], "step returns what engine.step() returns"
    count(t.events, 2, "One event a step for a living request.")
    expect(
        t.events[1],
        "The whole prompt is computed in one step. All its tokens have caught up by then, so the same "
        "step samples: 13 computed, 14 exist.",
        step=1, status="RUNNING", num_computed_before=0, num_cached_tokens=0,
        num_scheduled_tokens=P, num_computed_tokens=P, num_tokens=P + 1, finish_reason=None,
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
    t = tracer(lab, loaded)
    t.add_request("a", PROMPT, greedy(6))
    events = t.run()
    for k, event in enumerate(events[2:], 1):
        expect(
            event,
            "A decode step computes the one token that the step before has sampled.",
            step=k + 1, num_computed_before=P + k - 1, num_scheduled_tokens=1,
            num_cached_tokens=0, num_computed_tokens=P + k, num_tokens=P + k + 1,
        )  # fmt: skip
    held = [len(event.block_ids) for event in events]
    assert held == [0, 1, 1, 1, 1, 2, 0], (
        f"blocks held should be 0 (waiting), 1 up to 16 computed tokens, 2 for the 17th, and 0 once it "
        f"is finished; got {held}"
    )


def test_steps_are_max_tokens(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A prompt that fits one step: n tokens take n steps, and the text is the engine's."""
    t = tracer(lab, loaded)
    t.add_request("a", PROMPT, greedy(7))
    finished = []
    while t.engine.has_unfinished_requests():
        finished = t.step()
    count(t.events, 8, "One before the first step and one a step; the prompt's step samples too.")
    assert finished, "the last step returns the finished request's output, and step returned none"
    sampled = [token for event in t.events for token in event.new_token_ids]
    assert sampled == finished[0].outputs[0].token_ids, (
        "the new tokens of all events, in order, are the output that the engine returns; got "
        f"{sampled} for {finished[0].outputs[0].token_ids}"
    )


def test_the_finish_is_recorded(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """The last event is FINISHED_*, though nothing in the scheduler knows the request any more."""
    t = tracer(lab, loaded)
    t.add_request("a", PROMPT, greedy(3))
    events = t.run()
    assert events[-1].status.startswith("FINISHED"), (
        f"the last event says {events[-1].status} at step {events[-1].step}. The update takes a "
        "finished request out of `running` and `requests` before step() returns: whoever only looks "
        "there never sees the end. Hold the Request object from before the step."
    )
    expect(
        events[-1],
        "max_tokens is reached: 3 outputs exist, and the last of them is never computed.",
        step=3, status="FINISHED_LENGTH_CAPPED", num_computed_tokens=P + 2, num_tokens=P + 3,
        block_ids=(), finish_reason="length",
    )  # fmt: skip
    assert [e.finish_reason for e in events[:-1]] == [None] * 3, "only the last event has a reason"


def test_stopped_is_another_finish(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A stop token ends as FINISHED_STOPPED, with the reason stop."""
    t = tracer(lab, loaded)
    t.add_request("a", PROMPT, greedy(1))
    token = t.run()[-1].new_token_ids[0]
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, stop_token_ids=[token])
    t.add_request("b", PROMPT, params)
    last = t.run()[-1]
    expect(
        last,
        "Status and reason are the request's own: do not write 'length' for every end.",
        request_id="b", step=2, status="FINISHED_STOPPED", finish_reason="stop",
        new_token_ids=(token,),
    )  # fmt: skip


def test_chunked_prefill(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A prompt over the budget takes several steps, and only the last of them samples."""
    t = tracer(lab, loaded, max_num_batched_tokens=5, max_num_seqs=2)
    t.add_request("a", PROMPT, greedy(2))
    events = t.run()
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
    t = tracer(lab, loaded)
    t.add_request("a", POOL, greedy(1))
    t.run()
    t.add_request("b", POOL, greedy(1))
    t.run()
    count(t.events, 4, "Two requests of one step each, each with its WAITING event.")
    expect(
        t.events[2], "It arrives after one step, and has nothing yet: the cache is asked when it is "
        "admitted.", step=1, request_id="b", status="WAITING", num_cached_tokens=0,
    )  # fmt: skip
    expect(
        t.events[3],
        "The first block of the prompt was left in the cache by 'a': 16 tokens come from there, and 8 "
        "are run. The counter goes from 0 to 24 all the same.",
        step=2, num_computed_before=0, num_cached_tokens=16, num_scheduled_tokens=8,
        num_computed_tokens=24, num_tokens=25,
    )  # fmt: skip


# ---- several -------------------------------------------------------------------------------------


def test_two_requests_share_steps(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """Two requests run in the same steps, and each has a life of its own."""
    t = tracer(lab, loaded)
    t.add_request("a", PROMPT, greedy(2))
    t.add_request("b", POOL, greedy(4))
    events = t.run()
    got = [(e.step, e.request_id) for e in events]
    want = [(0, "a"), (0, "b"), (1, "a"), (1, "b"), (2, "a"), (2, "b"), (3, "b"), (4, "b")]
    assert got == want, (
        f"(step, request) should be {want}, got {got}: both run in steps 1 and 2, and 'a' has no event "
        "after the one in which it finished"
    )
    assert of(events, "a")[1].num_scheduled_tokens == 13, "'a' computes its own prompt of 13"
    assert of(events, "b")[1].num_scheduled_tokens == 24, "'b' computes its own prompt of 24"


def test_waiting_shows_every_step(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A request in the queue has an event each step too: that is where its time goes."""
    t = tracer(lab, loaded, max_num_seqs=1)
    t.add_request("a", PROMPT, greedy(3))
    t.add_request("b", LATER, greedy(1))
    t.add_request("c", POOL, greedy(1))
    events = t.run()
    got = [e.status for e in of(events, "b")]
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
    t = tracer(lab, loaded)
    t.add_request("a", PROMPT, greedy(4))
    t.step()
    t.step()
    t.add_request("b", LATER, greedy(1))
    t.run()
    expect(of(t.events, "b")[0], "Two steps were done when it came.", step=2, status="WAITING")
    expect(
        of(t.events, "b")[1],
        "It joins the next step, beside a request in mid-decode: that is continuous batching.",
        step=3, status="FINISHED_LENGTH_CAPPED", num_scheduled_tokens=24,
    )  # fmt: skip


# ---- preemption ----------------------------------------------------------------------------------


def crowded(lab: ModuleType, loaded: tuple[Any, Any]) -> Any:
    """Two requests that outgrow five blocks: the second has to give way."""
    t = tracer(lab, loaded, num_gpu_blocks=6, max_model_len=64)
    t.add_request("a", POOL, greedy(12))
    t.add_request("b", LATER, greedy(12))
    t.run()
    return t


def test_counters_are_monotonic_until_preempted(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """num_computed_tokens grows in every step, but for one preemption; num_tokens never shrinks."""
    t = crowded(lab, loaded)
    for request_id, drops_wanted in (("a", 0), ("b", 1)):
        mine = of(t.events, request_id)
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
    mine = of(crowded(lab, loaded).events, "b")
    fall = next((e for e in mine if e.status == "PREEMPTED"), None)
    assert fall is not None, (
        "no event says PREEMPTED. The victim was not scheduled in that step: look at the queue, too."
    )
    expect(
        fall,
        "At 32 computed tokens each holds 2 blocks; 'a' takes the fifth, and 'b' finds none. Its 32 "
        "tokens of KV are given up, so it had 32 before the step and has 0 after it.",
        step=10, num_computed_before=32, num_cached_tokens=0, num_scheduled_tokens=0,
        num_computed_tokens=0, num_tokens=33, new_token_ids=(), block_ids=(), finish_reason=None,
    )  # fmt: skip
    again = mine[mine.index(fall) + 1]
    expect(
        again,
        "It stays in the queue, still PREEMPTED, until 'a' is done.",
        step=11, status="PREEMPTED", num_computed_before=0, num_computed_tokens=0,
    )  # fmt: skip


def test_preempted_comes_back_with_hits(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """On return it finds its own blocks in the prefix cache, and computes what is missing."""
    t = crowded(lab, loaded)
    mine = of(t.events, "b")
    falls = [i for i, e in enumerate(mine) if e.status == "PREEMPTED"]
    assert falls, (
        "no event says PREEMPTED: after a preemption the request is in the queue. Look there."
    )
    fall = falls[-1]
    assert fall + 1 < len(mine), "after PREEMPTED 'b' has no event more: it comes back in step 13"
    back = mine[fall + 1]
    expect(
        back,
        "Its two full blocks were freed, not wiped: 32 tokens are found again and 1 is computed. The "
        "cached tokens are what the counter grew by without being scheduled.",
        step=13, status="RUNNING", num_computed_before=0, num_cached_tokens=32,
        num_scheduled_tokens=1, num_computed_tokens=33, num_tokens=34,
    )  # fmt: skip
    alone = tracer(lab, loaded)
    alone.add_request("b", LATER, greedy(12))
    calm = [token for e in alone.run() for token in e.new_token_ids]
    assert [token for e in mine for token in e.new_token_ids] == calm, (
        "a preempted request says the same as one that was left alone; collect the new tokens of each "
        "event exactly once"
    )


def test_a_return_in_chunks_samples_once(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """Without the prefix cache a victim comes back in chunks; only the last of them samples."""
    t = tracer(
        lab, loaded, num_gpu_blocks=6, max_model_len=64, enable_prefix_caching=False,
        max_num_batched_tokens=20, max_num_seqs=2,
    )  # fmt: skip
    t.add_request("a", POOL, greedy(12))
    t.add_request("b", LATER, greedy(12))
    t.run()
    mine = of(t.events, "b")
    chunks = [
        e for e in mine if e.num_scheduled_tokens and e.num_computed_tokens < e.num_tokens - 1
    ]
    assert any(e.num_tokens > 24 for e in chunks), (
        "'b' should come back in several chunks, with tokens that it sampled before the preemption; its "
        f"events: {[(e.step, e.status, e.num_scheduled_tokens) for e in mine]}"
    )
    for e in chunks:
        expect(
            e,
            "A chunk that does not catch up samples nothing. The last output token is an old one, from "
            "before the preemption: new is what the request did not have before the step.",
            new_token_ids=(),
        )
    sampled = sum(len(e.new_token_ids) for e in mine)
    assert sampled == 12, f"'b' samples 12 tokens in all, each once; its events have {sampled}"


def test_running_without_being_scheduled(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A request can be RUNNING and get nothing in a step; it has its event all the same."""
    t = tracer(lab, loaded, num_gpu_blocks=5, max_model_len=48, scheduling_policy="priority")
    t.add_request("first", "A KV", greedy(6), priority=0)
    t.add_request("victim", LATER + "Soon.", greedy(6), priority=5)
    t.step()
    t.add_request("behind", "The KV", greedy(6), priority=1)
    t.run()
    sixth = [e for e in t.events if e.step == 5]
    got = [(e.request_id, e.status, e.num_scheduled_tokens) for e in sixth]
    want = [("first", "RUNNING", 1), ("behind", "RUNNING", 0), ("victim", "PREEMPTED", 0)]
    assert got == want, (
        f"step 5 should be {want}, got {got}. The victim is the least important and finds no block, so "
        "it preempts itself, and those behind it in `running` get nothing in this step. Scheduled ones "
        "first, then the rest of `running`, then the queue: look at all three."
    )
    expect(
        sixth[1],
        "Nothing was scheduled for it, so nothing was cached or computed either.",
        num_computed_before=9, num_cached_tokens=0, num_computed_tokens=9, num_tokens=10,
    )  # fmt: skip


# ---- the ways out, and nothing at all ------------------------------------------------------------


def test_abort_while_running(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """An abort happens between steps: one more event, without a step, with the counters as they were."""
    t = tracer(lab, loaded)
    t.add_request("a", PROMPT, greedy(9))
    t.step()
    t.step()
    t.abort_request("a")
    count(t.events, 4, "WAITING, two steps, the abort.")
    expect(
        t.events[-1],
        "Nobody steps for an abort. The blocks are free at once, the counters stay where they were.",
        step=2, status="FINISHED_ABORTED", num_computed_before=P + 1, num_cached_tokens=0,
        num_scheduled_tokens=0, num_computed_tokens=P + 1, num_tokens=P + 2, new_token_ids=(),
        block_ids=(), finish_reason="abort",
    )  # fmt: skip
    t.run()
    count(t.events, 4, "After its end a request has no events.")


def test_abort_while_waiting(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A request can be gone before it ever ran."""
    t = tracer(lab, loaded)
    t.add_request("a", PROMPT, greedy(9))
    t.abort_request("a")
    expect(
        t.events[-1], "It never ran: nothing was computed.", step=0, status="FINISHED_ABORTED",
        num_computed_before=0, num_computed_tokens=0, num_tokens=P, finish_reason="abort",
    )  # fmt: skip


def test_an_idle_step_leaves_no_event(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """With nothing to do, step() is no step: the last record is not written down again."""
    t = tracer(lab, loaded)
    assert t.step() == [], "an engine without requests does nothing"
    assert t.events == [], f"an engine without requests has no events, got {t.events}"
    t.add_request("a", PROMPT, greedy(1))
    t.run()
    before = list(t.events)
    assert t.step() == [], "an idle engine returns no outputs"
    assert t.events == before, (
        f"an idle step added {t.events[len(before) :]}: `last` still holds the step before, which you "
        "have written down already"
    )


def test_a_refused_request_leaves_no_trace(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A request that the engine refuses is in neither list."""
    t = tracer(lab, loaded)
    t.add_request("a", PROMPT, greedy(1))
    kept = t.requests["a"]
    for request_id, prompt in (("a", POOL), ("b", {"prompt_token_ids": []})):
        with pytest.raises(ValueError):
            t.add_request(request_id, prompt, greedy(1))
    with pytest.raises(ValueError):
        t.abort_request("b")
    count(t.events, 1, "Let the engine judge first, then write.")
    assert t.requests == {"a": kept}, (
        f"`requests` should still hold the first 'a' and nothing else, got {t.requests}"
    )


# ---- reading a trace -----------------------------------------------------------------------------


def test_life_and_path(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """One request's events; and its statuses, each once as long as it lasted."""
    t = crowded(lab, loaded)
    assert lab.life(t.events, "b") == of(t.events, "b"), "life: this request's events, in order"
    longer = [e._replace(request_id="b2") for e in of(t.events, "a")]
    assert lab.life([*t.events, *longer], "b") == of(t.events, "b"), (
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
    """Tokens come one a step; the preempted request has a hole where it waited."""
    t = crowded(lab, loaded)
    got = lab.token_steps(t.events, "a")
    assert got == list(range(1, 13)), f"'a' samples in steps 1 to 12, got {got}"
    got = lab.token_steps(t.events, "b")
    assert got == [*range(1, 10), 13, 14, 15], (
        f"'b' samples in steps 1 to 9, then not until it is back in step 13; got {got}"
    )


def test_steps_to_first_token(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """From arrival, not from step 0; chunks and the queue count."""
    t = tracer(lab, loaded, max_num_batched_tokens=10, max_num_seqs=2)
    t.add_request("a", PROMPT, greedy(3))
    t.step()
    t.step()
    t.add_request("b", POOL, greedy(1))
    t.add_request("never", LATER, greedy(1))
    t.abort_request("never")
    t.run()
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
