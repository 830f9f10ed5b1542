"""A row of a correspondence: what it is about, and where either engine does it."""

from __future__ import annotations

from typing import NamedTuple


class Pair(NamedTuple):
    what: str
    mine: str
    theirs: str
    code: str | None = None
    word: str | None = None
