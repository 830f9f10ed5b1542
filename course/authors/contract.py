"""The lab contract, as checks: what a lab must be so that a reader can learn from it.

`pages_and_code` reads the lab's files; `behaviour` runs its tests on the starter, the solution and
every wrong solution. Each returns sentences, one for each rule that is broken.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator, Sequence

from course.learner.grade import Job, cached_runs
from course.learner.hints import read_hints
from course.learner.labs import PIECES, Course, CourseError, Lab, is_test_file
from course.learner.mistakes import read_mistake
from course.learner.results import LabRun
from course.learner.stubs import Function, body_of, functions, is_unwritten

MAX_SECONDS = 3.0
LIMIT = 90.0  # seconds for a mistake by the clock: more than a learner has, as other things run beside it
TEST_LIMIT = 24.0
_SMALL = 24  # an unparsed statement shorter than this says nothing about who wrote it


def pages_and_code(course: Course, lab: Lab) -> list[str]:
    """The rules that the files of `lab` break, as they lie there."""
    missing = [piece for piece in PIECES if not (lab.folder / piece).exists()]
    if missing:
        return [f"{lab.id}: {piece} is missing" for piece in missing]
    found = [*_readme(lab), *_tests(lab), *_starter(lab), *_wrong(lab)]
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
    yield from (f"README.md: does not name {name}" for name in sorted(tests - named))
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


def _wrong(lab: Lab) -> Iterator[str]:
    if len(lab.wrong) < 3:
        yield f"wrong: at least 3 mistakes, has {len(lab.wrong)}"
    tests = {node.name for node in _test_functions(lab)}
    for path in lab.wrong:
        try:
            test = read_mistake(path).test
        except (CourseError, SyntaxError) as error:
            yield f"wrong/{path.name}: {error}"
        else:
            if test not in tests:
                yield f"wrong/{path.name}: names {test}, which is no test"


def _jobs(lab: Lab) -> Iterator[Job]:
    """The solution, the starter and the mistakes run all tests."""
    yield Job(lab.folder, lab.solution)
    yield Job(lab.folder, lab.starter, watch_unwritten=True)
    yield from wrong_jobs(lab)


def wrong_jobs(lab: Lab) -> list[Job]:
    """The wrong files of `lab`, in their order, as `course grade` runs them, but with more time."""
    return [Job(lab.folder, path, LIMIT, TEST_LIMIT) for path in lab.wrong]


def behaviour(course: Course, labs: Sequence[Lab]) -> dict[str, list[str]]:
    """The rules that `labs` break when they run, by lab id.

    All of them run in one batch, but for those that ran before on the same files.
    """
    jobs = [(lab, job) for lab in labs for job in _jobs(lab)]
    runs = cached_runs(course.root, jobs)
    found: dict[str, list[str]] = {lab.id: [] for lab in labs}
    for (lab, job), run in zip(jobs, runs, strict=True):
        problems: list[str] = []
        if job.impl == lab.solution:
            problems = list(_solution_ran(run, lab))
        elif job.impl == lab.starter:
            problems = list(_starter_ran(run))
        else:
            with contextlib.suppress(CourseError, SyntaxError):  # `_wrong` says what is amiss
                problems = list(_wrong_ran(run, read_mistake(job.impl).test))
        found[lab.id] += [f"{course.show(job.impl)}: {problem}" for problem in problems]
    return found


def _nothing_ran(run: LabRun) -> bool:
    return run.problem is None and all(test.outcome == "skipped" for test in run.tests)


def _solution_ran(run: LabRun, lab: Lab) -> Iterator[str]:
    if _nothing_ran(run):
        return
    if not run.passed:
        bad = [
            f"{t.name}: {t.message}" for t in run.tests if t.outcome not in ("passed", "skipped")
        ]
        yield f"does not pass: {run.problem or bad[0]}"
        return
    # By the processor, not by the clock: other work beside it is not the lab's fault.
    seconds = sum(test.cpu_seconds for test in run.tests)
    # A lab that asks for more time by the clock has as much of the processor's: torch alone takes a second
    # or two to import, and where it is missing these tests cost the learner's suite nothing.
    limit = lab.seconds or MAX_SECONDS
    if seconds >= limit:
        slow = max(run.tests, key=lambda test: test.cpu_seconds)
        yield (
            f"its tests take {seconds:.1f} s, the limit is {limit:.0f} s; "
            f"{slow.name} alone takes {slow.cpu_seconds:.1f} s"
        )


def _starter_ran(run: LabRun) -> Iterator[str]:
    if _nothing_ran(run):
        return
    if run.problem is not None:
        yield run.problem
    if run.passed:
        yield "passes"
    elif not any(test.outcome == "todo" for test in run.tests):
        yield "no test runs into a function that is not written yet"
    for test in run.tests:
        if test.outcome == "passed" and test.unwritten:
            yield f"{test.name} passes, though {test.unwritten[0]} is not written yet"


def _wrong_ran(run: LabRun, test: str) -> Iterator[str]:
    """What is amiss with a mistake that `test` has to refuse. What the other tests say does not matter."""
    mine = [t for t in run.tests if t.base == test]
    if run.problem is None and all(t.outcome == "skipped" for t in mine):
        return
    bad = [t for t in mine if t.outcome not in ("passed", "skipped", "not_run")]
    if any(t.outcome == "failed" and t.message for t in bad):
        return
    if bad:
        [first, *_] = bad
        yield f"fails only by {first.name}: {first.message}; an assertion has to say what is wrong"
    elif run.problem is not None:
        yield run.problem
    else:
        yield f"passes {test}, which should refuse it"
