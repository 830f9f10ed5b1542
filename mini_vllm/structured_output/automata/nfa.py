"""From a syntax tree to a nondeterministic automaton over bytes (Thompson, 1968)."""

from __future__ import annotations

from collections.abc import Mapping

from mini_vllm.structured_output.automata.limits import Limits, RuleTooLarge
from mini_vllm.structured_output.automata.syntax import (
    Call,
    Characters,
    Either,
    Joined,
    Listed,
    Node,
    Range,
    Repeated,
)
from mini_vllm.structured_output.automata.utf8 import ByteRange, byte_sequences


class Nfa:
    """An automaton that may be in several states at once.

    Attributes:
        byte_edges: for each state its edges `(first byte, last byte, target)`.
        free_edges: for each state the states that are reached without reading anything.
        calls: for each state its edges `(rule, target)`, each taken by reading what the rule matches.
        start, accept: of the tree, the only states of their kind.
        rules: the start and the accepting state of each named rule.
    """

    def __init__(self, tree: Node, limits: Limits, rules: Mapping[str, Node] | None = None) -> None:
        self._limits = limits
        self._spelled: dict[Range, list[tuple[ByteRange, ...]]] = {}
        self.byte_edges: list[list[tuple[int, int, int]]] = []
        self.free_edges: list[list[int]] = []
        self.calls: list[list[tuple[str, int]]] = []
        self.start = self._new_state()
        self.accept = self._add(tree, self.start)
        self.rules: dict[str, tuple[int, int]] = {}
        for name, body in (rules or {}).items():
            start = self._new_state()
            self.rules[name] = start, self._add(body, start)

    def _new_state(self) -> int:
        if len(self.byte_edges) >= self._limits.nfa_states:
            raise RuleTooLarge(
                f"the rule needs more than {self._limits.nfa_states} states before it is made "
                "deterministic: lower the counts of its repetitions"
            )
        self.byte_edges.append([])
        self.free_edges.append([])
        self.calls.append([])
        return len(self.byte_edges) - 1

    def _add(self, node: Node, begin: int) -> int:
        """Add what matches `node` from state `begin` on; return the state where it has matched.

        No edge leaves the returned state yet, and none but those of `node` enter it.
        """
        match node:
            case Characters():
                return self._add_characters(node, begin)
            case Joined():
                for part in node.parts:
                    begin = self._add(part, begin)
                if not node.parts:
                    return self._step(begin)
                return begin
            case Either():
                end = self._new_state()
                for option in node.options:
                    # From a state of its own: a loop in one option must not lead into another.
                    self.free_edges[self._add(option, self._step(begin))].append(end)
                return end
            case Call():
                end = self._new_state()
                self.calls[begin].append((node.rule, end))
                return end
            case Repeated():
                return self._add_repeated(node, begin)
            case Listed():
                return self._add_listed(node, begin)

    def _step(self, begin: int) -> int:
        """A new state, reached from `begin` without reading."""
        state = self._new_state()
        self.free_edges[begin].append(state)
        return state

    def _add_characters(self, node: Characters, begin: int) -> int:
        end = self._new_state()
        tails: dict[tuple[ByteRange, ...], int] = {(): end}
        for span in node.ranges:
            if span not in self._spelled:  # a repetition spells the same ranges again and again
                self._spelled[span] = list(byte_sequences(*span))
            for first, *rest in self._spelled[span]:
                self.byte_edges[begin].append((*first, self._tail(tuple(rest), tails)))
        return end

    def _tail(
        self, sequence: tuple[ByteRange, ...], tails: dict[tuple[ByteRange, ...], int]
    ) -> int:
        """The state from which `sequence` leads to the end. Characters share it: hardly any set has
        more than a dozen endings."""
        if sequence not in tails:
            tails[sequence] = self._new_state()
            edge = (*sequence[0], self._tail(sequence[1:], tails))
            self.byte_edges[tails[sequence]].append(edge)
        return tails[sequence]

    def _add_repeated(self, node: Repeated, begin: int) -> int:
        for _ in range(node.least):
            begin = self._add(node.part, begin)
        if node.most is None:
            loop = self._step(begin)
            self.free_edges[self._add(node.part, self._step(loop))].append(loop)
            return self._step(loop)
        # x{0,3} is (x(x(x)?)?)?: every copy may be the last, and leads straight to the end. In a
        # chain x?x?x? each copy would also lead to all later ones, and the sets of states grow.
        end = self._new_state()
        for _ in range(node.most - node.least):
            self.free_edges[begin].append(end)
            begin = self._add(node.part, self._step(begin))
        self.free_edges[begin].append(end)
        return end

    def _add_listed(self, node: Listed, begin: int) -> int:
        """Two tracks: no part was read yet, so no separator is due; or one was. A track ends where it
        would pass over a part that must not be left out."""
        none: int | None = begin
        some: int | None = None
        for part, may_miss in node.parts:
            after = self._new_state()
            if none is not None:
                self.free_edges[self._add(part, self._step(none))].append(after)
            if some is not None:
                separated = self._add(node.separator, self._step(some))
                self.free_edges[self._add(part, separated)].append(after)
                if may_miss:
                    self.free_edges[some].append(after)
            some = after
            none = none if may_miss else None
        end = self._new_state()
        for track in (none, some):
            if track is not None:
                self.free_edges[track].append(end)
        return end
