"""What a starter leaves open: its functions whose body is `raise NotImplementedError`."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Callable

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


def unwritten(source: str) -> set[str]:
    """The functions of `source` whose body, docstring aside, is `raise NotImplementedError`.

    Names are qualified, `Sampler.forward` for instance. Empty where the source does not parse.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set()
    return {name for name, node in functions(tree).items() if is_unwritten(node)}


def functions(tree: ast.Module) -> dict[str, Function]:
    """Every function of a module by its qualified name, methods and nested ones too."""
    found: dict[str, Function] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function | ast.ClassDef):
                name = prefix + child.name
                if not isinstance(child, ast.ClassDef):
                    found[name] = child
                visit(child, name + ".")
            else:
                visit(child, prefix)

    visit(tree, "")
    return found


def body_of(node: Function) -> list[ast.stmt]:
    """The statements of a function without its docstring."""
    body = node.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return body


def is_unwritten(node: Function) -> bool:
    """Whether a function ends in `raise NotImplementedError`, with nothing but given code before."""
    body = body_of(node)
    if not body or not isinstance(body[-1], ast.Raise) or body[-1].exc is None:
        return False
    raised = body[-1].exc
    raised = raised.func if isinstance(raised, ast.Call) else raised
    return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"


def run_script(main: Callable[[], None]) -> None:
    """Run the `main` of a lab's script; one sentence, not a traceback, where the starter leaves
    something open: the innermost frame is the function that is still missing."""
    try:
        main()
    except NotImplementedError as error:
        name = [frame.f_code.co_qualname for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
        raise SystemExit(
            f"{name} is not written yet. Finish it in starter.py, or run without --impl."
        ) from None
