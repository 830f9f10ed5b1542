"""Lifting: from an automaton over bytes to one over tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from mini_vllm.structured_output.automata.dfa import DEAD, Dfa

_ROW_BYTES = 16 * 2**20


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

    def walk(self, dfa: Dfa, state: int) -> npt.NDArray[np.int32]:
        """For each token the state that it leads to from `state`; `DEAD` where it is not allowed.
        Stop tokens are not followed: what they lead to is no state."""
        reached = np.empty(self._nodes, dtype=np.int32)
        reached[0] = state
        end = 1
        for parents, bytes_ in self._levels:
            begin, end = end, end + len(parents)
            reached[begin:end] = dfa.table[reached[parents], dfa.class_of[bytes_]]
        after = reached[self._node]
        after[self._never] = DEAD
        return after


class TokenAutomaton:
    """A rule over tokens: states are those of the table, each with its row of bits, computed once.

    Compiled once, used by every request that has the rule; it holds no request's state.

    Args:
        dfa: the rule over bytes.
        trie: the vocabulary.
        vocab_size: of the model. Tokens beyond the vocabulary are never allowed.
    """

    def __init__(self, dfa: Dfa, trie: TokenTrie, vocab_size: int) -> None:
        self.dfa = dfa
        self._trie = trie
        self._words = -(-vocab_size // 32)
        self._rows: dict[int, npt.NDArray[np.int32]] = {}
        self._most_rows = max(1, _ROW_BYTES // (4 * self._words))

    def is_stop(self, token: int) -> bool:
        """Whether the token ends the output."""
        return token in self._trie.stop_token_ids

    def accepts(self, state: int) -> bool:
        """Whether the output may end in this state."""
        return bool(self.dfa.accepting[state])

    def advance(self, state: int, token: int) -> int:
        """The state after a token that is no stop token; `DEAD` where it is not allowed."""
        if not 0 <= token < len(self._trie):
            return DEAD
        spelled = self._trie.token_bytes[token]
        return self.dfa.advance(state, spelled) if spelled else DEAD

    def row(self, state: int) -> npt.NDArray[np.int32]:
        """The tokens allowed in a state: bit `i` of word `w` is token `32 * w + i`. Not to be written to.

        Rows are kept, up to 16 MiB a rule; then the oldest goes, and is computed again when needed.
        """
        if state not in self._rows:
            if len(self._rows) >= self._most_rows:
                self._rows.pop(next(iter(self._rows)))
            bits = np.zeros(32 * self._words, dtype=np.bool_)
            bits[: len(self._trie)] = self._trie.walk(self.dfa, state) != DEAD
            if self.accepts(state):
                bits[list(self._trie.stop_token_ids)] = True
            # Little-endian in bits and in bytes, whatever the machine is.
            packed = np.packbits(bits, bitorder="little").view("<i4")
            self._rows[state] = packed.astype(np.int32, copy=False)
        return self._rows[state]
