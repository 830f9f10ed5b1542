"""What `course grade` shows first and what `course hint` gives: by the function that a failure is about."""

from __future__ import annotations

import ast
import io
import json
from pathlib import Path

import pytest
from course_helpers import Ran, add_lab, make_repository, mistake, solve

pytest.importorskip("typer")
pytest.importorskip("rich")

from rich.console import Console

from course.authors.proof import take_fingerprints
from course.learner.causes import read_causes
from course.learner.grade import Grade, Job, compare, run_jobs
from course.learner.labs import Course, Lab, load_course
from course.learner.likeness import Likeness
from course.learner.mistakes import read_mistakes
from course.learner.progress import Progress
from course.learner.report import show_grade
from course.learner.results import LabRun, TestResult
from course.learner.sides import Sides, find_sides
from course.learner.stubs import functions, is_unwritten

Capsys = pytest.CaptureFixture[str]

STARTER = '''\
"""Means."""


def predictions():
    """Your answers."""
    raise NotImplementedError


def mean(items):
    """The mean of `items`, by `total`."""
    raise NotImplementedError


def total(items):
    """The sum of `items`."""
    raise NotImplementedError


class Meter:
    """Counts what it is given."""

    def __init__(self):
        self.items = []

    def add(self, item):
        """Keep `item`."""
        self.items.append(item)

    def read(self):
        """The mean of all items."""
        raise NotImplementedError
'''
BODIES = (
    'return {"two": 2}',
    "return total(items) / len(items)",
    "return sum(items)",
    "return mean(self.items)",
)


def written(*bodies: str) -> str:
    """The starter with these bodies for its four functions."""
    parts = STARTER.split("raise NotImplementedError")
    return "".join(part + body for part, body in zip(parts, (*bodies, ""), strict=True))


TEST = '''\
import pytest


def metered(lab, *items):
    meter = lab.Meter()
    for item in items:
        meter.add(item)
    return meter.read()


def test_a_meter(lab):
    """A meter reads the mean."""
    assert metered(lab, 2, 4) == 3, f"2 and 4 read 3, not {metered(lab, 2, 4)}"


def test_both(lab):
    """total of two equal items is twice their mean."""
    assert lab.total([4, 4]) == 2 * lab.mean([4, 4]), "8 is twice 4"


def test_the_mean(lab):
    """The mean is the sum over the count."""
    got = lab.mean([2, 4, 6])
    assert got == 4, f"the mean of 2, 4 and 6 is 4, not {got}"


@pytest.mark.parametrize("name", ["total", "mean"])
def test_one_item(lab, name):
    """One item is its own sum, and its own mean."""
    alone = getattr(lab, name)([5])
    assert alone == 5, f"{name}: {alone}, not 5"


def test_the_sum(lab):
    """The sum adds all items."""
    values = lab.total([1, 2])
    assert values == 3, f"1 and 2 add up to 3, not {values}"


def test_the_predictions_hold(lab):
    """What one and one are."""
    assert lab.predictions()["two"] == 2, "two: what are one and one?"
'''
HINTS = """\
<details><summary>Hint 1: look</summary>

Look.

</details>
<details><summary>Hint 2: the mean</summary>

Divide.

</details>
<details><summary>Hint 3: nearly there</summary>

`total` adds up, and `Meter.read` divides.

</details>
"""
MISTAKES = {
    "no_last": mistake(
        "no_last",
        "The last is left out.",
        "A slice ends before its end.",
        "test_the_sum",
        "total\n- return sum(items)\n+ return sum(items[:-1])",
    ),
    "floor": mistake(
        "floor",
        "It is cut.",
        "Use one slash.",
        "test_the_mean",
        "mean\n- return total(items) / len(items)\n+ return total(items) // 4",
    ),
}


def make_means(root: Path) -> Lab:
    """A lab that begins with predictions, and whose second function calls the third."""
    make_repository(root)
    add_lab(
        root, "phase-00-beginnings/lab-02-means", STARTER, written(*BODIES), TEST, MISTAKES,
        title="Means",
    )  # fmt: skip
    lab: Lab = load_course(root.resolve()).resolve("00-02")
    lab.hints.write_text(HINTS)
    return lab


@pytest.fixture(scope="module")
def fingerprints(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    lab = make_means(tmp_path_factory.mktemp("fingerprints"))
    assert [*take_fingerprints(load_course(lab.folder.parents[2]), lab)] == []
    return lab.fingerprints.read_bytes()


@pytest.fixture
def means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.chdir(tmp_path)
    return make_means(tmp_path)


def shown(lab: Lab, run: LabRun, likeness: Likeness | None = None, met: str = "") -> str:
    out = io.StringIO()
    course = load_course(lab.folder.parents[2])
    graded = Grade(lab, run, likeness, frozenset(met.split()))
    show_grade(Console(file=out, width=100), course, graded)
    return out.getvalue()


def failed(*names: str) -> LabRun:
    bases = [name.partition("[")[0] for name in names]
    return LabRun(
        [
            TestResult(name, base, outcome="failed", message=f"{name} says no")
            for name, base in zip(names, bases, strict=True)
        ]
    )


def order_of(text: str, *words: str) -> None:
    """Each of the words stands in the text, behind the one before it."""
    places = [text.find(word) for word in words]
    assert -1 not in places, text
    assert places == sorted(places), text


# -- which function a failure is about -------------------------------------------------------------


def test_a_function_comes_after_those_it_calls(means: Lab) -> None:
    means.starter.write_text(written(*BODIES))
    order = read_causes(means).order
    assert order == ("predictions", "total", "mean", "Meter.__init__", "Meter.add", "Meter.read")


def test_a_failure_is_about_the_last_function_that_its_test_names(means: Lab) -> None:
    """Through a helper, by a case of a parametrized test; and where the learner's code raised, about that."""
    wrong = [body.replace("return", "return 7 *") for body in BODIES[1:]]
    means.starter.write_text(written(BODIES[0], *wrong))
    causes = read_causes(means)
    for name, function in (
        ("test_a_meter", "Meter.read"),
        ("test_the_mean", "mean"),
        ("test_one_item[total]", "total"),
        ("test_one_item[mean]", "mean"),
        ("test_the_sum", "total"),
        ("test_the_predictions_hold", "predictions"),
        ("test_of_nothing", None),
        ("test_both", "total"),
    ):
        test = TestResult(name, name.partition("[")[0], outcome="failed")
        assert causes.about(test) == function, name
    raised = TestResult("test_a_meter", "test_a_meter", outcome="error", function="total")
    assert causes.about(raised) == "total"
    within = "def inner(): return 1 / 0\n    return inner()"
    means.starter.write_text(written(*BODIES[:2], within, BODIES[3]))
    result = TestResult("test_the_mean", "test_the_mean", outcome="error", function="total.inner")
    assert read_causes(means).about(result) == "total", "a function within one is part of it"
    means.starter.write_text(written(*BODIES[:2], wrong[1], BODIES[3]))
    result = TestResult("test_a_meter", "test_a_meter", outcome="error", function="Meter.read")
    assert read_causes(means).about(result) == "total", "all that calls it is the solution's"
    means.starter.write_text("def total(")
    assert read_causes(means).order == (), "what does not parse has no order"


def test_failures_stand_in_the_order_of_causes(means: Lab) -> None:
    """Predictions first, then what others build on, whatever the order of the tests."""
    means.starter.write_text(written(*BODIES))
    tests = ("test_a_meter", "test_the_mean", "test_one_item[mean]", "test_the_sum")
    text = shown(means, failed(*tests, "test_the_predictions_hold"))
    order_of(
        text,
        "predictions: test_the_predictions_hold",
        "total: test_the_sum",
        "mean: test_the_mean",
        "mean: test_one_item",
        "Meter.read: test_a_meter",
        "Begin with the first; the others may go with it.",
    )


def test_what_a_mistake_explains_stands_together(means: Lab) -> None:
    """Below its name and its cure; a prediction before it, what else is wrong behind it."""
    means.starter.write_text(written(*BODIES))
    [no_last, _] = read_mistakes(means.folder)
    run = failed("test_a_meter", "test_the_sum", "test_the_mean", "test_the_predictions_hold")
    explained = frozenset({"test_a_meter", "test_the_mean"})
    text = shown(means, run, Likeness((no_last,), False, explained), "no_last")
    order_of(
        text,
        "This may be “The last is left out”.",
        "  A slice ends before its end.",
        "First, what you predicted:",
        "test_the_predictions_hold",
        "Failures that this explains:",
        "test_the_mean",
        "test_a_meter",
        "Failures that it does not explain:",
        "test_the_sum",
        "0 of 4 tests pass, 4 fail.",
        "Stuck? course hint 00-02",
    )
    only = shown(
        means, failed("test_the_sum"), Likeness((no_last,), True, frozenset({"test_the_sum"}))
    )
    assert "explain" not in only, "one part needs no heading"
    order_of(
        only, "This looks like", "FAIL", "How to mend this: course hint 00-02, or grade it again."
    )


def test_a_wrong_prediction_hides_no_mistake_of_the_code(means: Lab, fingerprints: bytes) -> None:
    """What fails besides it is all that one mistake fails, so it looks like that one."""
    course = load_course(means.folder.parents[2])
    means.fingerprints.write_bytes(fingerprints)
    [no_last, _] = read_mistakes(means.folder)
    means.starter.write_text(no_last.text.replace('{"two": 2}', '{"two": 3}'))
    [run] = run_jobs(course.root, [Job(means.folder, means.starter)])
    likeness = compare(means, run)
    assert likeness is not None
    assert likeness.sentence == "This looks like “The last is left out”."
    assert likeness.explained == {test.name for test in run.bad} - {"test_the_predictions_hold"}


# -- the next hint ---------------------------------------------------------------------------------


def hint(capsys: Capsys) -> str:
    out: str = Ran(capsys, "hint", "00-02").out
    return out


def test_the_next_hint_is_for_what_fails_first(means: Lab, capsys: Capsys) -> None:
    means.starter.write_text(written(BODIES[0], "return 7", *BODIES[2:]))
    Ran(capsys, "grade", "00-02")
    said = hint(capsys)
    order_of(
        said, "hint 2 of 3: the mean", "For mean, which fails: The mean is the sum over", "Divide"
    )
    order_of(
        hint(capsys),
        "hint 1 of 3: look",
        "No hint left is about mean, which fails first; this is the next one.",
    )
    means.starter.write_text(written(*BODIES[:2], "return 7", BODIES[3]))
    Ran(capsys, "grade", "00-02")
    said = hint(capsys)
    order_of(said, "hint 3 of 3: nearly there", "For total, which fails: ")
    assert "--peek" in said, "all are seen"


def test_the_first_hint_is_for_what_is_written_first(means: Lab, capsys: Capsys) -> None:
    assert "hint 1 of 3: look" in hint(capsys), "no hint names predictions"
    means.starter.write_text(written(BODIES[0], *["raise NotImplementedError"] * 3))
    order_of(hint(capsys), "hint 2 of 3: the mean", "For mean, which is not written yet.")


def test_a_known_mistake_has_the_first_hint(
    means: Lab, fingerprints: bytes, capsys: Capsys
) -> None:
    """Once: then come those of HINTS.md. Where the grade has shown it, it is not shown again."""
    means.fingerprints.write_bytes(fingerprints)
    means.starter.write_text(written(*BODIES[:2], "return sum(items[:-1])", BODIES[3]))
    assert "How to mend this: course hint 00-02" in Ran(capsys, "grade", "00-02").line
    said = hint(capsys)
    order_of(said, "Lab 00-02, on “The last is left out”", "A slice ends before its end.")
    assert "If that is not it, the lab has 3 hints: course hint 00-02" in said
    assert "hint 3 of 3" in hint(capsys)
    means.starter.write_text(written(BODIES[0], "return total(items) // 4", *BODIES[2:]))
    Ran(capsys, "grade", "00-02")
    assert "Use one slash." in Ran(capsys, "grade", "00-02").line
    assert "hint 2 of 3" in hint(capsys)
    solve(means)
    Ran(capsys, "grade", "00-02")
    assert "on “" not in hint(capsys), "nothing fails any more"


def test_hints_of_the_old_format_count_as_seen(means: Lab, capsys: Capsys) -> None:
    """Format 1 of progress.json kept their number."""
    path = means.folder.parents[2] / ".course" / "progress.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"version": 1, "labs": {"00-02": {"attempts": 3, "hints": 2}}}))
    assert Progress(path.parents[1])[means].hints == ["1", "2"]
    assert "hint 3 of 3" in hint(capsys)


# -- whose value is whose --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "message", "sides"),
    [
        ("test_the_mean", "the mean of 2, 4 and 6 is 4, not 7", ("7", "4")),
        ("test_one_item[total]", "total: 6, not 5", ("6", "5")),
        ("test_the_sum", "1 and 2 add up to 3, not [1, 2]", ("[1, 2]", "3")),
        ("test_the_sum", "other words, not 3", None),
        ("test_the_predictions_hold", "two: what are one and one?", None),
    ],
)
def test_the_sides_are_those_of_the_assertion(
    means: Lab, test: str, message: str, sides: tuple[str, str] | None
) -> None:
    """Whichever the message names first; and none that it does not name."""
    result = TestResult(test, test.partition("[")[0], outcome="failed", message=message)
    found = find_sides(result, read_causes(means).source_of(result))
    assert found == (Sides(*sides) if sides else None)


def test_yours_stands_before_expected(means: Lab) -> None:
    """In one line or in two, below the message that the test has, which stays as it is."""
    means.starter.write_text(written(*BODIES))
    for value, lines in (
        ("9", ["yours 9, expected 3"]),
        ("8" * 76, ["  yours     888", "  expected  3"]),
    ):
        message = f"1 and 2 add up to 3, not {value}"
        run = LabRun(
            [TestResult("test_the_sum", "test_the_sum", outcome="failed", message=message)]
        )
        order_of(shown(means, run), "1 and 2 add up to 3, not", *lines)
        assert run.tests[0].message == message


def test_nothing_is_labelled_twice(means: Lab) -> None:
    means.test.write_text(TEST.replace("is 4, not {got}", "is 4, yours {got}"))
    message = "the mean of 2, 4 and 6 is 4, yours 7"
    run = LabRun([TestResult("test_the_mean", "test_the_mean", outcome="failed", message=message)])
    assert "expected" not in shown(means, run)


# -- the course's own labs -------------------------------------------------------------------------


def test_predictions_lead_in_every_lab_that_has_them() -> None:
    """A test of predictions is about them, and no function that a starter leaves open comes before."""
    course: Course = load_course(Path(__file__).resolve().parents[2])
    labs = [lab for lab in course.labs if "def predictions(" in lab.starter.read_text("utf-8")]
    assert labs
    for lab in labs:
        causes = read_causes(lab)
        tests = [TestResult(name, name) for name in causes.tests if "prediction" in name]
        about = {causes.about(test) for test in tests if test.name.startswith("test_")}
        assert about == {"predictions"}, lab.id
        tree = ast.parse(lab.starter.read_bytes())
        before = causes.order[: causes.order.index("predictions")]
        open_ = [name for name in before if is_unwritten(functions(tree)[name])]
        assert not open_, f"{lab.id}: {open_} would be shown before a wrong prediction"
