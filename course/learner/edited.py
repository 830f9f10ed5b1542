"""A wrong file that says only what it changes: the solution, with a few of its lines replaced.

    CHANGE = '''
    Scheduler._schedule_waiting
      step.token_budget -= num_new_tokens
    + request.num_computed_tokens += num_new_tokens
    '''

    exec(edited(__file__, CHANGE))

A change names a function of the solution, and below that some of its lines: `- ` marks one that goes, `+ `
one that comes, two blanks one that stays. The first of them stands at the margin, and the others are indented
against it. The lines that go and stay must occur in the function once, one after the other, because otherwise
nobody knows which are meant. An empty line ends a change, and another may follow.
"""

from __future__ import annotations

import ast
import linecache
from pathlib import Path
from types import CodeType

from course.learner.labs import CourseError, solution_of
from course.learner.stubs import functions


def edited(wrong_file: str | Path, change: str) -> CodeType:
    """The solution beside `wrong_file` with `change` made in it, compiled as if `wrong_file` held all of it.

    Raises CourseError where a change cannot be made.
    """
    text = _edit(wrong_file, change)
    # So that a traceback shows the lines that run.
    linecache.cache[str(wrong_file)] = (len(text), None, text.splitlines(True), str(wrong_file))
    return compile(text, str(wrong_file), "exec")


def full_text(wrong_file: Path) -> str:
    """A wrong file as it would be with all of the solution written out; without a CHANGE, as it stands."""
    text = wrong_file.read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CHANGE":
            return _edit(wrong_file, ast.literal_eval(node.value))
    return text


def _edit(wrong_file: str | Path, change: str) -> str:
    text = solution_of(wrong_file).read_text(encoding="utf-8")
    for hunk in change.strip("\n").split("\n\n"):
        name, *marked = hunk.splitlines()
        wrong = f"{wrong_file}: {name}"
        for line in marked:
            if line[:2] not in ("  ", "- ", "+ "):
                raise CourseError(f"{wrong}: {line!r} has no mark: '- ', '+ ' or two blanks")
        old = [line[2:] for line in marked if line[0] != "+"]
        if not old:
            raise CourseError(
                f"{wrong}: no line goes or stays, so nothing says where the others come"
            )
        new = [line[2:] for line in marked if line[0] != "-"]
        node = functions(ast.parse(text)).get(name)
        if node is None or node.end_lineno is None:
            raise CourseError(f"{wrong}: the solution has no such function")
        lines = text.splitlines()
        places = range(node.lineno - 1, node.end_lineno - len(old) + 1)
        found = [at for at in places if lines[at : at + len(old)] == _below(lines[at], old)]
        if len(found) != 1:
            times = f"has these lines {len(found)} times, not once:"
            raise CourseError("\n".join([f"{wrong} {times}", *old]))
        [at] = found
        lines[at : at + len(old)] = _below(lines[at], new)
        text = "\n".join(lines) + "\n"
    return text


def _below(line: str, lines: list[str]) -> list[str]:
    """`lines`, indented as `line` is."""
    margin = line[: len(line) - len(line.lstrip())]
    return [margin + text for text in lines]
