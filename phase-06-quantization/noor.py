"""Noor's card on paper, and what the shipped model shows of grids and scales: set-up for the pages.

On paper the model is Llama-3.1-8B and the card an L4, whose figures are those of phase 00, lab 04. What is run
is the tiny Llama that comes with the engine.

The pages import this module by its name: start Python in this folder.

    python phase-06-quantization/noor.py          Noor's card on paper
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from mini_vllm import EngineConfig, LLMEngine
from mini_vllm.attention import AttentionMetadata
from mini_vllm.llama import Linear

ROOT = Path(__file__).resolve().parents[1]
SHEETS: dict[str, dict[str, Any]] = {
    sheet["name"]: sheet
    for folder in ROOT.glob("phase-00-*/labs/lab-04-*")
    for sheet in json.loads((folder / "gpus.json").read_text("utf-8"))
}
GB, GIB = 1e9, 1024**3
Array = NDArray[np.float32]

# --- on paper ---

LINEARS = 6_979_321_856
"""Weights of Llama-3.1-8B in the linear layers of its 32 layers."""
REST = 8_030_261_248 - LINEARS
"""The embedding, the last matrix and the norms, which stay in 16 bits."""
TOKEN_BYTES = 2 * 2 * 32 * 8 * 128
"""What the KV cache keeps of a token in 16 bits: keys and values, 32 layers, 8 heads of 128."""


@dataclass(frozen=True)
class Card:
    """A GPU at its best: `flops` operations a second in 16 bits, dense; `bandwidth` bytes a second; `memory` bytes."""

    flops: float
    bandwidth: float
    memory: float


def card(name: str) -> Card:
    """A card from the data sheets of phase 00, where a figure "with sparsity" is halved."""
    sheet = SHEETS[name]
    dense = sheet["printed_tflops"] / (2 if sheet["with_sparsity"] else 1)
    return Card(dense * 1e12, sheet["bandwidth_gb_s"] * 1e9, sheet["memory_gb"] * GIB)


L4 = card("L4")


def bits_a_weight(bits: int, group: int | None = None, scale_bits: int = 16, zero: bool = False) -> float:
    """Bits that a weight takes with its share of the scale, and of the zero point where there is one.

    Args:
        bits: of a code.
        group: weights that share a scale; None for so many that it does not count.
        scale_bits: of a scale.
        zero: a zero point of `bits` beside each scale.
    """
    return bits + ((scale_bits + bits * zero) / group if group else 0)


def weight_bytes(bits: float = 16) -> float:
    """Bytes of Llama-3.1-8B with so many bits a weight in its linear layers."""
    return LINEARS * bits / 8 + 2 * REST


def people(bits: float = 16, tokens: int = 2000, kv_bits: int = 16) -> int:
    """Conversations of so many tokens that fit beside the weights, in 0.92 of Noor's card, vLLM's default."""
    left = 0.92 * L4.memory - weight_bytes(bits)
    return int(left // (tokens * TOKEN_BYTES * kv_bits / 16))


def step_ms(rows: int = 1, bits: float = 16, fast: bool = False, context: int = 0, kv_bits: int = 16) -> float:
    """Milliseconds of a step on Noor's card, on paper: what it reads or what it computes, whichever takes longer.

    Args:
        rows: tokens that the step computes.
        bits: of a weight of the linear layers.
        fast: whether these multiply in 8 bits, of which the card does twice as many as in 16.
        context: tokens in the cache that each row attends to.
        kv_bits: of a number in the cache.
    """
    moved = weight_bytes(bits) + rows * context * TOKEN_BYTES * kv_bits / 16
    computed = 2 * rows * (LINEARS / (2 if fast else 1) + REST)
    return 1e3 * max(moved / L4.bandwidth, computed / L4.flops)


def tokens_a_second(bits: float = 16) -> float:
    """What Noor can have at most when she is alone."""
    return round(1e3 / step_ms(bits=bits), 1)
