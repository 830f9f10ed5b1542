"""What a lab's tests said about one file."""

from __future__ import annotations

from dataclasses import dataclass, field

from course.learner.labs import is_test_file

BAD = ("failed", "error", "time", "syntax")


@dataclass
class TestResult:
    """One test, parametrized cases counted one by one.

    Attributes:
        name, base: with and without the brackets of a parametrized case.
        doc: the first paragraph of the docstring: what the test pins.
        outcome: `passed`, `failed` (an assertion), `todo` (ran into NotImplementedError), `error`
            (another exception), `syntax` (the file cannot be loaded), `time` (too long), `skipped`,
            or `not_run`.
        message: what to tell the learner.
        file, line, function, code: where in the learner's file, or in the test, it went wrong.
        unwritten: with `watch_unwritten`, functions that raised NotImplementedError on the way.
        seconds, cpu_seconds: by the clock, and of all threads.
        printed: the last lines that the code printed.
        raised: of an error whose type the learner's own file defines, the type of Python's that this is.
        own_words: of the message, what the learner's own file has said in refusing something.
        tolerance: of a comparison that allows for rounding, relative and absolute; else None.
    """

    __test__ = False  # not a test class, whatever pytest thinks of the name

    name: str
    base: str
    doc: str = ""
    outcome: str = "not_run"
    message: str = ""
    file: str | None = None
    line: int | None = None
    function: str | None = None
    code: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    unwritten: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    raised: str = ""
    own_words: list[str] = field(default_factory=list)
    tolerance: list[float] | None = None


@dataclass
class LabRun:
    """What a lab's tests said about one file.

    `problem` is a sentence about the run as a whole: it could not begin, or did not reach its end.
    """

    tests: list[TestResult]
    problem: str | None = None

    @property
    def passed(self) -> bool:
        outcomes = {test.outcome for test in self.tests}
        return self.problem is None and "passed" in outcomes and outcomes <= {"passed", "skipped"}

    @property
    def bad(self) -> list[TestResult]:
        """Tests that ran into a mistake; what is only not written yet is none."""
        return [test for test in self.tests if test.outcome in BAD]

    @property
    def seconds(self) -> float:
        return sum(test.seconds for test in self.tests)

    @property
    def repeatable(self) -> bool:
        """Whether the same files would give this again."""
        return self.problem is None and all(
            test.outcome not in ("time", "not_run") for test in self.tests
        )


@dataclass(frozen=True)
class Line:
    """The cases of one test function as one line.

    Attributes:
        word: `pass`, `FAIL`, `todo`, `skip` or `----` (was not run).
        shown: the case to tell about: the first that failed.
        num_bad, num: cases that failed, and cases.
    """

    word: str
    shown: TestResult
    num_bad: int
    num: int


def lines_of(run: LabRun) -> list[Line]:
    """The tests of `run`, the cases of a parametrized one together."""
    groups: dict[str, list[TestResult]] = {}
    for test in run.tests:
        prefix = test.name.split("[")[0].removesuffix(test.base)
        groups.setdefault(prefix + test.base, []).append(test)
    lines = []
    for cases in groups.values():
        bad = [test for test in cases if test.outcome in BAD]
        todo = [test for test in cases if test.outcome == "todo"]
        for word, some in (
            ("FAIL", bad),
            ("todo", todo),
            ("pass", [t for t in cases if t.outcome == "passed"]),
            ("skip", [t for t in cases if t.outcome == "skipped"]),
            ("----", cases),
        ):
            if some:
                lines.append(Line(word, some[0], len(bad), len(cases)))
                break
    return lines


def unloadable(run: LabRun) -> TestResult | None:
    """What keeps the file from being loaded, if that is what every test fails of."""
    failed = [test for test in run.tests if test.outcome != "not_run"]
    if not failed or any(t.outcome not in ("syntax", "error", "time") for t in failed):
        return None
    first = failed[0]
    same = all(
        (t.file, t.line, t.message) == (first.file, first.line, first.message) for t in failed
    )
    at_top = first.outcome == "syntax" or (first.function is None and first.file is not None)
    in_tests = first.file is not None and is_test_file(first.file)
    return first if same and at_top and not in_tests else None
