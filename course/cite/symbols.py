"""What a source file defines, and where: Python through `ast`, CUDA and C++ through a light scan.

A symbol has a qualified name (`Request.num_tokens`), the line of its definition, the lines it covers
(decorators included), and a hash of its code, a class's with that of its methods, which comments and blank
lines do not change.
Symbols are functions, classes, module variables, class fields and the attributes that `__init__`
sets; in C++ functions, structs, classes, enums and macros, without their namespaces.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

CPP_SUFFIXES = (".cu", ".cuh", ".cpp", ".cc", ".c", ".h", ".hpp")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ASSIGN = (ast.Assign, ast.AnnAssign)


@dataclass(frozen=True)
class Symbol:
    """A definition. It stands on line `line` and covers `first` to `last`, all from 1."""

    name: str
    line: int
    first: int
    last: int
    digest: str

    def covers(self, line: int) -> bool:
        return self.first <= line <= self.last


def line_hash(text: str) -> str:
    """Eight hex digits that tell a line from others, whatever its indentation."""
    return hashlib.sha256(text.strip().encode()).hexdigest()[:8]


def _digest(lines: Iterable[str], comment: str) -> str:
    kept = [s for s in (line.strip() for line in lines) if s and not s.startswith(comment)]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:6]


def symbols_of(path: str, text: str) -> list[Symbol]:
    """The symbols of a file in the order of their lines; none for a language not read here."""
    if path.endswith(".py"):
        return python_symbols(text)
    if path.endswith(CPP_SUFFIXES):
        return cpp_symbols(text)
    return []


def python_symbols(text: str) -> list[Symbol]:
    """The symbols of a Python source. Raises SyntaxError where it is none."""
    found = list(_walk(ast.parse(text).body, "", text.split("\n"), in_class=False))
    return sorted(found, key=lambda s: (s.first, -s.last, s.line))


def _walk(body: list[ast.stmt], prefix: str, lines: list[str], in_class: bool) -> Iterator[Symbol]:
    for node in body:
        first, last = node.lineno, node.end_lineno or node.lineno
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            name = prefix + node.name
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield Symbol(name, node.lineno, first, last, _digest(lines[first - 1 : last], "#"))
            is_class = isinstance(node, ast.ClassDef)
            inner = list(_walk(node.body, name + ".", lines, in_class=is_class))
            yield from inner
            if isinstance(node, ast.ClassDef):
                yield from _attributes(node, name, {s.name for s in inner}, lines)
        elif isinstance(node, _ASSIGN):
            if in_class or not prefix:
                for target in _names(node):
                    digest = _digest(lines[first - 1 : last], "#")
                    yield Symbol(prefix + target, first, first, last, digest)
        else:
            for block in ("body", "orelse", "finalbody"):
                yield from _walk(getattr(node, block, []), prefix, lines, in_class)
            for handler in getattr(node, "handlers", []):
                yield from _walk(handler.body, prefix, lines, in_class)


def _names(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    flat = [e for t in targets for e in (t.elts if isinstance(t, ast.Tuple) else [t])]
    return [t.id for t in flat if isinstance(t, ast.Name)]


def _attributes(
    node: ast.ClassDef, name: str, known: set[str], lines: list[str]
) -> Iterator[Symbol]:
    """`self.x = …` in `__init__`, where the class says nothing of `x` itself."""
    for method in node.body:
        if not (isinstance(method, ast.FunctionDef) and method.name == "__init__"):
            continue
        for child in ast.walk(method):
            if not isinstance(child, _ASSIGN):
                continue
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            for target in targets:
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                    and (full := f"{name}.{target.attr}") not in known
                ):
                    known.add(full)
                    last = child.end_lineno or child.lineno
                    digest = _digest(lines[child.lineno - 1 : last], "#")
                    yield Symbol(full, child.lineno, child.lineno, last, digest)


# --- C++ and CUDA ---

_CPP_NOISE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"\(.*?\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""", re.DOTALL
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.MULTILINE)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_ATTRIBUTE = re.compile(r"\b(?:__launch_bounds__|__attribute__|alignas|__align__|requires)\s*\(")
_TYPE = re.compile(r"\b(?:struct|class|union|enum(?:\s+class|\s+struct)?)\s+(\w+)[^;()=]*$")
_CALLED = re.compile(r"([A-Za-z_~][\w:~]*|operator\s*[^\s\w(]+)\s*\(")
_NO_FUNCTION = {
    "if",
    "for",
    "while",
    "switch",
    "catch",
    "return",
    "sizeof",
    "decltype",
    "else",
    "do",
}


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def _blank_groups(text: str, opening: re.Pattern[str]) -> str:
    """`text` without each `opening(...)`, its parentheses matched."""
    while (m := opening.search(text)) is not None:
        depth, end = 1, m.end()
        while end < len(text) and depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        text = text[: m.start()] + re.sub(r"[^\n]", " ", text[m.start() : end]) + text[end:]
    return text


@dataclass
class _Scope:
    """An open brace: a `type` or `function` to report, a `namespace` to see through, or a `body`."""

    kind: str
    name: str = ""
    line: int = 0
    first: int = 0


def cpp_symbols(text: str) -> list[Symbol]:
    """Functions, types and macros of a CUDA or C++ source, as far as a scan of braces sees them."""
    lines = text.split("\n")
    code = _CPP_NOISE.sub(_blank, text)
    found = []

    def add(name: str, line: int, first: int, last: int) -> None:
        found.append(Symbol(name, line, first, last, _digest(lines[first - 1 : last], "//")))

    for directive in _DIRECTIVE.finditer(code):
        if macro := _MACRO.match(directive.group()):
            first = code.count("\n", 0, directive.start()) + 1
            add(macro[1], first, first, first + directive.group().count("\n"))
    code = _DIRECTIVE.sub(_blank, code)
    scopes: list[_Scope] = []
    start = 0
    for m in re.finditer(r"[{};]", code):
        if m.group() == "{":
            inside = any(s.kind in ("function", "body") for s in scopes)
            scopes.append(_Scope("body") if inside else _scope(code, start, m.start()))
        elif m.group() == "}" and scopes:
            scope = scopes.pop()
            if scope.name:
                outer = [s.name for s in scopes if s.kind == "type"]
                name = "::".join([*outer, scope.name])
                add(name, scope.line, scope.first, code.count("\n", 0, m.start()) + 1)
        start = m.end()
    return sorted(found, key=lambda s: (s.first, -s.last, s.line))


def _scope(code: str, start: int, brace: int) -> _Scope:
    """What the brace at `brace` opens, judged by the text since the last statement."""
    header = code[start:brace]
    stripped = header.strip()
    first = code.count("\n", 0, start + len(header) - len(header.lstrip())) + 1
    if not stripped or re.match(r"(?:inline\s+)?namespace\b|extern\b\s*$", stripped):
        return _Scope("namespace" if stripped else "body")
    if (m := _TYPE.search(header)) is not None and ")" not in header[m.start() :]:
        return _Scope("type", m[1], code.count("\n", 0, start + m.start(1)) + 1, first)
    bare = _blank_groups(header, _ATTRIBUTE)
    for m in _CALLED.finditer(bare):
        if m[1] not in _NO_FUNCTION and "=" not in bare[: m.start()].rpartition(">")[2]:
            line = code.count("\n", 0, start + m.start(1)) + 1
            return _Scope("function", re.sub(r"\s+", "", m[1]), line, first)
    return _Scope("body")
