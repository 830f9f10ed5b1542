"""Each lab's mistakes: recognised as themselves, and a screenful each. And the evaluation itself.

Of `python -m course.authors.evaluate` only this much runs in CI; its planted faults take many minutes.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from course_helpers import ROOT, make_repository, take_totals

pytest.importorskip("typer")
pytest.importorskip("rich")

from course.authors.cases import Case
from course.authors.evaluate import evaluate, evaluate_lab, read_judged, verdict
from course.authors.mutants import plant
from course.authors.proof import proved_wholly, whole_job
from course.authors.rewrites import rewrite
from course.learner.fingerprints import known
from course.learner.grade import cached_runs
from course.learner.labs import CourseError, Lab, load_course
from course.learner.likeness import looks_like
from course.learner.mistakes import read_mistakes, write_out
from course.learner.report import MOST_LINES

COURSE = load_course(ROOT)


LABS = pytest.mark.parametrize("lab", [pytest.param(lab, id=lab.id) for lab in COURSE.labs])


@LABS
def test_every_mistake_is_recognised_as_itself(lab: Lab) -> None:
    """By the fingerprints, which the lab contract proves."""
    mistakes = known(lab.folder)
    assert mistakes, "no fingerprints: course author contract --write"
    for mistake, fingerprint in mistakes:
        likeness = looks_like(fingerprint, mistakes)
        assert likeness is not None, f"course grade does not name {mistake.key}"
        assert mistake in likeness.mistakes, f"{mistake.key}: {likeness.sentence}"


@LABS
def test_a_mistake_that_is_run_is_recognised_and_fits_on_a_screen(lab: Lab, tmp_path: Path) -> None:
    """Those that the lab contract runs wholly for this commit."""
    mistakes = proved_wholly(COURSE, lab)
    jobs = [(lab, whole_job(lab, path)) for path in write_out(mistakes, tmp_path)]
    runs = cached_runs(COURSE.root, jobs)
    cases = [Case("wrong", mistake.key, mistake.text) for mistake in mistakes]
    found = evaluate(COURSE, lab, cases, runs, {})
    assert not found.missed, f"course grade does not name {', '.join(found.missed)}"
    assert found.longest <= MOST_LINES, "the output of course grade is longer than a screen"


def test_what_people_judged_is_of_a_lab_and_a_mistake_that_there_are() -> None:
    keys = {(lab.id, one.key) for lab in COURSE.labs for one in read_mistakes(lab.folder)}
    assert not {key[:2] for key in read_judged()} - keys


def test_a_line_of_another_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "judged.tsv"
    path.write_text("# head\n00-01\tx\tf\told\tnew\tmaybe\twhy\n")
    with pytest.raises(CourseError, match=r"judged\.tsv:2"):
        read_judged(path)


def test_the_verdict(tmp_path: Path) -> None:
    lab = make_repository(tmp_path).labs[0]
    first, second, *_ = read_mistakes(lab.folder)
    case = Case("wrong", first.key, "")
    assert verdict(lab, case, [], {}) == "silent"
    assert verdict(lab, case, [second, first], {}) == "right"
    assert verdict(lab, case, [second], {}) == "wrong"
    mutant = plant("x = 1 + y\n")[0]
    case = Case("mutant", "", mutant.source, mutant)
    assert verdict(lab, case, [first], {}) == "wrong", "what nobody has judged"
    assert verdict(lab, case, [first], {(lab.id, first.key, *mutant.key): True}) == "right"


def test_the_cases_of_a_lab(tmp_path: Path) -> None:
    course = make_repository(tmp_path)
    take_totals(course.labs[0])
    found = evaluate_lab(course, course.labs[0], 3, 1)
    assert found.missed == []
    # `result = 1` is the mistake "The sum begins at 1", but nobody has said so.
    assert all(text.startswith("mutant total: result = 0 -> result = 1") for text in found.misled)
    assert found.named >= 6, "three mistakes, and each of them written otherwise"
    assert sum(found.counts.values()) > 9


def test_a_rewrite_computes_the_same() -> None:
    source = (
        "def mean(xs, least):\n    total = 0.0\n    for x in xs:\n        if x < least:\n"
        "            total = total + 0\n        else:\n            total = total + x * 2\n"
        "    return total / len(xs)\n"
    )
    text = rewrite(source)
    assert "my_total" in text
    assert "least > my_x" in text
    assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(source))
    both: list[dict[str, object]] = [{}, {}]
    for space, code in zip(both, (source, text), strict=True):
        exec(code, space)  # a string of this test's own
    results = [space["mean"]([1.0, 2.5, 4.0], 2) for space in both]  # type: ignore[operator]
    assert results[0] == pytest.approx(results[1])
