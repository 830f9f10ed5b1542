"""What is checked of rules that call each other, before an automaton is made of them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from mini_vllm.structured_output.automata.limits import UnsupportedRule
from mini_vllm.structured_output.automata.syntax import (
    NOTHING,
    Call,
    Characters,
    Either,
    Joined,
    Listed,
    Node,
    Repeated,
)


def prune(rules: Mapping[str, Node]) -> dict[str, Node]:
    """The same rules without what can never be finished. A rule that cannot finish itself is missing.

    `n` that needs another `n` in it goes on for ever: whatever leads there would be a dead end, in which
    no token is allowed.
    """
    callers: dict[str, list[str]] = {}
    for name, body in rules.items():
        for called in dict.fromkeys(called_rules(body)):
            callers.setdefault(called, []).append(name)
    finite: set[str] = set()
    pending = list(rules)
    while pending:
        name = pending.pop()
        if name not in finite and cut(rules[name], finite) != NOTHING:
            finite.add(name)
            pending += callers.get(name, ())
    return {name: cut(rules[name], finite) for name in rules if name in finite}


def cut(node: Node, finite: Container[str]) -> Node:
    """The node without what calls a rule that is not `finite`; `NOTHING` if nothing is left."""
    match node:
        case Characters():
            return node if node.ranges else NOTHING
        case Call():
            return node if node.rule in finite else NOTHING
        case Joined():
            parts = tuple(cut(part, finite) for part in node.parts)
            return NOTHING if NOTHING in parts else Joined(parts)
        case Either():
            options = (cut(option, finite) for option in node.options)
            return Either(tuple(option for option in options if option != NOTHING))
        case Repeated():
            part = cut(node.part, finite)
            if part != NOTHING:
                return Repeated(part, node.least, node.most)
            return NOTHING if node.least else Joined(())
        case Listed():
            cut_parts = [(cut(part, finite), may_miss) for part, may_miss in node.parts]
            if any(part == NOTHING and not may_miss for part, may_miss in cut_parts):
                return NOTHING
            left = tuple(entry for entry in cut_parts if entry[0] != NOTHING)
            return Listed(left, cut(node.separator, finite))


def called_rules(node: Node) -> Iterator[str]:
    """The rules that it calls."""
    match node:
        case Call():
            yield node.rule
        case Joined():
            for part in node.parts:
                yield from called_rules(part)
        case Either():
            for option in node.options:
                yield from called_rules(option)
        case Repeated():
            yield from called_rules(node.part)
        case Listed():
            for part, _ in node.parts:
                yield from called_rules(part)
            yield from called_rules(node.separator)
        case Characters():
            pass


def refuse_left_recursion(rules: Mapping[str, Node]) -> None:
    """Raise UnsupportedRule for a rule that calls itself before it has read something: it could call
    itself without end. Rules match no empty text."""
    calls = {name: _first_calls(body)[0] for name, body in rules.items()}
    done: set[str] = set()
    for start in rules:
        path, pending = list[str](), [(start, iter(calls[start]))]
        while pending:
            name, onward = pending[-1]
            if len(path) < len(pending):
                path.append(name)
            called = next(onward, None)
            if called is None:
                pending.pop()
                done.add(path.pop())
            elif called in path:
                raise UnsupportedRule(f"{called}: it leads to itself before anything is written")
            elif called not in done:
                pending.append((called, iter(calls[called])))


def _first_calls(node: Node) -> tuple[list[str], bool]:
    """The rules that may be called before a byte is read, and whether nothing need be read at all."""
    match node:
        case Characters():
            return [], False
        case Call():
            return [node.rule], False
        case Either():
            each = [_first_calls(option) for option in node.options]
            return [c for calls, _ in each for c in calls], any(empty for _, empty in each)
        case Repeated():
            calls, empty = _first_calls(node.part)
            return calls, empty or node.least == 0
        case Joined() | Listed():
            found: list[str] = []
            entries = (
                [(part, False) for part in node.parts] if isinstance(node, Joined) else node.parts
            )
            for part, may_miss in entries:
                calls, empty = _first_calls(part)
                found += calls
                if not (empty or may_miss):
                    return found, False
            return found, True
