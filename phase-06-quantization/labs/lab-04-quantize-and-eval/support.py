"""What the tests of lab 06-04 share: the committed results, what follows from them, and drawn data."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
WEIGHTS, OF_LINEARS = 8_030_261_248, 6_979_321_856
"""Llama-3.1-8B's weights, and how many of them are the linears of its layers."""
L4_BYTES = 24e9
BLOCK_BYTES = 2 * 2**20


@cache
def results() -> Any:
    """As measure.py wrote them."""
    return json.loads((HERE / "results.json").read_text(encoding="utf-8"))


def kl(method: str) -> float:
    return float(results()["mini_vllm"]["methods"][method]["kl"])


def answers() -> dict[str, tuple[object, str]]:
    """What the predictions should have been, measured or by arithmetic of its own, and what leads to it.

    Nothing here calls the lab's functions: a fault in one of them is no fault of a prediction.
    """
    bits = tuple(4 + 16 / size for size in (128, 32))
    before, after = 2 * WEIGHTS, 2 * (WEIGHTS - OF_LINEARS) + OF_LINEARS * bits[0] / 8
    blocks = tuple(int((0.92 * L4_BYTES - size) // BLOCK_BYTES) for size in (before, after))
    groups = [kl("int4-g32"), kl("int4-g64"), kl("int4-g128"), kl("int4-row")]
    refused = tuple(
        sorted(name for name, row in results()["vllm"]["methods"].items() if "refused" in row)
    )
    return {
        "least KL of int8, w8a8, fp8": (
            min(("int8", "w8a8", "fp8"), key=kl),
            "Which of the three round only the weights?",
        ),
        "w8a8 and fp8, which loses more": (
            max(("w8a8", "fp8"), key=kl),
            "How many bits behind the leading one does E4M3 keep, and how many an integer of eight bits?",
        ),
        "least KL of int4-g128, gptq, awq": (
            min(("int4-g128", "gptq", "awq"), key=kl),
            "What does each of the three know of the inputs when it rounds a weight?",
        ),
        "smaller groups, int4": (
            "less KL" if groups == sorted(groups) else "another order",
            "How many weights share their scale with an outlier?",
        ),
        "bits a weight, groups of 128 and of 32": (
            bits,
            "By how many weights is a scale's 16 bits shared?",
        ),
        "Noor's model in int4-g128, times smaller": (
            round(before / after, 1),
            "Which weights keep their 16 bits, and what do the others take with their share of a scale?",
        ),
        "Noor's blocks, 16 bits and int4-g128": (
            blocks,
            "How much may vLLM take, what do the weights leave of it, and how many whole blocks is that?",
        ),
        "refused by vLLM's CPU build": (
            refused,
            "For which types has it a kernel when only weights are rounded, and has it any for fp8?",
        ),
    }


def drawn_logprobs(rows: int, vocabulary: int, seed: int) -> Any:
    """Log probabilities of `rows` positions, float32."""
    logits = np.random.default_rng(seed).normal(0, 2, (rows, vocabulary))
    return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)
