"""Lab 00-04: prefill against decode, by the roofline. Your work: what raises NotImplementedError.

Units: FLOP, bytes, seconds, never TFLOP or GB; prefixes are decimal, so a giga is 1e9. A
multiplication and an addition are two FLOP.
"""

from __future__ import annotations

import math  # noqa: F401  # for your work
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

# ---- given ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """What computes: a GPU by its datasheet, or your CPU as measured."""

    name: str
    flops: float
    """FLOP/s at most, dense."""
    bandwidth: float
    """Bytes/s from its main memory at most."""


@dataclass(frozen=True)
class Model:
    """A decoder, as far as its speed goes."""

    name: str
    num_params: float
    bytes_per_param: float
    """2 for bfloat16, 0.5 for 4-bit weights."""
    num_layers: int
    num_kv_heads: int
    head_dim: int
    bytes_per_kv: float = 2
    """Bytes of one number in the KV cache."""


LLAMA_3_8B = Model("Llama-3-8B", 8.03e9, 2, num_layers=32, num_kv_heads=8, head_dim=128)
LLAMA_3_70B = Model("Llama-3-70B", 70.6e9, 2, num_layers=80, num_kv_heads=8, head_dim=128)


class Prediction(NamedTuple):
    """What you expect of one step.

    Attributes:
        bound: "memory" if it waits for bytes, "compute" if it waits for arithmetic.
        milliseconds: what the step takes at least.
    """

    bound: str
    milliseconds: float


# ---- before you derive anything ------------------------------------------------------------------


def predictions() -> dict[str, Prediction]:
    """Your guess at the three workloads of the README, on one H100. Do this first, on paper.

    Which of the two does each step wait for, and how long does it take, within a factor of three? If the
    functions below tell you later that a guess was wrong, correct it, and say to yourself why it was wrong.

    Returns:
        A `Prediction` for each of "one reader", "a long prompt" and "a full house".
    """
    raise NotImplementedError


# ---- reading a datasheet -------------------------------------------------------------------------


def dense_flops(printed_tflops: float, with_sparsity: bool) -> float:
    """FLOP/s for dense matrices, from the number that a datasheet prints.

    Many sheets print the rate for weights of which two in every four are zero (in small print: "with
    sparsity"). The tensor cores skip the zeros. Language models are served dense.

    Args:
        printed_tflops: as printed, in TFLOP/s.
        with_sparsity: whether it is the rate with 2:4 sparsity.

    Returns:
        FLOP/s.
    """
    raise NotImplementedError


def bus_bandwidth(bus_bits: int, gbit_per_pin: float) -> float:
    """Bytes/s of a memory bus, from its width and the speed of one pin.

    Sheets of gaming cards print these two instead of the bandwidth. All pins work at once.

    Args:
        bus_bits: width of the bus: one bit per pin.
        gbit_per_pin: gigabits (1e9) per second on each pin.

    Returns:
        bytes/s.
    """
    raise NotImplementedError


def device_from_datasheet(sheet: Mapping[str, Any]) -> Device:
    """The device that one entry of `gpus.json` describes (given, on your two functions)."""
    if "bandwidth_gb_s" in sheet:
        bandwidth = sheet["bandwidth_gb_s"] * 1e9
    else:
        bandwidth = bus_bandwidth(sheet["bus_bits"], sheet["gbit_per_pin"])
    return Device(
        sheet["name"], dense_flops(sheet["printed_tflops"], sheet["with_sparsity"]), bandwidth
    )


# ---- one step of the model -----------------------------------------------------------------------


def step_flops(model: Model, num_tokens: int) -> float:
    """FLOP of one step that computes `num_tokens` tokens, of whichever requests.

    Each token meets each parameter once, in one multiplication and one addition. The attention's
    own arithmetic is left out; the README says what that costs.

    Args:
        num_tokens: 2048 for the prefill of one prompt of that length, 64 for a decode step of 64
            requests.
    """
    raise NotImplementedError


def kv_bytes_per_token(model: Model) -> float:
    """Bytes that one token takes up in the KV cache: a key and a value in each KV head of each layer."""
    raise NotImplementedError


def step_bytes(model: Model, kv_tokens: int = 0) -> float:
    """Bytes that one step reads from memory: all weights once, and the KV cache of its requests.

    Args:
        kv_tokens: tokens in the KV cache that the step reads, over all of its requests: a decode
            step of 8 requests with 1,000 tokens each reads 8,000. Requests share the weights,
            but each has a cache of its own.
    """
    raise NotImplementedError


def arithmetic_intensity(model: Model, num_tokens: int, kv_tokens: int = 0) -> float:
    """FLOP per byte read, of a step of `num_tokens` tokens that reads `kv_tokens` of KV cache."""
    raise NotImplementedError


# ---- the roofline --------------------------------------------------------------------------------


def ridge_point(device: Device) -> float:
    """The intensity (FLOP/byte) at which computing and reading take equally long."""
    raise NotImplementedError


def is_memory_bound(device: Device, intensity: float) -> bool:
    """Whether work of this intensity waits for memory. At the ridge itself it does not."""
    raise NotImplementedError


def attainable_flops(device: Device, intensity: float) -> float:
    """FLOP/s that the device reaches at most on work of this intensity: the roof over that point."""
    raise NotImplementedError


def step_time(device: Device, model: Model, num_tokens: int, kv_tokens: int = 0) -> float:
    """Seconds that one step takes at least, if computing and reading overlap all the time.

    Args:
        num_tokens, kv_tokens: as in `step_flops` and `step_bytes`.
    """
    raise NotImplementedError


def decode_tokens_per_second(device: Device, model: Model, batch: int, context: int = 0) -> float:
    """Tokens per second at most, over all requests, when `batch` of them decode together.

    Args:
        batch: requests in the step; each gets one token from it.
        context: tokens that each of them has in the KV cache.
    """
    raise NotImplementedError


def critical_batch_size(device: Device, model: Model) -> int:
    """The smallest number of tokens in a step that is no longer memory-bound, KV cache left aside.

    Below it a larger batch costs no time: the weights have to be read anyway.
    """
    raise NotImplementedError


def long_context_wall(model: Model, batch: int) -> int:
    """The context from which a decode step reads at least as much KV cache as weights.

    Past it the caches, together, take longer to read than the weights. A token of context costs the
    same on both sides.

    Args:
        batch: requests in the step.

    Returns:
        tokens per request, the smallest whole number.
    """
    raise NotImplementedError
