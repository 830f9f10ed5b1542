"""Labs 01-01 and 01-02: what both share, the committed capture, and the real vLLM live.

    LAB_IMPL=starter pytest -m vllm tests/authors/test_lab_01_02_vllm.py

runs a learner's own environment, reading and computing on a real vLLM. Without LAB_IMPL the reference does.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_module
from tests.engine.helpers.real_vllm import vllm_helpers
from tests.engine.helpers.real_vllm.vllm_helpers import output_of

LABS = Path(__file__).resolve().parents[2] / "phase-01-architecture" / "labs"
FIRST, SECOND = LABS / "lab-01-trace-a-request", LABS / "lab-02-read-the-real-loop"
CHOICE = os.environ.get("LAB_IMPL", "").strip() or "solution"


@pytest.fixture(scope="module")
def capture() -> ModuleType:
    return load_module(SECOND / "capture.py", "lab_01_02_capture")


@pytest.fixture(scope="module")
def lab(capture: ModuleType) -> ModuleType:
    module: ModuleType = capture.load_lab(CHOICE)
    return module


def blind(events: list[Any]) -> list[Any]:
    return [e._replace(new_token_ids=len(e.new_token_ids)) for e in events]


def test_both_labs_have_the_same_event() -> None:
    """Event stands in three files, with the same fields."""
    fields = set()
    for path in (FIRST / "starter.py", FIRST / "solution.py", SECOND / "listening.py"):
        (event,) = (
            node
            for node in ast.parse(path.read_bytes()).body
            if isinstance(node, ast.ClassDef) and node.name == "Event"
        )
        lines = [ast.unparse(item) for item in event.body if isinstance(item, ast.AnnAssign)]
        fields.add("\n".join(lines))
    assert len(fields) == 1, fields


def test_the_capture_is_of_this_workload(capture: ModuleType) -> None:
    """It says how it was made, and its requests are those of workload.json."""
    made, records = capture.engines.read_capture()
    assert made.keys() == {"command", "date", "hardware", "versions"}
    assert made["command"] == capture.COMMAND
    assert made["versions"]["vllm"] == "0.22.1"
    arrived = [r for r in records if r["call"] == "add_request"]
    requests = capture.engines.load_workload()["requests"]
    wanted = [(r["request_id"], len(r["prompt"].encode()) + 1) for r in requests]
    assert [(r["request_id"][:-9], r["num_tokens"]) for r in arrived] == wanted, (
        f"record again: {capture.COMMAND}"
    )


def test_the_capture_names_no_place() -> None:
    """Neither folders nor addresses of the machine it was made on."""
    for path in (SECOND / "capture").iterdir():
        text = path.read_text(encoding="utf-8")
        for word in (str(Path.home()), str(LABS.parent.parent), "/tmp/", "127.0.0.1"):
            assert word not in text, (path.name, word)


@pytest.mark.vllm
def test_the_real_loop_live(
    capture: ModuleType, lab: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM on the shipped checkpoint: 68 events and every token as mini_vllm; the log; the capture."""
    monkeypatch.setattr(capture, "subprocess", vllm_helpers.Forking)
    listening = capture.listening
    _, records, log = capture.in_process(CHOICE)
    theirs = listening.to_events(records)
    ours = listening.to_events(capture.engines.run_mini_vllm(capture.engines.load_workload()))
    assert listening.first_difference(theirs, ours) is None
    assert theirs == ours
    assert len(theirs) == 68
    assert lab.parse_iterations(log) == lab.iterations_of(theirs)
    startup = listening.parse_startup(log)
    assert (startup.num_kv_cache_tokens, startup.max_concurrency) == (144, 1.5)
    captured = listening.to_events(capture.engines.read_capture()[1])
    assert blind(captured) == blind(theirs), f"record again: {capture.COMMAND}"


@pytest.mark.vllm
def test_the_busy_loop_live(capture: ModuleType, lab: ModuleType) -> None:
    """With the core in a process of its own: four steps for four tokens, and an empty one."""
    said = lab.parse_iterations(capture.busy_loop(CHOICE))
    assert said == lab.parse_iterations(capture.engines.read_log("busy_loop"))
    assert tuple(said[-1]) == (4, 0, 0, 0, 0)


# -- what the log does not say ---------------------------------------------------------------------

ASKS_NOTHING = """
import sys
import vllm
from vllm.v1.executor.uniproc_executor import UniProcExecutor
llm = vllm.LLM(
    sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=64, num_gpu_blocks_override=9,
    block_size=16, distributed_executor_backend=UniProcExecutor,
)
core = llm.llm_engine.engine_core.engine_core
print("CORE", type(core.scheduler).__name__, core.vllm_config.scheduler_config.async_scheduling)
"""


@pytest.mark.vllm
def test_the_log_says_enabled_before_the_cpu_platform_decides(capture: ModuleType) -> None:
    """In one process the only line says enabled, and the scheduler that runs is the synchronous one."""
    done = output_of(
        "-c", "import sys\nsys.stderr = sys.stdout\n" + ASKS_NOTHING, capture.engines.MODEL,
        VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="INFO", OMP_NUM_THREADS="1", **capture.QUIET,
    )  # fmt: skip
    said = re.findall(r"Asynchronous scheduling is (\w+)", done)
    assert said == ["enabled"]
    assert "CORE Scheduler False" in done


def test_with_two_processes_both_print_the_line(capture: ModuleType) -> None:
    """The front end enabled, and the core, which runs the same code on what the platform left, disabled."""
    lines = [
        line for line in capture.engines.read_log("busy_loop").splitlines() if "Asynch" in line
    ]
    assert [line.rpartition(" is ")[2] for line in lines] == ["enabled.", "disabled."]
    assert [line.startswith("(EngineCore") for line in lines] == [False, True]


def lines_of_a_preemption(use_v2_model_runner: bool) -> list[tuple[int, int, int, int]]:
    """Context requests and tokens, generation requests and tokens, of each step of vLLM's scheduler.

    Two requests of 30 tokens in a pool of four blocks: the second is preempted and comes back.
    """
    from vllm.v1.utils import compute_iteration_details

    from course.parity.record import vllm_parts
    from course.parity.traces import Arrival

    config = {
        "block_size": 16, "num_blocks": 5, "max_model_len": 64, "max_num_seqs": 2,
        "max_num_batched_tokens": 64, "enable_prefix_caching": False, "policy": "fcfs",
        "long_prefill_token_threshold": 0, "scheduler_reserve_full_isl": True,
    }  # fmt: skip
    parts = vllm_parts(config)  # type: ignore[arg-type]
    parts.scheduler.use_v2_model_runner = use_v2_model_runner
    requests = {}
    for request_id in ("a", "b"):
        arrival: Arrival = {
            "id": request_id, "step": 0, "prompt": list(range(5, 35)), "priority": 0,
            "max_tokens": 6, "ignore_eos": True, "abort": None,
        }  # fmt: skip
        requests[request_id] = parts.make_request(arrival, 0)
        parts.scheduler.add_request(requests[request_id])
    lines = []
    while parts.scheduler.has_unfinished_requests():
        output = parts.scheduler.schedule()
        details = compute_iteration_details(output)
        lines.append(
            (
                details.num_ctx_requests,
                details.num_ctx_tokens,
                details.num_generation_requests,
                details.num_generation_tokens,
            )
        )
        ids = list(output.num_scheduled_tokens)
        sampled = [
            [9] if requests[i].num_computed_tokens == requests[i].num_tokens else [] for i in ids
        ]
        parts.scheduler.update_from_output(output, parts.make_output(ids, sampled))
    assert requests["b"].num_preemptions == 1
    return lines


@pytest.mark.vllm
def test_a_resumed_request_is_generation_under_v1_and_context_under_v2() -> None:
    v1, v2 = lines_of_a_preemption(False), lines_of_a_preemption(True)
    [(at, one)] = [(i, line) for i, line in enumerate(v1) if line[3] > line[2]]
    assert one == (0, 0, 1, 33)
    assert v2[at] == (1, 33, 0, 0)
    assert [line for i, line in enumerate(v1) if i != at] == v2[:at] + v2[at + 1 :]
