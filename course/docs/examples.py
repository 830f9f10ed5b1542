"""Code on pages: doctests that are run, and blocks that must equal the project's code.

A ```python block with `>>>` lines is run; all blocks of a page share one namespace, in order. A
block after `<!-- needs: torch -->` (one or more packages) is run only where those are installed.
Modules that lie beside the page can be imported by their names, as in a Python started there.

`<!-- source: PATH SYMBOL -->` stands right before a ```python block that shows the symbol as the
file has it, decorators included, moved to the left margin. `course docs fix` writes the block.
Options make it less: `| from TEXT` and `| to TEXT` begin and end with the line of the symbol that
holds TEXT (once), and `| no docstring` leaves the symbol's own docstring out.
"""

from __future__ import annotations

import ast
import doctest
import importlib.util
import re
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.cite.own import own_symbol
from course.docs.pages import ROOT, Fence, Page, Problem

_NEEDS = re.compile(r"^\s*<!--\s*needs:\s*(?P<names>[\w, -]+?)\s*-->\s*$")
_SOURCE = re.compile(r"^\s*<!--\s*source:\s*(?P<what>.*?)\s*-->\s*$")
_OPTIONS = doctest.ELLIPSIS


def has_examples(page: Page) -> bool:
    return any(">>>" in line for fence in page.fences for line in fence.body)


def check_examples(page: Page) -> tuple[list[Problem], int]:
    """Run the page's doctests. Returns what failed and how many examples ran."""
    problems: list[Problem] = []
    namespace: dict[str, object] = {"__name__": "__main__"}
    ran = 0
    for fence in page.fences:
        if not any(line.lstrip().startswith(">>>") for line in fence.body):
            continue
        if fence.language not in ("python", "pycon"):
            message = f"examples stand in a ```{fence.language or ''} block: call it ```python"
            problems.append(Problem(page.name, fence.first, message))
            continue
        if _missing(page, fence):
            continue
        try:
            examples = doctest.DocTestParser().get_examples("\n".join(fence.body) + "\n")
        except ValueError as error:
            problems.append(Problem(page.name, fence.first, str(error)))
            continue
        # A name of its own, or a traceback through an earlier block looks its lines up in this one.
        name = f"{page.name}:{fence.first}"
        test = doctest.DocTest(examples, namespace, name, str(page.path), fence.first, None)
        test.globs = namespace  # DocTest took a copy, and the next block goes on from this one
        with _beside(page):
            problems += _run(test, page, fence)
        ran += len(examples)
    return problems, ran


@contextmanager
def _beside(page: Page) -> Iterator[None]:
    """The page's folder is where imports look first."""
    folder = str(page.path.parent.resolve())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _missing(page: Page, fence: Fence) -> bool:
    above = page.lines[fence.first - 2] if fence.first > 1 else ""
    if (m := _NEEDS.match(above)) is None:
        return False
    names = re.split(r"[,\s]+", m["names"])
    return any(importlib.util.find_spec(name) is None for name in names if name)


def _run(test: doctest.DocTest, page: Page, fence: Fence) -> list[Problem]:
    problems: list[Problem] = []

    class Runner(doctest.DocTestRunner):
        def _at(self, example: doctest.Example) -> int:
            return fence.first + 1 + example.lineno

        def report_failure(
            self, out: object, test: doctest.DocTest, example: doctest.Example, got: str
        ) -> None:
            text = self._checker.output_difference(example, got, _OPTIONS)  # type: ignore[attr-defined]
            message = f"{example.source.strip()!r}\n{textwrap.indent(text.rstrip(), '    ')}"
            problems.append(Problem(page.name, self._at(example), message))

        def report_unexpected_exception(
            self, out: object, test: doctest.DocTest, example: doctest.Example, exc_info: Any
        ) -> None:
            message = f"{example.source.strip()!r} raised {exc_info[0].__name__}: {exc_info[1]}"
            problems.append(Problem(page.name, self._at(example), message))

    Runner(verbose=False, optionflags=_OPTIONS).run(test, clear_globs=False)
    return problems


# --- source blocks ---


@dataclass(frozen=True)
class SourceBlock:
    """A comment that names project code, and the block below it if there is one."""

    line: int
    path: str
    symbol: str
    fence: Fence | None
    options: tuple[str, ...] = ()
    problem: Problem | None = None


def source_blocks(page: Page) -> list[SourceBlock]:
    starts = {fence.first: fence for fence in page.fences}
    inside = {n for f in page.fences for n in range(f.first, (f.last or len(page.lines)) + 1)}
    found = []
    for at, line in enumerate(page.lines, 1):
        m = _SOURCE.match(line)
        if m is None or at in inside:
            continue
        below = at + 1
        while below <= len(page.lines) and not page.lines[below - 1].strip():
            below += 1
        fence = starts.get(below)
        what, *options = (part.strip() for part in m["what"].split(" | "))
        words = what.split()
        known = all(re.match(r"(from|to) \S|no docstring$", option) for option in options)
        if len(words) != 2 or not known:
            form = "<!-- source: PATH SYMBOL | from TEXT | to TEXT | no docstring -->"
            problem = Problem(page.name, at, f"write {form}")
            found.append(SourceBlock(at, "", "", fence, (), problem))
        else:
            found.append(SourceBlock(at, words[0], words[1], fence, tuple(options)))
    return found


def symbol_source(path: str, symbol: str, root: Path = ROOT, options: tuple[str, ...] = ()) -> str:
    """A symbol of the repository, decorators included, at the left margin, or what `options` leave.

    Raises ValueError if it is unknown, or a text of the options does not stand in it exactly once."""
    found = own_symbol(root, path, symbol)
    lines = (root / path).read_text(encoding="utf-8").split("\n")
    whole = textwrap.dedent("\n".join(lines[found.first - 1 : found.last]))
    return _part(whole, options, f"{path} {symbol}")


def _part(source: str, options: tuple[str, ...], name: str) -> str:
    """What the options of a source block leave of a symbol, at the left margin again."""
    lines = source.split("\n")
    quiet: set[int] = set()
    if "no docstring" in options:
        body = getattr(ast.parse(source).body[0], "body", [])
        first = body[0] if body else None
        if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
            raise ValueError(f"{name} has no docstring to leave out")
        quiet = set(range(first.lineno - 1, first.end_lineno or first.lineno))
    bounds = {"from": 0, "to": len(lines) - 1}
    for option in options:
        which, _, text = option.partition(" ")
        if which in bounds:
            hits = [i for i, line in enumerate(lines) if text in line and i not in quiet]
            if len(hits) != 1:
                raise ValueError(f"{text!r} stands on {len(hits)} lines of {name}, not on one")
            bounds[which] = hits[0]
    if bounds["to"] < bounds["from"]:
        raise ValueError(f"{name}: `to` stands before `from`")
    kept = [i for i in range(bounds["from"], bounds["to"] + 1) if i not in quiet]
    return textwrap.dedent("\n".join(lines[i] for i in kept))


def check_sources(page: Page, root: Path = ROOT) -> list[Problem]:
    problems = []
    for block in source_blocks(page):
        if block.problem is not None:
            problems.append(block.problem)
            continue
        name = f"{block.path} {block.symbol}"
        try:
            wanted = symbol_source(block.path, block.symbol, root, block.options).split("\n")
        except ValueError as error:
            problems.append(Problem(page.name, block.line, f"source: {error}"))
            continue
        if block.fence is None or block.fence.language != "python":
            message = f"source: a ```python block with {name} must follow (`course docs fix`)"
            problems.append(Problem(page.name, block.line, message))
            continue
        shown = list(block.fence.body)
        if shown != wanted:
            differ = next(
                (i for i, (a, b) in enumerate(zip(shown, wanted, strict=False)) if a != b),
                min(len(shown), len(wanted)),
            )
            is_now = wanted[differ] if differ < len(wanted) else "(nothing more)"
            message = f"{name} has changed; here it now reads {is_now!r} (`course docs fix`)"
            problems.append(Problem(page.name, block.fence.first + 1 + differ, message))
    return problems


def fix_sources(page: Page, root: Path = ROOT) -> list[str]:
    """Write every source block of a page that differs. Returns one line for each."""
    edits = []
    lines = list(page.lines)
    for block in reversed(source_blocks(page)):
        if block.problem is not None:
            continue
        try:
            wanted = symbol_source(block.path, block.symbol, root, block.options).split("\n")
        except ValueError:
            continue
        fence = block.fence
        indent = re.match(r"\s*", page.lines[block.line - 1])
        margin = indent.group() if indent else ""
        new = [f"{margin}{line}".rstrip() if line.strip() else "" for line in wanted]
        ticks = "`" * 3
        if fence is None or fence.language != "python" or not fence.last:
            lines[block.line : block.line] = [f"{margin}{ticks}python", *new, f"{margin}{ticks}"]
        elif list(fence.body) != wanted:
            lines[fence.first : fence.last - 1] = new
        else:
            continue
        edits.append(f"{page.name}:{block.line}: {block.path} {block.symbol}")
    if edits:
        page.path.write_text("\n".join(lines), encoding="utf-8")
    return edits[::-1]
