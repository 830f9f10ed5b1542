"""Lab 07-05: what a profile of a mixture of experts says, and what it cannot. Your turn."""

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
    """Your answers to the eight questions of the README, under its names."""
    raise NotImplementedError


# ---- the trace -----------------------------------------------------------------------------------


def self_times(events: Sequence[Event]) -> dict[str, float]:
    """Microseconds that the calls of each name took themselves, without the calls that they made.

    `events` are those of one thread, in the order of their start, the caller before what it calls. A call
    that starts within another, before it ends, was made by it, or by something that it called in turn.
    Together they are the time in which any operator ran.
    """
    raise NotImplementedError


def part_of(event: Event, model: Model) -> str | None:
    """Which of `PARTS` a call belongs to; None for all others.

    `_C::cpu_fused_moe` computes the experts of a layer. `_C::onednn_mm` is a product, and its first two
    shapes are those of result and input, `[tokens, out]` and `[tokens, in]`; "qkv" is one product for all
    three. vLLM pads the vocabulary to a multiple of 64, so the head is wider than `vocab`.
    """
    raise NotImplementedError


# ---- the arithmetic ------------------------------------------------------------------------------


def experts_touched(experts: int, top_k: int, tokens: int) -> float:
    """How many experts of a layer are touched by so many tokens, if each goes to `top_k` others at random."""
    raise NotImplementedError


def work(model: Model, tokens: int, width: int) -> dict[str, tuple[float, float]]:
    """FLOPs of a step, and bytes of weights that it reads, for each of `PARTS`, over all layers.

    Two FLOPs for each weight and token that meet; norms, attention and the embedding are left out. A token
    meets `top_k` experts of three matrices in each layer. Whatever is touched is read once a step.

    Args:
        tokens: in the step, each of which asks for a row of the head.
        width: bytes of one weight.
    """
    raise NotImplementedError


def shares(numbers: Mapping[str, float]) -> dict[str, float]:
    """Each number as a share of their sum."""
    raise NotImplementedError


def waits_for(
    flops: float, bytes_read: float, rate: float, bandwidth: float, seconds: float
) -> str:
    """What a step waits for: "compute" or "memory", whichever takes longer; "compute" if equal.

    "neither", if the measured time is more than three times the longer of the two: then it waits for
    something else, such as starting its operators.

    Args:
        flops, bytes_read: of the step.
        rate, bandwidth: FLOPs and bytes a second.
        seconds: measured.
    """
    raise NotImplementedError


def gain(share: float, times: float) -> float:
    """How many times faster a step becomes if a part of it becomes `times` times faster.

    Args:
        share: of the step's time that the part takes, 0 to 1.
    """
    raise NotImplementedError
