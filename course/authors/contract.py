"""The lab contract, as checks: what a lab must be so that a reader can learn from it.

`pages_and_code` reads the lab's files, and returns sentences, one for each rule that is broken.
What needs a run of its tests is in `course.authors.proof`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from course.learner.hints import read_hints
from course.learner.labs import MISTAKES, PIECES, Course, CourseError, Lab, is_test_file
from course.learner.mistakes import read_mistakes
from course.learner.stubs import Function, body_of, functions, is_unwritten

_SMALL = 24  # an unparsed statement shorter than this says nothing about who wrote it


def pages_and_code(course: Course, lab: Lab) -> list[str]:
    """The rules that the files of `lab` break, as they lie there."""
    missing = [piece for piece in PIECES if not (lab.folder / piece).exists()]
    if missing:
        return [f"{lab.id}: {piece} is missing" for piece in missing]
    found = [*_readme(lab), *_tests(lab), *_starter(lab), *_mistakes(lab)]
    return [f"{course.show(lab.folder)}/{problem}" for problem in found]


def _readme(lab: Lab) -> Iterator[str]:
    text = lab.readme.read_text(encoding="utf-8")
    heading = f"# Lab {lab.id}: {lab.title}"
    if not re.search(rf"(?m)^{re.escape(heading)}$", text):
        yield f"README.md: its heading must be {heading!r}"
    for command in (f"course grade {lab.id}", "LAB_IMPL=starter"):
        if command not in text:
            yield f"README.md: does not say {command!r}"
    try:
        hints = read_hints(lab)
    except CourseError as error:
        yield f"HINTS.md: {error}"
    else:
        if not 3 <= len(hints) <= 5:
            yield f"HINTS.md: wants 3 to 5 hints, has {len(hints)}"
        yield from (f"HINTS.md: hint {h.number} is empty" for h in hints if not h.body)
    if re.search(r"(?i)<summary>\s*hint", text):
        yield "README.md: hints stand in HINTS.md, or a reader of plain text sees them all"
    if "HINTS.md" not in text:
        yield "README.md: does not say 'HINTS.md'"
    tests = {node.name for node in _test_functions(lab)}
    named = set(re.findall(r"`(test_\w+)", text)) - {path.stem for path in lab.tests}
    yield from (f"README.md: names {name}, which is no test" for name in sorted(named - tests))


def _test_functions(lab: Lab) -> list[Function]:
    trees = [ast.parse(path.read_bytes()) for path in lab.tests]
    found = [node for tree in trees for node in functions(tree).values()]
    return [node for node in found if node.name.startswith("test")]


def _tests(lab: Lab) -> Iterator[str]:
    for path in sorted({*lab.folder.glob("test_*.py"), *lab.folder.glob("*_test.py")}):
        if not is_test_file(path):
            yield f"{path.name}: further tests stand in a test_lab_SOMETHING.py"
    where: dict[str, list[str]] = {}
    for path in lab.tests:
        tree = ast.parse(path.read_bytes())
        tests = [n for n in functions(tree).values() if n.name.startswith("test")]
        if not tests:
            yield f"{path.name}: has no test"
        for node in tests:
            if not (ast.get_docstring(node) or "").strip():
                yield f"{path.name}:{node.lineno}: {node.name} has no docstring saying what it pins"
        for name in _test_names(tree):
            where.setdefault(name, []).append(path.name)
        yield from _checks(path.name, tree)
    for name, files in sorted(where.items()):
        if len(files) > 1:
            yield f"{' and '.join(dict.fromkeys(files))}: {name} stands there more than once"
    for path in lab.shared:
        tree = ast.parse(path.read_bytes())
        for name in _test_names(tree):
            yield f"{path.name}: {name} is never run; tests stand in test_lab.py or test_lab_SOMETHING.py"
        yield from _checks(path.name, tree)


def _test_names(tree: ast.Module) -> list[str]:
    return [n.name for n in ast.walk(tree) if isinstance(n, Function) and n.name[:4] == "test"]


def _checks(name: str, tree: ast.Module) -> Iterator[str]:
    """What holds in the tests and in what they share: messages that teach, no import of the answer."""
    for part in ast.walk(tree):
        if isinstance(part, ast.Assert) and part.msg is None:
            yield f"{name}:{part.lineno}: an assertion without a message that teaches"
        if not isinstance(part, ast.Import | ast.ImportFrom):
            continue
        imported = [alias.name for alias in part.names]
        if isinstance(part, ast.ImportFrom):
            imported.append(part.module or "")
        if {word for module in imported for word in module.split(".")} & {"solution", "starter"}:
            yield f"{name}:{part.lineno}: takes the code from the fixture lab, not by import"


def _starter(lab: Lab) -> Iterator[str]:
    text = lab.starter.read_text(encoding="utf-8")
    starter = functions(ast.parse(text))
    solution = functions(ast.parse(lab.solution.read_bytes()))
    open_ = [name for name, node in starter.items() if is_unwritten(node)]
    if not open_:
        yield "starter.py: leaves nothing to write (no raise NotImplementedError)"
    for name in open_:
        if name not in solution:
            yield f"solution.py: has no {name}, which starter.py leaves open"
        elif ast.dump(starter[name].args) != ast.dump(solution[name].args):
            yield f"solution.py: {name} has other arguments than in starter.py"
        if not (ast.get_docstring(starter[name]) or "").strip():
            yield f"starter.py: {name} has no docstring"
    written = {name: solution[name] for name in open_ if name in solution}
    bodies = {ast.dump(ast.Module(body_of(node), [])): name for name, node in written.items()}
    for name, node in starter.items():
        body = body_of(node)
        same = bodies.get(ast.dump(ast.Module(body, [])))
        if body and same is not None and len(ast.unparse(ast.Module(body, []))) >= _SMALL:
            yield f"starter.py: {name} holds the solution of {same}"
    given = {_text(s) for node in ast.walk(ast.parse(text)) for s in _statements(node)}
    given |= set(_commented_out(text))
    for name, node in written.items():
        answer = [_text(s) for s in ast.walk(ast.Module(body_of(node), []))
                  if isinstance(s, ast.stmt)]  # fmt: skip
        answer = [s for s in answer if len(s) >= _SMALL]
        known = [s for s in answer if s in given]
        if answer and 2 * len(known) >= len(answer):
            yield f"starter.py: holds the lines of {name}'s solution, for instance {known[0]!r}"


def _statements(node: ast.AST) -> list[ast.stmt]:
    return [node] if isinstance(node, ast.stmt) else []


def _text(statement: ast.stmt) -> str:
    """A statement as text; of one with a body, the head only."""
    if not hasattr(statement, "body"):
        return ast.unparse(statement)
    return ast.unparse(statement).splitlines()[0]


def _commented_out(text: str) -> Iterator[str]:
    """The comments of `text` that are Python, one statement a line."""
    for comment in re.findall(r"(?m)#+ ?(.*)$", text):
        try:
            tree = ast.parse(comment.strip())
        except SyntaxError:
            continue
        yield from (_text(statement) for statement in tree.body)


def _mistakes(lab: Lab) -> Iterator[str]:
    try:
        mistakes = read_mistakes(lab.folder)
    except CourseError as error:
        yield str(error).removeprefix(f"{lab.folder}/")
        return
    if len(mistakes) < 3:
        yield f"{MISTAKES}: at least 3 mistakes, has {len(mistakes)}"
    tests = {node.name for node in _test_functions(lab)}
    solution = ast.dump(ast.parse(lab.solution.read_bytes()))
    for mistake in mistakes:
        where = f"{MISTAKES}: {mistake.key}"
        if mistake.test not in tests:
            yield f"{where}: names {mistake.test}, which is no test"
        try:
            changed = ast.dump(ast.parse(mistake.text)) != solution
        except CourseError as error:
            yield str(error)
        except SyntaxError as error:
            yield f"{where}: what comes of it is no Python: {error}"
        else:
            if not changed:
                yield f"{where}: changes nothing"
