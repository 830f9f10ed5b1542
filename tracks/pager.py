"""Incidents on one server, replayed by the real scheduler on a virtual clock, and what its meters show.

    python tracks/pager.py             # one incident a row
    python tracks/pager.py budget      # one load under several token budgets

The server is Llama-3-8B on an A100, `mini-vllm simulate`'s preset, whose step times are derived from the
data sheet; scheduling is asynchronous, the default on GPUs. Each row changes the load or a setting of the
first. Gauges (running, waiting, usage) are read in the middle of the run, as a dashboard would; "tokens" is
per step, "stay" is in seconds, the latencies are in milliseconds.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.config.engine import EngineConfig
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.sim import (
    Lengths,
    ServingMetrics,
    Simulator,
    arrival_times,
    load_cost,
    mini_parts,
    random_requests,
)

PROMPTS = 1000


@dataclass(frozen=True)
class Incident:
    """A load (requests per second, lengths in tokens as `mini-vllm simulate` takes them) and settings."""

    name: str
    rate: float = 12.0
    input_len: str = "uniform:100:900"
    output_len: str = "uniform:50:350"
    prefix_len: int = 0
    num_prefixes: int = 1
    settings: dict[str, Any] = field(default_factory=dict)


INCIDENTS = (
    Incident("a calm day"),
    Incident("slots full (32)", rate=24, settings={"max_num_seqs": 32}),
    Incident("the same, 256 slots", rate=24),
    Incident("blocks short", rate=24, settings={"num_gpu_blocks": 1500}),
    Incident("budget full", rate=10, input_len="uniform:3000:5000", output_len="uniform:20:60"),
    Incident(
        "long contexts", rate=1.6, input_len="uniform:5000:6500", output_len="uniform:400:900"
    ),
    Incident("prompts in between", input_len="lognormal:200:1.2:7000"),
    Incident("one prefix of 3,000", rate=8, prefix_len=3000),
    Incident("a prefix each", rate=8, prefix_len=3000, num_prefixes=100_000),
)


def replay(incident: Incident) -> dict[str, float]:
    """Run the incident and read its meters: gauges at the middle of the run, the rest over all of it."""
    cost = load_cost("a100-llama-3-8b")
    assert cost.num_kv_tokens is not None
    settings = {
        "num_gpu_blocks": cost.num_kv_tokens // 16,
        "max_model_len": cost.max_model_len,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
    } | incident.settings
    metrics = ServingMetrics(percentiles=(99, 99.9))
    parts = mini_parts(EngineConfig(**settings), AsyncScheduler, async_scheduling=True)
    simulator = Simulator(parts, cost, metrics)
    requests = random_requests(
        arrival_times(PROMPTS, incident.rate),
        Lengths.parse(incident.input_len),
        Lengths.parse(incident.output_len),
        incident.prefix_len,
        incident.num_prefixes,
    )
    simulator.run(requests)
    rows = metrics.timeline.rows
    _, running, waiting, usage = rows[len(rows) // 2]
    result = metrics.result(simulator.num_preemptions)
    return {
        "run": running,
        "wait": waiting,
        "usage": usage,
        "preempt": result["num_preemptions"],
        "hits": result["cached_prompt_tokens"] / result["total_input_tokens"],
        "tokens": result["tokens_per_step"],
        "TTFT p50": result["median_ttft_ms"],
        "p99": result["p99_ttft_ms"],
        "ITL p50": result["median_itl_ms"],
        "p99 ": result["p99_itl_ms"],
        "p99.9": result["p99.9_itl_ms"],
        "stay": result["mean_e2el_ms"] / 1e3,
    }


BUDGETS = tuple(
    Incident(
        f"{budget:,}",
        input_len="lognormal:200:1.2:7000",
        settings={"max_num_batched_tokens": budget, "max_num_seqs": 64},
    )
    for budget in (64, 128, 256, 512, 2048, 8192)
)


def main() -> None:
    budget = sys.argv[1:] == ["budget"]
    incidents = BUDGETS if budget else INCIDENTS
    rows = [replay(incident) for incident in incidents]
    table = [["budget" if budget else "", *(meter.strip() for meter in rows[0])]]
    for incident, row in zip(incidents, rows, strict=True):
        table.append([incident.name])
        for meter, value in row.items():
            table[-1].append(f"{value:,.{2 if meter in ('usage', 'hits', 'stay') else 0}f}")
    first, *others = (max(map(len, column)) for column in zip(*table, strict=True))
    for name, *cells in table:
        print(f"{name:{first}}", *(f"{c:>{w}}" for c, w in zip(cells, others, strict=True)))


if __name__ == "__main__":
    main()
