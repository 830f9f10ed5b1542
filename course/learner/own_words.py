"""What a learner's file says itself, in the errors that it raises: another learner says the same otherwise.

A test's message may quote such an error. For a comparison with known mistakes those words are taken out, and
the type of the error with them; what is left is the test's own.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import TracebackType

_SPEAKS = re.compile(r"(?:^|[:;]\s*)(?:raise|assert)\b")
_LETTERS = 8  # of a message's fixed text, before it is looked for in what a test says
_SHORT = 4  # characters: what an error says in fewer may stand anywhere in a message
_DEPTH = 3  # of lists in lists, where a test keeps what it has caught
_WIDTH = 200  # of each of them, items looked at
# What stands for a value at the beginning or the end of a message, where no fixed text bounds it.
_PLAIN = r"[^\s'\",;:“”]"
_VALUE = (
    r"(?:\[[^\]]*\]|\([^)]*\)|\{[^}]*\}|'[^']*'|\"[^\"]*\"|"
    + rf"(?:{_PLAIN}*(?![.!?)\]]){_PLAIN})?)"
)
_PERCENT = re.compile(r"%(?:\(\w+\))?[-#0 +]*[\d*]*(?:\.[\d*]+)?[a-zA-Z]")
_BRACES = re.compile(r"\{[^{}]*\}")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def speaks(code: str) -> bool:
    """Whether a line raises an error in words of its own."""
    return _SPEAKS.search(code) is not None


def own_words(impl: str, caught: Iterable[object], message: str) -> list[str]:
    """The parts of `message` that are the words of `impl`, the graded file.

    `caught` is where a test may keep the errors that it has caught. An error that it keeps as text only is
    found by what `raise` and `assert` say in the file.
    """
    found: set[str] = set()
    for error in _spoken(caught, impl):
        for said in {str(error), str(error).strip()}:
            found.update(_forms(type(error).__name__, said))
    for kind, template in _templates(impl):
        for match in template.finditer(message):
            found.update(_forms(kind, match[0]))
    return sorted(words for words in found if words in message)


def _forms(kind: str, said: str) -> Iterator[str]:
    """How a test may quote an error of the type `kind` that says `said`."""
    if said:
        escaped = repr(said)[1:-1]
        yield f"{kind}: {said}"
        if len(said) >= _SHORT:
            yield from (said, escaped)
        yield from (f"{kind}({quote}{text}{quote})" for quote in "'\"" for text in (said, escaped))


def _spoken(caught: Iterable[object], impl: str) -> Iterator[BaseException]:
    """The errors in `caught`, and in lists of it, that `impl` has raised in words of its own; of any other
    error there those that it came from."""
    import pytest  # the learner's command does without it until it grades

    seen: set[int] = set()
    todo = [(one, 0) for one in caught]
    while todo:
        one, depth = todo.pop()
        if isinstance(one, pytest.ExceptionInfo):
            with contextlib.suppress(AssertionError):  # nothing was raised for it
                todo.append((one.value, depth))
        elif isinstance(one, BaseException):
            if id(one) not in seen:
                seen.add(id(one))
                if _is_spoken(one, impl):
                    yield one
                else:
                    todo += [(one.__cause__, depth), (one.__context__, depth)]
        elif depth < _DEPTH and isinstance(one, list | tuple | dict):
            inside = one.values() if isinstance(one, dict) else one
            todo += [(each, depth + 1) for each in islice(inside, _WIDTH)]


def _is_spoken(error: BaseException, impl: str) -> bool:
    """Whether a line of `impl` has raised `error` in words of its own."""
    place = _last_place(error.__traceback__)
    return place is not None and place[0] == impl and speaks(linecache.getline(*place).strip())


def _last_place(tb: TracebackType | None) -> tuple[str, int] | None:
    frames = list(traceback.walk_tb(tb))
    return (frames[-1][0].f_code.co_filename, frames[-1][1]) if frames else None


# -- what stands in the file ----------------------------------------------------------------------


@functools.cache
def _templates(impl: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """The messages of the errors that the file `impl` raises, each with the name of its type."""
    try:
        tree = ast.parse(Path(impl).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    # A message may be handed to a helper that raises.
    helpers = {n.name: n for n in ast.walk(tree) if isinstance(n, Function) and any(_raised(n))}
    found = []
    for node in ast.walk(tree):
        said: list[tuple[str, list[str | None]]] = []
        if isinstance(node, ast.Raise):
            said = [(kind, _parts(one)) for kind, one in _raised(node)]
        elif isinstance(node, ast.Assert) and node.msg is not None:
            said = [("AssertionError", _parts(node.msg))]
        elif isinstance(node, ast.Call) and _name(node.func) in helpers:
            helper = helpers[_name(node.func)]
            given = _arguments(node, helper)
            said = [(kind, _parts(one, given)) for kind, one in _raised(helper)]
        for kind, parts in said:
            if (pattern := _pattern(parts)) is not None:
                found.append((kind, pattern))
    return tuple(found)


def _raised(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The errors that are made and raised in `node`: the name of the type, and each argument."""
    for one in ast.walk(node):
        if isinstance(one, ast.Raise) and isinstance(one.exc, ast.Call):
            yield from ((_name(one.exc.func), argument) for argument in one.exc.args)


def _arguments(call: ast.Call, helper: Function) -> dict[str, ast.expr]:
    """What a call of `helper` hands over, by the names that it has there."""
    names = [one.arg for one in helper.args.args if one.arg != "self"]
    given = dict(zip(names, call.args, strict=False))
    return given | {one.arg: one.value for one in call.keywords if one.arg is not None}


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _parts(node: ast.expr, given: Mapping[str, ast.expr] | None = None) -> list[str | None]:
    """The fixed texts of a message in their order, None for each value between them.

    A name that `given` has stands for what it has there.
    """
    given = given or {}
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else [None]
    if isinstance(node, ast.Name) and node.id in given:
        return _parts(given[node.id])
    if isinstance(node, ast.FormattedValue) and node.conversion == -1 and node.format_spec is None:
        return _parts(node.value, given)
    if isinstance(node, ast.JoinedStr):
        return [part for value in node.values for part in _parts(value, given)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _parts(node.left, given) + _parts(node.right, given)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _cut(node.left, _PERCENT)
    if isinstance(node, ast.Call) and _name(node.func) == "format":
        return _cut(getattr(node.func, "value", node), _BRACES)
    return [None]


def _cut(node: ast.expr, value: re.Pattern[str]) -> list[str | None]:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return [None]
    first, *others = value.split(node.value)
    return [first, *(part for text in others for part in (None, text))]


def _pattern(parts: list[str | None]) -> re.Pattern[str] | None:
    """What finds a message made of `parts`; None where they hold too little to know it by."""
    if sum(char.isalpha() for part in parts if part for char in part) < _LETTERS:
        return None
    parts = [part for part in parts if part != ""]
    text = ""
    # A test may have taken the blanks at either end away.
    if parts[0] is not None:
        parts[0] = parts[0].lstrip()
    if parts[-1] is not None:
        parts[-1] = parts[-1].rstrip()
    fixed = [
        part and r"\s+".join(re.escape(word) for word in re.split(r"\s+", part)) for part in parts
    ]
    first = next(part for part in fixed if part)
    # It begins at the last place where it can: the test may have used the same first words before.
    inner = rf"(?:(?!{first})[\s\S]){{0,200}}?"
    for index, part in enumerate(fixed):
        text += part or (_VALUE if index in (0, len(parts) - 1) else inner)
    return re.compile(text)
