"""Lab 00-04: prefill against decode, by the roofline. The reference solution.

Units: FLOP, bytes, seconds, never TFLOP or GB. A multiplication and an addition are two FLOP.
"""

from __future__ import annotations

import math
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
    """The three workloads of the README on one H100, guessed before they are derived."""
    return {
        "one reader": Prediction("memory", 5),
        "a long prompt": Prediction("compute", 33),
        "a full house": Prediction("memory", 25),
    }


# ---- reading a datasheet -------------------------------------------------------------------------


def dense_flops(printed_tflops: float, with_sparsity: bool) -> float:
    """FLOP/s for dense matrices, from the number that a datasheet prints."""
    flops = printed_tflops * 1e12
    return flops / 2 if with_sparsity else flops


def bus_bandwidth(bus_bits: int, gbit_per_pin: float) -> float:
    """Bytes/s of a memory bus, from its width and the speed of one pin."""
    return bus_bits * gbit_per_pin * 1e9 / 8


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
    """FLOP of one step that computes `num_tokens` tokens, of whichever requests."""
    return 2 * model.num_params * num_tokens


def kv_bytes_per_token(model: Model) -> float:
    """Bytes that one token takes up in the KV cache: a key and a value in each KV head of each layer."""
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * model.bytes_per_kv


def step_bytes(model: Model, kv_tokens: int = 0) -> float:
    """Bytes that one step reads from memory: all weights once, and the KV cache of its requests."""
    return model.num_params * model.bytes_per_param + kv_tokens * kv_bytes_per_token(model)


def arithmetic_intensity(model: Model, num_tokens: int, kv_tokens: int = 0) -> float:
    """FLOP per byte read, of a step of `num_tokens` tokens that reads `kv_tokens` of KV cache."""
    return step_flops(model, num_tokens) / step_bytes(model, kv_tokens)


# ---- the roofline --------------------------------------------------------------------------------


def ridge_point(device: Device) -> float:
    """The intensity (FLOP/byte) at which computing and reading take equally long."""
    return device.flops / device.bandwidth


def is_memory_bound(device: Device, intensity: float) -> bool:
    """Whether work of this intensity waits for memory. At the ridge itself it does not."""
    return intensity < ridge_point(device)


def attainable_flops(device: Device, intensity: float) -> float:
    """FLOP/s that the device reaches on work of this intensity: the roof over that point."""
    return min(device.flops, device.bandwidth * intensity)


def step_time(device: Device, model: Model, num_tokens: int, kv_tokens: int = 0) -> float:
    """Seconds that one step takes at least, if computing and reading overlap perfectly."""
    compute = step_flops(model, num_tokens) / device.flops
    read = step_bytes(model, kv_tokens) / device.bandwidth
    return max(compute, read)


def decode_tokens_per_second(device: Device, model: Model, batch: int, context: int = 0) -> float:
    """Tokens per second at most, over all requests, when `batch` of them decode together."""
    return batch / step_time(device, model, batch, batch * context)


def critical_batch_size(device: Device, model: Model) -> int:
    """The smallest number of tokens in a step that is no longer memory-bound, KV cache left aside."""
    return math.ceil(ridge_point(device) * model.bytes_per_param / 2)


def long_context_wall(model: Model, batch: int) -> int:
    """The context from which a decode step reads at least as much KV cache as weights."""
    return math.ceil(step_bytes(model) / (batch * kv_bytes_per_token(model)))
