"""Lab 08-06: what vLLM lets pass with speculative decoding, and which server is biased. A solution.

The servers write two tokens. `first` [V] is the model's distribution of the first, `second` [V, V] that of
the second, a row per first token. `draft_first` is what is drafted first, `draft_second` [V] what is drafted
after each first token. Drafts count as certain (the drafter gave them 1), two per step. After a rejected
draft a new step begins.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course.learner.labs import load_support

support = load_support(__file__)
Array = NDArray[Any]


# ---- what passes ---------------------------------------------------------------------------------


def parameters() -> dict[str, str]:
    """What becomes of each setting beside speculative decoding: "passes", "refused" or "no start"."""
    return {
        "top_p": "passes",
        "top_k": "passes",
        "min_p": "refused",
        "min_p of 0.000001": "passes",
        "seed": "passes",
        "presence_penalty": "passes",
        "repetition_penalty": "passes",
        "bad_words": "passes",
        "allowed_token_ids": "passes",
        "min_tokens": "passes",
        "logit_bias": "refused",
        "logit_bias of nothing": "passes",
        "logprobs": "passes",
        "logits_processors": "no start",
    }


def methods() -> dict[str, list[Any]]:
    """For each method: asynchronous by default, asynchronous where asked for, model runner V2."""
    return {
        "ngram": [False, "refused", False],
        "ngram_gpu": [True, True, False],
        "suffix": [False, "refused", False],
        "medusa": [False, "refused", False],
        "draft_model": [False, True, False],
        "eagle": [True, True, True],
        "eagle3": [True, True, True],
        "mtp": [True, True, True],
    }


# ---- what the pairs would be ---------------------------------------------------------------------


def pairs_if_right(first: Array, second: Array) -> Array:
    """How likely each pair of tokens is, if the text is the model's."""
    pairs: Array = first[:, None] * second
    return pairs


def redrawn(p: Array, draft: int) -> Array:
    """One place, if a rejected draft is replaced by a draw from p."""
    mixed: Array = (1 - p[draft]) * p
    mixed[draft] += p[draft]
    return mixed


def pairs_if_resampled(first: Array, second: Array, draft_first: int, draft_second: Array) -> Array:
    """How likely each pair is, if every rejected draft is replaced by a draw from all of p."""
    rows = [redrawn(p, draft) for p, draft in zip(second, draft_second, strict=True)]
    return pairs_if_right(redrawn(first, draft_first), np.array(rows))


def pairs_if_u_is_shared(
    first: Array, second: Array, draft_first: int, draft_second: Array
) -> Array:
    """How likely each pair is, if both drafts of a step are judged with the same u."""
    pairs = pairs_if_right(first, second)
    p, draft = second[draft_first], draft_second[draft_first]
    kept = min(1.0, p[draft] / first[draft_first])
    row = p * (1 - kept) / (1 - p[draft])
    row[draft] = kept
    pairs[draft_first] = first[draft_first] * row
    return pairs


# ---- the test ------------------------------------------------------------------------------------


def chi_square(counts: Array, probs: Array) -> float:
    """How far counts are from what they should be on average."""
    expected = counts.sum() * probs
    return float(((counts - expected) ** 2 / expected).sum())


def draws_needed(right: Array, wrong: Array) -> int:
    """How many draws from `wrong` show 99 times in 100 that they do not come from `right`."""
    w2 = float(((wrong - right) ** 2 / right).sum())
    return math.ceil(support.needed(right.size - 1) / w2)


def find_biased(
    boxes: dict[str, Any], first: Array, second: Array, draft_first: int, draft_second: Array
) -> str | None:
    """The name of the server whose text is not the model's, or None."""
    drafts = draft_first, draft_second
    right = pairs_if_right(first, second)
    suspects = (
        pairs_if_resampled(first, second, *drafts),
        pairs_if_u_is_shared(first, second, *drafts),
    )
    share = support.SHARE
    n = max(draws_needed(right, share * wrong + (1 - share) * right) for wrong in suspects)
    far = {}
    for name, box in boxes.items():
        tokens = box.draw(n)
        counts = np.bincount(tokens[:, 0] * len(first) + tokens[:, 1], minlength=right.size)
        far[name] = chi_square(counts, right.ravel())
    worst = max(far, key=lambda name: far[name])
    return worst if far[worst] > support.critical(right.size - 1) else None
