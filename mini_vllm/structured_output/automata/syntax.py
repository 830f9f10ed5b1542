"""The syntax tree of a rule: sets of characters, joined, chosen between, repeated, listed, named."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LAST_CHARACTER = 0x10FFFF

Range = tuple[int, int]
"""First and last code point, both included."""


@dataclass(frozen=True)
class Characters:
    """One character out of a set: sorted ranges that do not touch. An empty set matches nothing."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True)
class Joined:
    """Parts one after the other; without parts, the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Either:
    """One of the options."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeated:
    """A part `least` to `most` times; `most` None is without end."""

    part: Node
    least: int
    most: int | None


@dataclass(frozen=True)
class Call:
    """What another rule matches, which may call this one in turn. Only `Pushdown` takes it."""

    rule: str


@dataclass(frozen=True)
class Listed:
    """Parts in this order, with a separator between each two.

    Attributes:
        parts: each with whether it may be left out.
    """

    parts: tuple[tuple[Node, bool], ...]
    separator: Node


Node = Characters | Joined | Either | Repeated | Call | Listed

EMPTY = Joined(())
"""Matches the empty text."""
NOTHING = Either(())
"""Matches no text at all."""


def optional(node: Node) -> Node:
    """The same, or nothing written."""
    return Repeated(node, 0, 1)


def union(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """The same characters as sorted ranges that neither overlap nor touch."""
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def complement(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Every character that is in none of the ranges."""
    gaps: list[Range] = []
    free = 0
    for first, last in union(ranges):
        if free < first:
            gaps.append((free, first - 1))
        free = last + 1
    if free <= LAST_CHARACTER:
        gaps.append((free, LAST_CHARACTER))
    return tuple(gaps)


def common(left: Iterable[Range], right: Iterable[Range]) -> tuple[Range, ...]:
    """Every character that is in both."""
    return complement((*complement(left), *complement(right)))


def one_of(characters: str) -> Node:
    """One of these characters."""
    return Characters(union((ord(char), ord(char)) for char in characters))


def literal(text: str) -> Node:
    """The text itself, character by character."""
    return Joined(tuple(Characters(((ord(char), ord(char)),)) for char in text))
