"""What the tests of lab 06-04 share: the committed results, what follows from them, and drawn data."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
HIDDEN, MLP, VOCABULARY, LAYERS = 4096, 14336, 128_256, 32
SHAPES = ((6144, HIDDEN), (HIDDEN, HIDDEN), (2 * MLP, HIDDEN), (HIDDEN, MLP))
"""Llama-3.1-8B's linears of a layer as vLLM builds them: out and in."""
WEIGHTS = 8_030_261_248
L4_BYTES = 24e9
BLOCK_BYTES = 16 * 2 * 2 * LAYERS * 8 * 128


@cache
def results() -> Any:
    """As measure.py wrote them."""
    return json.loads((HERE / "results.json").read_text(encoding="utf-8"))


def kl(method: str) -> float:
    return float(results()["mini_vllm"]["methods"][method]["kl"])


def noors_weights(lab: ModuleType, fmt: Any) -> int:
    """Bytes of Llama-3.1-8B when the linears of its layers have this format and all else 16 bits."""
    linears = LAYERS * sum(out * width for out, width in SHAPES)
    small = LAYERS * sum(lab.linear_bytes(out, width, fmt) for out, width in SHAPES)
    return int(2 * (WEIGHTS - linears) + small)


def answers(lab: ModuleType) -> dict[str, object]:
    """What the predictions should have been: measured, or by the lab's own functions."""
    g128, whole = lab.Format(4, 128), 2 * WEIGHTS
    small = noors_weights(lab, g128)
    groups = [kl("int4-g32"), kl("int4-g64"), kl("int4-g128"), kl("int4-row")]
    refused = [n for n, row in results()["vllm"]["methods"].items() if "refused" in row]
    return {
        "least KL of int8, w8a8, fp8": min(("int8", "w8a8", "fp8"), key=kl),
        "w8a8 and fp8, which loses more": max(("w8a8", "fp8"), key=kl),
        "least KL of int4-g128, gptq, awq": min(("int4-g128", "gptq", "awq"), key=kl),
        "smaller groups, int4": "less KL" if groups == sorted(groups) else "another order",
        "bits a weight, groups of 128 and of 32": tuple(
            8 * lab.linear_bytes(128, 128, lab.Format(4, size)) / 128**2 for size in (128, 32)
        ),
        "Noor's model in int4-g128, times smaller": round(whole / small, 1),
        "Noor's blocks, 16 bits and int4-g128": tuple(
            lab.kv_blocks(L4_BYTES, weights, BLOCK_BYTES) for weights in (whole, small)
        ),
        "refused by vLLM's CPU build": tuple(sorted(refused)),
    }


def drawn_logprobs(rows: int, vocabulary: int, seed: int) -> Any:
    """Log probabilities of `rows` positions, float32."""
    logits = np.random.default_rng(seed).normal(0, 2, (rows, vocabulary))
    return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)
