"""A solution with a few of its lines replaced: in the one place that a change names, or refused."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from course_helpers import ROOT, TOTALS_SOLUTION, Ran, make_repository, mistake

from course.authors.cases import cases_of, run_cases
from course.learner.labs import Course, CourseError, Lab, load_course
from course.learner.mistakes import find_mistake, read_mistakes, write_out
from course.learner.patch import patched

ONE_BOUND = "clip\n- return min(x, high)\n+ return x"


@pytest.fixture
def lab(course: Course) -> Lab:
    return course.labs[0]


def test_the_lines_that_go_are_replaced() -> None:
    text = patched(TOTALS_SOLUTION, ONE_BOUND)
    assert text == TOTALS_SOLUTION.replace("return min(x, high)", "return x")


def test_several_changes_and_lines_that_stay() -> None:
    text = patched(
        TOTALS_SOLUTION,
        "clip\n  if x < low:\n-     return low\n+     return x\n\n"
        "total\n+ items = items[1:]\n  for item in items:",
    )
    assert "    if x < low:\n        return x\n" in text
    assert "    items = items[1:]\n    for item in items:\n        result += item\n" in text


def test_empty_lines_do_not_count_and_the_first_line_may_be_the_deepest() -> None:
    solution = TOTALS_SOLUTION.replace("result += item\n", "result += item\n\n")
    text = patched(
        solution, "total\n-         result += item\n-     return result\n+     return 3\n"
    )
    assert "    for item in items:\n    return 3\n" in text


def test_a_whole_body() -> None:
    change = "total\n= items = items[1:]\n= if items:\n=     return sum(items)\n= return 0"
    text = patched(TOTALS_SOLUTION, change)
    body = "    items = items[1:]\n    if items:\n        return sum(items)\n    return 0\n\n\ndef clip"
    assert f'    """The sum of `items`."""\n{body}' in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param("clap\n- return x", "clap: the solution has no such function", id="function"),
        pytest.param("clip\n- return y", r"clip has these lines 0 times.*\nreturn y", id="none"),
        pytest.param("total\n- return low", "total has these lines 0 times", id="elsewhere"),
        pytest.param("clip\nreturn x", "'return x' has no mark", id="no mark"),
        pytest.param("- return x", "'- return x' has no mark", id="no function"),
        pytest.param("clip\n+ return x", "clip: no line goes or stays", id="nowhere"),
        pytest.param("clip", "clip: no line goes or stays", id="nothing"),
        pytest.param("clip\n= return x\n- return low", "clip: '= ' is for a whole body", id="both"),
    ],
)
def test_a_change_that_cannot_be_made(change: str, said: str) -> None:
    with pytest.raises(CourseError, match=said):
        patched(TOTALS_SOLUTION, change)


def test_lines_that_stand_there_twice() -> None:
    solution = TOTALS_SOLUTION.replace("        return low\n", "        return low\n" * 2)
    with pytest.raises(CourseError, match="clip has these lines 2 times, not once"):
        patched(solution, "clip\n- return low")


# -- proof/mistakes.toml --------------------------------------------------------------------------


def test_the_mistakes_of_a_lab(lab: Lab) -> None:
    first, *others = read_mistakes(lab.folder)
    assert (first.key, first.name) == ("skips_the_first", "The first item is left out.")
    assert (first.hint, first.test) == (
        "Indices begin at 0, not at 1.",
        "test_total_adds_every_item",
    )
    assert [one.key for one in others] == ["starts_at_one", "only_one_bound"]
    module = first.load()
    assert (module.total([1, 2, 4]), module.clip(9, 0, 5)) == (6, 5)
    assert find_mistake(lab, "starts_at_one").text.count("result = 1") == 1
    with pytest.raises(
        CourseError, match="00-01 has no mistake 'x'; it has skips_the_first, starts"
    ):
        find_mistake(lab, "x")


def test_what_belongs_to_no_function_is_appended(lab: Lab) -> None:
    lab.mistakes.write_text(
        "[less]\nname = 'n'\nhint = 'h'\ntest = 't'\n"
        "append = '''\nright = total\n\ndef total(items):\n    return right(items) - 1\n'''\n"
    )
    [less] = read_mistakes(lab.folder)
    assert less.text.startswith(TOTALS_SOLUTION)
    assert less.load().total([1, 2]) == 2


def test_written_out_it_lies_beside_what_the_solution_reads(lab: Lab, tmp_path: Path) -> None:
    (lab.folder / "data.json").write_text("1")
    mistakes = read_mistakes(lab.folder)
    paths = write_out(mistakes, tmp_path / "out")
    assert [path.read_text() for path in paths] == [one.text for one in mistakes]
    assert {path.with_name("data.json").read_text() for path in paths} == {"1"}


def test_the_command_shows_a_mistake(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = find_mistake(lab, "only_one_bound").text
    assert Ran(capsys, "author", "mistake", "totals", "only_one_bound").out == text
    assert Ran(capsys, "mistake", "00-01", "only_one_bound", "-o", str(tmp_path / "x.py")).out == ""
    assert (tmp_path / "x.py").read_text() == text
    assert Ran(capsys, "mistake", "00-01", "no_such").status == 2


def test_every_mistake_of_the_course_is_python_of_its_own() -> None:
    for lab in load_course(ROOT).labs:
        texts = [ast.dump(ast.parse(one.text)) for one in read_mistakes(lab.folder)]
        assert len({*texts}) == len(texts), f"{lab.id}: two mistakes are the same"


def test_the_evaluation_sees_the_change(tmp_path: Path) -> None:
    course = make_repository(tmp_path / "repository")
    lab = course.labs[0]
    test = "test_clip_keeps_to_both_bounds"
    lab.mistakes.write_text(mistake("edited", "n", "h", test, ONE_BOUND))
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
    assert failed == [{test}] * 3
    assert any(test.outcome == "todo" for test in runs[2].tests), "total is not written there"
