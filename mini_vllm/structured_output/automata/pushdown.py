"""An automaton with a stack: rules that call each other, and themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from mini_vllm.structured_output.automata.dfa import DEAD, byte_classes
from mini_vllm.structured_output.automata.limits import DEFAULT_LIMITS, Limits
from mini_vllm.structured_output.automata.nfa import Nfa
from mini_vllm.structured_output.automata.syntax import Node


class Frame:
    """A stack: a state on top, and below it where the caller of its rule goes on.

    Equal stacks are one object, since each stack knows those that stand on it. So they are compared
    and hashed by identity, however deep they are. It does not hold them: what no state needs goes.
    """

    __slots__ = ("__weakref__", "_above", "below", "state")

    def __init__(self, state: int, below: Frame | None) -> None:
        self.state = state
        self.below = below
        self._above: WeakValueDictionary[int, Frame] = WeakValueDictionary()

    def push(self, state: int) -> Frame:
        """This stack with one more state on top."""
        frame = self._above.get(state)
        if frame is None:
            frame = self._above[state] = Frame(state, self)
        return frame

    def replace(self, state: int) -> Frame:
        """This stack with another state on top."""
        assert self.below is not None, "the bottom stays"
        return self.below.push(state)


Stacks = frozenset[Frame]
"""All stacks that what was read may have left; without any it begins no match."""


class Pushdown:
    """A rule that calls others, over bytes.

    A state is a set of stacks. There is no end of them, so unlike a `Dfa`'s the table is filled when a
    state is first visited. It is a cache: when it has as many rows as the limits allow, it is emptied
    before the next walk.

    Args:
        tree: what the output is.
        rules: what `tree` and the rules themselves call. A rule must not call itself before it has
            read something.
    """

    def __init__(
        self, tree: Node, rules: Mapping[str, Node], limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self._nfa = Nfa(tree, limits, rules)
        self._limits = limits
        self._class_of = byte_classes(self._nfa)
        self._classes = int(self._class_of[-1]) + 1
        self._byte_of_class = np.searchsorted(self._class_of, np.arange(self._classes)).tolist()
        self._ends = {accept for _, accept in self._nfa.rules.values()}
        self._bottom = Frame(-1, None)
        self.start: Stacks = self._settle([self._bottom.push(self._nfa.start)])
        self._empty_table()

    def _empty_table(self) -> None:
        self._states: list[Stacks] = [frozenset()]
        self._numbers: dict[Stacks, int] = {frozenset(): DEAD}
        self._filled = np.zeros(64, dtype=np.bool_)
        self._table = np.full((64, self._classes), DEAD, dtype=np.int32)
        self._filled[DEAD] = True

    def _settle(self, stacks: Iterable[Frame]) -> Stacks:
        """What is reached without reading: of it, the stacks that read next, and the finished one."""
        nfa, kept = self._nfa, set[Frame]()
        pending = list(stacks)
        seen = set(pending)
        while pending:
            stack = pending.pop()
            state = stack.state
            if nfa.byte_edges[state] or self._is_finished(stack):
                kept.add(stack)
            onward = [stack.replace(target) for target in nfa.free_edges[state]]
            for rule, target in nfa.calls[state]:
                onward.append(stack.replace(target).push(nfa.rules[rule][0]))
            if state in self._ends and stack.below is not None:
                onward.append(stack.below)  # the rule has matched: its caller goes on
            for other in onward:
                if other not in seen:
                    seen.add(other)
                    pending.append(other)
        return frozenset(kept)

    def _is_finished(self, stack: Frame) -> bool:
        return stack.state == self._nfa.accept  # the tree's own, which only the bottom is below

    def accepts(self, state: Stacks) -> bool:
        """Whether what was read is a match."""
        return any(map(self._is_finished, state))

    def _step(self, state: Stacks, byte: int) -> Stacks:
        edges = self._nfa.byte_edges
        return self._settle(
            stack.replace(target)
            for stack in state
            for first, last, target in edges[stack.state]
            if first <= byte <= last
        )

    def advance(self, state: Stacks, data: bytes) -> Stacks:
        """The state after `data`."""
        for byte in data:
            state = self._step(state, byte)
        return state

    def number(self, state: Stacks) -> int:
        """The state's row in the table, with which a walk begins."""
        if len(self._states) > self._limits.dfa_states:
            self._empty_table()
        return self._number(state)

    def _number(self, state: Stacks) -> int:
        number = self._numbers.setdefault(state, len(self._states))
        if number == len(self._states):
            self._states.append(state)
            if number == len(self._table):
                self._table = np.concatenate([self._table, np.full_like(self._table, DEAD)])
                self._filled = np.concatenate([self._filled, np.zeros_like(self._filled)])
        return number

    def next_states(
        self, states: npt.NDArray[np.int32], data: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]:
        """The numbers of the states after one byte each."""
        for number in np.unique(states[~self._filled[states]]).tolist():
            row = [self._step(self._states[number], byte) for byte in self._byte_of_class]
            numbers = [self._number(after) for after in row]  # may move the table
            self._table[number] = numbers
            self._filled[number] = True
        return self._table[states, self._class_of[data]]
