"""Lab 12-01: from a regex to a mask. Your work: every NotImplementedError."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# ---- given: a rule, parsed. `[0-9]é?` is
# Joined((Bytes(0x30, 0x39), Repeated(Joined((Bytes(0xC3, 0xC3), Bytes(0xA9, 0xA9))), 0, 1))).


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
    """Your answers to the README's questions, under the names given there."""
    raise NotImplementedError


# ---- over bytes ------------------------------------------------------------------------------------


class ByteAutomaton:
    """A rule over bytes: places, with edges between them, and where one may be.

    An edge `(first, last, target)` leads to `target` by reading a byte from `first` to `last`. A free edge
    leads on without reading. A state is the frozenset of all places in which one may be after what was read;
    it is empty if no match begins with that.

    Attributes:
        edges: for each place, the list of its edges.
        free: for each place, the list of the places that its free edges lead to.
        end: the place where the whole rule has matched.
        start: the state before anything is read.
    """

    def __init__(self, tree: Node) -> None:
        """Given."""
        self.edges: list[list[tuple[int, int, int]]] = []
        self.free: list[list[int]] = []
        begin = self.new_place()
        self.end = self.add(tree, begin)
        self.start = self.settle({begin})

    def new_place(self) -> int:
        """Given: one more place, with no edges yet; its number."""
        self.edges.append([])
        self.free.append([])
        return len(self.edges) - 1

    def add(self, node: Node, begin: int) -> int:
        """Add places and edges for a part of the rule.

        Args:
            node: the part.
            begin: the place from which it is read.

        Returns:
            The place where it has matched. Reading a match of `node`, and nothing else, leads there from
            `begin`. This must stay true when edges are added later: to `begin`, from which other options
            are read, and to the place returned, from which the rest is read.
        """
        raise NotImplementedError

    def settle(self, places: Iterable[int]) -> frozenset[int]:
        """These places, and all that free edges reach from them. Free edges may form a circle."""
        raise NotImplementedError

    def step(self, state: frozenset[int], byte: int) -> frozenset[int]:
        """The state after one more byte, 0 to 255."""
        raise NotImplementedError

    def accepts(self, state: frozenset[int]) -> bool:
        """Whether what was read is a match. It may be one and still go on."""
        raise NotImplementedError


# ---- over tokens -----------------------------------------------------------------------------------


class OverBytes(Protocol):
    """Given: what a `TokenMask` may ask of an automaton. A state can be a dictionary's key, and is false
    (`not state`) if no match begins with what was read."""

    @property
    def start(self) -> Any: ...
    def step(self, state: Any, byte: int) -> Any: ...
    def accepts(self, state: Any) -> bool: ...


class TokenMask:
    """A rule over tokens. One serves all requests that have the rule, so it holds no request's state."""

    def __init__(
        self, automaton: OverBytes, tokens: Sequence[bytes], stop: int, vocab_size: int
    ) -> None:
        """Given.

        Args:
            automaton: the rule over bytes: yours, or a test's.
            tokens: the bytes that each token spells.
            stop: the id of the end token, which is one of `tokens`.
            vocab_size: of the model; at least as many as there are tokens.
        """
        self.automaton = automaton
        self.tokens = tokens
        self.stop = stop
        self.vocab_size = vocab_size
        self.rows: dict[Hashable, Row] = {}

    @property
    def start(self) -> Any:
        """Given: the first state."""
        return self.automaton.start

    def accepts(self, state: Any) -> bool:
        """Given: whether the output may end here."""
        return self.automaton.accepts(state)

    def is_stop(self, token: int) -> bool:
        """Given: whether this is the end token."""
        return token == self.stop

    def advance(self, state: Any, token: int) -> Any:
        """The state after a token.

        Returns:
            None if the token is barred, if it is the end token (no state follows), if it spells no byte, and
            if there is no such token (the scheduler pads with -1).
        """
        raise NotImplementedError

    def row(self, state: Any) -> Row:
        """The tokens that are allowed in a state, as bits.

        Returns:
            int32 `[words]`, 32 tokens a word, as many words as `vocab_size` takes. Bit i of word w, counted
            from the lowest, is token 32 * w + i; 1 allows it. Bits without a token are 0.

            A token is allowed if `advance` has a state for it. The end token is allowed where the automaton
            accepts, whatever it spells. Each state's row is made once: asked for again, at any time, the same
            array is returned, and the automaton is asked nothing.
        """
        raise NotImplementedError


def forced(row: Row) -> int | None:
    """The token that a row forces: the only one it allows. None if it allows several, all, or none."""
    raise NotImplementedError
