"""A trace says what happened in each step, and that the steps add up to the request."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest

from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.engine.parts import DEFAULT_PARTS
from mini_vllm.trace import (
    StepTrace,
    TraceRecorder,
    to_chrome_trace,
    to_text,
)
from tests.engine.helpers.engine.engine_helpers import make_engine
from tests.engine.helpers.engine.text_helpers import finish, greedy
from tests.engine.helpers.engine.trace_helpers import PROMPTS, Recorded, record


@pytest.fixture(scope="module")
def traced() -> Recorded:
    return record()


def test_every_step_is_there_and_detach_ends_it(traced: Recorded) -> None:
    engine, steps = traced.engine, traced.steps
    assert [step.index for step in steps] == list(range(1, len(steps) + 1))
    assert engine.engine_core.num_steps > len(steps), "a detached recorder goes on recording"
    for before, after in pairwise(steps):
        spent = before.schedule_time + before.execute_time + before.update_time
        assert after.start == pytest.approx(before.start + spent)


def test_the_steps_add_up_to_the_requests(traced: Recorded) -> None:
    steps, done = traced.steps, traced.done
    sampled: dict[str, list[int]] = defaultdict(list)
    computed: dict[str, int] = {}
    preempted = 0
    for step in steps:
        for request_id in step.preempted:
            computed[request_id] = 0
            preempted += 1
        for part in step.scheduled:
            expected = computed.get(part.request_id, 0) + part.num_cached_tokens
            assert part.num_computed_tokens == expected
            computed[part.request_id] = expected + part.num_scheduled_tokens
            sampled[part.request_id] += part.new_token_ids
            slots = len(part.block_ids) * 4
            assert computed[part.request_id] <= slots, "tokens without a slot"
            assert slots < computed[part.request_id] + 4, "a block too many"
            assert len(set(part.block_ids)) == len(part.block_ids)
            assert 0 not in part.block_ids, "the null block is nobody's"
    assert preempted > 0
    for request_id, output in done.items():
        assert sampled[request_id] == output.outputs[0].token_ids
    ends = {p.request_id: p.finish_reason for s in steps for p in s.scheduled if p.finish_reason}
    assert ends == dict.fromkeys(PROMPTS, "length")
    assert not steps[-1].running
    assert not steps[-1].waiting
    assert steps[-1].free_blocks == 17
    assert steps[-1].kv_usage == 0


def test_prefix_hits_are_marked_in_the_step_that_found_them(traced: Recorded) -> None:
    steps = traced.steps
    first = {p.request_id: p for s in reversed(steps) for p in s.scheduled}
    assert first["a"].num_cached_tokens == 0
    assert first["b"].num_cached_tokens % 4 == 0
    hits = [p for s in steps for p in s.scheduled if p.num_cached_tokens]
    assert hits
    assert all(p.num_cached_tokens <= p.num_computed_tokens for p in hits)


def test_text(traced: Recorded) -> None:
    steps = traced.steps
    text = to_text(steps)
    lines = text.splitlines()
    assert sum(line.startswith("step ") for line in lines) == len(steps)
    assert lines[0].startswith("step 1: 12 tokens for 1 requests, running 1, waiting 2,")
    assert lines[1].startswith("  a: tokens 0..11, blocks 1-3")
    assert "preempted, its blocks are free" in text
    assert text.count("    because ") == sum(len(step.preempted) for step in steps)
    assert text.count("finished: length") == 3


def test_chrome_trace_has_a_track_a_request(traced: Recorded) -> None:
    steps = traced.steps
    trace = json.loads(json.dumps(to_chrome_trace(steps)))
    events = trace["traceEvents"]
    names = {
        e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"
    }
    assert sorted(names.values()) == ["engine core", "request a", "request b", "request c"]
    assert len(names) == 4, "two requests share a track"
    for e in events:
        assert e["ph"] in "XCMi"
        assert e["pid"] == 1
        assert e["ph"] == "M" or e["ts"] >= 0
        assert e["ph"] != "i" or e["s"] == "t"
        assert e["ph"] in "C" or e["tid"] in names
    spans = [e for e in events if e["ph"] == "X"]
    assert all(e["dur"] >= 0 for e in spans)
    for tid, name in names.items():
        track = sorted((e for e in spans if e["tid"] == tid), key=lambda e: e["ts"])
        for before, after in pairwise(track):
            # In microseconds; a nanosecond for the rounding of sums.
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-3, f"overlap on {name!r}"
    kinds = Counter(e["name"] for e in spans if e["tid"] != 0)
    parts = Counter(part.kind for step in steps for part in step.scheduled)
    assert {k: n for k, n in kinds.items() if k not in ("waiting", "preempted")} == parts
    assert kinds["waiting"] == 2, "b and c wait in the first step"
    assert kinds["preempted"] == sum(len(step.preempted) for step in steps) > 0
    counters = [e for e in events if e["ph"] == "C"]
    assert len(counters) == 4 * len(steps)
    batch = [sum(e["args"].values()) for e in counters if e["name"] == "batch tokens"]
    assert batch == [sum(p.num_scheduled_tokens for p in step.scheduled) for step in steps]
    free = [sum(e["args"].values()) for e in counters if e["name"] == "free KV blocks"]
    assert free == [step.free_blocks for step in steps]


def test_an_aborted_request_leaves_the_trace() -> None:
    engine = make_engine(num_gpu_blocks=18, block_size=4)
    recorder = TraceRecorder(engine)
    engine.add_request("a", [7] * 9, greedy(9, ignore_eos=True))
    engine.add_request("b", [8] * 9, greedy(9, ignore_eos=True))
    engine.step()
    engine.abort_request("a")
    engine.add_request("a", [9] * 5, greedy(2, ignore_eos=True))  # the id again, other blocks
    finish(engine)
    parts = [p for s in recorder.steps for p in s.scheduled if p.request_id == "a"]
    assert [len(p.block_ids) for p in parts] == [3, 2, 2]
    assert [p.num_computed_tokens for p in parts] == [0, 0, 5]


def test_recording_changes_no_token() -> None:
    def tokens(record: bool) -> list[list[int]]:
        engine = make_engine(num_gpu_blocks=18, block_size=4, max_num_seqs=4)
        if record:
            TraceRecorder(engine)
        for request_id, prompt in PROMPTS.items():
            engine.add_request(request_id, prompt, greedy(18, ignore_eos=True))
        return [output.outputs[0].token_ids for output in finish(engine).values()]

    assert tokens(True) == tokens(False)


# -- reasons --------------------------------------------------------------------------------------


def test_every_decision_has_a_reason_and_none_is_against_the_rules(traced: Recorded) -> None:
    for step in traced.steps:
        assert all(part.why for part in step.scheduled)
        assert set(step.preempted) <= step.why.keys()
        assert bool(step.why_waiting) == bool(step.waiting)
        said = " ".join([step.why_waiting, *step.why.values(), *(p.why for p in step.scheduled)])
        assert "not by vLLM's rules" not in said, said


def test_reasons_of_the_first_steps(traced: Recorded) -> None:
    first, second = traced.steps[:2]
    assert first.reason("a") == "the token budget of 12 has 12 left; 20 were missing"
    assert first.reason("b") == "the token budget of 12 is used up"
    assert first.reason("c") == "behind b, the head of the queue"
    assert second.reason("a") == "the rest of its prompt"
    assert second.reason("c") == "the token budget of 12 has 2 left; 9 were missing"
    assert traced.steps[4].reason("a") == "one decode token"
    assert traced.steps[4].reason("nobody") == ""
    step = next(step for step in traced.steps if step.preempted)
    assert step.reason("c") == (
        "a needs 1 more block and 0 are free; it is the last of the running list, and frees 5"
    )
    after = traced.steps[traced.steps.index(step) + 1]
    assert after.why_waiting == (
        "not enough free blocks: it needs 6 free blocks for 21 tokens, and 4 are free"
    )


def test_what_else_keeps_a_request_waiting() -> None:
    """A slot; a prompt that must fit in one step; a threshold; a hit that another holds."""

    def waits(prompts: list[list[int]], **settings: int | bool) -> StepTrace:
        engine = make_engine(block_size=4, **settings)
        recorder = TraceRecorder(engine)
        for number, prompt in enumerate(prompts):
            engine.add_request(f"r{number}", prompt, greedy(4, ignore_eos=True))
        engine.step()
        return recorder.steps[0]

    step = waits([[5] * 3, [6] * 3], num_gpu_blocks=18, max_num_seqs=1)
    assert step.why_waiting == "no sequence slot: 1 run, and max_num_seqs is 1"
    step = waits(
        [[5] * 6, [6] * 7], num_gpu_blocks=18, max_num_batched_tokens=10, max_num_seqs=2,
        max_model_len=10, enable_chunked_prefill=False,
    )  # fmt: skip
    assert step.why_waiting.startswith("its 7 tokens must fit into one step")
    step = waits([[5] * 9], num_gpu_blocks=18, long_prefill_token_threshold=4)
    assert step.reason("r0") == "long_prefill_token_threshold allows 4 a step; 9 were missing"
    step = waits([[5] * 9, [5] * 8 + [6] * 13], num_gpu_blocks=7)
    assert step.why_waiting == (
        "not enough free blocks: it needs 4 free blocks for 21 tokens "
        "(2 more blocks would be a prefix hit that others hold), and 3 are free"
    )


class Lazy(Scheduler):
    """Gives a prompt one token less than it could have."""

    def schedule(self) -> SchedulerOutput:
        self.long_prefill_token_threshold = 3
        return super().schedule()


def test_a_decision_that_no_rule_leads_to_is_called_that() -> None:
    engine = make_engine(parts=replace(DEFAULT_PARTS, scheduler=Lazy), num_gpu_blocks=18)
    recorder = TraceRecorder(engine)
    engine.add_request("a", [5] * 9, greedy(2))
    engine.step()
    assert recorder.steps[0].reason("a") == "not by vLLM's rules, which would give it 9"


# -- blocks ---------------------------------------------------------------------------------------


def test_published_evicted_cached_and_shared_follow_the_pool() -> None:
    engine = make_engine(num_gpu_blocks=18, block_size=4, max_num_batched_tokens=12, max_num_seqs=4)
    recorder = TraceRecorder(engine)
    for request_id, prompt in PROMPTS.items():
        engine.add_request(request_id, prompt, greedy(18, ignore_eos=True))
    pool = engine.engine_core.kv_cache_manager.block_pool
    known: set[int] = set()
    evicted = 0
    while engine.has_unfinished_requests():
        engine.step()
        step = recorder.steps[-1]
        assert set(step.evicted) <= known, "evicted is what was cached"
        known = known - set(step.evicted) | set(step.published)
        assert known == {b.block_id for b in pool.blocks if b.block_hash is not None}
        free = {b.block_id for b in pool.blocks if b.ref_cnt == 0 and not b.is_null}
        assert step.cached_blocks == len(known & free)
        evicted += len(step.evicted)
    assert evicted > 0
    assert max(step.shared_blocks for step in recorder.steps) == 4


def test_a_block_that_is_taken_and_published_with_the_same_content_was_evicted() -> None:
    """A prompt that is cached entirely computes its last block again, here in the same place."""
    engine = make_engine(num_gpu_blocks=2, block_size=4)
    for request_id in ("first", "again"):
        recorder = TraceRecorder(engine)
        engine.add_request(request_id, [5, 6, 7, 8], greedy(1, ignore_eos=True))
        finish(engine)
    (step,) = recorder.steps
    assert recorder.trace.cached_at_start == [1]
    assert step.scheduled[0].block_ids == step.evicted == step.published == [1]
