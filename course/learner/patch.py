"""A solution with a few of its lines replaced: how a known mistake says what it does differently.

    Scheduler._schedule_waiting
      step.token_budget -= num_new_tokens
    + request.num_computed_tokens += num_new_tokens

    Scheduler.has_requests
    = return bool(self.running)

A change names a function, and below that some of its lines: `- ` marks one that goes, `+ ` one that comes,
two blanks one that stays. Their indentation counts against each other, not against the file's. The lines
that go and stay must occur in the function once, one after the other, or nobody knows which are meant.
Where little of a function stays, `= ` marks its new body; signature and docstring stay. Empty lines do not
count, and any number of changes may follow each other.
"""

from __future__ import annotations

import ast
import textwrap

from course.learner.labs import CourseError
from course.learner.stubs import Function, body_of, functions


def patched(text: str, change: str) -> str:
    """The module `text` with `change` made in it.

    Raises CourseError naming the function where a change cannot be made.
    """
    for name, marked in _changes(change):
        node = functions(ast.parse(text)).get(name)
        if node is None or node.end_lineno is None:
            raise CourseError(f"{name}: the solution has no such function")
        lines = text.splitlines()
        if {line[0] for line in marked} == {"="}:
            lines = _with_body(lines, node, [line[2:] for line in marked])
        else:
            lines = _with_lines(name, lines, node, marked)
        text = "\n".join(lines) + "\n"
    return text


def _changes(change: str) -> list[tuple[str, list[str]]]:
    """Each function's name, and its marked lines, of which there is at least one."""
    found: list[tuple[str, list[str]]] = []
    for line in filter(str.strip, change.splitlines()):
        if line[:2] in ("  ", "- ", "+ ", "= ") and found:
            found[-1][1].append(line)
        elif " " in line:
            raise CourseError(f"{line!r} has no mark: '- ', '+ ', '= ' or two blanks")
        else:
            found.append((line, []))
    for name, marked in found:
        marks = {line[0] for line in marked}
        if "=" in marks and len(marks) > 1:
            raise CourseError(
                f"{name}: '= ' is for a whole body, so it stands beside no other mark"
            )
        if not marks - {"+"}:
            raise CourseError(
                f"{name}: no line goes or stays, so nothing says where the others come"
            )
    return found


def _with_lines(name: str, lines: list[str], node: Function, marked: list[str]) -> list[str]:
    old = [line[2:] for line in marked if line[0] != "+"]
    assert node.end_lineno is not None
    places = [at for at in range(node.lineno - 1, node.end_lineno) if lines[at].strip()]
    found = []
    for first, at in enumerate(places[: len(places) - len(old) + 1]):
        margin = _indentation(lines[at]) - _indentation(old[0])
        here = places[first : first + len(old)]
        if [lines[place] for place in here] == _indented(old, margin):
            found.append((here, margin))
    if len(found) != 1:
        times = f"has these lines {len(found)} times, not once:"
        raise CourseError("\n".join([f"{name} {times}", *old]))
    [(here, margin)] = found
    new = _indented([line[2:] for line in marked if line[0] != "-"], margin)
    return [*lines[: here[0]], *new, *lines[here[-1] + 1 :]]


def _with_body(lines: list[str], node: Function, body: list[str]) -> list[str]:
    statements = body_of(node) or node.body
    first, last = statements[0].lineno - 1, node.end_lineno
    assert last is not None
    return [*lines[:first], *_indented(body, _indentation(lines[first])), *lines[last:]]


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def _indented(lines: list[str], margin: int) -> list[str]:
    """`lines`, `margin` columns further right; a margin below 0 leaves them where they are."""
    return [textwrap.indent(line, " " * margin) for line in lines]
