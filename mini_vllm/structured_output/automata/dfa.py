"""From a nondeterministic automaton to a table: one state at a time, one look-up a byte."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mini_vllm.structured_output.automata.limits import DEFAULT_LIMITS, Limits, RuleTooLarge
from mini_vllm.structured_output.automata.nfa import Nfa
from mini_vllm.structured_output.automata.syntax import Node

DEAD = 0
"""The state that no byte leaves: what was read begins no match."""
START = 1


class Dfa:
    """A deterministic automaton over bytes, complete when it is made.

    Every state but `DEAD` can still lead to a match, unless the rule has an empty set of
    characters, which the parsers refuse.

    Attributes:
        class_of: int32 `[256]`. Bytes that no edge of the rule tells apart share a class.
        table: int32 `[states, classes]`: the next state.
        accepting: bool `[states]`: what was read is a match, which may still go on.
    """

    def __init__(self, tree: Node, limits: Limits = DEFAULT_LIMITS) -> None:
        nfa = Nfa(tree, limits)
        self.class_of = byte_classes(nfa)
        rows, sets = _Subsets(nfa, self.class_of, limits).explore()
        self.table: npt.NDArray[np.int32] = np.stack(rows)
        self.accepting: npt.NDArray[np.bool_] = np.array([nfa.accept in s for s in sets])

    def __len__(self) -> int:
        return len(self.table)

    @property
    def start(self) -> int:
        """The first state."""
        return START

    def accepts(self, state: int) -> bool:
        """Whether what was read is a match."""
        return bool(self.accepting[state])

    def number(self, state: int) -> int:
        """The state itself: here states are numbers."""
        return state

    def next_states(
        self, states: npt.NDArray[np.int32], data: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]:
        """The states after one byte each."""
        return self.table[states, self.class_of[data]]

    def advance(self, state: int, data: bytes) -> int:
        """The state after `data`."""
        for byte in data:
            state = int(self.table[state, self.class_of[byte]])
        return state


def byte_classes(nfa: Nfa) -> npt.NDArray[np.int32]:
    """Number the stretches of bytes between which no edge begins or ends."""
    begins = np.zeros(257, dtype=np.int32)
    for edges in nfa.byte_edges:
        for first, last, _ in edges:
            begins[[first, last + 1]] = 1
    begins[0] = 0
    return np.cumsum(begins[:256], dtype=np.int32)


class _Subsets:
    """The subset construction: a state of the table is a set of states of the other automaton."""

    def __init__(self, nfa: Nfa, class_of: npt.NDArray[np.int32], limits: Limits) -> None:
        self._nfa = nfa
        self._limits = limits
        self._classes = int(class_of[-1]) + 1
        # Edges over classes instead of bytes: first class, last class, target.
        self._edges = [
            [(int(class_of[first]), int(class_of[last]), target) for first, last, target in edges]
            for edges in nfa.byte_edges
        ]
        self._closures: dict[int, frozenset[int]] = {}
        self._work = 0

    def explore(self) -> tuple[list[npt.NDArray[np.int32]], list[frozenset[int]]]:
        """All states that can be reached, as rows of the table and as sets."""
        sets: list[frozenset[int]] = [frozenset(), self._closure(self._nfa.start)]
        numbers = {members: number for number, members in enumerate(sets)}
        rows: list[npt.NDArray[np.int32]] = []
        while len(rows) < len(sets):
            row = np.full(self._classes, DEAD, dtype=np.int32)
            for byte_class, targets in self._targets(sets[len(rows)]).items():
                reached = frozenset().union(*map(self._closure, targets))
                self._count(len(reached))
                if reached not in numbers:
                    if len(sets) >= self._limits.dfa_states:
                        raise RuleTooLarge(
                            f"the rule's automaton has more than {self._limits.dfa_states} states"
                        )
                    numbers[reached] = len(sets)
                    sets.append(reached)
                row[byte_class] = numbers[reached]
            rows.append(row)
        return rows, sets

    def _targets(self, members: frozenset[int]) -> dict[int, set[int]]:
        targets: dict[int, set[int]] = {}
        for state in members:
            for first, last, target in self._edges[state]:
                self._count(last - first + 1)
                for byte_class in range(first, last + 1):
                    targets.setdefault(byte_class, set()).add(target)
        return targets

    def _closure(self, state: int) -> frozenset[int]:
        """What is reached from `state` without reading: of it, the states that read or accept."""
        if state not in self._closures:
            seen, pending = {state}, [state]
            while pending:
                for target in self._nfa.free_edges[pending.pop()]:
                    if target not in seen:
                        seen.add(target)
                        pending.append(target)
            self._count(len(seen))
            accept = self._nfa.accept
            self._closures[state] = frozenset(s for s in seen if self._edges[s] or s == accept)
        return self._closures[state]

    def _count(self, touched: int) -> None:
        self._work += touched
        if self._work > self._limits.work:
            raise RuleTooLarge(
                f"the rule takes more than {self._limits.work} steps to compile: "
                "parts that overlap, or may be empty, are repeated too often"
            )
