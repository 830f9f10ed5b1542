"""Lab 02-09: what vLLM 0.22.1 decided about models with windows, replayed on your two classes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from course.learner.labs import find_root, load_support
from course.parity.decisions import mini_parts
from course.parity.traces import Run, Trace, is_async, read_traces

support = load_support(__file__)
GOLDEN = (
    find_root(Path(__file__).resolve().parent)
    / "tests"
    / "golden"
    / "kv-cache-groups-0.22.1.jsonl.gz"
)


def traces() -> list[Trace]:
    """Those of the synchronous scheduler in which all windows slide."""

    def is_meant(trace: Trace) -> bool:
        kinds = {group["type"] for group in trace["config"]["kv_cache_groups"]}
        return not is_async(trace) and "chunked_local" not in kinds

    return [trace for _, trace in read_traces(str(GOLDEN)) if is_meant(trace)]


def test_the_same_blocks_as_vllm(lab: ModuleType) -> None:
    """Every table of every step is vLLM's: its hits, the blocks freed and the new ones."""
    recorded = traces()
    steps = [step for trace in recorded for step in trace["steps"]]
    tables = sum(len(of_one) for step in steps for of_one in step["blocks"].values())
    assert (len(recorded), tables) == (16, 9393), "the README says how many there are"
    for trace in recorded:
        parts = mini_parts(trace["config"])
        manager: Any = parts.scheduler.kv_cache_manager
        support.put_in(manager, lab)
        run = Run(trace, parts)
        windows = [group["size"] for group in trace["config"]["kv_cache_groups"]]
        for step, theirs in enumerate(trace["steps"]):
            run.arrive()
            ours = run.decide()
            said = f"seed {trace['seed']}, windows {windows} (0: full attention), step {step}"
            for name, table in theirs["blocks"].items():
                mine = [list(run) for run in ours["blocks"].get(name, [])]
                assert mine == table, (
                    f"{said}: {name}'s tables are {table} in vLLM, {mine} with yours"
                )
            assert ours["scheduled"] == theirs["scheduled"], (
                f"{said}: vLLM schedules {theirs['scheduled']}, with yours it is {ours['scheduled']}"
            )
            assert ours["free"] == theirs["free"], (
                f"{said}: {theirs['free']} blocks are free in vLLM, {ours['free']} with yours"
            )
        manager.check_invariants()
