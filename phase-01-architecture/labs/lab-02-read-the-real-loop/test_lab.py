"""Lab 01-02: starting vLLM, and listening to a scheduler."""

from __future__ import annotations

import enum
import json
from types import ModuleType, SimpleNamespace
from typing import Any

from course.learner.labs import load_support
from mini_vllm.request import RequestStatus

support = load_support(__file__)
SHARED = "The KV cache is paged."  # 23 tokens, 16 of them in a full block


# ---- starting vLLM -------------------------------------------------------------------------------


def test_environment(lab: ModuleType) -> None:
    """The core stays in this process, and the log says all it has to say."""
    got = lab.environment()
    assert got.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0", (
        f"got {got}. By default the engine core, and its scheduler with it, lives in another process. "
        "VLLM_ENABLE_V1_MULTIPROCESSING=0 keeps it here, where it can be wrapped. Values are strings."
    )
    support.same(
        got.get("VLLM_LOGGING_LEVEL"),
        "DEBUG",
        "VLLM_LOGGING_LEVEL=DEBUG shows what the worker runs. It does not show what is scheduled.",
    )


def test_llm_arguments(lab: ModuleType) -> None:
    """The settings under vLLM's names, synchronous, in float32, with a line for each iteration."""
    settings = dict(support.engines.load_workload()["settings"])
    got = lab.llm_arguments(settings)
    support.same(
        settings,
        support.engines.load_workload()["settings"],
        "The caller's settings are not yours.",
    )
    for name, value in settings.items():
        if name != "num_gpu_blocks":
            support.same(got.get(name), value, f"{name} has the same name in vLLM: pass it on.")
    assert "num_gpu_blocks" not in got, "vllm.LLM knows no num_gpu_blocks; it measures its pool"
    for name, value, rule in (
        (
            "num_gpu_blocks_override",
            9,
            "vLLM sizes its pool itself, unless num_gpu_blocks_override says.",
        ),
        ("enable_logging_iteration_details", True, "Without it no log level prints a line a step."),
        (
            "async_scheduling",
            False,
            "Else, on a GPU, a step is scheduled before the last one's tokens.",
        ),
        (
            "dtype",
            "float32",
            "Left alone vLLM runs this checkpoint in half precision: other tokens.",
        ),
        ("enforce_eager", True, "Nothing to be compiled for a few steps."),
    ):
        given = got.get(name)
        assert given == value, f"the argument {name} should be {value!r}, got {given!r}. {rule}"
    assert "kv_cache_dtype" not in got, (
        "dtype is enough: the cache takes the weights' type, and vLLM knows no kv_cache_dtype float32"
    )


# ---- listening -----------------------------------------------------------------------------------


def test_watching_changes_nothing(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A watched engine returns what an unwatched one returns."""
    plain, (listened, records) = support.engine(loaded), support.watched(lab, loaded)
    for it in (plain, listened):
        it.add_request("a", support.PROMPT, support.greedy(3))
    support.same(
        [o.outputs[0].token_ids for o in support.run(listened)],
        [o.outputs[0].token_ids for o in support.run(plain)],
        "A wrapper returns what the method it stands for returned; the engine works with it.",
    )
    assert records, "the scheduler was driven, and no record was written"


def test_only_this_scheduler_is_watched(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """The wrappers sit on the object: other engines of the process stay unwatched."""
    _, records = support.watched(lab, loaded)
    other = support.engine(loaded)
    other.add_request("a", support.PROMPT, support.greedy(1))
    support.run(other)
    support.same(records, [], "Set the wrappers on the scheduler you are given, not on its class.")


def test_the_records_of_a_run(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """Each call leaves its record: an arrival, then a schedule and an update a step."""
    it, records = support.watched(lab, loaded)
    it.add_request("a", support.PROMPT, support.greedy(2))
    support.run(it)
    first, second = (r["outputs"] for r in records if r["call"] == "update_from_output")
    want: list[dict[str, Any]] = [
        {"call": "add_request", "request_id": "a", "num_tokens": 13},
        {
            "call": "schedule",
            "new": [{"request_id": "a", "num_computed_tokens": 0, "block_ids": [1]}],
            "cached": [],
            "num_scheduled_tokens": {"a": 13},
            "preempted": [],
        },
        {"call": "update_from_output", "outputs": first, "running": ["a"], "waiting": []},
        {
            "call": "schedule",
            "new": [],
            "cached": [
                {
                    "request_id": "a",
                    "num_computed_tokens": 13,
                    "new_block_ids": [],
                    "resumed": False,
                }
            ],
            "num_scheduled_tokens": {"a": 1},
            "preempted": [],
        },
        {"call": "update_from_output", "outputs": second, "running": [], "waiting": []},
    ]
    support.same(
        [r["call"] for r in records], [r["call"] for r in want], "One record a call, in order."
    )
    for got, expected in zip(records, want, strict=True):
        support.same(
            got, expected,
            "num_computed_tokens is what the scheduler's output says: before the step. The Request has "
            "been advanced by then.",
        )  # fmt: skip
    for outputs, reason in ((first, None), (second, "length")):
        support.same([o["request_id"] for o in outputs], ["a"], "Both steps sample.")
        support.same(len(outputs[0]["new_token_ids"]), 1, "A step samples one token.")
        support.same(
            outputs[0]["finish_reason"], reason, "None while it runs, else the reason as a string."
        )


def test_records_can_be_kept(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A record is plain data of its own: JSON, and not changed by later steps."""
    it = support.engine(loaded, num_gpu_blocks=9, max_model_len=96)
    records: list[dict[str, Any]] = []
    written: list[str] = []

    def write(record: dict[str, Any]) -> None:
        written.append(json.dumps(record))
        records.append(record)

    lab.watch(it.engine_core.scheduler, write)
    it.add_request("a", SHARED, support.greedy(12))
    it.add_request("b", SHARED, support.greedy(12))
    support.run(it)
    support.same(
        [json.dumps(record) for record in records],
        written,
        "A record changed after it was written: copy lists and dicts, the engine goes on using its own.",
    )


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


def test_it_listens_to_vllms_shapes_too(lab: ModuleType) -> None:
    """Enums, tuples of lists, a dict of outputs, None: plain records, and all of it handed on."""
    scheduler = ShapedAsVllm()
    records: list[dict[str, Any]] = []
    called: list[int] = []

    def write(record: dict[str, Any]) -> None:
        called.append(scheduler.calls)
        records.append(record)

    lab.watch(scheduler, write)
    rule = (
        "vLLM's own code goes on with what a wrapper returns: hand on exactly what the method gave."
    )
    request = SimpleNamespace(request_id="a", num_tokens=13)
    support.same(scheduler.add_request(request), "from add_request", rule)
    assert scheduler.schedule() is scheduler.plan, rule
    assert scheduler.update_from_output(scheduler.plan, None) is scheduler.result, rule
    support.same(
        called, [1, 2, 3], "Call the method first, then write: the record is about what it did."
    )
    scheduler.tokens.append(99)
    scheduler.blocks[0].append(99)
    scheduler.scheduled["z"] = 99
    want = [
        {"call": "add_request", "request_id": "a", "num_tokens": 13},
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
    for got, expected in zip(records, want, strict=True):
        support.same(
            got, expected,
            "vLLM's shapes: block ids are a tuple of lists (block_list), or None; outputs a dict "
            "(core_outputs); a reason is an enum (str); preempted may be None. And vLLM goes on to "
            "change its objects: a 99 here means that you kept one of them instead of a copy.",
        )  # fmt: skip
    scheduler.plan.preempted_req_ids = {"d", "c", "e"}
    scheduler.schedule()
    support.same(
        records[-1]["preempted"],
        ["c", "d", "e"],
        "A set has no order: sorted, so that runs compare.",
    )


def test_one_id_or_several(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """finish_requests takes an id or any iterable of ids; the record has a list."""
    it, records = support.watched(lab, loaded)
    for request_id in ("one", "two", "three"):
        it.add_request(request_id, support.PROMPT, support.greedy(2))
    scheduler = it.engine_core.scheduler
    aborted = RequestStatus.FINISHED_ABORTED
    support.same(
        scheduler.finish_requests("one", aborted), ["one"],
        "One id came as a string, and a string is an iterable of letters: make it a list of one. And "
        "return what the method returns.",
    )  # fmt: skip
    support.same(
        scheduler.finish_requests(iter(["two", "three"]), aborted),
        ["two", "three"],
        "An iterator can be read once. Make a list of it first, and hand that on.",
    )
    got = [(r.get("request_ids"), r.get("status")) for r in records[3:]]
    support.same(
        got,
        [(["one"], "FINISHED_ABORTED"), (["two", "three"], "FINISHED_ABORTED")],
        "The record has the ids as a list, and the status by its name.",
    )
