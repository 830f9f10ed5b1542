"""Wrong files that say only what they change: it is made in the one place that it names, or refused."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from course_helpers import make_repository

from course.authors.cases import cases_of, run_cases
from course.learner.edited import full_text
from course.learner.labs import Course, CourseError, Lab, load_module

WRONG = '''\
"""Nothing is kept above.

There are two bounds.

Refused by `test_clip_keeps_to_both_bounds`.
"""

from course.learner.edited import edited

CHANGE = """
{change}
"""

exec(edited(__file__, CHANGE))
'''
ONE_BOUND = "clip\n- return min(x, high)\n+ return x"


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return make_repository(tmp_path / "repository")


@pytest.fixture
def lab(course: Course) -> Lab:
    return course.labs[0]


def written(lab: Lab, change: str) -> Path:
    path = lab.folder / "wrong" / "edited.py"
    path.write_text(WRONG.format(change=change))
    return path


def test_the_lines_that_go_are_replaced(lab: Lab) -> None:
    module = load_module(written(lab, ONE_BOUND), "edited_one")
    assert module.clip(9, 0, 5) == 9
    assert module.clip(-1, 0, 5) == 0
    assert module.total([1, 2]) == 3, "the rest is the solution's"
    assert module.clip.__globals__ is vars(module), "its functions look up names in the wrong file"


def test_the_text_written_out_differs_in_the_change_alone(lab: Lab) -> None:
    solution = lab.solution.read_text()
    assert full_text(written(lab, ONE_BOUND)) == solution.replace("return min(x, high)", "return x")
    plain = lab.folder / "wrong" / "starts_at_one.py"
    assert full_text(plain) == plain.read_text(), "one without a change, as it stands"


def test_several_changes_and_lines_that_stay(lab: Lab) -> None:
    change = (
        "clip\n  if x < low:\n-     return low\n+     return x\n\n"
        "total\n+ items = items[1:]\n  for item in items:"
    )
    module = load_module(written(lab, change), "edited_two")
    assert (module.clip(-1, 0, 5), module.clip(9, 0, 5)) == (-1, 5)
    assert module.total([1, 2, 4]) == 6


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param("clap\n- return x", "clap: the solution has no such function", id="function"),
        pytest.param("clip\n- return y", r"clip has these lines 0 times.*\nreturn y", id="none"),
        pytest.param("total\n- return low", "total has these lines 0 times", id="elsewhere"),
        pytest.param("clip\nreturn x", "'return x' has no mark", id="no mark"),
        pytest.param("clip\n+ return x", "clip: no line goes or stays", id="nowhere"),
    ],
)
def test_a_change_that_cannot_be_made(lab: Lab, change: str, said: str) -> None:
    with pytest.raises(CourseError, match=said) as error:
        load_module(written(lab, change), "edited_three")
    assert "edited.py: " in str(error.value), "it says in which file"


def test_lines_that_stand_there_twice(lab: Lab) -> None:
    text = lab.solution.read_text()
    lab.solution.write_text(text.replace("        return low\n", "        return low\n" * 2))
    with pytest.raises(CourseError, match="clip has these lines 2 times, not once"):
        full_text(written(lab, "clip\n- return low"))


def test_a_traceback_shows_the_line_that_ran(lab: Lab) -> None:
    path = written(lab, "clip\n- return min(x, high)\n+ return x / 0")
    module = load_module(path, "edited_four")
    with pytest.raises(ZeroDivisionError) as error:
        module.clip(3, 0, 5)
    [*_, frame] = traceback.extract_tb(error.value.__traceback__)
    assert (frame.filename, frame.line) == (str(path), "return x / 0")


def test_the_evaluation_sees_the_change(course: Course, lab: Lab) -> None:
    written(lab, ONE_BOUND)
    cases = [case for case in cases_of(lab, 1, 9) if case.truth == "edited"]
    kinds = [case.kind for case in cases]
    assert kinds[:3] == ["wrong", "rewrite", "unfinished"]
    assert set(kinds[3:]) == {"slip"}
    slips = {case.mutant.function for case in cases if case.mutant is not None}
    assert slips == {"clip"}, (
        "further faults are planted in what the change is in, and nowhere else"
    )
    runs = run_cases(course, lab, cases[:3])
    failed = [{test.name.split("[")[0] for test in run.bad} for run in runs]
    assert failed == [{"test_clip_keeps_to_both_bounds"}] * 3
    assert any(test.outcome == "todo" for test in runs[2].tests), "total is not written there"
