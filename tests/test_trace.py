"""A trace says what happened in each step, and that the steps add up to the request."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from engine_helpers import make_engine
from text_helpers import finish, greedy

from mini_vllm import LLMEngine, RequestOutput
from mini_vllm.trace import (
    StepTrace,
    TraceRecorder,
    check_trace_path,
    to_chrome_trace,
    to_text,
    write_trace,
)

PROMPTS = {"a": list(range(10, 30)), "b": [*range(10, 26), 5, 5], "c": [7] * 9}


@pytest.fixture(scope="module")
def traced() -> tuple[LLMEngine, list[StepTrace], dict[str, RequestOutput]]:
    """Requests that share a prefix, in chunks, in a pool that forces preemption."""
    engine = make_engine(num_gpu_blocks=18, block_size=4, max_num_batched_tokens=12, max_num_seqs=4)
    recorder = TraceRecorder(engine)
    for request_id, prompt in PROMPTS.items():
        engine.add_request(request_id, prompt, greedy(18, ignore_eos=True))
    done = finish(engine)
    recorder.detach()
    engine.add_request("unseen", [5], greedy(2))
    finish(engine)
    return engine, recorder.steps, done


def test_every_step_is_there_and_detach_ends_it(traced: Any) -> None:
    engine, steps, _ = traced
    assert [step.index for step in steps] == list(range(1, len(steps) + 1))
    assert engine.engine_core.num_steps > len(steps), "a detached recorder goes on recording"
    for before, after in pairwise(steps):
        spent = before.schedule_time + before.execute_time + before.update_time
        assert after.start == pytest.approx(before.start + spent)


def test_the_steps_add_up_to_the_requests(traced: Any) -> None:
    _, steps, done = traced
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


def test_prefix_hits_are_marked_in_the_step_that_found_them(traced: Any) -> None:
    _, steps, _ = traced
    first = {p.request_id: p for s in reversed(steps) for p in s.scheduled}
    assert first["a"].num_cached_tokens == 0
    assert first["b"].num_cached_tokens % 4 == 0
    hits = [p for s in steps for p in s.scheduled if p.num_cached_tokens]
    assert hits
    assert all(p.num_cached_tokens <= p.num_computed_tokens for p in hits)


def test_text(traced: Any) -> None:
    _, steps, _ = traced
    text = to_text(steps)
    lines = text.splitlines()
    assert sum(line.startswith("step ") for line in lines) == len(steps)
    assert lines[0].startswith("step 1: 12 tokens for 1 requests, running 1, waiting 2,")
    assert lines[1].startswith("  a: tokens 0..11, blocks 1-3")
    assert text.count("preempted") == sum(len(step.preempted) for step in steps)
    assert text.count("finished: length") == 3


def test_chrome_trace_has_a_track_a_request(traced: Any) -> None:
    _, steps, _ = traced
    trace = json.loads(json.dumps(to_chrome_trace(steps)))
    events = trace["traceEvents"]
    names = {
        e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"
    }
    assert sorted(names.values()) == ["engine core", "request a", "request b", "request c"]
    assert len(names) == 4, "two requests share a track"
    spans = [e for e in events if e["ph"] == "X"]
    for e in spans:
        assert e["ts"] >= 0
        assert e["dur"] >= 0
        assert e["tid"] in names
    for tid, name in names.items():
        track = sorted((e for e in spans if e["tid"] == tid), key=lambda e: e["ts"])
        for before, after in pairwise(track):
            # In microseconds; a nanosecond for the rounding of sums.
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-3, f"overlap on {name!r}"
    scheduled = sum(len(step.scheduled) for step in steps)
    assert sum(e["tid"] != 0 for e in spans) == scheduled
    assert {e["name"] for e in spans if e["tid"] != 0} == {"prefill", "decode"}
    counters = [e for e in events if e["ph"] == "C"]
    assert len(counters) == 4 * len(steps)


def test_write_trace_by_the_paths_ending(traced: Any, tmp_path: Path) -> None:
    _, steps, _ = traced
    write_trace(steps, tmp_path / "t.txt")
    assert (tmp_path / "t.txt").read_text(encoding="utf-8") == to_text(steps)
    write_trace(steps, tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text(encoding="utf-8")) == to_chrome_trace(steps)
    for name in ("t.xml", "t", "txt"):
        with pytest.raises(ValueError, match=name):
            write_trace(steps, tmp_path / name)
        with pytest.raises(ValueError, match=r"\.txt or \.json"):
            check_trace_path(tmp_path / name)


def test_an_empty_trace_is_a_trace(tmp_path: Path) -> None:
    write_trace([], tmp_path / "t.txt")
    write_trace([], tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


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
