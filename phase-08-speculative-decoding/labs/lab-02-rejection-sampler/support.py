"""What the lab's tests and scripts share: vLLM's recorded answers, and counts against a distribution."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ANSWERS = Path(__file__).resolve().parent / "answers.json"

# Exceeded by chance in one run of 1,000, by degrees of freedom.
CHI_SQUARE_0_001 = {3: 16.27, 4: 18.47, 8: 26.12}


def answers() -> list[dict[str, Any]]:
    """Steps that vLLM's rejection sampler was given, with its draws and its tokens; see in_vllm.py."""
    found: list[dict[str, Any]] = json.loads(ANSWERS.read_text(encoding="utf-8"))["steps"]
    return found


def arguments(step: dict[str, Any]) -> dict[str, Any]:
    """A recorded step as `rejection_sample` takes it, in fresh arrays."""
    probs = step["draft_probs"]
    vocab = len(step["logits"][0])
    return {
        "draft_token_ids": np.array(step["draft_token_ids"], np.int64),
        "num_draft_tokens": list(step["num_draft_tokens"]),
        "draft_probs": None if probs is None else np.array(probs, np.float32).reshape(-1, vocab),
        "logits": np.array(step["logits"], np.float32),
        "is_greedy": np.array(step["is_greedy"], np.bool_),
        "uniform_probs": np.array(step["uniform_probs"], np.float64),
        "inv_q": np.array(step["inv_q"], np.float32),
        "bonus_inv_q": np.array(step["bonus_inv_q"], np.float32),
    }


def draw(rng: np.random.RandomState, probs: Array) -> Array:
    """A token for each row of `probs`."""
    found: Array = (probs / rng.standard_exponential(probs.shape)).argmax(axis=-1)
    return found


def sample(
    lab: ModuleType, drafts: Array, draft_probs: Array | None, probs: Array, seed: int
) -> Array:
    """The lab's `rejection_sample` on n requests with k drafts each, none greedy, on draws of this seed.

    Args:
        drafts: [n, k].
        draft_probs: [n, k, V], or None.
        probs: [n, k + 1, V], the model's.

    Returns [n, k + 1].
    """
    rng = np.random.RandomState(seed)
    with np.errstate(divide="ignore"):
        logits = np.log(probs.reshape(-1, probs.shape[-1])).astype(np.float32)
    (n, k), vocab = drafts.shape, probs.shape[-1]
    found: Array = np.asarray(
        lab.rejection_sample(
            drafts.ravel(),
            [k] * n,
            None if draft_probs is None else draft_probs.reshape(-1, vocab).astype(np.float32),
            logits,
            np.zeros(n, np.bool_),
            rng.random_sample(n * k),
            (1 / rng.standard_exponential((n, vocab))).astype(np.float32),
            (1 / rng.standard_exponential((n, vocab))).astype(np.float32),
        )
    )
    return found


def judge_counts(tokens: Array, probs: Array) -> tuple[float, int]:
    """How far the counts of `tokens` are from `probs`: chi-square, and the token that is furthest off."""
    expected = probs * len(tokens)
    off = (np.bincount(tokens, minlength=len(probs))[: len(probs)] - expected) ** 2 / expected
    return float(off.sum()), int(off.argmax())
