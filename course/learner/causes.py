"""Which function of starter.py a failed test is about, and so in which order failures are shown.

A wrong function fails the tests of all that call it, too. So failures stand in the order of the functions
that they are about: each function behind those that it calls, and otherwise as in starter.py. A failure is
about

- the function that raised the error, where the learner's own code raised one;
- else, of the functions that the test names, the one that its own name or its headline begins with, or the
  last in that order, for what that builds on has tests of its own. A test that names a class and calls none
  of its methods is about the class.

A function that is the solution's, such as one that was given, is right: a failure is about another one that
the test names, or about the one that these call.
`predictions` calls nothing and stands first in a starter whose README says to predict first, so a wrong
prediction comes before everything else. What a test names is read in its source, and in the source of the
helpers and fixtures that it uses, because a failed assertion does not say whose value it has compared.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from course.learner.labs import Lab
from course.learner.results import TestResult
from course.learner.stubs import Definition, Function, body_of, functions

PREDICTIONS = "predictions"


@dataclass(frozen=True)
class Causes:
    """What the tests of a lab are about.

    Attributes:
        order: the functions of starter.py, each behind those it calls.
        calls: which of them each calls.
        right: those that are the solution's.
        tests: the functions and classes of the lab's tests, and of what these share, by name.
    """

    order: tuple[str, ...] = ()
    calls: Mapping[str, frozenset[str]] = field(default_factory=dict)
    right: frozenset[str] = frozenset()
    tests: Mapping[str, Definition] = field(default_factory=dict)

    def about(self, test: TestResult) -> str | None:
        """The function or class of starter.py that a failure of `test` is about; None where nothing says."""
        raised = test.function or ""
        while raised and raised not in self.order:  # a function within one
            raised = raised.rpartition(".")[0]
        if raised and raised not in self.right:
            return raised
        named, whole = self.named_in(test)
        if PREDICTIONS in named:
            return PREDICTIONS  # whatever else the test computes, to know what is right
        open_ = [name for name in self.order if name in named - self.right]
        if not open_:  # what it names is right, so it may be what that calls
            open_ = [name for name in self.order if name in self.reached_from(named) - self.right]
            if len(open_) != 1:
                open_ = [name for name in self.order if name in named]
        if not open_:
            return None
        begins = f"{test.base.removeprefix('test_')} ", f"{self.headline(test.base)} ".lstrip("`")
        for name in reversed(open_):
            bare = re.escape(name.rpartition(".")[2])
            if re.match(f"{bare}[_ ]", begins[0]) or re.match(rf"{bare}\W", begins[1]):
                return name
        owner = open_[-1].rpartition(".")[0]
        one_of_many = len([name for name in open_ if name.startswith(f"{owner}.")]) > 1
        return owner if owner in whole and one_of_many else open_[-1]

    def place(self, test: TestResult) -> tuple[int, int]:
        """Where a failure of `test` stands among others: by what it is about, then by the last function that
        it names, for a test of the function itself says more than one of what calls it."""
        named, _ = self.named_in(test)
        about = self.about(test)
        return self._last({about} if about else set()), self._last(named)

    def _last(self, names: set[str]) -> int:
        """The place of the last of these functions and of the methods of these classes."""
        found = [
            at for at, name in enumerate(self.order) if {name, name.rpartition(".")[0]} & names
        ]
        return found[-1] if found else len(self.order)

    def headline(self, name: str) -> str:
        """What the test called `name` pins."""
        node = self.tests.get(name)
        doc = ast.get_docstring(node) if node is not None else None
        return " ".join((doc or name).split("\n\n")[0].split())

    def source_of(self, test: TestResult) -> Iterator[Definition]:
        """A test, and the helpers and fixtures of the lab that it uses, directly or not."""
        waiting, entered = [test.base], set[str]()
        while waiting:
            node = self.tests.get(name := waiting.pop())
            if node is None or name in entered:
                continue
            entered.add(name)
            yield node
            for part in ast.walk(node):
                waiting += [word for word in (_word(part), getattr(part, "arg", None)) if word]

    def named_in(self, test: TestResult) -> tuple[set[str], set[str]]:
        """The functions of starter.py that a test names, methods by their class; and the classes of which it
        calls no method. A case of a parametrized test that names some is about these."""
        case = test.name.partition("[")[2].replace(" ", "_")
        of_case = {name for name in self.order if re.search(rf"(?:\b|_){name}(?:\b|_)", case)}
        if of_case:
            return of_case, set()
        words = _words(self.source_of(test))
        found, whole = {name for name in self.order if name in words}, set[str]()
        for owner in {name.rpartition(".")[0] for name in self.order} & words:
            methods = {name for name in self.order if name.startswith(f"{owner}.")}
            called = {name for name in methods if f".{name.rpartition('.')[2]}" in words}
            found |= called or methods
            whole |= set() if called else {owner}
        return found, whole

    def reached_from(self, names: Iterable[str]) -> set[str]:
        """The functions of these names, and all that they call."""
        waiting, entered = [*names], set[str]()
        while waiting:
            name = waiting.pop()
            if name not in entered:
                entered.add(name)
                waiting += self.calls.get(name, ())
        return entered


def read_causes(lab: Lab) -> Causes:
    """From starter.py, solution.py and the tests of `lab`; nothing is known where one does not parse."""
    try:
        mine, right = (_functions(path) for path in (lab.starter, lab.solution))
        trees = [ast.parse(path.read_bytes()) for path in (*lab.shared, *lab.tests)]
    except (OSError, SyntaxError, ValueError):
        return Causes()
    calls = {name: frozenset(_called(name, mine)) for name in mine}
    same = {name for name in mine.keys() & right.keys() if _text(mine[name]) == _text(right[name])}
    made = [node for tree in trees for node in tree.body if isinstance(node, Definition)]
    return Causes(_sorted(calls), calls, frozenset(same), {node.name: node for node in made})


def _functions(path: Path) -> dict[str, Function]:
    """The functions of a file and the methods of its classes, without those that stand within a function."""
    found = functions(ast.parse(path.read_bytes()))
    return {name: node for name, node in found.items() if name.rpartition(".")[0] not in found}


def _text(node: Function) -> str:
    """What a function does, without its docstring and its types."""
    return ast.dump(ast.Module(body_of(node), []))


def _sorted(calls: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """The functions, each behind those that it calls, otherwise as they stand."""
    order: list[str] = []
    entered: set[str] = set()

    def enter(name: str) -> None:
        if name not in entered:
            entered.add(name)
            for called in calls:
                if called in calls[name]:
                    enter(called)
            order.append(name)

    for name in calls:
        enter(name)
    return tuple(order)


def _called(name: str, found: dict[str, Function]) -> Iterator[str]:
    """The functions of the module that `name` calls, or hands on, and the methods of the classes it uses."""
    owner = name.rpartition(".")[0]
    for node in (node for part in body_of(found[name]) for node in ast.walk(part)):
        if isinstance(node, ast.Name):
            yield from (one for one in found if one == node.id or one.startswith(f"{node.id}."))
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            yield from (one for one in found if one == f"{owner}.{node.attr}")


def _words(nodes: Iterable[Definition]) -> set[str]:
    """What tests take from the fixture `lab`, or name in a text; and each attribute, as `.name`."""
    found = set[str]()
    for part in (part for node in nodes for part in _walk_body(node)):
        if isinstance(part, ast.Attribute):
            found |= {f".{part.attr}"} | ({part.attr} if _word(part.value) == "lab" else set())
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            found.add(part.value.replace(" ", "_"))
    return found


def _walk_body(node: Definition) -> Iterator[ast.AST]:
    """What is inside, but for decorators: the names that these list are of all cases, not of one."""
    return (part for statement in node.body for part in ast.walk(statement))


def _word(node: ast.AST) -> str | None:
    return getattr(node, "attr", getattr(node, "id", None))
