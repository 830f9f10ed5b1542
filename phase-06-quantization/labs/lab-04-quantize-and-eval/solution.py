"""Lab 06-04: what a quantised model has lost, what it takes up, and what it is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Scored = Sequence[tuple[Array, Sequence[int]]]

BYTES = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1, "F8_E4M3": 1}
"""Given: bytes of a number, by the type's name in a safetensors file."""


@dataclass(frozen=True)
class Format:
    """Given: how a matrix of weights is stored.

    Attributes:
        bits: of a weight.
        group_size: weights along a row that share a scale, a divisor of the row; None: the whole row.
        scale_bytes: of a scale.
        zero_points: each group has a zero point, too, of as many bits as a weight.
    """

    bits: int
    group_size: int | None = None
    scale_bytes: int = 2
    zero_points: bool = False


def predictions() -> dict[str, str]:
    return {
        "least KL of int8, w8a8, fp8": "int8",
        "w8a8 and fp8, which loses more": "fp8",
        "least KL of int4-g128, gptq, awq": "gptq",
        "smaller groups, int4": "less KL",
    }


# ---- quality -------------------------------------------------------------------------------------


def surprise(logprobs: Array, ids: Sequence[int]) -> tuple[float, int]:
    rows = np.arange(len(ids) - 1)
    return -float(logprobs[rows, np.asarray(ids[1:])].sum(dtype=np.float64)), len(ids) - 1


def perplexity(scored: Scored) -> float:
    nats, tokens = zip(*(surprise(logprobs, ids) for logprobs, ids in scored), strict=True)
    return math.exp(sum(nats) / sum(tokens))


def kl_divergence(reference: Array, other: Array) -> float:
    p = np.asarray(reference, np.float64)
    return float((np.exp(p) * (p - other)).sum(axis=-1).mean())


def greedy_agreement(reference: Array, other: Array) -> float:
    """Share of the rows in which both find the same token likeliest, 0 to 1."""
    return float((reference.argmax(axis=-1) == other.argmax(axis=-1)).mean())


def tokens_in_common(first: Sequence[int], second: Sequence[int]) -> int:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


# ---- memory, given -------------------------------------------------------------------------------


def bytes_by_layer(tensors: Mapping[str, tuple[str, Sequence[int]]]) -> dict[str, int]:
    """Bytes of each layer of a checkpoint, with all that belongs to it: codes, scales, zero points …

    Args:
        tensors: type and shape by name, as a safetensors file lists them. The layer is the name without
            its last part: `model.norm` for `model.norm.weight`.

    Raises:
        KeyError: a type that is not in `BYTES`.
    """
    found: dict[str, int] = {}
    for name, (dtype, shape) in tensors.items():
        layer = name.rpartition(".")[0]
        found[layer] = found.get(layer, 0) + BYTES[dtype] * math.prod(shape)
    return found


def linear_bytes(out_features: int, in_features: int, fmt: Format) -> int:
    """Bytes of a linear layer's codes, scales and zero points, by arithmetic alone.

    Codes and zero points are packed without gaps. `in_features` is a multiple of the group size, and the
    codes fill whole bytes.
    """
    groups = out_features * (in_features // (fmt.group_size or in_features))
    bits = out_features * in_features * fmt.bits
    if fmt.zero_points:
        bits += groups * fmt.bits
    return bits // 8 + groups * fmt.scale_bytes


def kv_blocks(memory: float, weights: float, block_bytes: int, utilization: float = 0.92) -> int:
    """Whole KV cache blocks that fit beside the weights, at most; 0 where the weights do not fit.

    Args:
        memory: bytes of the card.
        weights: bytes of the model.
        block_bytes: of one block, over all layers.
        utilization: the share of the memory that vLLM may take for all of it, `gpu_memory_utilization`.
            What a step needs besides (activations, graphs) is left out.
    """
    return max(0, int((memory * utilization - weights) // block_bytes))


# ---- judging -------------------------------------------------------------------------------------


def not_beaten(points: Mapping[str, tuple[float, float]]) -> set[str]:
    return {
        name
        for name, mine in points.items()
        if not any(
            other[0] <= mine[0] and other[1] <= mine[1] and other != mine
            for other in points.values()
        )
    }


def speedup(rounds: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    ratios = [before / after for before, after in rounds]
    return min(ratios), median(ratios), max(ratios)
