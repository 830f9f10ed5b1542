"""Lab 06-04: what a quantised model has lost, takes up and is worth. Your work: every NotImplementedError."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Scored = Sequence[tuple[Array, Sequence[int]]]
"""Documents: the log probabilities of each, and its token ids."""

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
    """Your answers to the questions of the README, under its names."""
    raise NotImplementedError


# ---- quality -------------------------------------------------------------------------------------


def surprise(logprobs: Array, ids: Sequence[int]) -> tuple[float, int]:
    """How much a document surprised the model: total nats, and how many tokens were predicted.

    A token's surprise is minus the natural logarithm of the probability that the model gave it. No row
    predicts the first token.

    Args:
        logprobs: `[rows, vocab_size]`, natural logarithms. Row i says what the model expects behind
            `ids[i]`. There are as many rows as tokens (mini_vllm), or one less (what in_vllm.py gets from
            vLLM); the token after the last one is not in `ids`.
        ids: at least two tokens.
    """
    raise NotImplementedError


def perplexity(scored: Scored) -> float:
    """`exp` of the mean surprise of a token, over all predicted tokens of all documents alike."""
    raise NotImplementedError


def kl_divergence(reference: Array, other: Array) -> float:
    """How far `other` is from `reference`: sum over the vocabulary of p (log p - log q), mean over the rows.

    p are the reference's probabilities and q the other's. In nats; 0 where they agree.

    Take log p and log q as they are given: a probability may be too small for a float.

    Args:
        reference, other: log probabilities `[rows, vocab_size]` of the same positions.
    """
    raise NotImplementedError


def greedy_agreement(reference: Array, other: Array) -> float:
    """Share of the rows in which both find the same token likeliest, 0 to 1."""
    return float((reference.argmax(axis=-1) == other.argmax(axis=-1)).mean())


def tokens_in_common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two greedy continuations have in common until they part, or one of them ends.

    After the first difference the two continue different texts, so nothing there counts.
    """
    raise NotImplementedError


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
    """The methods that no other beats: the edge of the trade-off.

    A method beats another if it is no worse in either number, and better in at least one. Two that are equal
    in both do not beat each other.

    Args:
        points: by name, two numbers of which less is better: bytes and KL, say.
    """
    raise NotImplementedError


def speedup(rounds: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Lowest, middle and highest of the rounds' ratios: how many times faster the second is.

    The two of a round ran one right after the other, so other work on the machine slowed both alike:
    each round has its own ratio. The middle is the median: halfway between the two of an even number.

    Args:
        rounds: (seconds of the first, seconds of the second), at least one.
    """
    raise NotImplementedError
