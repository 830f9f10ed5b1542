"""Reasons as words: what they are made of. `reasons.py` finds them."""

from __future__ import annotations

from typing import NamedTuple

DECODE = "one decode token"
DRAFTS = "one decode token and "
REST = "the rest of its prompt"
AGAIN = "the rest of its tokens, computed again after a preemption"
ENDS = " ends it"
IN_FLIGHT = "its last token is being sampled already: the result has to come first"


class Reason(NamedTuple):
    """Why a request got what it got.

    Attributes:
        rule: the rule that settled it. Of tokens: `rest` (it gets all it misses), `threshold`,
            `budget`; with speculation `drafts` (all of them, too) and `end` too. Of having none:
            `victim`, `spent`, `ends`, `preempted`, `slots`, `chunks`, `gate`, `queue`; with
            asynchronous scheduling `flight` and `lost` too. `against`: none of vLLM's.
        words: the rule in this case, with its numbers.
        room: for an admitted request, that there was room for it.
    """

    rule: str
    words: str
    room: str = ""


def against(words: str, whose: str = "vLLM") -> Reason:
    return Reason("against", f"not by {whose}'s rules{words}")


def count(n: int, noun: str) -> str:
    """`1 block`, `2 blocks`."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def are(n: int) -> str:
    return f"{n} is" if n == 1 else f"{n} are"
