"""Lab 08-06: what vLLM lets pass with speculative decoding, and which server is biased. Your work: every
NotImplementedError.

The servers write two tokens. `first` [V] is the model's distribution of the first, `second` [V, V] that of
the second, a row per first token. `draft_first` is what is drafted first, `draft_second` [V] what is drafted
after each first token. Drafts count as certain (the drafter gave them 1), two per step. After a rejected
draft a new step begins.
"""

from __future__ import annotations

from typing import Any

import numpy as np  # noqa: F401
from numpy.typing import NDArray

from course.learner.labs import load_support

support = load_support(__file__)
Array = NDArray[Any]


# ---- what passes ---------------------------------------------------------------------------------


def parameters() -> dict[str, str]:
    """What happens to each setting of `support.SETTINGS` with speculative decoding.

    Returns:
        by the setting's name: "passes", "refused" (the request fails) or "no start" (the server does not
        start).
    """
    raise NotImplementedError


def methods() -> dict[str, list[Any]]:
    """What each method of `support.METHODS` allows on a GPU.

    Returns:
        by the method's name, a list of three: whether scheduling is asynchronous by default;
        whether it is when asked for, or "refused" if the server then does not start; and
        whether model runner V2 takes the method. Otherwise True or False.
    """
    raise NotImplementedError


# ---- what the pairs would be ---------------------------------------------------------------------


def pairs_if_right(first: Array, second: Array) -> Array:
    """How likely each pair of tokens is, if the text is the model's: [V, V], one row per first token."""
    raise NotImplementedError


def pairs_if_resampled(first: Array, second: Array, draft_first: int, draft_second: Array) -> Array:
    """How likely each pair is, if every rejected draft is replaced by a draw from all of p.

    Both places have a draft that may be rejected. Nothing that is passed in is changed.
    """
    raise NotImplementedError


def pairs_if_u_is_shared(
    first: Array, second: Array, draft_first: int, draft_second: Array
) -> Array:
    """How likely each pair is, if both drafts of a step are judged with the same u.

    A draft is kept if its probability is u or more. If the first is kept, what is known of u? If it is
    rejected, the second token comes in a new step, with a u of its own. Replacements are right, without
    the draft.
    """
    raise NotImplementedError


# ---- the test ------------------------------------------------------------------------------------


def chi_square(counts: Array, probs: Array) -> float:
    """How far counts are from what they should be on average.

    For each cell the squared difference, divided by what is expected there; added up.

    Args:
        counts: [cells], how often each came.
        probs: [cells], how likely each is; none is 0.
    """
    raise NotImplementedError


def draws_needed(right: Array, wrong: Array) -> int:
    """The fewest draws from `wrong` that show, 99 times in 100, that they do not come from `right`.

    n draws give n * w2 to chi-square, where w2 is the sum over the cells of (wrong - right)^2 / right.
    `support.needed(dof)` says how large n * w2 must be. Cells that add up to 1 have one degree of freedom
    less than there are cells.

    Args:
        right, wrong: of the same shape.
    """
    raise NotImplementedError


def find_biased(
    boxes: dict[str, Any], first: Array, second: Array, draft_first: int, draft_second: Array
) -> str | None:
    """The name of the server whose text is not the model's, or None.

    `box.draw(n)` gives the first two tokens of n requests, int [n, 2]. At most one server is biased: of its
    requests, the share `support.SHARE` comes to a machine with one of the two faults above, the others to
    machines that are right. Whichever fault it is, you must find it 99 times in 100, with no more draws per
    server than that takes; and of 1,000 servers that are right you may accuse one (`support.critical(dof)`).
    """
    raise NotImplementedError
