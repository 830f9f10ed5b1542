"""Lab 12-01: from a regex to a mask, the reference solution."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Bytes:
    """One byte, `first` to `last`, both included."""

    first: int
    last: int


@dataclass(frozen=True)
class Joined:
    """The parts one after the other. Without parts: the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Either:
    """One of the options."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeated:
    """The part `least` to `most` times. None for `most`: without end."""

    part: Node
    least: int
    most: int | None


Node = Bytes | Joined | Either | Repeated
Row = NDArray[np.int32]


def predictions() -> dict[str, Any]:
    """The answers to the README's questions."""
    return {
        "states and rows": [7, 5],
        "the end": ["CD42", "CD-42", "CD-423"],
        "after C": ["A", "D-", "D-4", "D42", "D-423"],
        "chosen": 1,
        "inside é": [1, 2, 2],
        "bytes of a row": 16032,
    }


# ---- over bytes ------------------------------------------------------------------------------------


class ByteAutomaton:
    """A rule over bytes."""

    def __init__(self, tree: Node) -> None:
        self.edges: list[list[tuple[int, int, int]]] = []
        self.free: list[list[int]] = []
        begin = self.new_place()
        self.end = self.add(tree, begin)
        self.start = self.settle({begin})

    def new_place(self) -> int:
        """One more place, with no edges yet; its number."""
        self.edges.append([])
        self.free.append([])
        return len(self.edges) - 1

    def add(self, node: Node, begin: int) -> int:
        """Thompson's construction: what matches `node` leads from `begin` to the place returned."""
        if isinstance(node, Bytes):
            end = self.new_place()
            self.edges[begin].append((node.first, node.last, end))
            return end
        if isinstance(node, Joined):
            for part in node.parts:
                begin = self.add(part, begin)
            return begin
        end = self.new_place()
        if isinstance(node, Either):
            for option in node.options:
                self.free[self.add(option, begin)].append(end)
            return end
        for _ in range(node.least):
            begin = self.add(node.part, begin)
        if node.most is None:
            # A place of its own: a loop that came back to `begin` would come back into what is around it.
            loop = self.new_place()
            self.free[begin].append(loop)
            self.free[self.add(node.part, loop)].append(loop)
            self.free[loop].append(end)
            return end
        for _ in range(node.most - node.least):
            self.free[begin].append(end)
            begin = self.add(node.part, begin)
        self.free[begin].append(end)
        return end

    def settle(self, places: Iterable[int]) -> frozenset[int]:
        """These places and all that are reached from them without reading."""
        pending = list(places)
        seen = set(pending)
        while pending:
            for place in self.free[pending.pop()]:
                if place not in seen:
                    seen.add(place)
                    pending.append(place)
        return frozenset(seen)

    def step(self, state: frozenset[int], byte: int) -> frozenset[int]:
        """The state after one more byte."""
        reached = {
            target
            for place in state
            for first, last, target in self.edges[place]
            if first <= byte <= last
        }
        return self.settle(reached)

    def accepts(self, state: frozenset[int]) -> bool:
        """Whether what was read is a match."""
        return self.end in state


# ---- over tokens -----------------------------------------------------------------------------------


class OverBytes(Protocol):
    """What a `TokenMask` asks of an automaton."""

    @property
    def start(self) -> Any: ...
    def step(self, state: Any, byte: int) -> Any: ...
    def accepts(self, state: Any) -> bool: ...


class TokenMask:
    """A rule over tokens."""

    def __init__(
        self, automaton: OverBytes, tokens: Sequence[bytes], stop: int, vocab_size: int
    ) -> None:
        self.automaton = automaton
        self.tokens = tokens
        self.stop = stop
        self.vocab_size = vocab_size
        self.rows: dict[Hashable, Row] = {}

    @property
    def start(self) -> Any:
        """The first state."""
        return self.automaton.start

    def accepts(self, state: Any) -> bool:
        """Whether the output may end here."""
        return self.automaton.accepts(state)

    def is_stop(self, token: int) -> bool:
        """Whether this is the end token."""
        return token == self.stop

    def advance(self, state: Any, token: int) -> Any:
        """The state after a token, or None."""
        if not 0 <= token < len(self.tokens) or token == self.stop or not self.tokens[token]:
            return None
        for byte in self.tokens[token]:
            state = self.automaton.step(state, byte)
            if not state:
                return None
        return state

    def row(self, state: Any) -> Row:
        """The tokens that a state allows, kept by state."""
        if state not in self.rows:
            bits = np.zeros(-(-self.vocab_size // 32) * 32, dtype=np.bool_)
            for token in range(len(self.tokens)):
                bits[token] = self.advance(state, token) is not None
            bits[self.stop] = self.accepts(state)
            self.rows[state] = np.packbits(bits, bitorder="little").view(np.int32)
        return self.rows[state]


def forced(row: Row) -> int | None:
    """The only token that a row allows, or None."""
    allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
    return int(allowed[0]) if len(allowed) == 1 else None
