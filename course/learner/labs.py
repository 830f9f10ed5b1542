"""Phases and labs, found where they lie: `phase-NN-slug/labs/lab-MM-slug/`.

Standard library only, because a lab's tests import `load_support` from here, and those run wherever the
engine does.
"""

from __future__ import annotations

import ast
import difflib
import functools
import itertools
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from course.learner.front_matter import front_matter
from mini_vllm.utils.extras import DISTRIBUTION

TAGS = {
    "CPU-OK": "a laptop is enough",
    "GPU-OPT": "a laptop is enough; a GPU shows more",
    "GPU-REQ": "the last step needs a GPU",
}
# Names a file that names the files on which the tests of a lab run, where `course.kernels.lab` is to know.
TOGETHER = "COURSE_KERNELS_TOGETHER"
PROOF = (
    "proof"  # the folder of a lab that holds what proves it: its authors', and no part of its tests
)
MISTAKES = f"{PROOF}/mistakes.toml"
FINGERPRINTS = f"{PROOF}/fingerprints.json"
MUTANTS = f"{PROOF}/mutants.txt"
PIECES = ("README.md", "starter.py", "solution.py", "test_lab.py", MISTAKES)
SPELLINGS = {"cuda": "CUDA", "gemm": "GEMM", "moe": "MoE"}
"""Words of a phase's name that are no plain words."""
_REQUIRED = {"phase", "lab", "title", "tag", "minutes", "prerequisites"}
_OPTIONAL = {"part", "class", "builds", "seconds", "path"}
_PHASE_FOLDER = re.compile(r"phase-(\d{2})-([a-z0-9]+(?:-[a-z0-9]+)*)")
_LAB_FOLDER = re.compile(r"lab-(\d{2})-([a-z0-9]+(?:-[a-z0-9]+)*)")
_LAB_ID = re.compile(r"\d{2}-\d{2}")
_BUILT = re.compile(r"\w+(\.\w+)+(:\w+(\.\w+)*)?")
_TEST_FILE = re.compile(r"test_lab(_\w+)?\.py|support\.py|conftest\.py")
_loaded = itertools.count()


class CourseError(ValueError):
    """What a command tells its user before it ends with exit status 2."""


def is_test_file(path: str | Path) -> bool:
    """Whether a lab's file of this name belongs to its tests: what they are made of, or what they share."""
    return _TEST_FILE.fullmatch(Path(path).name) is not None


@dataclass(frozen=True)
class Lab:
    """One lab: its folder and what the front matter of its README says.

    Attributes:
        folder: absolute.
        prerequisites: lab ids, such as `"00-01"`, in the order given.
        part: the field of `EngineParts` that this lab builds, or None.
        class_name: with `part`, the class in starter.py and solution.py that goes there.
        builds: what of the engine the learner writes here and may not import: `module:name` or `module`.
        seconds: what the front matter asks for each test and the whole lab; None: the usual.
        core: whether the front matter says `path: core`: one of the labs that nobody should leave out.
    """

    folder: Path
    phase: int
    number: int
    title: str
    tag: str
    minutes: int
    prerequisites: tuple[str, ...]
    part: str | None = None
    class_name: str | None = None
    builds: tuple[str, ...] = ()
    seconds: int | None = None
    core: bool = False

    @property
    def id(self) -> str:
        return f"{self.phase:02}-{self.number:02}"

    @property
    def readme(self) -> Path:
        return self.folder / "README.md"

    @property
    def hints(self) -> Path:
        return self.folder / "HINTS.md"

    @property
    def starter(self) -> Path:
        return self.folder / "starter.py"

    @property
    def solution(self) -> Path:
        return self.folder / "solution.py"

    @property
    def test(self) -> Path:
        return self.folder / "test_lab.py"

    @property
    def tests(self) -> list[Path]:
        """The files of tests: test_lab.py, then every test_lab_SOMETHING.py, as pytest runs them."""
        return sorted(self.folder.glob("test_lab*.py"))

    @property
    def shared(self) -> list[Path]:
        """What the files of tests share: support.py and conftest.py, where the lab has them."""
        return [p for p in (self.folder / "support.py", self.folder / "conftest.py") if p.is_file()]

    @property
    def mistakes(self) -> Path:
        return self.folder / MISTAKES

    @property
    def fingerprints(self) -> Path:
        return self.folder / FINGERPRINTS

    @property
    def mutants(self) -> Path:
        return self.folder / MUTANTS


@dataclass(frozen=True)
class Phase:
    """One phase: its folder and the labs in it, in order."""

    folder: Path
    number: int
    slug: str
    labs: tuple[Lab, ...]

    @property
    def title(self) -> str:
        words = self.slug.replace("-", " ").capitalize().split()
        return " ".join(SPELLINGS.get(word.lower(), word) for word in words)

    @property
    def guide(self) -> Path:
        return self.folder / "00-guide.md"


@dataclass(frozen=True)
class Course:
    """The repository as a course.

    `problems` says what is wrong with labs that are there but cannot be used: one sentence each. A
    broken lab does not keep a reader from the others; a test of the repository wants this empty.
    """

    root: Path
    phases: tuple[Phase, ...]
    problems: tuple[str, ...] = ()

    @property
    def labs(self) -> list[Lab]:
        return [lab for phase in self.phases for lab in phase.labs]

    def show(self, path: Path) -> str:
        """`path` as text, from the root where it lies below it: with slashes on Windows too, as in a page."""
        return (
            path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)
        )

    def phase(self, name: str) -> Phase:
        """The phase called `name`: its number, or part of its folder's name."""
        text = name.strip().lower()
        if match := re.fullmatch(r"(?:phase-)?(\d+)", text):
            found = [p for p in self.phases if p.number == int(match[1])]
        else:
            found = [p for p in self.phases if text.strip("/") in p.folder.name]
        if len(found) == 1:
            return found[0]
        there = ", ".join(p.folder.name for p in found or self.phases) or "none"
        raise CourseError(f"{name!r} names {'several phases' if found else 'no phase'}: {there}")

    def resolve(self, name: str, cwd: Path | None = None) -> Lab:
        """The lab called `name`.

        Taken are a number (`02-01`, `02/1`, `2-1`), a path of the lab's folder or of a file in it
        (from `cwd` or from the root), and any part of its folder's name that no other lab has.

        Raises CourseError, with the labs that come near, for anything else.
        """
        text = name.strip()
        if not text:
            raise CourseError("the lab's name is empty; 'course list' shows them all")
        if match := re.fullmatch(r"(\d{1,2})\s*[-/._ ]\s*(\d{1,2})", text):
            for lab in self.labs:
                if (lab.phase, lab.number) == (int(match[1]), int(match[2])):
                    return lab
            same = [lab for lab in self.labs if lab.phase == int(match[1])]
            raise CourseError(_no_lab(name, same or self.labs))
        for base in (cwd or Path.cwd(), self.root):
            if (lab_there := self.lab_at(base / text)) is not None:
                return lab_there
        part = re.sub(r"[\s_]+", "-", text.lower()).replace("\\", "/").strip("/")
        found = [lab for lab in self.labs if part == _LAB_FOLDER.sub(r"\2", lab.folder.name)]
        if not found:
            found = [
                lab
                for lab in self.labs
                if part in (self.show(lab.folder) if "/" in part else lab.folder.name)
            ]
        if len(found) == 1:
            return found[0]
        if found:
            raise CourseError(f"{name!r} fits more than one lab:\n{_lines(found)}")
        raise CourseError(_no_lab(name, _near(part, self.labs)))

    def lab_at(self, path: Path) -> Lab | None:
        """The lab whose folder `path` is, or is in."""
        path = path.resolve()
        return next((lab for lab in self.labs if path.is_relative_to(lab.folder)), None)


def _lines(labs: Iterable[Lab]) -> str:
    return "\n".join(f"  {lab.id}  {lab.folder.name}" for lab in labs)


def _no_lab(name: str, near: list[Lab]) -> str:
    if not near:
        return f"no lab is called {name!r}, and none comes near; 'course list' shows them all"
    return f"no lab is called {name!r}. Near it:\n{_lines(near)}"


def _near(part: str, labs: list[Lab]) -> list[Lab]:
    """The labs most like `part`, the likest first."""

    def likeness(lab: Lab) -> float:
        slug = _LAB_FOLDER.sub(r"\2", lab.folder.name)
        names = [slug, lab.folder.name, lab.title.lower(), lab.id, *slug.split("-")]
        return max(difflib.SequenceMatcher(None, part, n).ratio() for n in names)

    ranked = sorted(((likeness(lab), lab) for lab in labs), key=lambda pair: -pair[0])
    return [lab for score, lab in ranked[:5] if score >= 0.55]


def find_root(start: Path | None = None) -> Path:
    """The repository that `start` (default: the current folder) lies in.

    Raises CourseError outside of one, and in a folder that has been deleted.
    """
    try:
        start = (start or Path.cwd()).resolve()
    except FileNotFoundError:
        raise CourseError(
            "the folder you are in has been deleted. Go to the course's repository and run the "
            "command again."
        ) from None
    for folder in (start, *start.parents):
        project = folder / "pyproject.toml"
        if project.is_file() and re.search(
            rf'(?m)^name\s*=\s*"{DISTRIBUTION}"',
            project.read_text(encoding="utf-8", errors="replace"),
        ):
            return folder
    raise CourseError(
        f"{start} is not inside the course's repository (no folder above it has the pyproject.toml "
        f"of {DISTRIBUTION}). Go there and run the command again."
    )


def load_course(root: Path | None = None) -> Course:
    """Read every phase and lab below `root` (default: found from the current folder)."""
    root = root or find_root()
    problems: list[str] = []
    phases: list[Phase] = []
    for folder in sorted(root.glob("phase-*")):
        if not folder.is_dir():
            continue
        match = _PHASE_FOLDER.fullmatch(folder.name)
        if match is None:
            problems.append(f"{folder.name}: a phase folder is called phase-NN-slug")
            continue
        labs = []
        for lab_folder in sorted(folder.glob("labs/lab-*")):
            try:
                labs.append(read_lab(lab_folder))
            except CourseError as error:
                problems.append(str(error))
        number = int(match[1])
        if any(p.number == number for p in phases):
            problems.append(f"{folder.name}: there is another phase {number:02}")
        phases.append(Phase(folder, number, match[2], tuple(labs)))
    known: dict[str, Lab] = {}
    for lab in [lab for phase in phases for lab in phase.labs]:
        where = lab.folder.relative_to(root).as_posix()
        if lab.id in known:
            problems.append(f"{where}: {lab.id} is {known[lab.id].folder.name} already")
        problems += [
            f"{where}: prerequisite {needed} does not come before {lab.id}"
            if any(needed == other.id for phase in phases for other in phase.labs)
            else f"{where}: there is no lab {needed} to be a prerequisite"
            for needed in lab.prerequisites
            if needed not in known
        ]
        known[lab.id] = lab
    return Course(root, tuple(phases), tuple(problems))


def read_lab(folder: Path) -> Lab:
    """The lab in `folder`.

    Raises CourseError where the folder's name or the front matter breaks a rule of the lab contract.
    """
    where = "/".join(folder.parts[-3:])
    match = _LAB_FOLDER.fullmatch(folder.name)
    phase = _PHASE_FOLDER.fullmatch(folder.parent.parent.name)
    if match is None or phase is None:
        raise CourseError(f"{where}: a lab folder is called phase-NN-slug/labs/lab-NN-slug")
    readme = folder / "README.md"
    if not readme.is_file():
        raise CourseError(f"{where}: no README.md")
    try:
        values = front_matter(readme.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CourseError(f"{where}/README.md: {error}") from None

    def wrong(rule: str) -> CourseError:
        return CourseError(f"{where}/README.md: front matter: {rule}")

    if missing := sorted(_REQUIRED - values.keys()):
        raise wrong(f"{', '.join(missing)} missing")
    if unknown := sorted(values.keys() - _REQUIRED - _OPTIONAL):
        raise wrong(f"unknown key {', '.join(unknown)}")
    for key, number in (("phase", int(phase[1])), ("lab", int(match[1]))):
        if values[key] != number or isinstance(values[key], bool):
            raise wrong(f"{key} is {values[key]!r}, but the folder's name says {number}")
    title, tag, minutes = values["title"], values["tag"], values["minutes"]
    if not isinstance(title, str) or not title:
        raise wrong(f"title must be text, got {title!r}")
    if tag not in TAGS:
        raise wrong(f"tag must be one of {', '.join(TAGS)}, got {tag!r}")
    if not isinstance(minutes, int) or isinstance(minutes, bool) or not 1 <= minutes <= 600:
        raise wrong(f"minutes must be a whole number from 1 to 600, got {minutes!r}")
    needs = values["prerequisites"]
    if not isinstance(needs, list) or not all(
        isinstance(n, str) and _LAB_ID.fullmatch(n) for n in needs
    ):
        raise wrong(f'prerequisites must be a list of lab ids such as ["00-01"], got {needs!r}')
    part, class_name = values.get("part"), values.get("class")
    if (part is None) != (class_name is None):
        raise wrong("part and class go together")
    if part is not None and part not in engine_parts():
        raise wrong(f"part must be one of {', '.join(engine_parts())}, got {part!r}")
    if class_name is not None and not str(class_name).isidentifier():
        raise wrong(f"class must be the name of a class, got {class_name!r}")
    builds = values.get("builds", [])
    if not isinstance(builds, list) or not all(_BUILT.fullmatch(str(b)) for b in builds):
        raise wrong(
            f'builds must be a list such as ["mini_vllm.engine.llm_engine:LLMEngine"], got {builds!r}'
        )
    seconds = values.get("seconds", 30)
    if not isinstance(seconds, int) or isinstance(seconds, bool) or not 30 <= seconds <= 600:
        raise wrong(f"seconds must be a whole number from 30 to 600, got {seconds!r}")
    if (path := values.get("path", "core")) != "core":
        raise wrong(f"path must be core, or not be there, got {path!r}")
    return Lab(
        folder.resolve(), values["phase"], values["lab"], title, tag, minutes,
        tuple(needs), part, class_name, tuple(builds), values.get("seconds"), "path" in values,
    )  # fmt: skip


@functools.cache
def engine_parts() -> tuple[str, ...]:
    """What the engine takes from outside: the fields of `mini_vllm.engine.parts.EngineParts`.

    Read from the source: importing the engine would double the time of a plain `course list`.
    """
    source = Path(__file__).resolve().parents[2] / "mini_vllm" / "engine" / "parts.py"
    for node in ast.parse(source.read_bytes()).body:
        if isinstance(node, ast.ClassDef) and node.name == "EngineParts":
            return tuple(
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            )
    raise CourseError(f"{source} has no class EngineParts")


def need_vllm() -> None:
    """End a lab's script with a sentence where vLLM is not installed."""
    if find_spec("vllm") is None:
        raise SystemExit("vllm is not installed here; see SETUP.md")


def load_module(path: Path, name: str, text: str | None = None) -> ModuleType:
    """Run the file `path` as the module `name`, always from its source, or from `text` in its place."""
    spec = spec_from_loader(name, SourceFileLoader(name, str(path)))
    assert isinstance(spec, ModuleSpec)
    spec.origin, spec.has_location = str(path), True
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up by name
    try:
        source = path.read_bytes() if text is None else text
        exec(compile(source, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@functools.cache
def _support(path: Path) -> ModuleType:
    return load_module(path, _fresh_name(path))


def load_support(test_file: str | Path) -> ModuleType:
    """The `support.py` beside `test_file`: what a lab's test files and its `conftest.py` share.

        support = load_support(__file__)

    All of them get the same module.
    """
    return _support(Path(test_file).resolve().with_name("support.py"))


def _fresh_name(path: Path) -> str:
    stem = re.sub(r"\W+", "_", path.parent.name)
    return f"lab_{stem}_{path.stem}_{next(_loaded)}"
