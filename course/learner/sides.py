"""Which value of a test's message is the learner's, and which the right one.

Messages are written by hand: "20, not 0" says that 20 is right in one test, and that 0 is in another. So
the report shows `yours` and `expected` below such a message, in this order. Which is which stands in the
source of the assertion that the message belongs to. Nothing is shown that the message does not show: a value
that a test keeps to itself, because the learner is to predict it, stays there.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from course.learner.results import TestResult
from course.learner.stubs import Definition

_COMPARING = ("allclose", "array_equal", "isclose", "assert_allclose", "assert_array_equal")
_MODULES = {"np", "math", "support", "pytest", *dir(builtins)}


@dataclass(frozen=True)
class Sides:
    """Two values, as a message has them."""

    yours: str
    expected: str


def find_sides(test: TestResult, source: Iterable[Definition]) -> Sides | None:
    """The two values that the assertion of a failed test compares; None where that cannot be told.

    `source` is the test with what it uses.
    """
    if test.outcome != "failed":
        return None
    best: tuple[int, Sides | None] = (0, None)
    for definition in source:
        for node in ast.walk(definition):
            if isinstance(node, ast.Assert) and isinstance(node.msg, ast.JoinedStr):
                shown = _values(node.msg, test.message)
                said = len("".join(text for text in _texts(node.msg) if text))
                if shown and said > best[0]:  # of two that fit, the one that says more itself
                    best = said, _sides(node.test, shown, test.message, definition)
    return best[1]


def _values(template: ast.JoinedStr, message: str) -> list[tuple[ast.expr, str]]:
    """The expressions of an f-string with what `message` has for them; none where it comes of another."""
    parts = ["(.*)" if text is None else re.escape(text) for text in _texts(template)]
    found = re.fullmatch("".join(parts).strip(), message, re.DOTALL)
    asked = [part.value for part in template.values if isinstance(part, ast.FormattedValue)]
    return [*zip(asked, found.groups(), strict=True)] if found else []


def _texts(template: ast.JoinedStr) -> list[str | None]:
    """The parts of an f-string: its own words, and None where a value stands."""
    return [str(part.value) if isinstance(part, ast.Constant) else None for part in template.values]


def _sides(
    asserted: ast.expr, shown: list[tuple[ast.expr, str]], message: str, definition: Definition
) -> Sides | None:
    pair = [*_compared(asserted)]
    if len(pair) != 2:
        return None
    mine = _learners(definition)
    whose = [bool(_names(one) & mine) for one in pair]
    if not _names(pair[0]) or not _names(pair[1]):
        whose = [bool(_names(one)) for one in pair]  # what is no constant is the learner's
    if whose[0] == whose[1]:
        return None
    yours, expected = pair if whose[0] else pair[::-1]
    texts = [_text(one, shown, message) for one in (yours, expected)]
    found = Sides(*(" ".join(text.split()) for text in texts))
    return found if found.yours and found.expected and found.yours != found.expected else None


def _compared(asserted: ast.expr) -> Iterator[ast.expr]:
    """The two sides of an `==`, or of a function that compares."""
    if isinstance(asserted, ast.Compare) and isinstance(asserted.ops[0], ast.Eq | ast.Is):
        yield from (asserted.left, *asserted.comparators)
    elif isinstance(asserted, ast.Call) and getattr(asserted.func, "attr", "") in _COMPARING:
        yield from asserted.args[:2]


def _text(side: ast.expr, shown: list[tuple[ast.expr, str]], message: str) -> str:
    """What the message has for a side: the value of the same names, or the constant as it stands there."""
    found = {text for value, text in shown if _names(value) == _names(side)}
    if _names(side):
        return found.pop() if len(found) == 1 else ""
    inner = side.elts[0] if isinstance(side, ast.List) and len(side.elts) == 1 else side
    there = [text for text in map(ast.unparse, (side, inner)) if _stands_in(text, message)]
    return there[0] if there else ""


def _stands_in(text: str, message: str) -> bool:
    return re.search(rf"(?<![\w.\[]){re.escape(text)}(?![\w\]])(?!\.\d)", message) is not None


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - _MODULES


def _learners(definition: Definition) -> set[str]:
    """The names of a test that hold what came from the fixture `lab`, and what helpers call so."""
    mine = {"lab", "got", "mine", "yours", "said"}
    while True:
        more = {
            name
            for node in ast.walk(definition)
            for targets, value in _bindings(node)
            if _names(value) & mine
            for name in _names(targets)
        }
        if more <= mine:
            return mine - {"want", "wanted", "expected", "theirs"}
        mine |= more


def _bindings(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """What is bound here, and to what."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield node.target, node.iter
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr
