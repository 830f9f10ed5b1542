"""Lab 08-02: which drafts are kept, and what replaces the first that is not. Your work: every
NotImplementedError.

n requests, `num_tokens` drafts between them, V tokens in the vocabulary. p is the model's distribution at a
place, q the drafter's. q is None where the draft counts as certain, as if the drafter had given it the
probability 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.sample.ops import softmax  # noqa: F401

Array = NDArray[np.float32]
Ints = NDArray[np.integer[Any]]
Floats = NDArray[np.floating[Any]]


def predictions() -> dict[str, Any]:
    """Your answers to the README's five questions, under the names given there."""
    raise NotImplementedError


# ---- one place -----------------------------------------------------------------------------------


def accepts(draft: int, p: Array, q: Array | None, u: float) -> bool:
    """Whether the draft x is kept: with probability min(1, p(x) / q(x)).

    It is kept if the ratio is u or more. A draft with q(x) = 0 is never kept.

    Args:
        p: [V], the model's probabilities.
        q: [V], what the draft was drawn from, or None if it counts as certain.
        u: uniform in [0, 1).
    """
    raise NotImplementedError


def replacement(draft: int, p: Array, q: Array | None) -> Array:
    """The distribution of the token that replaces a rejected draft.

    With it, kept drafts and replacements together are distributed as p.

    Args:
        p, q: as in `accepts`. Both stay as they are.

    Returns:
        [V], adding up to 1. Where p leaves nothing to make up for, no draft is ever rejected: return p.
    """
    raise NotImplementedError


# ---- one request ---------------------------------------------------------------------------------


def judge(
    drafts: Sequence[int], p: Array, q: Array | None, u: Floats, inv_q: Array, bonus: int
) -> list[int]:
    """The tokens that a request with a temperature keeps.

    The drafts are judged in order. The first that is rejected is replaced, and nothing follows it. If none
    is rejected, the bonus token follows the last.

    Args:
        drafts: k of them; k may be 0.
        p: [k, V], the model's distribution at each draft's place.
        q: [k, V], or None.
        u: [k], one for each place.
        inv_q: [V], 1 over the request's noise, which is drawn from the exponential distribution. A draw from
            a distribution is the token where distribution times inv_q is largest.
        bonus: the token after the last draft, already drawn.
    """
    raise NotImplementedError


def judge_greedy(drafts: Sequence[int], best: Ints, bonus: int) -> list[int]:
    """The tokens that a greedy request keeps: exactly those that it would have got without drafts.

    Args:
        best: [k], the model's likeliest token at each draft's place.
        bonus: the likeliest token after the last draft.
    """
    raise NotImplementedError


# ---- the step ------------------------------------------------------------------------------------


def rows_of(num_draft_tokens: Sequence[int]) -> tuple[Ints, Ints]:
    """Which rows of the step's logits judge the drafts, and which are bonus rows.

    A request with k drafts has k + 1 rows, all next to each other. They are the logits after the
    request's newest token, after its first draft, and so on.

    Returns:
        the rows that judge the drafts, [num_tokens], and the bonus rows, [n].
    """
    raise NotImplementedError


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
    """The tokens of a step, a row per request.

    The bonus token of a greedy request is the likeliest of its bonus row. Other requests draw theirs from
    that row with `bonus_inv_q`.

    Args:
        draft_token_ids: [num_tokens], the requests' drafts end to end.
        num_draft_tokens: [n], how many each has; one at least has some.
        draft_probs: [num_tokens, V], or None: all drafts count as certain.
        logits: [num_tokens + n, V]. Temperature, top-k and top-p are applied already: `softmax` gives p.
        is_greedy: [n].
        uniform_probs: [num_tokens].
        inv_q, bonus_inv_q: [n, V].

    Returns:
        int64 [n, most drafts + 1], with -1 after a request's last token.
    """
    raise NotImplementedError


# ---- the decision --------------------------------------------------------------------------------


def acceptance_rates(p: Array, q: Array) -> dict[str, float]:
    """How often a draft is accepted, if the model has p and the drafter q, both [V].

    Returns:
        a rate for each of the README's first three questions, under its name.
    """
    raise NotImplementedError


def choose_draft_sample_method(p: Array, q: Array) -> str:
    """The setting of `draft_sample_method` under which more drafts are accepted on average.

    `greedy` drafts the drafter's likeliest token and judges it as certain, `probabilistic` draws from q and
    judges by q. If neither is better, `greedy`: it needs no probabilities kept.

    Args:
        p, q: [m, V], the distributions at m places, which count alike.
    """
    raise NotImplementedError
