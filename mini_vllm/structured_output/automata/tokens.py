"""Lifting: from an automaton over bytes to one over tokens."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from mini_vllm.structured_output.automata.dfa import DEAD

_ROW_BYTES = 16 * 2**20


State = TypeVar("State", bound=Hashable)


class ByteAutomaton(Protocol[State]):
    """What tokens are lifted from: `Dfa` or `Pushdown`. A state that is false is dead."""

    @property
    def start(self) -> State: ...
    def accepts(self, state: State) -> bool: ...
    def advance(self, state: State, data: bytes) -> State: ...
    def number(self, state: State) -> int: ...
    def next_states(
        self, states: npt.NDArray[np.int32], data: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]: ...


class TokenTrie:
    """A vocabulary as a tree of bytes, so that tokens with one beginning are walked together.

    A level of the tree holds all beginnings of one length, and one numpy look-up takes the whole
    level a byte further. A token of no bytes can never be produced under a rule: it is left out.

    Attributes:
        token_bytes: for each token what it spells.
        stop_token_ids: tokens that end the output. They are allowed where the rule is matched,
            whatever they spell.
    """

    def __init__(self, token_bytes: Sequence[bytes], stop_token_ids: Iterable[int]) -> None:
        self.token_bytes = token_bytes
        self.stop_token_ids = frozenset(stop_token_ids)
        lengths = np.array([len(spelled) for spelled in token_bytes], dtype=np.int64)
        begins = np.cumsum(lengths) - lengths
        data = np.frombuffer(b"".join(token_bytes), dtype=np.uint8)
        # The node of what has been read of each token; node 0 is the root.
        node = np.zeros(len(token_bytes), dtype=np.int64)
        self._nodes = 1
        self._levels: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        for depth in range(int(lengths.max(initial=0))):
            longer = lengths > depth
            # A node is named by its parent and its byte: equal names, one node.
            names = node[longer] * 256 + data[begins[longer] + depth]
            distinct, numbers = np.unique(names, return_inverse=True)
            self._levels.append((distinct // 256, distinct % 256))
            node[longer] = self._nodes + numbers
            self._nodes += len(distinct)
        self._node = node
        self._never = lengths == 0
        for token in self.stop_token_ids:
            self._never[token] = True

    def __len__(self) -> int:
        return len(self.token_bytes)

    def walk(self, automaton: ByteAutomaton[State], state: State) -> npt.NDArray[np.int32]:
        """For each token the number of the state that it leads to; `DEAD` where it is not allowed.
        Stop tokens are not followed: what they lead to is no state."""
        reached = np.empty(self._nodes, dtype=np.int32)
        reached[0] = automaton.number(state)
        end = 1
        for parents, bytes_ in self._levels:
            begin, end = end, end + len(parents)
            reached[begin:end] = automaton.next_states(reached[parents], bytes_)
        after = reached[self._node]
        after[self._never] = DEAD
        return after


class TokenAutomaton(Generic[State]):
    """A rule over tokens: the states are those over bytes, each with its row of bits, computed once.

    Compiled once, used by every request that has the rule; it holds no request's state.

    Args:
        automaton: the rule over bytes.
        trie: the vocabulary.
        vocab_size: of the model. Tokens beyond the vocabulary are never allowed.
    """

    def __init__(self, automaton: ByteAutomaton[State], trie: TokenTrie, vocab_size: int) -> None:
        self._automaton = automaton
        self._trie = trie
        self._words = -(-vocab_size // 32)
        self._lock = threading.Lock()
        self._rows: dict[State, npt.NDArray[np.int32]] = {}
        self._most_rows = max(1, _ROW_BYTES // (4 * self._words))

    def is_stop(self, token: int) -> bool:
        """Whether the token ends the output."""
        return token in self._trie.stop_token_ids

    @property
    def start(self) -> State:
        """The first state."""
        return self._automaton.start

    def accepts(self, state: State) -> bool:
        """Whether the output may end in this state."""
        return self._automaton.accepts(state)

    def advance(self, state: State, token: int) -> State | None:
        """The state after a token that is no stop token; None where it is not allowed."""
        if not 0 <= token < len(self._trie):
            return None
        spelled = self._trie.token_bytes[token]
        after = self._automaton.advance(state, spelled) if spelled else None
        return after or None

    def row(self, state: State) -> npt.NDArray[np.int32]:
        """The tokens allowed in a state: bit `i` of word `w` is token `32 * w + i`. Not to be written to.

        Rows are kept, up to 16 MiB a rule; then the oldest goes, and is computed again when needed.
        """
        with self._lock:  # rows of one step may be filled in several threads
            row = self._rows.get(state)
            if row is None:
                if len(self._rows) >= self._most_rows:
                    del self._rows[next(iter(self._rows))]
                row = self._rows[state] = self._compute_row(state)
            return row

    def _compute_row(self, state: State) -> npt.NDArray[np.int32]:
        bits = np.zeros(32 * self._words, dtype=np.bool_)
        bits[: len(self._trie)] = self._trie.walk(self._automaton, state) != DEAD
        if self.accepts(state):
            bits[list(self._trie.stop_token_ids)] = True
        # Little-endian in bits and in bytes, whatever the machine is.
        packed = np.packbits(bits, bitorder="little").view("<i4")
        return packed.astype(np.int32, copy=False)
