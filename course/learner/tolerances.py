"""How close is close enough in the assertion of a test that failed, read from its source.

A message shows two long lists, and the report names the item in which they differ. Where the test compares
with `pytest.approx` or with numpy's functions, items that these take for equal do not differ.
"""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple


class _Form(NamedTuple):
    """Of a function that compares: the names of its tolerances, their places, their usual values."""

    names: tuple[str, str]
    places: tuple[int, int]
    usual: tuple[float, float]


_FORMS = {
    "approx": _Form(("rel", "abs"), (1, 2), (1e-6, 1e-12)),
    "allclose": _Form(("rtol", "atol"), (2, 3), (1e-5, 1e-8)),
    "isclose": _Form(("rtol", "atol"), (2, 3), (1e-5, 1e-8)),
    "assert_allclose": _Form(("rtol", "atol"), (2, 3), (1e-7, 0.0)),
    "math.isclose": _Form(("rel_tol", "abs_tol"), (2, 3), (1e-9, 0.0)),
}


def tolerance_of(frame: FrameType, line: int) -> list[float] | None:
    """The tolerance, relative and absolute, of the assertion in `line` that `frame` was in.

    None where it compares exactly, or in a way that does not show.
    """
    path = frame.f_code.co_filename
    for call in _calls(path, line):
        form = _FORMS[_name(call.func)]
        given = {key.arg: key.value for key in call.keywords}
        places = zip(form.names, form.places, strict=True)
        given |= {name: call.args[place] for name, place in places if place < len(call.args)}
        found = [
            _value(given[name], frame, usual) if name in given else usual
            for name, usual in zip(form.names, form.usual, strict=True)
        ]
        if "abs" in given and "rel" not in given:
            found[0] = 0.0  # approx(abs=...) alone asks for nothing relative
        return found
    return None


def _value(node: ast.expr, frame: FrameType, usual: float) -> float:
    """What an argument in a test of ours stands for; `usual` where it is none, or cannot be said."""
    with contextlib.suppress(Exception):
        code = compile(ast.Expression(node), frame.f_code.co_filename, "eval")
        return float(eval(code, frame.f_globals, frame.f_locals))
    return usual


def _name(node: ast.expr) -> str:
    if ast.unparse(node) in _FORMS:
        return ast.unparse(node)
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _calls(path: str, line: int) -> Iterator[ast.Call]:
    """The calls that compare, in the statement of `line` or in what it asks for by name."""
    tree = _tree(path)
    if tree is None:
        return
    found = [n for n in ast.walk(tree) if isinstance(n, ast.Assert | ast.Expr) and _has(n, line)]
    asserted = [n.test if isinstance(n, ast.Assert) else n.value for n in found]
    yield from (call for node in asserted for call in _comparing(node))
    names = {n.id for node in asserted for n in ast.walk(node) if isinstance(n, ast.Name)}
    around = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and _has(n, line)]
    for node in around[-1:]:
        for one in ast.walk(node):
            if not isinstance(one, ast.Assign) or one.lineno >= line:
                continue
            if names & {_name(target) for target in one.targets}:
                yield from _comparing(one.value)


def _comparing(node: ast.AST) -> Iterator[ast.Call]:
    for one in ast.walk(node):
        if isinstance(one, ast.Call) and _name(one.func) in _FORMS:
            yield one


def _has(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


@functools.cache
def _tree(path: str) -> ast.Module | None:
    try:
        return ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError):
        return None
