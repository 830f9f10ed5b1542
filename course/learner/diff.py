"""A learner's starter.py against the solution: what runs, and comments. Docstrings are left out.

The starter's docstrings say what to build, and the solution's say what was built, so between the two
they differ in every function and would bury the few lines that teach something.
"""

from __future__ import annotations

import ast
import difflib
import re

from course.learner.labs import Course, Lab

Lines = list[tuple[int, str]]  # line number in the file, and the line


def difference(course: Course, lab: Lab, docstrings: bool = False) -> str:
    """Starter and solution as a unified diff, whose heads name lines of the two files; "" if equal."""
    sides = []
    for path in (lab.starter, lab.solution):
        source = path.read_text(encoding="utf-8", errors="replace")
        sides.append(numbered(source) if docstrings else without_docstrings(source))
    mine, theirs = sides
    lines = difflib.unified_diff(
        [line for _, line in mine], [line for _, line in theirs],
        course.show(lab.starter), course.show(lab.solution), lineterm="",
    )  # fmt: skip
    return "".join(f"{_true_numbers(line, mine, theirs)}\n" for line in lines)


def numbered(source: str) -> Lines:
    return [*enumerate(source.splitlines(), 1)]


def without_docstrings(source: str) -> Lines:
    """The lines of `source`, but for docstrings and the blank lines after them.

    Where it does not parse, or a docstring is all that a body has, nothing is left out.
    """
    lines = numbered(source)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return lines
    out: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is None or len(node.body) == 1:
            continue
        doc, following = node.body[:2]
        first, last = doc.lineno, doc.end_lineno or doc.lineno
        if last >= following.lineno or lines[first - 1][1][: doc.col_offset].strip():
            continue  # it shares a line with code
        while last < len(lines) and not lines[last][1].strip():
            last += 1
        out.update(range(first, last + 1))
    return [(number, line) for number, line in lines if number not in out]


def _true_numbers(line: str, mine: Lines, theirs: Lines) -> str:
    """`line`; in the head of a part, places in what is compared become lines of the files."""
    head = re.fullmatch(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@", line)
    if head is None:
        return line
    ours, other = (
        side[max(0, int(place) - 1)][0] if side else 0
        for side, place in ((mine, head[1]), (theirs, head[2]))
    )
    return f"@@ starter.py, line {ours} | solution.py, line {other} @@"
