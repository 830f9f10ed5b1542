"""Lab 07-05: what a profile of a mixture of experts says, and what it cannot. One way to do it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Event(NamedTuple):
    """Given: an operator's call in a trace.

    Attributes:
        start, duration: microseconds. Calls that it makes lie within.
        dims: the shapes of its tensors, the result's too where it is handed in; may be empty.
    """

    name: str
    start: float
    duration: float
    dims: tuple[tuple[int, ...], ...] = ()


class Step(NamedTuple):
    """Given: a step of the engine, and the operators that ran in it, in the order of their start.

    Attributes:
        name: how many requests and (tokens) were in it, such as `execute_context_0(0)_generation_16(16)`.
    """

    name: str
    start: float
    duration: float
    events: list[Event]


class Model(NamedTuple):
    """Given: a Mixtral by its `config.json`."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    experts: int
    intermediate: int
    top_k: int
    vocab: int


TINY = Model(4, 128, 4, 2, 32, 8, 128, 2, 264)
ILSES = Model(32, 4096, 32, 8, 128, 8, 14336, 2, 32_000)
"""Mixtral-8x7B."""
PARTS = ("qkv", "o", "router", "experts", "head")


def steps_of(trace: Mapping[str, Any]) -> list[Step]:
    """Given: the steps of a trace in Chrome's format, as torch's profiler and vLLM's annotations write it."""

    def as_event(raw: Mapping[str, Any]) -> Event:
        dims = raw.get("args", {}).get("Input Dims", [])
        return Event(raw["name"], raw["ts"], raw["dur"], tuple(tuple(dim) for dim in dims if dim))

    whole = [raw for raw in trace["traceEvents"] if raw.get("ph") == "X"]
    calls = [as_event(raw) for raw in whole if raw.get("cat") == "cpu_op"]
    calls.sort(key=lambda call: (call.start, -call.duration))
    steps = []
    for raw in whole:
        if raw.get("cat") == "user_annotation" and raw["name"].startswith("execute_"):
            start, end = raw["ts"], raw["ts"] + raw["dur"]
            inside = [call for call in calls if start <= call.start < end]
            steps.append(Step(raw["name"], start, raw["dur"], inside))
    return sorted(steps, key=lambda step: step.start)


def predictions() -> dict[str, float]:
    """Eight guesses."""
    return {
        "products a step": 13,
        "calls of the experts a step": 4,
        "launches a layer, CUDA, 64 tokens": 6,
        "launches a layer, CUDA, 1 token": 5,
        "products seen from outside": 0,
        "experts touched by 1": 2,
        "experts touched by 16": 7.9,
        "experts' share of the bytes, Ilse alone": 0.88,
    }


# ---- the trace -----------------------------------------------------------------------------------


def self_times(events: Sequence[Event]) -> dict[str, float]:
    """A stack of the calls that are open; each takes its time away from the one below it."""
    own: dict[str, float] = {}
    open_calls: list[Event] = []
    for event in events:
        while open_calls and open_calls[-1].start + open_calls[-1].duration <= event.start:
            open_calls.pop()
        own[event.name] = own.get(event.name, 0.0) + event.duration
        if open_calls:
            own[open_calls[-1].name] -= event.duration
        open_calls.append(event)
    return own


def part_of(event: Event, model: Model) -> str | None:
    """By name, and a product by its two widths."""
    if event.name == "_C::cpu_fused_moe":
        return "experts"
    if event.name != "_C::onednn_mm":
        return None
    (_, out), (_, into) = event.dims[:2]
    q, kv = model.heads * model.head_size, model.kv_heads * model.head_size
    widths = {
        (q + 2 * kv, model.hidden): "qkv",
        (model.hidden, q): "o",
        (model.experts, model.hidden): "router",
        (-(-model.vocab // 64) * 64, model.hidden): "head",
    }
    return widths.get((out, into))


# ---- the arithmetic ------------------------------------------------------------------------------


def experts_touched(experts: int, top_k: int, tokens: int) -> float:
    """Each token leaves an expert out with probability 1 - k/E."""
    return experts * (1 - (1 - top_k / experts) ** tokens)


def work(model: Model, tokens: int, width: int) -> dict[str, tuple[float, float]]:
    """Weights times tokens, and weights times bytes; of the experts, those touched are read."""
    q, kv = model.heads * model.head_size, model.kv_heads * model.head_size
    expert = 3 * model.hidden * model.intermediate
    weights = {
        "qkv": model.layers * model.hidden * (q + 2 * kv),
        "o": model.layers * q * model.hidden,
        "router": model.layers * model.hidden * model.experts,
        "head": model.hidden * model.vocab,
    }
    found = {name: (2.0 * n * tokens, float(n * width)) for name, n in weights.items()}
    touched = experts_touched(model.experts, model.top_k, tokens)
    found["experts"] = (
        2.0 * model.layers * model.top_k * expert * tokens,
        model.layers * touched * expert * width,
    )
    return found


def shares(numbers: Mapping[str, float]) -> dict[str, float]:
    """Each over the sum."""
    total = sum(numbers.values())
    return {name: number / total for name, number in numbers.items()}


def waits_for(
    flops: float, bytes_read: float, rate: float, bandwidth: float, seconds: float
) -> str:
    """The longer of the two, unless the measured time is more than three times that."""
    compute, memory = flops / rate, bytes_read / bandwidth
    if seconds > 3 * max(compute, memory):
        return "neither"
    return "compute" if compute >= memory else "memory"


def gain(share: float, times: float) -> float:
    """What is left of the part, and the rest as it was."""
    return 1 / (1 - share + share / times)
