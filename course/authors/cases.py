"""Solutions with one known fault, as many as can be made from a lab: each is run like a learner's file.

Five kinds. A `wrong` is the solution with a mistake of `mistakes.toml` in it. A `rewrite` is one written
otherwise, all of it (`course.authors.rewrites`). An `unfinished` is one with another function of the
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

from course.authors.mutants import Mutant, plant
from course.authors.mutate import choose, read_allow_list
from course.authors.proof import whole_job
from course.authors.rewrites import rewrite
from course.learner.grade import run_jobs
from course.learner.labs import PROOF, Course, Lab
from course.learner.mistakes import Mistake, read_mistakes
from course.learner.progress import state_folder, write_atomically
from course.learner.results import LabRun, TestResult
from course.learner.stubs import Function, functions, is_unwritten

_MOST_KEPT = 4000  # runs, a lab
_APART = ("README.md", "HINTS.md", "starter.py", PROOF)


@dataclass(frozen=True)
class Case:
    """One faulty file.

    Attributes:
        kind: `wrong`, `rewrite`, `unfinished`, `slip` or `mutant`.
        truth: the key of the mistake it was made from; `""` for a mutant of the solution.
        source: the whole file.
        mutant: the planted fault, if one was planted.
        note: what was done, in a few words.
    """

    kind: str
    truth: str
    source: str
    mutant: Mutant | None = None
    note: str = ""


_OPEN = """

# ---- as if {name} were not written yet ----


def _unwritten(*args: object, **kwargs: object) -> None:
    raise NotImplementedError


{name} = _unwritten
"""


def _own(lab: Lab, text: str) -> dict[str, Function]:
    """The functions of `text` that are not as the solution has them."""
    right = {n: ast.dump(f) for n, f in functions(ast.parse(lab.solution.read_bytes())).items()}
    every = functions(ast.parse(text))
    return {name: f for name, f in every.items() if ast.dump(f) != right.get(name)}


def unfinished(lab: Lab, mistake: Mistake, most: int) -> Iterator[Case]:
    """The solution with `mistake` in it, and one of the starter's other functions still to be written."""
    own = _own(lab, mistake.text)
    nodes = [node for part in own.values() for node in ast.walk(part)]
    nodes += ast.walk(ast.parse(mistake.append.strip()))
    mentioned = {n.id for n in nodes if isinstance(n, ast.Name)}
    mentioned |= {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    mentioned |= {word for name in own for word in name.split(".")}
    starter = functions(ast.parse(lab.starter.read_bytes()))
    open_ = [name for name, node in starter.items() if is_unwritten(node)]
    left = [name for name in open_ if not set(name.split(".")) & mentioned]
    for name in left[-most:]:  # one writes from the top
        text = mistake.text + _OPEN.format(name=name)
        yield Case("unfinished", mistake.key, text, note=f"{name} is not written")


def wrong_cases(lab: Lab) -> list[Case]:
    """The mistakes of a lab as they are."""
    return [Case("wrong", mistake.key, mistake.text) for mistake in read_mistakes(lab.folder)]


def cases_of(lab: Lab, most_mutants: int, most_others: int, seed: int = 0) -> list[Case]:
    """The cases of a lab: always the same ones for the same files and arguments."""
    found = wrong_cases(lab)
    solution = lab.solution.read_text(encoding="utf-8")
    for mistake in read_mistakes(lab.folder):
        own = _own(lab, mistake.text)
        found.append(Case("rewrite", mistake.key, rewrite(mistake.text)))
        found += unfinished(lab, mistake, most_others)
        slips = [m for m in plant(mistake.text) if m.function in own]
        chance = random.Random(f"{seed}{mistake.key}").randrange(2**30)
        found += [
            Case("slip", mistake.key, m.source, m, f"{m.old} -> {m.new}")
            for m in choose(slips, chance, most_others)
        ]
    excused = read_allow_list(lab.mutants)
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
    shared += [root / "course" / "learner" / name for name in ("runner.py", "labs.py")]
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
        # A copy of the lab, so that a case finds the files that the solution finds.
        home = Path(folder, lab.folder.name)
        shutil.copytree(lab.folder, home, ignore=shutil.ignore_patterns("__pycache__"))
        jobs = []
        for index, case in enumerate(open_.values()):
            path = home / f"case_{index}.py"
            path.write_text(case.source, encoding="utf-8")
            jobs.append(whole_job(lab, path))
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
    return hashlib.sha256(state + case.source.encode()).hexdigest()[:24]


def _read(file: Path) -> LabRun:
    content = json.loads(file.read_bytes())
    return LabRun([TestResult(**test) for test in content["tests"]], content["problem"])
