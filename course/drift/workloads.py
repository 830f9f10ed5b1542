"""The workloads that each release decides: the recorded ones, and fresh ones of every shape."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from course.parity.traces import Trace, Workload, is_async, read_traces
from course.parity.workloads import SHAPES, workload

GOLDEN = Path(__file__).parents[2] / "tests" / "golden"
RECORDED = ("scheduler", "async-scheduler", "drafts", "kv-cache-groups", "kv-cache-block-sizes")
SEEDS = range(7000, 7007)
"""Of the fresh workloads: each seed gives one of each shape, scheduled synchronously and asynchronously."""

STEPS = 3000
"""A workload that takes more does not end: the longest takes some hundred."""


@dataclass(frozen=True)
class Case:
    """One workload, and whether it is scheduled asynchronously. `group` is its file, or `fresh` and its
    shape."""

    group: str
    name: str
    work: Workload
    ahead: bool


def golden(group: str) -> Iterator[tuple[Case, Trace]]:
    """The recorded workloads of a file, with what the pin decided."""
    for where, trace in read_traces(str(GOLDEN / f"{group}-0.22.1.jsonl.gz")):
        yield Case(group, where.rpartition(":")[2], trace, is_async(trace)), trace


@cache
def cases() -> tuple[Case, ...]:
    """All workloads, in the order in which the results have their digests."""
    found = [case for group in RECORDED for case, _ in golden(group)]
    for shape in SHAPES:
        for seed in SEEDS:
            for ahead in (False, True):
                name = f"{seed} {'async' if ahead else 'sync'}"
                found.append(Case(f"fresh {shape}", name, workload(seed, shape), ahead))
    return tuple(found)


def digest(trace: Trace, fields: Sequence[str] | None = None) -> str:
    """Ten hexadecimal digits for all that was decided: each step, in its order, and how it ended.

    Args:
        fields: of the steps, these only; None: all.
    """
    steps: Sequence[object] = trace["steps"]
    if fields is not None:
        steps = [{name: step.get(name) for name in fields} for step in trace["steps"]]
    decided = [steps, trace["outputs"], trace["final"], trace["preemptions"]]
    text = json.dumps(decided, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]
