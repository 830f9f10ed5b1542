"""Solutions with one known fault, as many as can be made from a lab: each is run like a learner's file.

Five kinds. A `wrong` is a file of `wrong/` as it stands. A `rewrite` is one written otherwise, and the
solution below it too (`course.authors.rewrites`). An `unfinished` is one with another function of the
starter still open. A `slip` is one with a planted fault (`course.authors.mutants`) in its own code
besides. A `mutant` is the solution with a planted fault and nothing else. The truth is known of the
first four by how they were made; of a mutant, `course.authors.evaluate` says what is true.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from course.authors.contract import LIMIT, TEST_LIMIT
from course.authors.mutants import Mutant, plant
from course.authors.mutate import ALLOW_LIST, choose, read_allow_list
from course.authors.rewrites import rewrite
from course.learner.edited import full_text
from course.learner.grade import Job, run_jobs
from course.learner.labs import Course, Lab
from course.learner.progress import state_folder, write_atomically
from course.learner.results import LabRun, TestResult
from course.learner.stubs import Function, functions, is_unwritten

_MOST_KEPT = 4000  # runs, a lab
_APART = ("README.md", "HINTS.md", "starter.py", "wrong", ALLOW_LIST)  # no run depends on them


@dataclass(frozen=True)
class Case:
    """One faulty file.

    Attributes:
        kind: `wrong`, `rewrite`, `unfinished`, `slip` or `mutant`.
        truth: the stem of the wrong file it was made from; `""` for a mutant of the solution.
        source: the whole file.
        mutant: the planted fault, if one was planted.
        note: what was done, in a few words.
        below: the solution that it stands on, if that is not the lab's own.
    """

    kind: str
    truth: str
    source: str
    mutant: Mutant | None = None
    note: str = ""
    below: str = ""


_OPEN = """

# ---- as if {name} were not written yet ----


def _unwritten(*args: object, **kwargs: object) -> None:
    raise NotImplementedError


{where}{name} = _unwritten  # type: ignore[attr-defined]
globals()["{top}"] = {where}{top}
"""


def _own(lab: Lab, path: Path) -> tuple[str, dict[str, Function], str]:
    """The wrong file at `path` with nothing left out; the functions that are its own; and what has to
    stand before the name of another one: "solution.", if that is not in the text itself."""
    text = full_text(path)
    own = functions(ast.parse(text))
    own.pop("__getattr__", None)
    if text == path.read_text(encoding="utf-8"):
        return text, own, "solution."
    right = {n: ast.dump(f) for n, f in functions(ast.parse(lab.solution.read_bytes())).items()}
    return text, {n: f for n, f in own.items() if ast.dump(f) != right.get(n)}, ""


def unfinished(lab: Lab, path: Path, most: int) -> Iterator[Case]:
    """The wrong file at `path` with one of the starter's other functions still to be written."""
    text, own, where = _own(lab, path)
    parts = [ast.parse(text)] if where else own.values()
    nodes = [node for part in parts for node in ast.walk(part)]
    mentioned = {n.id for n in nodes if isinstance(n, ast.Name)}
    mentioned |= {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    mentioned |= {word for name in own for word in name.split(".")}
    starter = functions(ast.parse(lab.starter.read_bytes()))
    open_ = [name for name, node in starter.items() if is_unwritten(node)]
    left = [name for name in open_ if not set(name.split(".")) & mentioned]
    for name in left[-most:]:  # one writes from the top
        more = _OPEN.format(name=name, top=name.split(".")[0], where=where)
        yield Case("unfinished", path.stem, text + more, note=f"{name} is not written")


def wrong_cases(lab: Lab) -> list[Case]:
    """The wrong files of a lab as they are."""
    return [Case("wrong", p.stem, p.read_text(encoding="utf-8")) for p in lab.wrong]


def cases_of(lab: Lab, most_mutants: int, most_others: int, seed: int = 0) -> list[Case]:
    """The cases of a lab: always the same ones for the same files and arguments."""
    found = wrong_cases(lab)
    solution = lab.solution.read_text(encoding="utf-8")
    for path in lab.wrong:
        text, own, _ = _own(lab, path)
        below = rewrite(solution, fractions=False)
        found.append(Case("rewrite", path.stem, rewrite(text), below=below))
        found += unfinished(lab, path, most_others)
        slips = [m for m in plant(text) if m.function in own]
        found += [
            Case("slip", path.stem, m.source, m, f"{m.old} -> {m.new}")
            for m in choose(
                slips, random.Random(f"{seed}{path.stem}").randrange(2**30), most_others
            )
        ]
    excused = read_allow_list(lab.folder / ALLOW_LIST)
    mutants = [
        m for m in plant(solution) if m.key not in excused.lines and not excused.function_reason(m)
    ]
    for m in choose(mutants, seed, most_mutants):
        found.append(Case("mutant", "", m.source, m, f"{m.old} -> {m.new}"))
    return found


# -- running them ---------------------------------------------------------------------------------


def _state(root: Path, lab: Lab) -> bytes:
    """Changes with anything but a case's own text that its run can depend on."""
    state = hashlib.sha256()
    shared = [root / "conftest.py", *sorted((root / "mini_vllm").rglob("*.py"))]
    shared += [root / "course" / "learner" / name for name in ("runner.py", "labs.py", "edited.py")]
    for path in [*shared, *sorted(lab.folder.rglob("*"))]:
        if path.is_relative_to(lab.folder):
            parts = path.relative_to(lab.folder).parts
            if parts[0] in _APART or "__pycache__" in parts:
                continue
        if path.is_file():
            state.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return state.digest()


def run_cases(
    course: Course,
    lab: Lab,
    cases: Sequence[Case],
    on_done: Callable[[int, int], None] | None = None,
    parallel: int | None = None,
) -> list[LabRun]:
    """What the lab's tests say of each case; kept by content in `.course/evaluate/`.

    A second run, or one that was broken off, runs only what is new. `on_done` hears how many are
    done, of how many that had to be run.
    """
    store = state_folder(course.root) / "evaluate" / lab.id
    store.mkdir(parents=True, exist_ok=True)
    state = _state(course.root, lab)
    files = [store / f"{_name(state, case)}.json" for case in cases]
    open_ = {file: case for file, case in zip(files, cases, strict=True) if not file.is_file()}
    with tempfile.TemporaryDirectory(prefix="cases-") as folder:
        homes: dict[str, Path] = {}
        jobs = []
        for index, case in enumerate(open_.values()):
            if case.below not in homes:
                # A copy of the lab, so that a case finds the files that the solution finds.
                homes[case.below] = home = Path(folder, str(len(homes)), lab.folder.name)
                left = shutil.ignore_patterns("wrong", "__pycache__")
                shutil.copytree(lab.folder, home, ignore=left)
                if case.below:
                    (home / "solution.py").write_text(case.below, encoding="utf-8")
            path = homes[case.below] / f"case_{index}.py"
            path.write_text(case.source, encoding="utf-8")
            jobs.append(Job(lab.folder, path, LIMIT, TEST_LIMIT))
        names = list(open_)
        done = 0

        def keep(index: int, run: LabRun) -> None:
            nonlocal done
            done += 1
            write_atomically(names[index], json.dumps(asdict(run)))
            if on_done is not None:
                on_done(done, len(jobs))

        if jobs:
            run_jobs(course.root, jobs, parallel or min(2, os.cpu_count() or 1), keep)
    old = sorted(store.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for path in {*old[:-_MOST_KEPT]} - set(files):
        path.unlink()
    return [_read(file) for file in files]


def _name(state: bytes, case: Case) -> str:
    below = case.below.encode()
    return hashlib.sha256(state + case.source.encode() + below).hexdigest()[:24]


def _read(file: Path) -> LabRun:
    content = json.loads(file.read_bytes())
    return LabRun([TestResult(**test) for test in content["tests"]], content["problem"])
