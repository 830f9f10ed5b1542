"""A Python file as `course.cite.compare` lays it beside another: statements, functions, classes, names."""

from __future__ import annotations

import ast
import re
from functools import cached_property

from course.cite.symbols import Symbol, python_symbols

_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_WORD = re.compile(r"[A-Za-z_]\w{4,}")
_NO_CODE = re.compile(r"\"[^\"]*\"|'[^']*'|#.*")


class SourceFile:
    """A Python file. Lines count from 1; a statement with a body is its head alone.

    Raises SyntaxError where the text is no Python.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.removesuffix("\n").split("\n")
        self.functions: list[range] = []  # with decorators; not those inside of others
        self.classes: dict[str, range] = {}
        self.quiet: set[int] = set()  # the lines of docstrings
        self._statement: dict[int, range] = {}
        self._heads: dict[int, tuple[range, ...]] = {}
        self._walk(ast.parse(text), (), "", in_function=False)

    @cached_property
    def symbols(self) -> list[Symbol]:
        return python_symbols(self.text)

    @cached_property
    def definitions(self) -> list[Symbol]:
        """The classes, and the functions that do not stand inside of others."""
        starts = {f.start for f in (*self.functions, *self.classes.values())}
        return [s for s in self.symbols if s.first in starts]

    @cached_property
    def words(self) -> set[str]:
        return {word for at in range(1, len(self.lines) + 1) for word in self.words_at(at)}

    def words_at(self, line: int) -> list[str]:
        """The names of five letters or more in the line's code, without comments and strings."""
        if line in self.quiet:
            return []
        return _WORD.findall(_NO_CODE.sub("", self.lines[line - 1]))

    def statement(self, line: int) -> range:
        """The lines of the innermost statement that the line belongs to."""
        return self._statement.get(line, range(line, line + 1))

    def heads(self, line: int) -> tuple[range, ...]:
        """The heads of the statements around the line, the outermost first."""
        return self._heads.get(line, ())

    def scope(self, line: int) -> range:
        """The function or method around the line, else the class's own lines, else the statement."""
        for function in self.functions:
            if line in function:
                return function
        around = [span for span in self.classes.values() if line in span]
        if not around:
            return self.statement(line)
        inner = min(around, key=len)
        return self.class_head(inner)

    def class_head(self, span: range) -> range:
        """A class without its methods: what stands before the first."""
        first = min((f.start for f in self.functions if f.start in span), default=span.stop)
        return range(span.start, self._without_blank(span.start, first))

    def _without_blank(self, first: int, stop: int) -> int:
        """`stop`, moved up over blank lines and comments, but not before the line after `first`."""
        while stop - 1 > first and self.lines[stop - 2].strip()[:1] in ("", "#"):
            stop -= 1
        return stop

    def _walk(
        self, node: ast.AST, around: tuple[range, ...], prefix: str, in_function: bool
    ) -> None:
        documented = isinstance(node, (*_FUNCTION, ast.ClassDef, ast.Module))
        if documented and ast.get_docstring(node) is not None:  # type: ignore[arg-type]
            first, last = _extent(node.body[0])  # type: ignore[attr-defined]
            self.quiet.update(range(first, last + 1))
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.match_case):
                self._walk(child, around, prefix, in_function)
            if not isinstance(child, (ast.stmt, ast.ExceptHandler)):
                continue
            first, last = _extent(child)
            body = getattr(child, "body", None) or [c.pattern for c in getattr(child, "cases", [])]
            stop = self._without_blank(first, _extent(body[0])[0]) if body else last + 1
            head = range(first, max(stop, first + 1))
            for line in head:
                self._statement[line], self._heads[line] = head, around
            is_class, is_function = isinstance(child, ast.ClassDef), isinstance(child, _FUNCTION)
            if is_function and not in_function:
                self.functions.append(range(first, last + 1))
            name = prefix
            if isinstance(child, ast.ClassDef) and not in_function:
                self.classes[prefix + child.name] = range(first, last + 1)
                name = f"{prefix}{child.name}."
            inner = (*around, head) if not is_class else ()
            self._walk(child, inner, name, in_function or is_function)


def _extent(node: ast.AST) -> tuple[int, int]:
    """A node's first line, decorators included, and its last."""
    lines = [node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]  # type: ignore[attr-defined]
    return min(lines), node.end_lineno  # type: ignore[attr-defined]
