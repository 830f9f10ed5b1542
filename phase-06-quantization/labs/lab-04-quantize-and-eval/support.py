"""What the tests of lab 06-04 share: the committed results, what follows from them, and drawn data."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent


@cache
def results() -> Any:
    """As measure.py wrote them."""
    return json.loads((HERE / "results.json").read_text(encoding="utf-8"))


def kl(method: str) -> float:
    return float(results()["mini_vllm"]["methods"][method]["kl"])


def answers() -> dict[str, tuple[str, str]]:
    """What the predictions should have been, as measured, and what leads to it.

    Nothing here calls the lab's functions: a fault in one of them is no fault of a prediction.
    """
    groups = [kl("int4-g32"), kl("int4-g64"), kl("int4-g128"), kl("int4-row")]
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
    }


def drawn_logprobs(rows: int, vocabulary: int, seed: int) -> Any:
    """Log probabilities of `rows` positions, float32."""
    logits = np.random.default_rng(seed).normal(0, 2, (rows, vocabulary))
    return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)
