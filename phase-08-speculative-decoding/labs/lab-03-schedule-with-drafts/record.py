"""Record `traces.jsonl.gz` with vLLM's own schedulers, which takes its CPU build and no model.

    python phase-08-speculative-decoding/labs/lab-03-schedule-with-drafts/record.py

Workloads are drawn from a seed. What is drafted and sampled are the pure functions of support.py.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import support  # noqa: E402

from course.parity.record import vllm_parts  # noqa: E402
from course.parity.traces import Parts  # noqa: E402

METHODS = ("ngram", "eagle", "draft_model")
COUNT = 24


def draw(seed: int) -> dict[str, Any]:
    """A small workload in a small pool; the same for the same seed."""
    rng = random.Random(f"drafts {seed}")
    ahead = seed % 2 == 1
    method = METHODS[1 + seed // 2 % 2] if ahead else METHODS[seed // 2 % 3]
    k = rng.choice([1, 2, 3, 5])
    stem = [rng.randint(3, 50) for _ in range(20)]
    requests, step = [], 0
    for i in range(rng.randint(3, 6)):
        step += rng.choice([0, 0, 1, 3])
        prompt = stem[: rng.choice([0, 8, 16])] + [
            rng.randint(3, 50) for _ in range(rng.randint(1, 8))
        ]
        arrival = {
            "id": f"r{i}",
            "step": step,
            "prompt": prompt,
            "max_tokens": rng.randint(1, 20),
            "ignore_eos": rng.random() < 0.5,
            "priority": rng.randint(0, 2),
            "abort": step + rng.randint(1, 8) if rng.random() < 0.15 else None,
        }
        requests.append(arrival)
    block_size, max_model_len = rng.choice([1, 2, 4, 4]), rng.choice([32, 40, 64])
    seqs = rng.randint(2, 5)
    # Enough for the longest request alone, with its drafts and their drafter's slots.
    longest = max(len(q["prompt"]) + q["max_tokens"] for q in requests) + 3 * k
    need = -(-min(longest, max_model_len) // block_size)
    config = {
        "block_size": block_size,
        "num_blocks": 1 + need + rng.choice([0, 1, 3, need]),
        "max_num_seqs": seqs,
        "max_num_batched_tokens": 2 * seqs + rng.choice([0, 3, 8, 32]),
        "long_prefill_token_threshold": rng.choice([0, 0, 3]),
        "enable_prefix_caching": rng.random() < 0.7,
        "max_model_len": max_model_len,
        "policy": rng.choice(["fcfs", "fcfs", "priority"]),
    }
    spec = {
        "method": method,
        "num_speculative_tokens": k,
        "acceptance": rng.choice([0, 40, 70, 100]),
    }
    if method != "ngram":
        spec["model"] = "a drafter"
    return {
        "seed": seed,
        "ahead": ahead,
        "speculative": spec,
        "config": config,
        "requests": requests,
    }


def vllm_with_drafts(work: dict[str, Any]) -> Parts:
    """vLLM's scheduler for a workload. Of its `SpeculativeConfig` a scheduler asks three things only."""
    config, spec = work["config"], work["speculative"]
    parts = vllm_parts(config, work["ahead"])
    made = parts.scheduler
    vllm_config = copy.copy(made.vllm_config)
    vllm_config.speculative_config = SimpleNamespace(
        num_speculative_tokens=spec["num_speculative_tokens"],
        use_eagle=lambda: spec["method"] == "eagle",
        uses_draft_model=lambda: spec["method"] == "draft_model",
    )
    # What `VllmConfig._set_max_num_scheduled_tokens` does for a draft model.
    rows = config["max_num_seqs"] if spec["method"] == "draft_model" else 0
    vllm_config.scheduler_config = copy.copy(vllm_config.scheduler_config)
    budget = config["max_num_batched_tokens"] - rows
    vllm_config.scheduler_config.max_num_scheduled_tokens = budget
    scheduler = type(made)(
        vllm_config=vllm_config,
        kv_cache_config=made.kv_cache_config,
        structured_output_manager=made.structured_output_manager,
        block_size=config["block_size"],
        log_stats=False,
    )

    def block_ids(request_id: str) -> list[int]:
        return list(scheduler.kv_cache_manager.get_block_ids(request_id)[0])

    return replace(parts, scheduler=scheduler, block_ids=block_ids)


def record(seed: int) -> dict[str, Any]:
    work = draw(seed)
    run = support.Run(work, vllm_with_drafts(work))
    calls = list(run.calls())
    return work | {"calls": calls, "outputs": run.outputs(), "preemptions": run.preemptions()}


def main() -> None:
    lines = []
    for seed in range(COUNT):
        trace = record(seed)
        lines.append(json.dumps(trace, separators=(",", ":")))
        lost = sum(trace["preemptions"].values())
        print(f"{seed}: {len(trace['calls'])} calls, {lost} preemptions", trace["speculative"])
    data = "\n".join(lines).encode() + b"\n"
    support.TRACES.write_bytes(gzip.compress(data, mtime=0))
    print(f"{support.TRACES.name}: {support.TRACES.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
