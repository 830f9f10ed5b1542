"""Lab 01-02: listening to a scheduler, reading vLLM's log, and both engines step by step.

What vLLM said lies in capture/, written by capture.py. Nothing here compares which tokens it sampled
there: the decisions do not depend on them, and the shipped weights may change.
"""

from __future__ import annotations

import enum
import json
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from course.learner.labs import load_module
from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.checkpoint import load_model
from mini_vllm.request import RequestStatus
from mini_vllm.tokenizer import Tokenizer

HERE = Path(__file__).resolve().parent
engines = load_module(HERE / "engines.py", "lab_01_02_engines_of_the_test")
TRACER = HERE.parent / "lab-01-trace-a-request" / "solution.py"
PROMPT = "The KV cache"  # 13 tokens with <bos>
SHARED = "The KV cache is paged."  # 23 tokens, 16 of them in a full block


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    return load_model(engines.MODEL), Tokenizer.from_folder(engines.MODEL)


@pytest.fixture(scope="module")
def mini(lab: ModuleType) -> list[dict[str, Any]]:
    """The records of mini_vllm on the workload."""
    records: list[dict[str, Any]] = engines.run_mini_vllm(lab, engines.load_workload())
    return records


@pytest.fixture(scope="module")
def real() -> list[dict[str, Any]]:
    """The records of vLLM on the workload, as captured."""
    records: list[dict[str, Any]] = engines.read_capture()[1]
    return records


@pytest.fixture(scope="module")
def photos(loaded: tuple[Any, Any]) -> list[Any]:
    """The events of mini_vllm on the workload, as lab 01-01 photographs them."""
    workload = engines.load_workload()
    tracer = load_module(TRACER, "lab_01_02_tracer").Tracer(engine(loaded, **workload["settings"]))

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


def engine(loaded: tuple[Any, Any], **settings: Any) -> LLMEngine:
    model, tokenizer = loaded
    return LLMEngine(model, EngineConfig(**settings), tokenizer=tokenizer)


def watched(lab: ModuleType, loaded: tuple[Any, Any]) -> tuple[LLMEngine, list[dict[str, Any]]]:
    it = engine(loaded)
    records: list[dict[str, Any]] = []
    lab.watch(it.engine_core.scheduler, records.append)
    return it, records


def greedy(max_tokens: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **more)


def run(it: LLMEngine) -> list[Any]:
    outputs = []
    while it.has_unfinished_requests():
        outputs += it.step()
    return outputs


def same(got: Any, want: Any, rule: str) -> None:
    assert got == want, f"should be {want!r}, got {got!r}. {rule}"


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
    same(len(got), len(want), "As many events as lab 01-01's tracer writes down.")


# ---- starting vLLM -------------------------------------------------------------------------------


def test_environment(lab: ModuleType) -> None:
    """The core stays in this process, and the log says all it has to say."""
    got = lab.environment()
    assert got.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0", (
        f"got {got}. By default the engine core, and its scheduler with it, lives in another process. "
        "VLLM_ENABLE_V1_MULTIPROCESSING=0 keeps it here, where it can be wrapped. Values are strings."
    )
    same(
        got.get("VLLM_LOGGING_LEVEL"),
        "DEBUG",
        "VLLM_LOGGING_LEVEL=DEBUG shows what the worker runs. It does not show what is scheduled.",
    )


def test_llm_arguments(lab: ModuleType) -> None:
    """The settings under vLLM's names, synchronous, in float32, with a line for each iteration."""
    settings = dict(engines.load_workload()["settings"])
    got = lab.llm_arguments(settings)
    same(settings, engines.load_workload()["settings"], "The caller's settings are not yours.")
    for name, value in settings.items():
        if name != "num_gpu_blocks":
            same(got.get(name), value, f"{name} has the same name in vLLM: pass it on.")
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
    plain, (listened, records) = engine(loaded), watched(lab, loaded)
    for it in (plain, listened):
        it.add_request("a", PROMPT, greedy(3))
    same(
        [o.outputs[0].token_ids for o in run(listened)],
        [o.outputs[0].token_ids for o in run(plain)],
        "A wrapper returns what the method it stands for returned; the engine works with it.",
    )
    assert records, "the scheduler was driven, and no record was written"


def test_only_this_scheduler_is_watched(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """The wrappers sit on the object: other engines of the process stay unwatched."""
    _, records = watched(lab, loaded)
    other = engine(loaded)
    other.add_request("a", PROMPT, greedy(1))
    run(other)
    same(records, [], "Set the wrappers on the scheduler you are given, not on its class.")


def test_the_records_of_a_run(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """Each call leaves its record: an arrival, then a schedule and an update a step."""
    it, records = watched(lab, loaded)
    it.add_request("a", PROMPT, greedy(2))
    run(it)
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
    same([r["call"] for r in records], [r["call"] for r in want], "One record a call, in order.")
    for got, expected in zip(records, want, strict=True):
        same(
            got, expected,
            "num_computed_tokens is what the scheduler's output says: before the step. The Request has "
            "been advanced by then.",
        )  # fmt: skip
    for outputs, reason in ((first, None), (second, "length")):
        same([o["request_id"] for o in outputs], ["a"], "Both steps sample.")
        same(len(outputs[0]["new_token_ids"]), 1, "A step samples one token.")
        same(
            outputs[0]["finish_reason"], reason, "None while it runs, else the reason as a string."
        )


def test_records_can_be_kept(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """A record is plain data of its own: JSON, and not changed by later steps."""
    it = engine(loaded, num_gpu_blocks=9, max_model_len=96)
    records: list[dict[str, Any]] = []
    written: list[str] = []

    def write(record: dict[str, Any]) -> None:
        written.append(json.dumps(record))
        records.append(record)

    lab.watch(it.engine_core.scheduler, write)
    it.add_request("a", SHARED, greedy(12))
    it.add_request("b", SHARED, greedy(12))
    run(it)
    same(
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
    same(scheduler.add_request(request), "from add_request", rule)
    assert scheduler.schedule() is scheduler.plan, rule
    assert scheduler.update_from_output(scheduler.plan, None) is scheduler.result, rule
    same(called, [1, 2, 3], "Call the method first, then write: the record is about what it did.")
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
        same(
            got, expected,
            "vLLM's shapes: block ids are a tuple of lists (block_list), or None; outputs a dict "
            "(core_outputs); a reason is an enum (str); preempted may be None. And vLLM goes on to "
            "change its objects: a 99 here means that you kept one of them instead of a copy.",
        )  # fmt: skip
    scheduler.plan.preempted_req_ids = {"d", "c", "e"}
    scheduler.schedule()
    same(
        records[-1]["preempted"],
        ["c", "d", "e"],
        "A set has no order: sorted, so that runs compare.",
    )


def test_one_id_or_several(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """finish_requests takes an id or any iterable of ids; the record has a list."""
    it, records = watched(lab, loaded)
    for request_id in ("one", "two", "three"):
        it.add_request(request_id, PROMPT, greedy(2))
    scheduler = it.engine_core.scheduler
    aborted = RequestStatus.FINISHED_ABORTED
    same(
        scheduler.finish_requests("one", aborted), ["one"],
        "One id came as a string, and a string is an iterable of letters: make it a list of one. And "
        "return what the method returns.",
    )  # fmt: skip
    same(
        scheduler.finish_requests(iter(["two", "three"]), aborted),
        ["two", "three"],
        "An iterator can be read once. Make a list of it first, and hand that on.",
    )
    got = [(r.get("request_ids"), r.get("status")) for r in records[3:]]
    same(
        got,
        [(["one"], "FINISHED_ABORTED"), (["two", "three"], "FINISHED_ABORTED")],
        "The record has the ids as a list, and the status by its name.",
    )


# ---- reading the log -----------------------------------------------------------------------------


def test_startup_of_the_capture(lab: ModuleType) -> None:
    """Six facts from vLLM's own start-up lines."""
    same(
        tuple(lab.parse_startup(engines.read_log("in_process"))),
        ("0.22.1", 32, False, 144, 96, 1.5),
        "9 blocks of 16 are 144 tokens; a request of 96 takes 6 of them, so 1.50 of those.",
    )


def test_the_last_word_counts(lab: ModuleType) -> None:
    """A CPU log says "enabled" and later "disabled"; the engine core goes by the second."""
    log = engines.read_log("busy_loop")
    same(
        re.findall(r"Asynchronous scheduling is (\w+)", log),
        ["enabled", "disabled"],
        "The capture should have both lines; record it again.",
    )
    got = lab.parse_startup(log).async_scheduling
    assert got is False, (
        f"async_scheduling should be False, got {got!r}. The front end resolves the default first and "
        "says enabled; then the CPU platform turns it off. The last line is what runs."
    )
    assert lab.parse_startup(log.replace("is disabled.", "is enabled.")).async_scheduling is True, (
        "where every line says enabled, it is"
    )


def test_thousands_have_commas(lab: ModuleType) -> None:
    """The lines of larger pools, as vLLM printed them for lab 00-02."""
    record = json.loads(
        (HERE.parents[2] / "phase-00-foundations/labs/lab-02-kv-memory-calculator/vllm_startup.json")
        .read_text("utf-8")
    )  # fmt: skip
    log = engines.read_log("in_process")
    wanted = ((524_288, 1024, 512.0), (48_428, 1000, 48.43))
    for start, want in zip(record["starts"], wanted, strict=False):
        size, concurrency = start["log"]
        text = log.replace("GPU KV cache size: 144 tokens", size)
        text = text.replace("Maximum concurrency for 96 tokens per request: 1.50x", concurrency)
        got = lab.parse_startup(text)
        same(
            (got.num_kv_cache_tokens, got.max_model_len, got.max_concurrency),
            want,
            f"read from {size!r} and {concurrency!r}: numbers of four digits and more have commas.",
        )


def test_a_missing_line_is_named(lab: ModuleType) -> None:
    """A log that was cut off gets a ValueError that names the field."""
    log = engines.read_log("in_process")
    for field, cut in (
        ("version", "Initializing a V1"),
        ("max_num_batched_tokens", "Chunked prefill is"),
        ("async_scheduling", "Asynchronous"),
        ("num_kv_cache_tokens", "GPU KV"),
        ("max_model_len|max_concurrency", "Maximum concurrency"),
    ):
        text = "\n".join(line for line in log.splitlines() if cut not in line)
        said = None
        try:
            lab.parse_startup(text)
        except ValueError as error:
            said = str(error)
        assert said is not None, f"a log without the line of {field} must raise ValueError"
        assert re.search(field, said), (
            f"the log lacks the line of {field}, and the error does not name it: {said}"
        )


def test_iterations_of_the_capture(lab: ModuleType) -> None:
    """22 lines among all the others, counted from 0; the worker saw as many tokens."""
    log = engines.read_log("in_process")
    got = lab.parse_iterations(log)
    same([i[0] for i in got], list(range(22)), "One line a step, the first is Iteration(0).")
    same(tuple(got[0]), (0, 2, 32, 0, 0), "Two prompts begin in the first step.")
    same(tuple(got[3]), (3, 1, 22, 2, 2), "One prompt beside two that decode.")
    ran = [int(n) for n in re.findall(r"Running batch .*?num_tokens=(\d+)", log)]
    same(
        [i.context_tokens + i.generation_tokens for i in got],
        ran,
        "Context and generation tokens together are the batch that the worker says it ran.",
    )


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
    same(
        got,
        ["short", "long", "long-again", "gone", "late"],
        f"vLLM's ids were {sorted(raw)}: take off the last dash and its eight digits, nothing else.",
    )
    for given in ("run-7", "a-deadbeef-run", "my-somename", "x-12345678901"):
        arrival = [{"call": "add_request", "request_id": given, "num_tokens": 3}]
        same(
            [event.request_id for event in lab.to_events(arrival)], [given],
            "This id has no tail: a tail is a dash and exactly eight hexadecimal digits, at the very end.",
        )  # fmt: skip


def test_two_ways_to_get_blocks(lab: ModuleType, real: list[dict[str, Any]]) -> None:
    """New blocks are added to a running request's table, and replace a resumed one's."""
    events = [e for e in lab.to_events(real) if e.request_id == "long-again"]
    grown = {e.step: e.block_ids for e in events}
    same(grown[4], (2, 3, 7, 8), "Admitted with two blocks of another request, and two of its own.")
    same(grown[5], (), "Preempted: it holds nothing.")
    same(
        grown[9],
        (2, 3, 7, 6),
        "Resumed: what it is sent is its whole table. Block 8 is another's now.",
    )
    short = {e.step: e.block_ids for e in lab.to_events(real) if e.request_id == "short"}
    same((short[4], short[5]), ((1,), (1, 8)), "A running request is sent only what is added.")


def test_a_stop_is_not_a_length(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """The finish reason decides the status."""
    it, records = watched(lab, loaded)
    it.add_request("a", PROMPT, greedy(1))
    token = run(it)[0].outputs[0].token_ids[0]
    it.add_request("b", PROMPT, greedy(5, stop_token_ids=[token]))
    run(it)
    last = lab.to_events(records)[-1]
    same((last.status, last.finish_reason), ("FINISHED_STOPPED", "stop"), "A stop token ended it.")


def test_the_dead_are_passed_over(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """finish_requests may name ids that have ended already, or never were: no event."""
    it, records = watched(lab, loaded)
    it.add_request("a", PROMPT, greedy(1))
    it.add_request("b", PROMPT, greedy(4))
    it.step()
    scheduler = it.engine_core.scheduler
    for _ in range(2):
        scheduler.finish_requests(["nobody", "a", "b"], RequestStatus.FINISHED_ABORTED)
    got = [(e.step, e.request_id, e.status) for e in lab.to_events(records)]
    same(
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
    said = lab.parse_iterations(engines.read_log("in_process"))
    for name, records in (("vLLM", real), ("mini_vllm", mini)):
        computed = lab.iterations_of(lab.to_events(records))
        for line, mine in zip(said, computed, strict=False):
            same(
                mine, line,
                f"Computed from the events of {name}. A request that has sampled before is in the "
                "generation group for good, even if a preemption makes it compute its prompt again; one "
                "that has not is context, in its second chunk, too.",
            )  # fmt: skip
        assert len(said) == 22, (
            f"the log has 22 iteration lines, and parse_iterations found {len(said)}"
        )
        same(len(computed), len(said), "One line a step.")


def test_the_busy_loop_does_one_step_more(lab: ModuleType, loaded: tuple[Any, Any]) -> None:
    """With the core in its own process, a last, empty step tells the workers who has finished."""
    it, records = watched(lab, loaded)
    it.add_request("a", PROMPT, greedy(4))
    run(it)
    computed = lab.iterations_of(lab.to_events(records))
    said = lab.parse_iterations(engines.read_log("busy_loop"))
    same(
        computed,
        said[:4],
        "Iterations are numbered from 0, steps from 1. The same request: four tokens, four steps, 13 "
        "tokens in the first.",
    )
    same([tuple(i) for i in said[4:]], [(4, 0, 0, 0, 0)], "Then one iteration with nothing in it.")


def test_iterations_group_by_what_was_sampled_before(lab: ModuleType) -> None:
    """The first token's own step is context; waiting requests are in no group."""

    def event(step: int, request_id: str, scheduled: int, new: int) -> Any:
        blank = (0, 0, scheduled, 0, 0, (7,) * new, (), None)
        return lab.Event(step, request_id, "RUNNING", *blank)

    events = [
        event(0, "a", 0, 0), event(1, "a", 5, 0), event(1, "b", 3, 1), event(1, "c", 0, 0),
        event(2, "a", 4, 1), event(2, "b", 1, 1), event(3, "b", 9, 0), event(3, "a", 1, 1),
    ]  # fmt: skip
    same(
        [tuple(i) for i in lab.iterations_of(events)],
        [(0, 2, 8, 0, 0), (1, 1, 4, 1, 1), (2, 0, 0, 2, 10)],
        "(number, context requests and tokens, generation requests and tokens). Number 0 is step 1.",
    )


def test_first_difference_names_the_place(lab: ModuleType, photos: list[Any]) -> None:
    """Step, request, field and both values, of the first event that is not equal."""
    ours = list(photos)
    same(lab.first_difference(ours, list(ours)), None, "Equal lists have no difference.")
    for place, field, value in (
        (0, "status", "RUNNING"),
        (7, "num_computed_tokens", -1),
        (20, "block_ids", (99,)),
        (67, "finish_reason", "stop"),
    ):
        theirs = list(ours)
        theirs[place] = ours[place]._replace(**{field: value})
        theirs[-1] = theirs[-1]._replace(num_tokens=-5) if place != 67 else theirs[-1]
        same(
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
    same(
        lab.first_difference(other, ours),
        (*where, (-1,), ours[place].new_token_ids),
        "By default another token is a difference.",
    )
    same(lab.first_difference(other, ours, tokens=False), None, "One token here, one there.")
    same(
        lab.first_difference(none, ours, tokens=False),
        (*where, 0, 1),
        "A token that is missing is a difference even so.",
    )


def test_one_list_is_longer(lab: ModuleType, photos: list[Any]) -> None:
    """Events too many are a difference, on whichever side."""
    ours = list(photos)
    extra = ours[10]
    place = (extra.step, extra.request_id, "event")
    same(
        lab.first_difference(ours[:12], ours[:10]), (*place, extra.status, None),
        "vLLM has events that we have not: its status, and None. zip stops at the shorter list.",
    )  # fmt: skip
    same(
        lab.first_difference(ours[:10], ours[:12]), (*place, None, extra.status),
        "We have events that vLLM has not: None, and our status.",
    )  # fmt: skip
    same(lab.first_difference([], []), None, "Two empty lists are equal.")


def test_a_difference_reads_as_a_sentence(lab: ModuleType) -> None:
    """What capture.py prints of a difference: place, field, both values."""
    events = [lab.Event(3, "a", s, 0, 0, 0, 0, 1, (), (), None) for s in ("RUNNING", "WAITING")]
    same(
        str(lab.first_difference(events[:1], events[1:])),
        "step 3, request 'a', status: vLLM 'RUNNING', mini_vllm 'WAITING'",
        "Difference is given; return one.",
    )
