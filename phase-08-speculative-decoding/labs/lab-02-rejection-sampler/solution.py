"""Lab 08-02: which drafts are kept, and what replaces the first that is not. A solution.

n requests, `num_tokens` drafts between them, V tokens in the vocabulary. p is the model's distribution at a
place, q the drafter's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.sample.ops import softmax

Array = NDArray[np.float32]
Ints = NDArray[np.integer[Any]]
Floats = NDArray[np.floating[Any]]


def predictions() -> dict[str, Any]:
    """Your answers to the README's five questions, under the names given there."""
    return {
        "certain": 0.15,
        "drawn, judged as certain": 0.24,
        "probabilistic": 0.55,
        "instead": [[0.471, 0.412, 0, 0.118], [0.444, 0.333, 0, 0.222]],
        "tokens per step": 1.8525,
    }


# ---- one place -----------------------------------------------------------------------------------


def accepts(draft: int, p: Array, q: Array | None, u: float) -> bool:
    """Whether the draft is kept."""
    drafted = 1.0 if q is None else q[draft]
    return bool(drafted > 0 and p[draft] / drafted >= u)


def replacement(draft: int, p: Array, q: Array | None) -> Array:
    """The distribution of the token that replaces a rejected draft."""
    if q is None:
        left = p.copy()
        left[draft] = 0
    else:
        left = np.maximum(p - q, 0)
    total = left.sum()
    return left / total if total > 0 else p


# ---- one request ---------------------------------------------------------------------------------


def judge(
    drafts: Sequence[int], p: Array, q: Array | None, u: Floats, inv_q: Array, bonus: int
) -> list[int]:
    """The tokens that a request with a temperature keeps."""
    kept: list[int] = []
    for place, draft in enumerate(drafts):
        drafted = None if q is None else q[place]
        if not accepts(draft, p[place], drafted, float(u[place])):
            instead = replacement(draft, p[place], drafted) * inv_q
            return [*kept, int(instead.argmax())]
        kept.append(draft)
    return [*kept, bonus]


def judge_greedy(drafts: Sequence[int], best: Ints, bonus: int) -> list[int]:
    """The tokens that a greedy request keeps."""
    kept: list[int] = []
    for draft, token in zip(drafts, best.tolist(), strict=True):
        kept.append(token)
        if draft != token:
            return kept
    return [*kept, bonus]


# ---- the step ------------------------------------------------------------------------------------


def rows_of(num_draft_tokens: Sequence[int]) -> tuple[Ints, Ints]:
    """Which rows of the step's logits judge the drafts, and which are bonus rows."""
    bonus_rows = np.cumsum(np.array(num_draft_tokens, np.int64) + 1) - 1
    target_rows = np.delete(np.arange(bonus_rows[-1] + 1), bonus_rows)
    return target_rows, bonus_rows


def rejection_sample(
    draft_token_ids: Ints,
    num_draft_tokens: Sequence[int],
    draft_probs: Array | None,
    logits: Array,
    is_greedy: NDArray[np.bool_],
    uniform_probs: Floats,
    inv_q: Array,
    bonus_inv_q: Array,
) -> Ints:
    """The tokens of a step, a row per request."""
    target_rows, bonus_rows = rows_of(num_draft_tokens)
    probs, best = softmax(logits), logits.argmax(axis=-1)
    output = np.full((len(num_draft_tokens), max(num_draft_tokens) + 1), -1, np.int64)
    start = 0
    for i, count in enumerate(num_draft_tokens):
        mine = slice(start, start + count)
        start += count
        drafts, rows, bonus_row = draft_token_ids[mine].tolist(), target_rows[mine], bonus_rows[i]
        if is_greedy[i]:
            kept = judge_greedy(drafts, best[rows], int(best[bonus_row]))
        else:
            bonus = int((probs[bonus_row] * bonus_inv_q[i]).argmax())
            q = None if draft_probs is None else draft_probs[mine]
            kept = judge(drafts, probs[rows], q, uniform_probs[mine], inv_q[i], bonus)
        output[i, : len(kept)] = kept
    return output


# ---- the decision --------------------------------------------------------------------------------


def acceptance_rates(p: Array, q: Array) -> dict[str, float]:
    """How often a draft is accepted, if the model has p and the drafter q."""
    return {
        "certain": float(p[q.argmax()]),
        "drawn, judged as certain": float((p * q).sum()),
        "probabilistic": float(np.minimum(p, q).sum()),
    }


def choose_draft_sample_method(p: Array, q: Array) -> str:
    """The setting of `draft_sample_method` under which more drafts are accepted."""
    rates = [acceptance_rates(*pair) for pair in zip(p, q, strict=True)]
    gain = sum(rate["probabilistic"] - rate["certain"] for rate in rates)
    return "probabilistic" if gain > 0 else "greedy"
