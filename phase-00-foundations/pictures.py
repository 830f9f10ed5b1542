"""Draws the pictures of this phase's pages, from arithmetic or from a run of the shipped model.

    python phase-00-foundations/pictures.py            writes pictures/*.svg

What they are drawn with is in `course/docs/drawing.py`.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from course.docs.drawing import Drawing, write_all

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from napkin import GIB, bandwidth, flops, for_kv, params, per_token, two_requests  # noqa: E402


def memory() -> Drawing:
    """The 80 GiB: weights, 58 requests of 8,192 tokens, and what vLLM does not use."""
    d = Drawing("Where the 80 GiB of an A100 go when Llama-3-8B runs on it", 180)
    left, scale, top, high = 20.0, 7.5, 62.0, 50.0
    weights, each = 2 * params / GIB, 8192 * per_token / GIB
    fit, given = int(for_kv / GIB / each), 0.92 * 80
    d.text(left, 28, "80 GiB, of which vLLM takes 92%")
    d.box(left, top, 80 * scale, high, "none")
    d.box(left, top, weights * scale, high, "A")
    d.text(left + weights * scale / 2, top + 31, "weights", "on", "middle")
    for i in range(fit):
        d.box(left + (weights + i * each) * scale + 0.5, top, each * scale - 1.5, high, "C")
    d.box(left, top, 80 * scale, high, "edge")
    line = left + given * scale
    d.path([(line, top - 10), (line, top + high + 10)], "bold", 2.5)
    d.text(line, top - 16, f"{given:.1f} GiB", "s", "middle")
    d.text(left, top + high + 22, f"{weights:.1f} GiB", "s")
    middle = left + (weights + fit * each / 2) * scale
    d.text(
        middle, top + high + 22, f"{fit} requests of 8,192 tokens, {each:g} GiB each", "s", "middle"
    )
    d.text(left + 80 * scale, top + high + 22, "not used", "s", "end")
    rest = for_kv / GIB - fit * each
    d.text(
        middle,
        top + high + 44,
        f"the {fit + 1}th waits: only {rest:.1f} GiB are left",
        "s",
        "middle",
    )
    return d


def roofline() -> Drawing:
    """Steps of Llama-3-8B under the roof of an A100."""
    d = Drawing("The roofline of an A100 with steps of Llama-3-8B on it", 430)
    left, bottom, wide, high = 55, 360, 560, 300

    def at(x: float, y: float) -> tuple[float, float]:
        return left + wide * math.log10(x) / 3.5, bottom - high * math.log10(y / 1e12) / 2.8

    ridge, end = flops / bandwidth, 10**3.5
    for x in (1, 10, 100, 1000):
        d.path([at(x, 1e12), at(x, 10**14.8)], "thin")
        d.text(at(x, 1e12)[0], bottom + 20, f"{x:,}", "s", "middle")
    for y in (1, 10, 100):
        d.path([at(1, y * 1e12), at(end, y * 1e12)], "thin")
        d.text(left - 8, at(1, y * 1e12)[1] + 4, y, "s", "end")
    d.text(20, 28, "TFLOP/s at most (tokens per second in brackets)")
    d.text(left + wide / 2, bottom + 42, "FLOP per byte read", "s", "middle")
    d.text(
        left + wide / 2,
        bottom + 60,
        "(with 16-bit weights and short caches: tokens in the pass)",
        "s",
        "middle",
    )
    d.path([at(1, bandwidth), at(ridge, flops), at(end, flops)], "bold", 2.5)
    d.text(at(4, 1)[0], at(1, 40e12)[1], "memory-bound", "s", "middle")
    d.text(at(1000, 1)[0], at(1, 64e12)[1], "compute-bound", "s", "middle")
    d.path([at(ridge, flops), at(ridge, 1e12)], "to")
    d.text(at(ridge, 1)[0] + 8, bottom - 10, f"ridge {ridge:.0f}", "s")

    def step(tokens: int, cache: float, words: str, css: str, dx: float, dy: float) -> None:
        intensity = 2 * params * tokens / (2 * params + cache)
        rate = min(flops, intensity * bandwidth)
        x, y = at(intensity, rate)
        d.dot(x, y, css)
        d.text(x + dx, y + dy, f"{words} ({rate / (2 * params):,.0f})")

    step(1, 0, "1 reader", "A", 12, 6)
    step(16, 0, "16 readers", "A", 12, 6)
    step(153, 0, "153 readers", "A", 12, 24)
    step(2048, 0, "a prompt of 2,048", "B", -185, -14)
    step(58, 58 * 8192 * per_token, "58 readers, caches full", "C", 14, 20)
    before, after = at(58, 58 * bandwidth), at(13, 13 * bandwidth)
    d.arrow(before[0] - 16, before[1] - 8, after[0] - 8, after[1] - 22, 1.5)
    d.dot(*before, "none edge")
    d.text(before[0] + 12, before[1] + 6, "58 readers, caches short", "s")
    return d


def attention() -> Drawing:
    """The guide's three tokens: what `cache` collects, and in which shares."""
    q = np.array([2.0, 1.0])
    keys = np.array([[0.0, 1.0], [2.0, 0.0], [1.0, 0.0]])
    values = np.array([[0.0, 10.0], [10.0, 0.0], [5.0, 5.0]])
    scores = keys @ q
    shares = np.exp(scores / math.sqrt(2)) / np.exp(scores / math.sqrt(2)).sum()
    d = Drawing("Attention of the token cache to the three tokens The, KV and cache", 330)

    def numbers(vector: Iterable[float]) -> str:
        return ", ".join(f"{x:.3g}" for x in vector)

    for i, word in enumerate(("The", "KV", "cache")):
        x = 120 + 200 * i
        d.cell(x - 70, 24, 140, 32, word, "B" if i == 2 else "A")
        d.text(x, 78, f"key {numbers(keys[i])}", "s", "middle")
        d.text(x, 97, f"times the query: {scores[i]:g}", "s", "middle")
        d.text(x, 116, f"value {numbers(values[i])}", "s", "middle")
        end = 320 + (i - 1) * 56
        d.arrow(x, 128, end, 246, 1 + 12 * shares[i])
        d.text((x + end) / 2 + (24 if i else -66), 192, f"{shares[i]:.3f}")
    d.cell(230, 250, 180, 32, numbers(shares @ values), "B")
    d.text(
        320,
        306,
        f"cache asks with its query {numbers(q)} and gets this mix of values",
        "s",
        "middle",
    )
    return d


def block_table() -> Drawing:
    """Two requests after some steps: block tables, and the slots that they lead to."""
    engine = two_requests(max_tokens=40)
    for _ in range(5):
        engine.step()
    core = engine.engine_core
    requests = core.scheduler.requests
    tables = {name: core.kv_cache_manager.get_block_ids(name)[0] for name in requests}
    d = Drawing("Block tables of two requests, and the slots of the pool that they lead to", 300)
    owner = {block: name for name, ids in tables.items() for block in ids}
    d.text(20, 30, "block tables")
    d.text(250, 30, "the pool: blocks of 16 slots")
    for block in range(max(owner) + 1):
        y, name = 50 + 58 * block, owner.get(block)
        d.text(240, y + 19, f"block {block}", "s", "end")
        first = tables[name].index(block) * 16 if name else 0
        for i in range(16):
            filled = name is not None and first + i < requests[name].num_computed_tokens
            d.box(250 + 23 * i, y, 22, 28, f"{name}" if filled else "none edge")
            if filled:
                d.text(261 + 23 * i, y + 19, first + i, "on s", "middle")
        d.text(250, y + 44, f"slots {16 * block} to {16 * block + 15}", "s")
        if not block:
            d.text(618, y + 44, "the null block: no request gets it", "s", "end")
    at = 56
    for name, ids in tables.items():
        d.text(20, at + 4, f"{name}: {requests[name].num_computed_tokens} tokens", "s")
        for logical, block in enumerate(ids):
            d.cell(20, at + 12, 80, 28, f"{logical} → {block}", name)
            d.arrow(102, at + 26, 182, 64 + 58 * block)
            at += 32
        at += 44
    return d


def flat_batch() -> Drawing:
    """The second step of that run: one token of A, six of B, as the model gets them."""
    engine = two_requests(max_tokens=40)
    seen: dict[str, list[int]] = {}
    scheduled: dict[str, int] = {}
    forward = engine.model.forward

    def watched(input_ids: Any, positions: Any, caches: Any, meta: Any) -> Any:
        arrays = {"input_ids": input_ids, "positions": positions, "slot_mapping": meta.slot_mapping}
        arrays["query_start_loc"] = meta.query_start_loc
        seen.update({name: array.tolist() for name, array in arrays.items()})
        return forward(input_ids, positions, caches, meta)

    engine.model.forward = watched  # type: ignore[method-assign,assignment]
    engine.engine_core.step_observers.append(
        lambda step: scheduled.update(step.scheduler_output.num_scheduled_tokens)
    )
    engine.step()
    d = Drawing("The flat arrays of a step with one decoding request and a newcomer", 280)
    d.text(
        20,
        30,
        "the schedule: "
        + ", ".join(f"{count} of {name}'s tokens" for name, count in scheduled.items()),
    )
    owners = [name for name, count in scheduled.items() for _ in range(count)]
    for row, name in enumerate(("input_ids", "positions", "slot_mapping")):
        d.text(128, 73 + 40 * row, name, "", "end")
        for i, (number, who) in enumerate(zip(seen[name], owners, strict=True)):
            d.cell(140 + 68 * i, 52 + 40 * row, 64, 30, number, who)
    starts = seen["query_start_loc"]
    for first, end in itertools.pairwise(starts):
        last = 140 + 68 * (end - 1) + 32
        d.path([(140 + 68 * first, 172), (136 + 68 * end, 172)], "to", 2)
        d.arrow(last, 174, last, 204)
        d.text(last, 224, f"logits of {owners[first]}", "", "middle")
    d.text(
        20,
        258,
        f"query_start_loc {starts} says where each request begins; its last row gets logits",
        "s",
    )
    return d


PICTURES: dict[str, Callable[[], Drawing]] = {
    "memory": memory,
    "roofline": roofline,
    "attention": attention,
    "block-table": block_table,
    "flat-batch": flat_batch,
}


if __name__ == "__main__":
    write_all(__file__, PICTURES)
