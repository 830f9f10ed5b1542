"""Small faults for a Python file: what a slip of the hand does to a comparison, a constant, a sign.

Each mutant is the source with one place changed and everything else left as it is, so that the lines
around it stay readable. Left alone are docstrings, annotations, decorators, f-strings, the words of
exceptions, assertions, and what only runs as a script: a change there is no fault of behaviour.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
_COMMUTE = {"min", "max", "minimum", "maximum", "fmin", "fmax", "add", "multiply", "logical_and",
            "logical_or", "array_equal", "allclose", "isclose", "gcd", "lcm", "isinstance",
            "issubclass", "hypot"}  # fmt: skip
_COUNTING = {"range", "arange", "islice"}


@dataclass(frozen=True)
class Mutant:
    """One planted fault.

    Attributes:
        kind: what was done, in words.
        function: the qualified name of the function it is in, `<module>` outside of all.
        line: its line, from 1.
        old, new: the first line that differs, before and after, without its indentation.
        source: the whole file with the fault.
    """

    kind: str
    function: str
    line: int
    old: str
    new: str
    source: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What names it in a list of allowed mutants: a number would move with every edit."""
        return self.function, self.old, self.new


@dataclass(frozen=True)
class _Edit:
    kind: str
    function: str
    start: int
    end: int
    text: bytes


class _Planter:
    """Walks a syntax tree and collects the edits."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.edits: list[_Edit] = []
        self.function = "<module>"
        self.stored: set[str] = set()
        self.axes: set[ast.expr] = set()

    # -- places in the source; columns of the tree count bytes

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr | ast.stmt) -> bytes:
        return self.source[self.start(node) : self.end(node)]

    def edit(self, kind: str, start: int, end: int, text: str | bytes) -> None:
        new = text.encode() if isinstance(text, str) else text
        self.edits.append(_Edit(kind, self.function, start, end, new))

    def replace(self, kind: str, node: ast.expr | ast.stmt, text: str | bytes) -> None:
        self.edit(kind, self.start(node), self.end(node), text)

    def between(self, kind: str, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """Change the operator that stands between two operands."""
        begin = self.end(left)
        gap = self.source[begin : self.start(right)]
        pattern = rb"\s+".join(map(re.escape, old.encode().split()))
        if (match := re.search(pattern, gap)) is not None:
            self.edit(kind, begin + match.start(), begin + match.end(), new)

    # -- the walk

    def walk(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._definition(node)
            return
        if isinstance(node, ast.stmt) and self._skipped(node):
            return
        if isinstance(node, ast.JoinedStr):
            return
        handler = getattr(self, f"_at_{type(node).__name__.lower()}", None)
        if handler is not None:
            handler(node)
        for child in self._children(node):
            self.walk(child)

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        outer, stored = self.function, self.stored
        if not isinstance(node, ast.ClassDef):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    self.walk(default)
            self.stored = {argument.arg for argument in ast.walk(node.args)
                           if isinstance(argument, ast.arg)}  # fmt: skip
        self.function = node.name if outer == "<module>" else f"{outer}.{node.name}"
        for statement in node.body:
            self.walk(statement)
        self.function, self.stored = outer, stored

    @staticmethod
    def _children(node: ast.AST) -> Iterator[ast.AST]:
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield node.value
        elif not isinstance(node, ast.Raise):  # the words of an exception
            yield from ast.iter_child_nodes(node)

    @staticmethod
    def _skipped(node: ast.stmt) -> bool:
        if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom):
            return True
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return True
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return True
        if isinstance(node, ast.If):
            test = ast.unparse(node.test)
            return test.endswith("TYPE_CHECKING") or test.startswith("__name__")
        return False

    # -- expressions

    def _at_compare(self, node: ast.Compare) -> None:
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            old, new = _COMPARISONS[type(op)]
            self.between("comparison", left, right, old, new)
            left = right

    def _at_binop(self, node: ast.BinOp) -> None:
        texts = (node.left, node.right)
        if type(node.op) not in _OPERATORS or any(_is_text(side) for side in texts):
            return
        old, new = _OPERATORS[type(node.op)]
        self.between("operator", node.left, node.right, old, new)

    def _at_augassign(self, node: ast.AugAssign) -> None:
        self.replace("dropped statement", node, "pass")
        if type(node.op) in _OPERATORS:
            old, new = _OPERATORS[type(node.op)]
            self.between("operator", node.target, node.value, old + "=", new + "=")

    def _at_boolop(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.between("boolean", left, right, old, new)

    def _at_unaryop(self, node: ast.UnaryOp) -> None:
        operand = self.text(node.operand)
        if not isinstance(node.operand, ast.Name | ast.Constant | ast.Call | ast.Attribute):
            operand = b"(" + operand + b")"
        if isinstance(node.op, ast.Not):
            self.replace("boolean", node, b"bool(" + self.text(node.operand) + b")")
        elif isinstance(node.op, ast.USub) and node not in self.axes:
            self.replace("sign", node, operand)
        elif isinstance(node.op, ast.Invert):
            self.replace("boolean", node, operand)

    def _at_keyword(self, node: ast.keyword) -> None:
        # On a matrix, axis=-1 is axis=1: changing the sign changes nothing.
        if node.arg in ("axis", "dim"):
            self.axes.add(node.value)

    def _at_constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.replace("constant", node, repr(not value))
        elif isinstance(value, int):
            self.replace("constant", node, repr(value + 1))
            if value > 0:
                self.replace("constant", node, repr(value - 1))
        elif isinstance(value, float):
            self.replace("constant", node, repr(value * 10 if value else 1.0))

    def _at_slice(self, node: ast.Slice) -> None:
        for bound in (node.lower, node.upper):
            if bound is not None and not _is_number(bound):
                self.replace("off by one", bound, self.text(bound) + b" + 1")

    def _at_call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func).split(".")[-1]
        if name in _COUNTING:
            for argument in node.args:
                if not _is_number(argument) and not isinstance(argument, ast.Starred):
                    self.replace("off by one", argument, self.text(argument) + b" + 1")
        if len(node.args) < 2 or name in _COMMUTE or name == "print":
            return
        first, second = node.args[:2]
        if isinstance(first, ast.Starred) or isinstance(second, ast.Starred):
            return
        a, b = self.text(first), self.text(second)
        gap = self.source[self.end(first) : self.start(second)]
        if a != b:
            self.edit("swapped arguments", self.start(first), self.end(second), b + gap + a)

    def _at_ifexp(self, node: ast.IfExp) -> None:
        self._negate(node.test)

    def _at_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)

    def _negate(self, test: ast.expr) -> None:
        opposite = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return  # the same fault as dropping the "not"
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in opposite:
            return  # and this the same as the opposite comparison
        self.replace("boolean", test, b"not (" + self.text(test) + b")")

    # -- statements

    def _at_if(self, node: ast.If) -> None:
        self._negate(node.test)

    def _at_while(self, node: ast.While) -> None:
        self._negate(node.test)

    def _at_expr(self, node: ast.Expr) -> None:
        call = node.value
        if isinstance(call, ast.Call) and ast.unparse(call.func) != "print":
            self.replace("dropped statement", node, "pass")

    def _at_assign(self, node: ast.Assign) -> None:
        again = all(
            isinstance(target, ast.Attribute | ast.Subscript)
            or (isinstance(target, ast.Name) and target.id in self.stored)
            for target in node.targets
        )
        if again and self.function != "<module>":
            self.replace("dropped statement", node, "pass")
        for target in node.targets:
            self.stored |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}

    def _at_raise(self, node: ast.Raise) -> None:
        self.replace("dropped statement", node, "pass")

    def _at_continue(self, node: ast.Continue) -> None:
        self.replace("dropped statement", node, "pass")

    def _at_break(self, node: ast.Break) -> None:
        self.replace("dropped statement", node, "pass")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Constant)


def plant(source: str) -> list[Mutant]:
    """Every mutant of `source`, in the order of the places changed. Always the same list."""
    data = source.encode()
    planter = _Planter(data)
    planter.walk(ast.parse(source))
    before = source.splitlines()
    mutants: dict[str, Mutant] = {}
    for edit in sorted(planter.edits, key=lambda e: (e.start, e.end, e.text)):
        text = (data[: edit.start] + edit.text + data[edit.end :]).decode()
        try:
            changed = ast.dump(ast.parse(text))
        except SyntaxError:
            continue
        after = text.splitlines()
        line = next(
            (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None
        )
        if line is None or changed in mutants:
            continue
        mutants[changed] = Mutant(
            edit.kind, edit.function, line + 1, before[line].strip(), after[line].strip(), text
        )
    return list(mutants.values())
