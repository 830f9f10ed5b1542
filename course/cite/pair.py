"""A row of a correspondence: what it is about, and where either engine does it."""

from __future__ import annotations

from typing import NamedTuple


class Pair(NamedTuple):
    """Without `theirs`, vLLM's side is the first definition that our symbol's docstring cites."""

    what: str
    mine: str
    theirs: str = ""
    code: str | None = None
    word: str | None = None
