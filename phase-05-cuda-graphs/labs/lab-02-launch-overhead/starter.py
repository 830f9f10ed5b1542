"""Lab 05-02: what starting kernels costs, and what a graph saves. Your work: every NotImplementedError."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Kernels:
    """Given: how many kernels a step starts when nothing is captured.

    Attributes:
        layers: of the model, at least 1.
        layer: kernels of a layer, those of `split` included.
        split: how many of them no piece may hold: writing K and V, and attention. They are neighbours
            in the middle of the layer, with other kernels before and after them.
        before, after: kernels before the first layer (the embedding, the rotary angles) and after the
            last one (the last norm).
        beside: kernels after the model, so in no graph: gathering rows, logits, the choice of a token. The
            course's engine does not count them, so the default is 0.
    """

    layers: int
    layer: int = 12
    split: int = 2
    before: int = 2
    after: int = 1
    beside: int = 0


@dataclass(frozen=True)
class Card:
    """Given: a GPU's peak, dense, in operations and bytes per second."""

    name: str
    flops: float
    bandwidth: float


@dataclass(frozen=True)
class Model:
    """Given: what a step reads. The bytes of a token's K and V cover all layers."""

    name: str
    params: int
    kv_bytes_per_token: int
    kernels: Kernels
    bytes_per_param: int = 2


H100 = Card("H100 SXM", 989.5e12, 3350e9)
KIMS = Model("Llama-3.2-1B", 1_235_814_400, 2 * 16 * 8 * 64 * 2, Kernels(16))
LLAMA_3_8B = Model("Llama-3-8B", 8_030_261_248, 2 * 32 * 8 * 128 * 2, Kernels(32))


def predictions() -> dict[str, tuple[float, ...]]:
    """Your answers to the four questions of the README, under its names.

    Each is a tuple of numbers, even a single one: `(3.5,)`.
    """
    raise NotImplementedError


# ---- counting ------------------------------------------------------------------------------------


def launches(kernels: Kernels, mode: str) -> int:
    """How many launches a step takes, those `beside` included.

    A replay is one launch, however many kernels it holds.

    Args:
        mode: `NONE`; `PIECEWISE`, where each unbroken run of kernels that a piece may hold is one graph,
            even if it reaches from one layer into the next, and the others start one by one; or `FULL`,
            where the whole model is one graph.
    """
    raise NotImplementedError


def break_even(kernels: Kernels, mode: str, passes: int) -> int | None:
    """The fewest steps after which the graphs have saved more launches than they cost.

    To warm up and to capture, the model is run `passes` times before the first request, and each pass
    costs as many launches as an eager step. None if a step under `mode` takes no fewer launches than an
    eager one, so that the graphs never pay off.
    """
    raise NotImplementedError


# ---- who waits for whom --------------------------------------------------------------------------


def finish_time(
    kernel_s: Sequence[float], launch_s: float, waits_after: Collection[int] = ()
) -> float:
    """When the last kernel of a step ends, in seconds from the moment at which the host starts.

    The host takes `launch_s` for each launch, then goes on with the next. The card runs kernels in order,
    one at a time, each as soon as it has been launched and the one before has ended.

    Args:
        kernel_s: seconds that each kernel runs. No kernels: 0.0.
        waits_after: numbers, from 0, of kernels after which the host waits, as at an `.item()`, until the
            card has finished them, before it launches the next.
    """
    raise NotImplementedError


def step_time(
    launching_s: float, device_s: float, planning_s: float, async_scheduling: bool
) -> float:
    """Seconds from one step to the next, when many steps follow.

    Launching and running overlap. The first launch and the last kernel, which do not, are too short
    to count.

    Args:
        launching_s: seconds that the host needs for all launches of a step.
        device_s: seconds that the card computes.
        planning_s: seconds of the same host for everything else: schedule the step, take in its tokens.
        async_scheduling: False: the host plans the next step when the tokens of this one are there.
            True: it plans and launches the next step while the card computes this one.
    """
    raise NotImplementedError


# ---- the card ------------------------------------------------------------------------------------


def device_time(card: Card, model: Model, rows: int, kv_tokens: int = 0) -> float:
    """Given: the least seconds that a step can take on the card, by the roofline of lab 00-04.

    Args:
        rows: tokens that go through the model, padding included.
        kv_tokens: tokens whose K and V are read, over all requests. As in lab 00-04, reading them counts and
            computing with them does not.
    """
    size = model.params * model.bytes_per_param + kv_tokens * model.kv_bytes_per_token
    return max(size / card.bandwidth, 2 * model.params * rows / card.flops)


def decode_time(
    card: Card,
    model: Model,
    mode: str,
    batch: int,
    launch_s: float,
    context: int = 0,
    padded: int | None = None,
    planning_s: float = 0.0,
    async_scheduling: bool = True,
) -> float:
    """Seconds of a step in which `batch` requests decode one token each.

    Args:
        context: tokens in the cache of each request.
        padded: rows of the replayed graph, in pieces or whole; None: as many as requests. A padding row
            goes through the model, but its request has no tokens. Without a graph nothing is padded.
        planning_s, async_scheduling: as for `step_time`.
    """
    raise NotImplementedError


def first_batch_without_gain(
    card: Card, model: Model, launch_s: float, context: int = 0, most: int = 1024
) -> int | None:
    """The smallest batch in which an eager step is no longer than the card's own work.

    From there graphs gain nothing, because launching hides behind the card's work. Planning is left out
    here. None if there is no such batch up to `most` requests.
    """
    raise NotImplementedError
