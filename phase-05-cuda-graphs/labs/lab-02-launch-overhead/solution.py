"""Lab 05-02: what starting kernels costs, and what a graph saves. One way to do it."""

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
    """Four guesses."""
    return {
        "launches eager, PIECEWISE, FULL": (291, 73, 1),
        "ms eager, FULL": (1.455, 1.022),
        "times faster with Llama-3-8B": (1.0,),
        "microseconds that 33 as 40 costs": (0.0,),
    }


# ---- counting ------------------------------------------------------------------------------------


def launches(kernels: Kernels, mode: str) -> int:
    """Everything; or pieces and what stands between them; or one."""
    if mode == "NONE":
        model = kernels.before + kernels.layers * kernels.layer + kernels.after
    elif mode == "PIECEWISE":
        model = kernels.layers + 1 + kernels.layers * kernels.split
    else:
        model = 1
    return model + kernels.beside


def break_even(kernels: Kernels, mode: str, passes: int) -> int | None:
    """From `passes * eager + k * replayed < k * eager`."""
    eager = launches(kernels, "NONE")
    saved = eager - launches(kernels, mode)
    if saved <= 0:
        return None
    return passes * eager // saved + 1


# ---- who waits for whom --------------------------------------------------------------------------


def finish_time(
    kernel_s: Sequence[float], launch_s: float, waits_after: Collection[int] = ()
) -> float:
    """Two clocks, the host's and the device's."""
    host = device = 0.0
    for i, seconds in enumerate(kernel_s):
        host += launch_s
        device = max(device, host) + seconds
        if i in waits_after:
            host = device
    return device


def step_time(
    launching_s: float, device_s: float, planning_s: float, async_scheduling: bool
) -> float:
    """Launching hides behind the device in either case; planning only where a step is planned ahead."""
    if async_scheduling:
        return max(planning_s + launching_s, device_s)
    return planning_s + max(launching_s, device_s)


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
    """Launches from the mode, rows from the padding, K and V from the requests."""
    rows = batch if mode == "NONE" or padded is None else padded
    launching_s = launches(model.kernels, mode) * launch_s
    device_s = device_time(card, model, rows, batch * context)
    return step_time(launching_s, device_s, planning_s, async_scheduling)


def first_batch_without_gain(
    card: Card, model: Model, launch_s: float, context: int = 0, most: int = 1024
) -> int | None:
    """The first whose card works at least as long as the host launches."""
    launching_s = launches(model.kernels, "NONE") * launch_s
    for batch in range(1, most + 1):
        if device_time(card, model, batch, batch * context) >= launching_s:
            return batch
    return None
