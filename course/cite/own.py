"""Where this repository's own symbols stand. Its lines move with every edit, so no page has them: a
citation names a symbol, or in it a piece of code, and the line is looked up when it is asked for.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

from course.cite.index import FileFacts, read_facts
from course.cite.symbols import Symbol


def repository_facts(root: Path, path: str) -> FileFacts | None:
    """What a file of this repository defines, and where."""
    file = root / path
    if not file.is_file() or not file.resolve().is_relative_to(root.resolve()):
        return None
    return _facts(path, file.read_text(encoding="utf-8", errors="replace"))


@lru_cache(maxsize=256)
def _facts(path: str, text: str) -> FileFacts:
    return read_facts(path, text.split("\n"))


def own_symbol(root: Path, path: str, name: str) -> Symbol:
    """A symbol of this repository. Raises ValueError if the file does not define it exactly once."""
    try:
        facts = repository_facts(root, path)
    except OSError:
        facts = None
    if facts is None:
        raise ValueError(f"this repository has no file {path}")
    found = facts.defined(name)
    if not found:
        last = name.rsplit(".", 1)[-1]
        alike = [s.name for s in facts.symbols if s.name.rsplit(".", 1)[-1] == last]
        hint = f"; did you mean {alike[0]}?" if alike else ""
        raise ValueError(f"{path} does not define {name}{hint}")
    if len(found) > 1:
        raise ValueError(f"{path} defines {name} {len(found)} times")
    return found[0]


def own_line(root: Path, path: str, name: str, code: str | None = None) -> int:
    """The line on which a symbol of this repository is defined, or on which `code` begins inside of it.

    The code may run over lines; white space is as good as any other, and docstrings are left out.
    Raises ValueError if the symbol, or the code, is not there exactly once."""
    symbol = own_symbol(root, path, name)
    if code is None:
        return symbol.line
    text = (root / path).read_text(encoding="utf-8", errors="replace")
    lines, quiet = text.split("\n"), _docstring_lines(text)
    numbers = range(symbol.first, symbol.last + 1)
    body = "\n".join("" if at in quiet else lines[at - 1] for at in numbers)
    found = list(re.finditer(r"\s+".join(map(re.escape, code.split())), body))
    if len(found) != 1:
        raise ValueError(f"{code!r} stands {len(found)} times in {name}, not once")
    return symbol.first + body.count("\n", 0, found[0].start())


@lru_cache(maxsize=256)
def _docstring_lines(text: str) -> frozenset[int]:
    return frozenset(
        at
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for at in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    )
