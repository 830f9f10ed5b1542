"""What a phase weighs for the one who works through it, against the most that it may.

A word is what stands between blanks and holds a letter or a digit, of what a reader sees of a page:
code blocks and captured outputs count, because they are read too; front matter, HTML comments, fences and
the targets of links do not, the text of a link does. Hours are the labs' minutes and all pages, a lab's
README and hints among them, at 130 words per minute. The hours on the front page are these.

A lab's lines to write are lines of code in `solution.py`, without blank lines, comments and docstrings: the
bodies of the functions that `starter.py` leaves open, and all of a function that `starter.py` does not have.

What the two suites take of a processor is measured where they run, by CI.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from course.cite.share import WORDS_A_MINUTE, words_of
from course.docs.pages import TEXT, Page, read_page
from course.learner.labs import Course, Lab, Phase
from course.learner.mistakes import read_mistakes
from course.learner.stubs import Function, body_of, functions, is_unwritten
from course.site.pages import phase_pages


@dataclass(frozen=True)
class Limit:
    """The most that something may weigh, in `unit`. Below `least`, which is usual, nothing is refused."""

    most: int
    unit: str
    least: int = 0

    def __str__(self) -> str:
        if self.least:
            return f"{self.least} to {self.most} {self.unit}"
        return f"at most {self.most:,} {self.unit}"


LIMITS = {
    "guide": Limit(3500, "words"),
    "deep dive": Limit(3500, "words"),
    "mini-build": Limit(1200, "words"),
    "exercises": Limit(1800, "words"),
    "interview": Limit(1000, "words"),
    "cheatsheet": Limit(900, "words"),
    "a lab's README": Limit(900, "words"),
    "what one finds": Limit(250, "words"),
    "a lab's time": Limit(60, "minutes", least=30),
    "a lab's code": Limit(90, "lines to write", least=30),
    "a lab's mistakes": Limit(12, "known mistakes"),
    "labs": Limit(8, "labs", least=4),
    "core labs": Limit(4, "labs marked `path: core`", least=2),
    "core": Limit(5, "hours"),
}
# The pages of each kind. A guide may be told on several pages, all numbered 00; each is held to the limit.
PAGES = {
    "guide": "00-*.md",
    "deep dive": "01-deep-dive.md",
    "mini-build": "02-mini-build.md",
    "exercises": "EXERCISES.md",
    "interview": "INTERVIEW.md",
    "cheatsheet": "CHEATSHEET.md",
}
# Phases that `course weigh --check` lets pass, by number, and why. Every other one is held to LIMITS.
EXEMPT: dict[int, str] = {}
# A phase and a key of LIMITS that it may exceed, up to how much, and why.
ALLOWANCES: dict[tuple[int, str], tuple[int, str]] = {
    (2, "labs"): (
        9,
        "KV cache groups came after the other eight labs",
    ),
}

# How a lab's README heads what its reader sees when the tests pass; the first is the one to use.
_FINDINGS = re.compile(
    r"## What (?:you should find|you should see|comes out|it said|real vLLM says)\s*"
)
_SECTION = re.compile(r"##? ")
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """One weight: what it is of (a key of LIMITS), the file or folder, and how much, in the limit's unit."""

    what: str
    where: str
    value: float

    @property
    def limit(self) -> Limit:
        return LIMITS[self.what]

    @property
    def over(self) -> bool:
        return self.value > self.limit.most

    def __str__(self) -> str:
        value = self.value if isinstance(self.value, int) else round(self.value, 2)
        return f"{self.where}: {self.what}: {value:,} {self.limit.unit}; the rule is {self.limit}"


@dataclass(frozen=True)
class LabWeight:
    """A lab: words of its README, of its part about what one finds (None: it has none), of all its pages."""

    lab: Lab
    readme: int
    findings: int | None
    words: int
    lines: int
    mistakes: int

    @property
    def hours(self) -> float:
        return self.lab.minutes / 60 + reading_hours(self.words)

    def measures(self, course: Course) -> Iterator[Measure]:
        folder = course.show(self.lab.folder)
        yield Measure("a lab's README", f"{folder}/README.md", self.readme)
        if self.findings is not None:
            yield Measure("what one finds", f"{folder}/README.md", self.findings)
        yield Measure("a lab's time", f"{folder}/README.md", self.lab.minutes)
        yield Measure("a lab's code", f"{folder}/solution.py", self.lines)
        yield Measure("a lab's mistakes", folder, self.mistakes)


@dataclass(frozen=True)
class PhaseWeight:
    """A phase: words of its pages that LIMITS names, of all its pages outside of labs, and its labs.

    `pages` has, for a key of PAGES, each page that is there and its words, in reading order.
    """

    phase: Phase
    pages: dict[str, dict[str, int]]
    words_outside: int
    labs: tuple[LabWeight, ...]

    @property
    def words(self) -> int:
        """Of all its pages, those of its labs too."""
        return self.words_outside + sum(lab.words for lab in self.labs)

    @property
    def hours(self) -> float:
        return sum(lab.hours for lab in self.labs) + reading_hours(self.words_outside)

    @property
    def core(self) -> tuple[LabWeight, ...]:
        return tuple(lab for lab in self.labs if lab.lab.core)

    @property
    def core_hours(self) -> float | None:
        """Guide, deep dive and the core labs; None where no lab is marked."""
        if not self.core:
            return None
        read = sum(sum(self.pages[what].values()) for what in ("guide", "deep dive"))
        return sum(lab.hours for lab in self.core) + reading_hours(read)

    def measures(self, course: Course) -> Iterator[Measure]:
        """Everything that LIMITS limits: the phase first, then lab by lab."""
        folder = course.show(self.phase.folder)
        for what, pages in self.pages.items():
            for name, words in pages.items():
                yield Measure(what, f"{folder}/{name}", words)
        yield Measure("labs", folder, len(self.labs))
        yield Measure("core labs", folder, len(self.core))
        if self.core_hours is not None:
            yield Measure("core", folder, self.core_hours)
        for lab in self.labs:
            yield from lab.measures(course)


def weigh(course: Course, phase: Phase) -> PhaseWeight:
    """Read the pages and labs of `phase`."""
    outside = {path: words_of(read_page(path, course.root)) for path in _pages_outside(phase)}
    pages = {
        what: {path.name: outside[path] for path in phase_pages(phase) if path.match(name)}
        for what, name in PAGES.items()
    }
    labs = tuple(weigh_lab(course, lab) for lab in phase.labs)
    return PhaseWeight(phase, pages, sum(outside.values()), labs)


def _pages_outside(phase: Phase) -> list[Path]:
    return [*sorted(phase.folder.glob("*.md")), *sorted(phase.folder.glob("labs/*.md"))]


def weigh_lab(course: Course, lab: Lab) -> LabWeight:
    """Read the pages and the code of `lab`, as they lie there: a solved starter leaves nothing to write."""
    readme = read_page(lab.readme, course.root)
    words = sum(words_of(read_page(path, course.root)) for path in lab.folder.glob("*.md"))
    lines = lines_to_write(
        lab.starter.read_text(encoding="utf-8"), lab.solution.read_text(encoding="utf-8")
    )
    return LabWeight(
        lab, words_of(readme), findings_of(readme), words, lines, len(read_mistakes(lab.folder))
    )


def most_of(phase: int, what: str) -> float:
    """The most that `what` may be in this phase: its limit, or what ALLOWANCES grants beyond."""
    return ALLOWANCES.get((phase, what), (LIMITS[what].most, ""))[0]


def breaches(course: Course, weight: PhaseWeight) -> list[str]:
    """What of a phase is too heavy, one sentence each; none for a phase of EXEMPT, nor what it is granted."""
    if weight.phase.number in EXEMPT:
        return []
    found = [
        str(measure)
        for measure in weight.measures(course)
        if measure.value > most_of(weight.phase.number, measure.what)
    ]
    if weight.labs and not weight.core:
        found.append(
            f"{course.show(weight.phase.folder)}: core labs: 0; the rule is {LIMITS['core labs']}"
        )
    return found


def reading_hours(words: int) -> float:
    return words / WORDS_A_MINUTE / 60


def findings_of(page: Page) -> int | None:
    """The words of a README's sections about what one finds, without their headings; None without one."""
    heads = [
        at
        for at, (line, kind) in enumerate(zip(page.lines, page.kinds, strict=True))
        if kind == TEXT and _SECTION.match(line)
    ]
    ends = [*heads[1:], len(page.lines)]
    found = [
        words_of(page, head + 1, end)
        for head, end in zip(heads, ends, strict=True)
        if _FINDINGS.fullmatch(page.lines[head])
    ]
    return sum(found) if found else None


def lines_to_write(starter: str, solution: str) -> int:
    """How many lines of code `solution` has that `starter` leaves to the learner.

    Args:
        starter, solution: the sources of the two files.

    Raises SyntaxError where one of them is not Python.
    """
    given = functions(ast.parse(starter))
    tree = ast.parse(solution)
    theirs: set[int] = set()
    for name, node in functions(tree).items():
        if name not in given:
            theirs |= _span(node, node)
        elif is_unwritten(given[name]) and (body := body_of(node)):
            theirs |= _span(body[0], body[-1])
    return len(theirs & _code_lines(solution) - _docstring_lines(tree))


def _span(first: ast.stmt, last: ast.stmt) -> set[int]:
    return set(range(first.lineno, (last.end_lineno or last.lineno) + 1))


def _code_lines(source: str) -> set[int]:
    """The lines on which something other than a comment stands."""
    return {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }


def _docstring_lines(tree: ast.Module) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ClassDef | Function)
            and ast.get_docstring(node, clean=False) is not None
        ):
            found |= _span(node.body[0], node.body[0])
    return found
