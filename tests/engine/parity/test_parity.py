"""The promise: mini_vllm decides as vLLM does, on recorded workloads and on fresh ones."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from course.parity import decisions as parity
from course.parity import explain, fresh, mini_parts
from course.parity import replay as replay_trace
from course.parity.record import SHAPES, record, vllm_parts, workload
from course.parity.rules import moment
from course.parity.traces import Arrival, Config, Trace, Workload, is_async, read_traces
from mini_vllm.core.kv_cache_coordinator import KVCacheCoordinator
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.single_type_kv_cache_manager import SlidingWindowManager
from tests.engine.helpers.thorough import THOROUGH

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "golden" / "scheduler-0.22.1.jsonl.gz"
ASYNC_GOLDEN = GOLDEN.with_name("async-scheduler-0.22.1.jsonl.gz")
GROUPS_GOLDEN = GOLDEN.with_name("kv-cache-groups-0.22.1.jsonl.gz")
SIZES_GOLDEN = GOLDEN.with_name("kv-cache-block-sizes-0.22.1.jsonl.gz")
DRAFTS_GOLDEN = GOLDEN.with_name("drafts-0.22.1.jsonl.gz")
SHARED = ROOT.parent / "shared" / "golden"
FULL_GOLDEN = SHARED / GOLDEN.name
FULL_ASYNC_GOLDEN = SHARED / ASYNC_GOLDEN.name


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """No run changes a trace, and two or three tests want each file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parity, "read_traces", traces_of)
        yield
    traces_of.cache_clear()


@functools.cache
def traces_of(file: str) -> list[tuple[str, Trace]]:
    return list(read_traces(file))


@pytest.fixture(scope="module")
def golden() -> list[tuple[str, Trace]]:
    return traces_of(str(GOLDEN))


def test_mini_vllm_decides_as_vllm_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert parity.main([str(GOLDEN)]) == 0
    said = "17 traces, 2,752 steps, 0 differences"
    assert said in capsys.readouterr().out
    assert said in (ROOT / "docs/PROOF.md").read_text(encoding="utf-8"), "docs/PROOF.md quotes it"


@pytest.mark.skipif(not THOROUGH or not FULL_GOLDEN.exists(), reason=f"brief, or no {FULL_GOLDEN}")
def test_the_whole_golden_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert parity.main([str(FULL_GOLDEN)]) == 0
    assert "80 traces, 15,872 steps, 0 differences" in capsys.readouterr().out


def test_mini_vllm_plans_ahead_as_vllm_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert parity.main([str(ASYNC_GOLDEN)]) == 0
    said = "11 traces, 1,336 steps, 0 differences"
    assert said in capsys.readouterr().out


@pytest.mark.skipif(
    not THOROUGH or not FULL_ASYNC_GOLDEN.exists(), reason=f"brief, or no {FULL_ASYNC_GOLDEN}"
)
@pytest.mark.parametrize(
    "scheduler", ["async_scheduler:AsyncScheduler", "upstream_scheduler:UpstreamAsyncScheduler"]
)
def test_the_whole_async_golden_file(capsys: pytest.CaptureFixture[str], scheduler: str) -> None:
    """As the differences on purpose are nothing that these workloads see."""
    named = f"mini_vllm.core.sched.{scheduler}"
    assert parity.main([str(FULL_ASYNC_GOLDEN), "--scheduler", named]) == 0
    assert "60 traces, 12,256 steps, 0 differences" in capsys.readouterr().out


def test_the_async_golden_file_has_what_it_is_for() -> None:
    traces = [trace for _, trace in traces_of(str(ASYNC_GOLDEN))]
    configs = [trace["config"] for trace in traces]
    assert {c["policy"] for c in configs} == {"fcfs", "priority"}
    assert {c["enable_prefix_caching"] for c in configs} == {True, False}
    assert {c["block_size"] for c in configs} == {1, 2, 4, 8, 16}
    assert sum(sum(t["preemptions"].values()) for t in traces) > 80
    assert sum("FINISHED_ABORTED" in t["final"].values() for t in traces) >= 4
    assert ASYNC_GOLDEN.stat().st_size < 60_000


def test_mini_vllm_decides_as_vllm_did_with_several_kv_cache_groups(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert parity.main([str(GROUPS_GOLDEN)]) == 0
    assert "40 traces, 6,037 steps, 0 differences" in capsys.readouterr().out


def test_the_file_with_groups_has_what_it_is_for() -> None:
    traces = [trace for _, trace in traces_of(str(GROUPS_GOLDEN))]
    seen = {
        (
            " ".join(group["type"] for group in trace["config"]["kv_cache_groups"]),
            is_async(trace),
            trace["config"]["policy"],
        )
        for trace in traces
    }
    for ahead in (False, True):
        for policy in ("fcfs", "priority"):
            kinds_then = {kinds for kinds, *mode in seen if mode == [ahead, policy]}
            assert kinds_then >= {"full sliding_window", "sliding_window"}
    assert {kinds for kinds, *_ in seen} >= {
        "sliding_window sliding_window", "full sliding_window sliding_window", "full chunked_local",
        "chunked_local",
    }  # fmt: skip
    assert {t["config"]["block_size"] for t in traces} == {1, 2, 4, 8, 16}
    assert sum(sum(t["preemptions"].values()) for t in traces) > 100
    # Blocks out of a window, and hits that begin with such.
    tables = [b for t in traces for s in t["steps"] for b in s.get("blocks", {}).values()]
    assert sum(any(0 in table for table in of_groups) for of_groups in tables) > 1000
    assert GROUPS_GOLDEN.stat().st_size < 120_000


def test_mini_vllm_decides_as_vllm_did_with_blocks_of_different_sizes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parity.main([str(SIZES_GOLDEN)]) == 0
    assert "9 traces, 1,328 steps, 0 differences" in capsys.readouterr().out
    traces = [trace for _, trace in traces_of(str(SIZES_GOLDEN))]
    groups = [trace["config"]["kv_cache_groups"] for trace in traces]
    assert all(len({group["block_size"] for group in each}) > 1 for each in groups)
    assert {is_async(trace) for trace in traces} == {False, True}
    assert sum(sum(t["preemptions"].values()) for t in traces) > 40
    anywhere = property(lambda self: 1, lambda self, value: None)
    monkeypatch.setattr(KVCacheCoordinator, "lcm_block_size", anywhere, raising=False)
    assert parity.main([str(SIZES_GOLDEN)]) == 1, "they see a hit that ends within another's block"


def test_mini_vllm_decides_as_vllm_did_with_drafts(capsys: pytest.CaptureFixture[str]) -> None:
    """Both schedulers, both policies; n-gram, draft model and EAGLE; one KV cache group and several."""
    assert parity.main([str(DRAFTS_GOLDEN)]) == 0, "another decision than vLLM's"
    said = "60 traces, 3,893 steps, 0 differences"
    assert said in capsys.readouterr().out
    assert said in (ROOT / "docs/PROOF.md").read_text(encoding="utf-8"), "docs/PROOF.md quotes it"


def test_the_file_with_drafts_has_what_it_is_for() -> None:
    """All that changes what becomes of a draft is in it."""
    traces = [trace for _, trace in traces_of(str(DRAFTS_GOLDEN))]
    for ahead in (False, True):
        some = [t for t in traces if is_async(t) == ahead]
        configs = [t["config"] for t in some]
        assert len(some) == 30
        assert {c["policy"] for c in configs} == {"fcfs", "priority"}
        assert {c["enable_prefix_caching"] for c in configs} == {True, False}
        specs = [c["speculative_config"] for c in configs]
        assert {s["method"] for s in specs} == {"ngram", "draft_model", "eagle"}
        assert {s["num_speculative_tokens"] for s in specs} == {1, 2, 3, 4, 5}
        assert sum(sum(t["preemptions"].values()) for t in some) > 80
        assert sum("FINISHED_ABORTED" in t["final"].values() for t in some) >= 4
        assert any(c["max_model_len"] < 100 for c in configs)
        assert any("kv_cache_groups" in c for c in configs)
    assert sum("resets" in t for t in traces) >= 4
    steps = [s for t in traces for s in t["steps"]]
    drafts = [tokens for s in steps for tokens in s.get("drafts", {}).values()]
    assert {len(tokens) for tokens in drafts} == {1, 2, 3, 4, 5}
    assert {-1} < {token for tokens in drafts for token in tokens}
    # A stop in the middle of accepted drafts: more tokens came than the request kept.
    cut = 0
    for trace in traces:
        sampled: dict[str, int] = {}
        for step in trace["steps"]:
            for request_id, count in step.get("sampled", {}).items():
                sampled[request_id] = sampled.get(request_id, 0) + count
        ended = [i for i, how in trace["final"].items() if how != "FINISHED_ABORTED"]
        cut += sum(sampled[i] > len(trace["outputs"][i]) for i in ended)
    assert cut > 10
    assert DRAFTS_GOLDEN.stat().st_size < 150_000


def test_a_difference_with_groups_is_shown_side_by_side(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window that never gives anything back."""
    monkeypatch.setattr(SlidingWindowManager, "get_num_skipped_tokens", lambda self, n: 0)
    assert parity.main([str(GROUPS_GOLDEN)]) == 1
    out = capsys.readouterr().out
    assert "blocks in vLLM" in out
    assert "[0, " in out


def test_the_golden_file_has_what_it_is_for(golden: list[tuple[str, Trace]]) -> None:
    configs = [trace["config"] for _, trace in golden]
    assert {c["policy"] for c in configs} == {"fcfs", "priority"}
    assert {c["enable_prefix_caching"] for c in configs} == {True, False}
    assert {c["block_size"] for c in configs} >= {1, 2, 4, 8, 16}
    assert any(c["long_prefill_token_threshold"] for c in configs)
    assert sum(sum(t["preemptions"].values()) for _, t in golden) > 200
    assert sum("FINISHED_ABORTED" in t["final"].values() for _, t in golden) >= 5
    assert GOLDEN.stat().st_size < 60_000


@pytest.mark.vllm
def test_vllm_itself_takes_the_recorded_decisions(golden: list[tuple[str, Trace]]) -> None:
    for where, trace in golden:
        assert record(trace, vllm_parts(trace["config"])) == trace, where
    for where, trace in traces_of(str(ASYNC_GOLDEN)):
        assert record(trace, vllm_parts(trace["config"], True), True) == trace, where
    for file in (GROUPS_GOLDEN, SIZES_GOLDEN, DRAFTS_GOLDEN):
        for where, trace in traces_of(str(file)):
            ahead = is_async(trace)
            assert record(trace, vllm_parts(trace["config"], ahead), ahead) == trace, where


@pytest.mark.vllm
@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("shape", SHAPES)
def test_fresh_workloads_from_the_real_classes(shape: str, async_scheduling: bool) -> None:
    """PARITY_SEEDS="7 8 9" chooses other workloads than the usual ones."""
    seeds = os.environ.get("PARITY_SEEDS") or "101 102 103 104 105 106"
    for seed in map(int, seeds.split()):
        work = workload(seed, shape)
        trace = record(work, vllm_parts(work["config"], async_scheduling), async_scheduling)
        found = replay_trace(f"{shape} {seed}", trace)
        assert found is None, explain(found)


@pytest.mark.vllm
def test_the_command_for_workloads_that_nobody_has_run(capsys: pytest.CaptureFixture[str]) -> None:
    """What docs/PROOF.md tells a reader to run, in small."""
    assert fresh.main(["7", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("16 workloads, ")
    assert " 0 differences, and " in out


def _lost_turn() -> Workload:
    """Under `priority`: r2's last token is in flight, r0 behind it needs a block and takes r2's, so the
    list moves up, and r1 is passed over."""
    jobs = [("r0", 2, 4, 3, 1), ("r1", 3, 5, 4, 3), ("r2", 1, 3, 3, 3)]
    requests: list[Arrival] = [
        {
            "id": name, "step": step, "prompt": list(range(3, 3 + prompt)), "max_tokens": most,
            "ignore_eos": True, "priority": priority, "abort": None,
        }
        for name, step, prompt, most, priority in jobs
    ]  # fmt: skip
    config: Config = {
        "block_size": 1, "num_blocks": 16, "max_num_seqs": 3, "max_num_batched_tokens": 64,
        "long_prefill_token_threshold": 0, "enable_prefix_caching": False, "max_model_len": 64,
        "policy": "priority",
    }  # fmt: skip
    return {"seed": 0, "config": config, "requests": requests}


def test_a_turn_is_lost_behind_a_victim_in_flight() -> None:
    trace = record(_lost_turn(), mini_parts(_lost_turn()["config"], AsyncScheduler), True)
    plan = trace["steps"][5]
    assert (plan["preempted"], plan["scheduled"], plan["running"]) == (
        ["r2"],
        {"r0": 1},
        ["r0", "r1"],
    )
    now = moment(trace, 5)
    assert now.reasons["r1"].rule == "lost"


@pytest.mark.vllm
def test_vllm_loses_that_turn_too() -> None:
    trace = record(_lost_turn(), vllm_parts(_lost_turn()["config"], True), True)
    assert trace == record(_lost_turn(), mini_parts(_lost_turn()["config"], AsyncScheduler), True)
