"""The same Python, written otherwise: what two people write who mean the same.

Local names are other names, comparisons stand the other way round, factors are swapped, a quotient is a
product with the reciprocal, an `if` with an `else` asks the opposite question; comments and layout are
gone. It computes the same, but for the last digits of a fraction.
"""

from __future__ import annotations

import ast

_MIRROR: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
    ast.Eq: ast.Eq,
    ast.NotEq: ast.NotEq,
}
_PLAIN = (ast.Name, ast.Attribute, ast.Constant, ast.Subscript, ast.BinOp)


class _Rewriter(ast.NodeTransformer):
    """`fractions`: also write quotients as products, which may round another way."""

    def __init__(self, fractions: bool) -> None:
        self.fractions = fractions
        self.locals: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        outer = self.locals
        self.locals = outer | _own_names(node)
        for field in ("body", "decorator_list"):
            setattr(node, field, [self.visit(child) for child in getattr(node, field)])
        self.locals = outer
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.locals:
            node.id = f"my_{node.id}"
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        [op, *more] = node.ops
        if more or type(op) not in _MIRROR or not isinstance(node.left, _PLAIN):
            return node
        if not isinstance(node.comparators[0], _PLAIN):
            return node
        return ast.Compare(node.comparators[0], [_MIRROR[type(op)]()], [node.left])

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        numbers = isinstance(node.left, _PLAIN) and isinstance(node.right, _PLAIN)
        if isinstance(node.op, ast.Mult) and numbers:
            return ast.BinOp(node.right, ast.Mult(), node.left)
        if self.fractions and isinstance(node.op, ast.Div) and numbers:
            reciprocal = ast.BinOp(ast.Constant(1), ast.Div(), node.right)
            return ast.BinOp(node.left, ast.Mult(), reciprocal)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if node.orelse and not isinstance(node.orelse[0], ast.If):
            return ast.If(ast.UnaryOp(ast.Not(), node.test), node.orelse, node.body)
        return node


def _own_names(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The names that the function assigns to; its arguments stay, for callers may name them."""
    stored = {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    kept = {
        name for n in ast.walk(node) if isinstance(n, ast.Global | ast.Nonlocal) for name in n.names
    }
    kept |= {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
    inner = {n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    return stored - kept - inner


def rewrite(source: str, fractions: bool = True) -> str:
    """`source` written otherwise. Its docstring stays."""
    tree = _Rewriter(fractions).visit(ast.parse(source))
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
