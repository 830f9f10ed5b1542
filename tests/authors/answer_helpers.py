"""Answers of labs that pages print: bodies that a starter leaves open, numbers that it asks to predict.

A body is printed where a block of Python holds four fifths of its statements, whatever its own names are;
or where the block is woven from a function of the engine that the lab builds, by the `builds` of its front
matter, and shows at least three statements and half of it. One reads the pages of a lab's phase and of those
before it first.

A number is printed where it stands in the pages of the lab's phase or in its README, outside of the question
and of what one finds. Only numbers that do not turn up by chance count: see `is_telling`.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import keyword
import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from course.docs.examples import source_blocks
from course.docs.pages import Fence, Page, read_page
from course.learner.labs import Course, Lab, Phase, load_module
from course.learner.stubs import Function, body_of, functions, is_unwritten

LEAST = 3
"""A body of fewer statements is no answer that is worth hiding."""
SHARE, SHOWN = 0.8, 0.5
PREDICTIONS = "predictions"
FINDINGS = "## What you should find"
QUESTION = "## Predict first"

_WORD = re.compile(r"(?<![\w.'\"])[A-Za-z_]\w*")
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)")
_TARGET = re.compile(r'\]\((?:"[^"]*"|[^()"])*\)')
_CITED_LINE = re.compile(r"\[`[\w.]+:\d+`\](?: to \d+)?")
_KEPT = {*dir(builtins), *keyword.kwlist, "np"}


@dataclass(frozen=True)
class Answer:
    """What a page prints of a lab: `what` is a function's name, or a question's and its number."""

    lab: str
    what: str
    page: str
    line: int

    def __str__(self) -> str:
        return f"{self.page}:{self.line} prints {self.what} of lab {self.lab}"


def pages_before(phase: Phase) -> list[Page]:
    """The guides, the deep dive and the mini-build of a phase."""
    return [_page(path) for path in sorted(phase.folder.glob("0[0-2]-*.md"))]


@cache
def _page(path: Path) -> Page:
    root = next(folder.parent for folder in path.parents if folder.name.startswith("phase-"))
    return read_page(path, root)


# --- bodies ---


def printed_bodies(course: Course) -> list[Answer]:
    """Every body of a lab that a page prints which one reads before it."""
    found: list[Answer] = []
    for lab in course.labs:
        asked = open_bodies(lab)
        for phase in course.phases:
            if phase.number > lab.phase:
                continue
            own = [_page(lab.readme)] if phase.number == lab.phase else []
            for page in [*pages_before(phase), *own]:
                found += _printed(lab, asked, page)
    return found


def open_bodies(lab: Lab) -> dict[str, list[str]]:
    """The statements of each function that the starter leaves open, as the solution writes them."""
    starter = functions(ast.parse(lab.starter.read_text(encoding="utf-8")))
    solution = functions(ast.parse(lab.solution.read_text(encoding="utf-8")))
    bodies = {
        name: statements(body_of(solution[name]))
        for name, node in starter.items()
        if is_unwritten(node) and name in solution and name != PREDICTIONS
    }
    return {name: body for name, body in bodies.items() if len(body) >= LEAST}


def statements(body: list[ast.stmt]) -> list[str]:
    """Every statement of a body, nested ones too, without annotations and docstrings, its names v0, v1 …

    Of a statement that holds others its head counts. Names of attributes stay, `self` goes.
    """
    heads = []
    for outer in body:
        for node in ast.walk(outer):
            if not isinstance(node, ast.stmt) or isinstance(node, Function | ast.ClassDef):
                continue
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                text = f"{ast.unparse(node.target)} = {ast.unparse(node.value)}"
            else:
                text = ast.unparse(node)
            heads.append(_without_names(text.split("\n")[0] if hasattr(node, "body") else text))
    return heads


def _without_names(text: str) -> str:
    seen: dict[str, str] = {}

    def rename(match: re.Match[str]) -> str:
        name = match.group()
        return name if name in _KEPT else seen.setdefault(name, f"v{len(seen)}")

    return _WORD.sub(rename, text.replace("self.", ""))


def _printed(lab: Lab, asked: dict[str, list[str]], page: Page) -> Iterator[Answer]:
    woven = {block.fence.first: block for block in source_blocks(page) if block.fence is not None}
    for fence, shown in _shown(page.path):
        names = [
            name
            for name, body in asked.items()
            if sum(one in shown for one in body) >= SHARE * len(body)
        ]
        block = woven.get(fence.first)
        if (
            block is not None
            and len(shown) >= LEAST
            and _builds(lab, asked, block.path, block.symbol)
            and len(shown) >= SHOWN * _size(block.path, block.symbol)
        ):
            names.append(block.symbol)
        for name in dict.fromkeys(name.rsplit(".", 1)[-1] for name in names):
            yield Answer(lab.id, name, page.name, fence.first)


@cache
def _shown(path: Path) -> list[tuple[Fence, tuple[str, ...]]]:
    """The blocks of Python of a page, each with the statements that it shows."""
    found: list[tuple[Fence, tuple[str, ...]]] = []
    for fence in _page(path).fences:
        if fence.language in ("python", "pycon"):
            body = _parsed("\n".join(fence.body))
            found.append((fence, tuple(statements(body))))
    return found


def _parsed(source: str) -> list[ast.stmt]:
    """The statements of a block, which may be a piece of a function, or a session."""
    if ">>>" in source:
        examples = doctest.DocTestParser().get_examples(source + "\n")
        source = "".join(example.source for example in examples)
    for text in (source, f"def f():\n{textwrap.indent(source, '    ')}"):
        try:
            return ast.parse(text).body
        except SyntaxError:
            continue
    return []


def _builds(lab: Lab, asked: dict[str, list[str]], path: str, symbol: str) -> bool:
    """Whether the lab builds this function: named by itself, as an open one, or with its whole module."""
    module = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    last = symbol.rsplit(".", 1)[-1]
    same = any(name.rsplit(".", 1)[-1] == last for name in asked)
    for built in lab.builds:
        where, _, what = built.partition(":")
        if what.rsplit(".", 1)[-1] == last and ("." in what or module == where):
            return True  # a method may be inherited, and stand in another module
        if module == where and (same or (not what and "." not in symbol)):
            return True
    return False


@cache
def _size(path: str, symbol: str) -> int:
    """How many statements a function of the repository has."""
    root = Path(__file__).resolve().parents[2]
    found = functions(ast.parse((root / path).read_text(encoding="utf-8"))).get(symbol)
    return len(statements(body_of(found))) if found is not None else 0


# --- numbers ---


def printed_numbers(course: Course) -> list[Answer]:
    """Every telling number of a lab's predictions that its README or its phase's pages print."""
    found: list[Answer] = []
    for phase in course.phases:
        for lab in phase.labs:
            if (asked := predicted(lab)) is None:
                continue
            given = numbers_in(_question(lab))
            for page in [*pages_before(phase), _page(lab.readme)]:
                found += _numbers(lab, asked, given, page)
    return found


def predicted(lab: Lab) -> dict[str, Any] | None:
    """What the solution predicts, by question. None where it predicts nothing, or needs what is not here."""
    if PREDICTIONS not in functions(ast.parse(lab.solution.read_text(encoding="utf-8"))):
        return None
    try:
        module = load_module(lab.solution, f"answers_{lab.id.replace('-', '_')}")
    except ImportError:  # torch, where it is not installed
        return None
    return dict(module.predictions())


def values_in(answer: Any) -> Iterator[float]:
    """The numbers of a prediction, one by one."""
    if isinstance(answer, bool):
        return
    if isinstance(answer, int | float):
        yield answer
    elif isinstance(answer, dict):
        for one in answer.values():
            yield from values_in(one)
    elif isinstance(answer, list | tuple | set):
        for one in answer:
            yield from values_in(one)
    elif is_dataclass(answer):
        for each in fields(answer):
            yield from values_in(getattr(answer, each.name))


def is_telling(value: float) -> bool:
    """Whether a number gives something away: 5.47, 195, 14,528. Not 2, 0.5, 64, 127, 500, 4,096."""
    value = abs(value)
    if not math.isfinite(value):
        return False
    if value != int(value):
        return len(f"{value:.6f}".strip("0").replace(".", "").lstrip("0")) >= 3
    number = int(value)
    return (
        number > 100 and number % 10 != 0 and _odd_part(number) > 30 and _odd_part(number + 1) > 1
    )


def sequences_in(answer: Any) -> Iterator[str]:
    """A prediction's lists of three numbers or more, as a page would print them, unless all are small."""
    if isinstance(answer, dict):
        for one in answer.values():
            yield from sequences_in(one)
    elif isinstance(answer, list | tuple):
        numbers = [x for x in answer if isinstance(x, int | float) and not isinstance(x, bool)]
        if len(numbers) == len(answer) >= 3 and max(numbers) >= 10:
            yield ", ".join(f"{number:g}" for number in numbers)
        else:
            for one in answer:
                yield from sequences_in(one)


def _odd_part(number: int) -> int:
    return number // (number & -number)


def numbers_in(text: str) -> set[float]:
    """The numbers of a text as it is read: not those of a link's target or of a line at the pin."""
    text = _CITED_LINE.sub("", _TARGET.sub("]", text))
    return {float(found.replace(",", "").rstrip(".")) for found in _NUMBER.findall(text)}


def _question(lab: Lab) -> str:
    """What the lab tells before it asks: the section of its README, and its function's docstring."""
    starter = functions(ast.parse(lab.starter.read_text(encoding="utf-8"))).get(PREDICTIONS)
    docstring = ast.get_docstring(starter) if starter is not None else None
    _, _, section = _page(lab.readme).text.partition(QUESTION)
    return section.partition("\n## ")[0] + (docstring or "")


def _numbers(lab: Lab, asked: dict[str, Any], given: set[float], page: Page) -> Iterator[Answer]:
    wanted = {
        (question, value)
        for question, answer in asked.items()
        for value in values_in(answer)
        if is_telling(value) and value not in given
    }
    lists = [(question, one) for question, answer in asked.items() for one in sequences_in(answer)]
    for number, line in enumerate(page.lines, 1):
        if page.name.endswith("README.md") and line == FINDINGS:
            return
        there = numbers_in(line)
        for question, value in sorted(wanted):
            if value in there:
                yield Answer(lab.id, f"{question}: {value:g}", page.name, number)
        for question, sequence in lists:
            if re.search(rf"(?<![\d.]){re.escape(sequence)}(?![\d.]|, \d)", line):
                yield Answer(lab.id, f"{question}: {sequence}", page.name, number)
