"""An automaton with a stack: rules that call each other, and themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
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

    def __len__(self) -> int:
        """Its states; what is below the first rule does not count."""
        depth, frame = 0, self.below
        while frame is not None:
            depth, frame = depth + 1, frame.below
        return depth

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


Stacks = tuple[Frame, ...]
"""All stacks that what was read may have left; without any it begins no match."""


class _Onward(NamedTuple):
    """What is reached from a state without reading, inside its rule."""

    readers: tuple[int, ...]
    """States that read a byte."""
    calls: tuple[tuple[str, int], ...]
    """Rules that may begin here, and where they return to."""
    ends: bool
    """Whether the rule may have matched here."""


class Pushdown:
    """A rule that calls others, over bytes.

    A state is the stacks that live at once. There is no end of states, so unlike a `Dfa`'s the table is
    filled when a state is first visited. It is a cache: when it has as many rows as the limits allow, it
    is emptied before the next walk. The state depends on the bytes that were read and on nothing else.

    Args:
        tree: what the output is.
        rules: what `tree` and the rules themselves call. Each must be able to match something, and must
            not call itself before it has read something (`checks.py`).
        limits: with `stacks` on how many live at once.
    """

    def __init__(
        self, tree: Node, rules: Mapping[str, Node], limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self._nfa = Nfa(tree, limits, rules)
        self._limits = limits
        self._class_of = byte_classes(self._nfa)
        self._classes = int(self._class_of[-1]) + 1
        class_of = self._class_of.tolist()
        # Edges over classes instead of bytes: first class, last class, target.
        self._edges = [
            [(class_of[first], class_of[last], target) for first, last, target in edges]
            for edges in self._nfa.byte_edges
        ]
        self._ends = {accept for _, accept in self._nfa.rules.values()} | {self._nfa.accept}
        self._onward: dict[int, _Onward] = {}
        self._bottom = Frame(-1, None)
        self.start: Stacks = self._settle([self._bottom.push(self._nfa.start)])
        self._empty_table()

    def _empty_table(self) -> None:
        self._states: list[Stacks] = [()]
        self._numbers: dict[Stacks, int] = {(): DEAD}
        self._filled = np.zeros(64, dtype=np.bool_)
        self._table = np.full((64, self._classes), DEAD, dtype=np.int32)
        self._filled[DEAD] = True

    def _look_onward(self, state: int) -> _Onward:
        if state not in self._onward:
            nfa, seen, order = self._nfa, {state}, [state]
            for member in order:  # which grows meanwhile
                order += [t for t in dict.fromkeys(nfa.free_edges[member]) if t not in seen]
                seen.update(nfa.free_edges[member])
            self._onward[state] = _Onward(
                tuple(member for member in order if nfa.byte_edges[member]),
                tuple(call for member in order for call in nfa.calls[member]),
                any(member in self._ends for member in order),
            )
        return self._onward[state]

    def _settle(self, stacks: Iterable[Frame]) -> Stacks:
        """What is reached without reading: of it, the stacks that read next, and the finished one."""
        rules = self._nfa.rules
        pending = list(dict.fromkeys(stacks))
        seen, kept = set(pending), dict[Frame, None]()
        while pending and len(kept) < self._limits.stacks:
            stack = pending.pop()
            onward = self._look_onward(stack.state)
            for state in onward.readers:
                kept[stack.replace(state)] = None
            others = [stack.replace(back).push(rules[rule][0]) for rule, back in onward.calls]
            if onward.ends and stack.below is not None:
                if stack.below is self._bottom:
                    kept[stack.replace(self._nfa.accept)] = None
                else:
                    others.append(stack.below)  # the rule has matched: its caller goes on
            for other in others:
                if other not in seen:
                    seen.add(other)
                    pending.append(other)
        return tuple(kept)

    def accepts(self, state: Stacks) -> bool:
        """Whether what was read is a match."""
        # The tree's own accepting state, below which only the bottom can be.
        return any(stack.state == self._nfa.accept for stack in state)

    def _step(self, state: Stacks, byte: int) -> Stacks:
        byte_class = int(self._class_of[byte])
        return self._settle(
            stack.replace(target)
            for stack in state
            for first, last, target in self._edges[stack.state]
            if first <= byte_class <= last
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
            self._fill(number)
        return self._table[states, self._class_of[data]]

    def _fill(self, number: int) -> None:
        """Fill a state's row of the table. Classes of bytes that lead to the same stacks share the work."""
        reached: dict[int, list[Frame]] = {}
        for stack in self._states[number]:
            for first, last, target in self._edges[stack.state]:
                after = stack.replace(target)
                for byte_class in range(first, last + 1):
                    reached.setdefault(byte_class, []).append(after)
        settled: dict[Stacks, int] = {}
        for byte_class, stacks in reached.items():
            key = tuple(stacks)
            if key not in settled:
                settled[key] = self._number(self._settle(stacks))  # may move the table
            self._table[number, byte_class] = settled[key]
        self._filled[number] = True
