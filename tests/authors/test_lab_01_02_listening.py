"""Lab 01-02's given half: what listens to a scheduler, and what lays two engines side by side.

What vLLM said lies in the lab's capture/, written by its capture.py. Nothing here compares which tokens it
sampled there: the decisions do not depend on them, and the shipped weights may change.
"""

from __future__ import annotations

import enum
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from course.learner.labs import load_module
from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.core.request import RequestStatus
from mini_vllm.model_loader import load_model
from mini_vllm.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
LABS = ROOT / "phase-01-architecture" / "labs"
engines = load_module(LABS / "lab-02-read-the-real-loop" / "engines.py", "lab_01_02_tested")
listening = engines.listening
Records = list[dict[str, Any]]
PROMPT = "The KV cache"  # 13 tokens with <bos>
SHARED = "The KV cache is paged."  # 23 tokens, 16 of them in a full block


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    return load_model(engines.MODEL), Tokenizer.from_folder(engines.MODEL)


def make_engine(loaded: tuple[Any, Any], **settings: Any) -> LLMEngine:
    model, tokenizer = loaded
    return LLMEngine(model, EngineConfig(**settings), tokenizer=tokenizer)


def watched(loaded: tuple[Any, Any], **settings: Any) -> tuple[LLMEngine, Records]:
    it = make_engine(loaded, **settings)
    records: Records = []
    listening.watch(it.engine_core.scheduler, records.append)
    return it, records


def greedy(max_tokens: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **more)


def run(it: LLMEngine) -> list[Any]:
    outputs = []
    while it.has_unfinished_requests():
        outputs += it.step()
    return outputs


# ---- watch ---------------------------------------------------------------------------------------


def test_watching_changes_nothing_and_nobody_else(loaded: tuple[Any, Any]) -> None:
    (listened, records), plain = watched(loaded), make_engine(loaded)
    plain.add_request("a", PROMPT, greedy(3))
    want = [o.outputs[0].token_ids for o in run(plain)]
    assert records == [], "the wrappers sit on one object, not on the class"
    listened.add_request("a", PROMPT, greedy(3))
    assert [o.outputs[0].token_ids for o in run(listened)] == want
    assert [r["call"] for r in records] == ["add_request"] + ["schedule", "update_from_output"] * 3


def test_the_records_of_a_run(loaded: tuple[Any, Any]) -> None:
    it, records = watched(loaded)
    it.add_request("a", PROMPT, greedy(2))
    run(it)
    first, second = (r["outputs"] for r in records if r["call"] == "update_from_output")
    new = {"request_id": "a", "num_computed_tokens": 0, "block_ids": [1]}
    cached = {
        "request_id": "a", "num_computed_tokens": 13, "new_block_ids": [], "resumed": False,
    }  # fmt: skip
    plan = {"call": "schedule", "new": [], "cached": [], "preempted": []}
    assert records == [
        {"call": "add_request", "request_id": "a", "num_tokens": 13},
        plan | {"new": [new], "num_scheduled_tokens": {"a": 13}},
        {"call": "update_from_output", "outputs": first, "running": ["a"], "waiting": []},
        plan | {"cached": [cached], "num_scheduled_tokens": {"a": 1}},
        {"call": "update_from_output", "outputs": second, "running": [], "waiting": []},
    ]
    assert [(len(o[0]["new_token_ids"]), o[0]["finish_reason"]) for o in (first, second)] == [
        (1, None),
        (1, "length"),
    ]


def test_records_can_be_kept(loaded: tuple[Any, Any]) -> None:
    """A record is plain data of its own: JSON, and not changed by later steps."""
    it = make_engine(loaded, num_gpu_blocks=9, max_model_len=96)
    records: Records = []
    written: list[str] = []

    def write(record: dict[str, Any]) -> None:
        written.append(json.dumps(record))
        records.append(record)

    listening.watch(it.engine_core.scheduler, write)
    for request_id in ("a", "b"):
        it.add_request(request_id, SHARED, greedy(12))
    run(it)
    assert [json.dumps(record) for record in records] == written


class Reason(enum.Enum):
    """vLLM's finish reasons are an enum whose str() is the word."""

    LENGTH = "length"

    def __str__(self) -> str:
        return self.value


class ShapedAsVllm:
    """What `watch` meets at vLLM's scheduler: shapes only, no decisions. It reuses its objects."""

    def __init__(self) -> None:
        self.running = [SimpleNamespace(request_id="a")]
        self.waiting = [SimpleNamespace(request_id="b")]
        self.calls = 0
        self.tokens = [40]
        self.blocks = ([1, 2],)
        self.scheduled = {"a": 13}
        cached = SimpleNamespace(
            req_ids=["b"], num_computed_tokens=[5], new_block_ids=[None], resumed_req_ids=set()
        )
        new = SimpleNamespace(req_id="a", num_computed_tokens=0, block_ids=self.blocks)
        self.plan = SimpleNamespace(
            scheduled_new_reqs=[new], scheduled_cached_reqs=cached,
            num_scheduled_tokens=self.scheduled, preempted_req_ids=None,
        )  # fmt: skip
        out = SimpleNamespace(
            request_id="a", new_token_ids=self.tokens, finish_reason=Reason.LENGTH
        )
        self.result = {0: SimpleNamespace(outputs=[out])}

    def add_request(self, request: Any) -> Any:
        self.calls += 1
        return "from add_request"

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        self.calls += 1
        return [(request_id, 0) for request_id in request_ids]

    def schedule(self) -> Any:
        self.calls += 1
        return self.plan

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        self.calls += 1
        return self.result


def test_it_listens_to_vllms_shapes_too() -> None:
    """Enums, tuples of lists, a dict of outputs, None: plain records, copied; all handed on."""
    scheduler = ShapedAsVllm()
    records: Records = []
    called: list[int] = []

    def write(record: dict[str, Any]) -> None:
        called.append(scheduler.calls)
        records.append(record)

    listening.watch(scheduler, write)
    request = SimpleNamespace(request_id="a", num_tokens=13)
    assert scheduler.add_request(request) == "from add_request"
    assert scheduler.schedule() is scheduler.plan
    assert scheduler.update_from_output(scheduler.plan, None) is scheduler.result
    assert called == [1, 2, 3], "the method first, then the record"
    scheduler.tokens.append(99)
    scheduler.blocks[0].append(99)
    scheduler.scheduled["z"] = 99
    assert records[1:] == [
        {
            "call": "schedule",
            "new": [{"request_id": "a", "num_computed_tokens": 0, "block_ids": [1, 2]}],
            "cached": [
                {"request_id": "b", "num_computed_tokens": 5, "new_block_ids": [], "resumed": False}
            ],
            "num_scheduled_tokens": {"a": 13},
            "preempted": [],
        },
        {
            "call": "update_from_output",
            "outputs": [{"request_id": "a", "new_token_ids": [40], "finish_reason": "length"}],
            "running": ["a"],
            "waiting": ["b"],
        },
    ]
    scheduler.plan.preempted_req_ids = {"d", "c", "e"}
    scheduler.schedule()
    assert records[-1]["preempted"] == ["c", "d", "e"]


def test_one_id_or_several(loaded: tuple[Any, Any]) -> None:
    it, records = watched(loaded)
    for request_id in ("one", "two", "three"):
        it.add_request(request_id, PROMPT, greedy(2))
    finish = it.engine_core.scheduler.finish_requests
    aborted = RequestStatus.FINISHED_ABORTED
    assert finish("one", aborted) == ["one"]
    assert finish(iter(["two", "three"]), aborted) == ["two", "three"]
    assert [(r["request_ids"], r["status"]) for r in records[3:]] == [
        (["one"], "FINISHED_ABORTED"),
        (["two", "three"], "FINISHED_ABORTED"),
    ]


# ---- to_events -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mini() -> Records:
    """The records of mini_vllm on the workload."""
    records: Records = engines.run_mini_vllm(engines.load_workload())
    return records


@pytest.fixture(scope="module")
def real() -> Records:
    """The records of vLLM on the workload, as captured."""
    records: Records = engines.read_capture()[1]
    return records


@pytest.fixture(scope="module")
def photos(loaded: tuple[Any, Any]) -> list[Any]:
    """The events of mini_vllm on the workload, as lab 01-01 photographs them."""
    workload = engines.load_workload()
    solution = load_module(LABS / "lab-01-trace-a-request" / "solution.py", "lab_01_02_tracer")
    tracer = solution.Tracer(make_engine(loaded, **workload["settings"]))

    class Driven:
        has_unfinished_requests = tracer.engine.has_unfinished_requests
        add_request = staticmethod(tracer.add_request)
        step = staticmethod(tracer.step)

        @staticmethod
        def abort_request(request_ids: list[str]) -> None:
            for request_id in request_ids:
                tracer.abort_request(request_id)

    engines.drive(Driven, workload["requests"], SamplingParams)
    events: list[Any] = tracer.events
    return events


def blind(events: list[Any]) -> list[Any]:
    """The events with the number of new tokens in the place of the tokens."""
    return [tuple(e._replace(new_token_ids=len(e.new_token_ids))) for e in events]


def test_the_events_are_those_of_lab_01(photos: list[Any], mini: Records) -> None:
    """From messages alone, the list that lab 01-01 photographs: event for event, tokens too."""
    assert listening.Event._fields == photos[0]._fields
    assert [tuple(e) for e in listening.to_events(mini)] == [tuple(e) for e in photos]


def test_both_engines_take_the_same_steps(photos: list[Any], mini: Records, real: Records) -> None:
    """The real vLLM and mini_vllm: 68 events, every counter, every block id."""
    theirs, ours = listening.to_events(real), listening.to_events(mini)
    assert len(theirs) == 68
    assert blind(theirs) == blind(photos)
    assert listening.first_difference(theirs, ours, tokens=False) is None


def test_ids_are_the_users(real: Records) -> None:
    """vLLM appends a dash and eight digits to an id; dashes of the user's own stay."""
    raw = {r["request_id"] for r in real if r["call"] == "add_request"}
    assert all(re.search(r"-[0-9a-f]{8}$", request_id) for request_id in raw), raw
    got = list(dict.fromkeys(event.request_id for event in listening.to_events(real)))
    assert got == ["short", "long", "long-again", "gone", "late"]
    for given in ("run-7", "a-deadbeef-run", "my-somename", "x-12345678901"):
        arrival = [{"call": "add_request", "request_id": given, "num_tokens": 3}]
        assert [event.request_id for event in listening.to_events(arrival)] == [given]


def test_two_ways_to_get_blocks(real: Records) -> None:
    """New blocks are added to a running request's table, and replace a resumed one's."""
    events = listening.to_events(real)
    again = {e.step: e.block_ids for e in events if e.request_id == "long-again"}
    assert (again[4], again[5], again[9]) == ((2, 3, 7, 8), (), (2, 3, 7, 6))
    short = {e.step: e.block_ids for e in events if e.request_id == "short"}
    assert (short[4], short[5]) == ((1,), (1, 8))


def test_stops_lengths_and_the_dead(loaded: tuple[Any, Any]) -> None:
    """The reason decides the status, and a request ends once."""
    it, records = watched(loaded)
    it.add_request("a", PROMPT, greedy(1))
    token = run(it)[0].outputs[0].token_ids[0]
    it.add_request("b", PROMPT, greedy(5, stop_token_ids=[token]))
    run(it)
    it.add_request("c", PROMPT, greedy(5))
    for _ in range(2):
        it.engine_core.scheduler.finish_requests(
            ["nobody", "a", "b", "c"], RequestStatus.FINISHED_ABORTED
        )
    ends = [(e.request_id, e.status) for e in listening.to_events(records) if e.finish_reason]
    assert ends == [
        ("a", "FINISHED_LENGTH_CAPPED"),
        ("b", "FINISHED_STOPPED"),
        ("c", "FINISHED_ABORTED"),
    ]


# ---- first_difference, parse_startup -------------------------------------------------------------


def test_first_difference_names_the_place(photos: list[Any]) -> None:
    ours = list(photos)
    assert listening.first_difference(ours, list(ours)) is None
    for place, field, value in (
        (0, "status", "RUNNING"),
        (7, "num_computed_tokens", -1),
        (20, "block_ids", (99,)),
        (67, "finish_reason", "stop"),
    ):
        theirs = list(ours)
        theirs[-1] = theirs[-1]._replace(num_tokens=-5)
        theirs[place] = ours[place]._replace(**{field: value})
        found = listening.first_difference(theirs, ours)
        at = ours[place]
        assert found == (at.step, at.request_id, field, value, getattr(at, field))
    assert str(found).startswith(f"step {at.step}, request {at.request_id!r}, finish_reason: vLLM")


def test_tokens_may_be_left_out_and_a_list_may_be_longer(photos: list[Any]) -> None:
    ours = list(photos)
    place = next(i for i, e in enumerate(ours) if e.new_token_ids)
    other, none = list(ours), list(ours)
    other[place] = ours[place]._replace(new_token_ids=(-1,))
    none[place] = ours[place]._replace(new_token_ids=())
    where = (ours[place].step, ours[place].request_id, "new_token_ids")
    difference = listening.first_difference
    assert difference(other, ours) == (*where, (-1,), ours[place].new_token_ids)
    assert difference(other, ours, tokens=False) is None
    assert difference(none, ours, tokens=False) == (*where, 0, 1)
    extra = ours[10]
    here = (extra.step, extra.request_id, "event")
    assert difference(ours[:12], ours[:10]) == (*here, extra.status, None)
    assert difference(ours[:10], ours[:12]) == (*here, None, extra.status)
    assert difference([], []) is None


def test_startup_lines() -> None:
    """Of the capture, of the larger pools that lab 00-02 recorded, and of a log that was cut off."""
    log = engines.read_log("in_process")
    assert tuple(listening.parse_startup(log)) == ("0.22.1", 32, 144, 96, 1.5)
    record = json.loads(
        (ROOT / "phase-00-foundations/labs/lab-02-kv-memory-calculator/vllm_startup.json")
        .read_text("utf-8")
    )  # fmt: skip
    for start, want in zip(
        record["starts"], ((524_288, 1024, 512.0), (48_428, 1000, 48.43)), strict=False
    ):
        size, concurrency = start["log"]
        text = log.replace("GPU KV cache size: 144 tokens", size)
        text = text.replace("Maximum concurrency for 96 tokens per request: 1.50x", concurrency)
        assert tuple(listening.parse_startup(text))[2:] == want
    for field, cut in (
        ("version", "Initializing a V1"),
        ("max_num_batched_tokens", "Chunked prefill is"),
        ("num_kv_cache_tokens", "GPU KV"),
        ("max_model_len", "Maximum concurrency"),
    ):
        text = "\n".join(line for line in log.splitlines() if cut not in line)
        with pytest.raises(ValueError, match=field):
            listening.parse_startup(text)
