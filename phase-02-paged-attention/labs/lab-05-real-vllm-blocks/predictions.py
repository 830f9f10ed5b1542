"""Given: a lab's functions on a record of vLLM's, as pairs of what vLLM said and what they say.

capture.py prints the pairs, the lab's tests and the live ones in tests/engine compare them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RECORD = HERE / "capture.jsonl"
LAYERS, KV_HEADS, HEAD_SIZE = 4, 2, 32
"""Of the shipped checkpoint, from its config.json."""

CHANGING = (
    "preempted", "token_budget", "num_running", "ahead", "num_tokens", "hit_blocks", "free_hit_blocks",
    "free_blocks",
)  # fmt: skip
"""The fields of `Moment` that change, in the order in which the capture keeps them."""

Line = dict[str, Any]
Pair = tuple[str, Any, Any]


def read_capture() -> list[Line]:
    """The committed capture: how it was made, then a record for each run."""
    return [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]


def tokens(prompt: list[list[int]]) -> list[int]:
    """A prompt, from pairs (token id, how often)."""
    return [token for token, count in prompt for _ in range(count)]


def predict(lab: Any, line: Line) -> Iterator[Pair]:
    """What is predicted, what vLLM said, and what the functions of `lab` say."""
    pairs: Iterator[Pair] = globals()[f"of_{line['kind']}"](lab, line)
    return pairs


def of_start(lab: Any, line: Line) -> Iterator[Pair]:
    s, said = line["settings"], line["said"]
    dtype = s.get("kv_cache_dtype", s.get("dtype", "float32"))
    page = lab.page_bytes(s["block_size"], KV_HEADS, HEAD_SIZE, dtype)
    memory, order = s["kv_cache_memory_bytes"], s.get("num_gpu_blocks_override")
    blocks = lab.num_gpu_blocks(memory, LAYERS, page, order)
    length = s["max_model_len"]
    concurrency = lab.max_concurrency(blocks, length, s["block_size"])
    yield "refused to start", "refused" in said, concurrency < 1
    if "refused" in said:
        return
    yield "num_gpu_blocks", said["num_gpu_blocks"], blocks
    size, most = said["log"]
    count = lab.kv_cache_tokens(blocks, length, s["block_size"])
    yield "log", size, f"GPU KV cache size: {count:,} tokens"
    yield "log", most, f"Maximum concurrency for {length:,} tokens per request: {concurrency:.2f}x"


def of_at_once(lab: Any, line: Line) -> Iterator[Pair]:
    s, said = line["settings"], line["said"]
    for asks, record in zip(line["rounds"], said["rounds"], strict=True):
        ran = sum(moment[1] for moment in record["steps"][0]["moments"])
        length = len(tokens(asks[0]["prompt"]))
        mine = lab.run_at_once(
            said["num_gpu_blocks"], length, s["block_size"], said["max_num_seqs"]
        )
        yield (
            f"{len(asks)} prompts of length {length}, in the first step",
            ran,
            min(mine, len(asks)),
        )


def of_grants(lab: Any, line: Line) -> Iterator[Pair]:
    s, said = line["settings"], line["said"]
    for [ask], record in zip(line["rounds"], said["rounds"], strict=True):
        granted = [step["granted"].get(ask["name"], 0) for step in record["steps"]]
        length, most = len(tokens(ask["prompt"])), ask["max_tokens"]
        mine = lab.blocks_granted(length, most, s["block_size"], said["max_num_batched_tokens"])
        yield f"blocks granted, {length} tokens and {most} more", granted, mine


def of_hits(lab: Any, line: Line) -> Iterator[Pair]:
    said = line["said"]
    prompts, cached, lookups = [], [], []
    for asks, record in zip(line["rounds"], said["rounds"], strict=True):
        for ask in asks:
            prompts.append(tokens(ask["prompt"]))
            cached.append(record["cached"][ask["name"]])
            lookups.append(record["lookups"][ask["name"]])
    block_size = line["settings"]["block_size"]
    yield "num_cached_tokens", cached, lab.expected_hits(prompts, block_size)
    counted = said["metrics"]
    rate = f"{counted['hits'] / counted['queries']:.1%}"
    mine = f"{lab.hit_rate(prompts, block_size, lookups):.1%}"
    yield f"hit rate, looked up {lookups} times", rate, mine


def moments(lab: Any, line: Line) -> Iterator[tuple[int, str, bool, Any]]:
    """Step, request, whether vLLM let it in, and the moment, for all moments of a run."""
    s, said = line["settings"], line["said"]
    fixed = {
        "max_num_seqs": said["max_num_seqs"],
        "num_gpu_blocks": said["num_gpu_blocks"],
        "block_size": s["block_size"],
        "reserve_full_isl": s.get("scheduler_reserve_full_isl", True),
        "long_prefill_token_threshold": s.get("long_prefill_token_threshold", 0),
    }
    for record in said["rounds"]:
        for step, what in enumerate(record["steps"], 1):
            for name, admitted, *values in what["moments"]:
                yield (
                    step,
                    name,
                    bool(admitted),
                    lab.Moment(**fixed, **dict(zip(CHANGING, values, strict=True))),
                )


def of_moments(lab: Any, line: Line) -> Iterator[Pair]:
    for step, name, admitted, moment in moments(lab, line):
        rule = lab.why_waiting(moment)
        said = "let in" if admitted else "waits"
        why = f" ({rule})" if rule and not admitted else ""
        what = f"step {step}, {name}, {moment.num_tokens} tokens, free blocks {moment.free_blocks}"
        yield what + why, said, "waits" if rule else "let in"
