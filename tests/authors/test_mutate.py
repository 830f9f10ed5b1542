"""Planted faults: what is planted, what is left alone, and what `course mutate` says."""

from __future__ import annotations

from pathlib import Path

import pytest
from course_helpers import Ran, make_repository

from course.authors.mutants import plant
from course.authors.mutate import choose, mutate, read_allow_list
from course.learner.labs import Course, CourseError


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    course = make_repository(tmp_path)
    monkeypatch.chdir(tmp_path)
    return course


def changes(source: str) -> list[tuple[str, str]]:
    return [(mutant.kind, mutant.new) for mutant in plant(source)]


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("y = a < b", [("comparison", "y = a <= b")]),
        ("y = a not  in b", [("comparison", "y = a in b")]),
        ("y = 0 == b", [("constant", "y = 1 == b"), ("comparison", "y = 0 != b")]),
        ("y = a + b * c", [("operator", "y = a - b * c"), ("operator", "y = a + b / c")]),
        ("y = (a) // (b)", [("operator", "y = (a) * (b)")]),
        ("y = 3", [("constant", "y = 2"), ("constant", "y = 4")]),
        ("y = 0.5", [("constant", "y = 5.0")]),
        ("y = True", [("constant", "y = False")]),
        ("y = -a", [("sign", "y = a")]),
        ("y = -(a + b)", [("sign", "y = (a + b)"), ("operator", "y = -(a - b)")]),
        ("y = a and b or c", [("boolean", "y = a or b or c"), ("boolean", "y = a and b and c")]),
        ("y = not a", [("boolean", "y = bool(a)")]),
        ("y = a[:n]", [("off by one", "y = a[:n + 1]")]),
        ("y = range(n)", [("off by one", "y = range(n + 1)")]),
        ("y = f(a, b)", [("swapped arguments", "y = f(b, a)")]),
        ("f(x)", [("dropped statement", "pass")]),
        ("y = a if b else c", [("boolean", "y = a if not (b) else c")]),
    ],
)
def test_what_is_planted(source: str, wanted: list[tuple[str, str]]) -> None:
    assert changes(source) == wanted


def test_statements_that_are_dropped() -> None:
    source = """
def f(x, y):
    x = y
    z = y
    z = x
    z += x
    x[y] = z
    if x:
        raise ValueError(1 + 1)
    while z:
        break
    return z
"""
    dropped = [m.old for m in plant(source) if m.kind == "dropped statement"]
    assert dropped == [
        "x = y",
        "z = x",
        "z += x",
        "x[y] = z",
        "raise ValueError(1 + 1)",
        "break",
    ], "an assignment that makes a name is left: dropping it only gives a NameError"


@pytest.mark.parametrize(
    "source",
    [
        '"""Words: 1 + 1 < 3."""',
        "x: Literal[1]",
        "def f(x: Literal[1]) -> Literal[2]: ...",
        "@cache(1)\ndef f(): ...",
        "y = f'{1 + 1}'",
        "assert x < 1",
        "__all__ = f(1, 2)",
        "if TYPE_CHECKING:\n    x = 1",
        "if __name__ == '__main__':\n    main(1)",
        "import a",
        "print(a, b)",
        "y = max(a, b)",
        "y = 'words' + f'{a}'",
    ],
)
def test_what_is_left_alone(source: str) -> None:
    assert changes(source) == []


def test_the_sign_of_an_axis_is_left_alone() -> None:
    assert ("sign", "y = x.sum(axis=1)") not in changes("y = x.sum(axis=-1)")


def test_only_one_place_changes_and_the_rest_stays() -> None:
    source = "# Ünïcode before\ndef f(é):\n    return é < 1  # as it was\n"
    mutants = plant(source)
    assert [m.new for m in mutants] == [
        "return é <= 1  # as it was",
        "return é < 0  # as it was",
        "return é < 2  # as it was",
    ]
    assert all(m.source.startswith("# Ünïcode before\ndef f(é):\n") for m in mutants)
    assert {(m.function, m.line) for m in mutants} == {("f", 3)}


def test_functions_are_named_with_their_class() -> None:
    source = "class A:\n    x = 1\n    def f(self, n=2):\n        def g():\n            return 3\n"
    assert sorted({m.function for m in plant(source)}) == ["A", "A.f.g"]


def test_planting_is_the_same_every_time(course: Course) -> None:
    source = course.labs[0].solution.read_text()
    assert plant(source) == plant(source)


# -- running them ---------------------------------------------------------------------------------


def test_the_score(course: Course) -> None:
    result = mutate(course, course.labs[0])
    killed, survived = result.killed, result.survived
    assert len(killed) + len(survived) == result.num_planted
    # x < low or x <= low: the same number comes out.
    assert [m.new for m in survived] == ["if x <= low:"]
    assert result.score == pytest.approx(100 * len(killed) / (len(killed) + 1))
    assert all(name.startswith("test_") for _, name in killed)


def test_an_excused_mutant_does_not_count(course: Course) -> None:
    lab = course.labs[0]
    lab.mutants.write_text(
        "# equivalent\nclip\n- if x < low:\n+ if x <= low:\n= low itself comes out either way\n"
    )
    result = mutate(course, lab)
    assert (result.survived, result.stale, result.score) == ([], [], 100.0)
    assert [reason for _, reason in result.allowed] == ["low itself comes out either way"]


def test_a_function_can_be_excused(course: Course) -> None:
    lab = course.labs[0]
    lab.mutants.write_text("clip\n* it only draws\n")
    result = mutate(course, lab)
    assert {m.function for m, _ in result.killed} == {"total"}
    assert {m.function for m, _ in result.allowed} == {"clip"}


def test_excuses_that_excuse_nothing_are_named(course: Course) -> None:
    lab = course.labs[0]
    lab.mutants.write_text(
        "total\n- result = 0\n+ result = 1\n= wrong\n\ntotal\n- x\n+ y\n= gone\n\ndraw\n* gone\n"
    )
    stale = "\n".join(mutate(course, lab).stale)
    assert "total: a test notices 'result = 1'" in stale
    assert "no mutant turns 'x' into 'y'" in stale
    assert "draw: there are no mutants in it" in stale


@pytest.mark.parametrize(
    "text", ["clip\n- a\n+ b\n", "clip\n", "clip\n- a\n+ b\n=\n", "- a\n+ b\n= c\n", "clip\n*\n"]
)
def test_an_allow_list_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mutants.txt"
    path.write_text(text)
    with pytest.raises(CourseError, match=r"mutants\.txt:1"):
        read_allow_list(path)


def test_the_seed_chooses_the_same_faults_again(course: Course) -> None:
    every = plant(course.labs[0].solution.read_text())
    first = choose(every, 1, 2)
    assert len(first) == 2
    assert first == choose(every, 1, 2)
    assert any(first != choose(every, seed, 2) for seed in (2, 3, 4))
    assert choose(every, 1, 100) == every
    result = mutate(course, course.labs[0], seed=1, most=2)
    assert {m.source for m, _ in result.killed} | {m.source for m in result.survived} == {
        m.source for m in first
    }


def test_an_endless_mutant_is_ended_and_counts_as_noticed(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("course.authors.mutate.SLACK", 1.0)
    lab = course.labs[0]
    body = (
        "    items = list(items)\n    result = 0\n    while items:\n        result += items.pop()\n"
    )
    text = lab.solution.read_text()
    start, end = text.index("    result = 0"), text.index("    return result")
    lab.solution.write_text(text[:start] + body + text[end:])
    lab.mutants.write_text(
        "clip\n* not here\n\ntotal\n"
        "- items = list(items)\n+ pass\n= a copy: only the caller could tell\n"
    )
    result = mutate(course, lab)
    assert result.survived == []
    assert "while not (items):" in {m.new for m, _ in result.killed}


def test_a_solution_that_does_not_pass_is_not_mutated(course: Course) -> None:
    lab = course.labs[0]
    lab.solution.write_bytes(lab.starter.read_bytes())
    with pytest.raises(CourseError, match=r"solution\.py must pass"):
        mutate(course, lab)


def test_the_command(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("typer")
    ran = Ran(capsys, "mutate", "00-01", "--min", "75")
    assert ran.status == 0, ran.line
    assert "clip - if x < low: + if x <= low: comparison, solution.py:14" in ran.line
    assert "faults noticed" in ran.line
    ran = Ran(capsys, "mutate", "totals", "--min", "99")
    assert ran.status == 1
    assert "That is below 99 %" in ran.line
