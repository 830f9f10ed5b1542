"""Your engine: `course assemble`, and `mini-vllm generate --mine`."""

from __future__ import annotations

import importlib.metadata
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from course_helpers import DRAW_STARTER, ROOT, Ran, add_lab, git, make_repository, solve

from course.learner.assemble import build, find_parts, my_parts, same_tokens
from course.learner.grade import Job, cached_runs
from course.learner.labs import Course, CourseError, Lab, load_course
from course.learner.mistakes import find_mistake
from course.learner.reset import keep_untouched
from course.learner.results import LabRun
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.engine.parts import DEFAULT_PARTS
from mini_vllm.entrypoints.cli import main as mini_vllm

NEEDS_MODEL = pytest.mark.skipif(not DEFAULT_MODEL.is_dir(), reason="no shipped checkpoint")


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    course = make_repository(tmp_path)
    monkeypatch.chdir(course.labs[0].folder)
    return course


@pytest.fixture
def drawing(course: Course) -> Lab:
    return course.labs[1]


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry point as pyproject.toml declares it, whether or not the project is installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    value = project["entry-points"]["mini_vllm.parts"]["mine"]
    point = importlib.metadata.EntryPoint("mine", value, "mini_vllm.parts")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **what: [point])


def whose(course: Course) -> dict[str, tuple[bool, str]]:
    return {part.name: (part.mine, part.why) for part in find_parts(course)}


def test_every_part_is_named_and_all_are_the_references_at_first(course: Course) -> None:
    parts = whose(course)
    assert list(parts) == list(vars(DEFAULT_PARTS))
    assert parts["sampler"] == (False, "lab 01-01: Sampler.__call__ is not written yet")
    assert parts["scheduler"] == (False, "no lab builds it yet")
    assert build(find_parts(course)) == DEFAULT_PARTS


def test_a_part_whose_lab_passes_is_yours(course: Course, drawing: Lab) -> None:
    solve(drawing)
    assert whose(course)["sampler"] == (True, "lab 01-01: passes")
    parts = build(find_parts(course))
    assert Path(parts.sampler.__call__.__code__.co_filename) == drawing.starter
    assert parts.scheduler is DEFAULT_PARTS.scheduler


def test_a_part_that_fails_is_refused_with_its_test(course: Course, drawing: Lab) -> None:
    drawing.starter.write_text(find_mistake(drawing, "always_0").text)
    mine, why = whose(course)["sampler"]
    assert not mine
    assert why == (
        "lab 01-01: refused, test_greedy_takes_the_largest fails: greedy takes the largest logit, token 1; "
        "got token 0"
    )
    drawing.starter.write_text("def broken(:\n")
    assert (
        "refused, test_greedy_takes_the_largest fails: SyntaxError" in whose(course)["sampler"][1]
    )


def test_a_starter_without_the_class_is_refused(course: Course, drawing: Lab) -> None:
    solve(drawing)
    drawing.test.write_text("def test_anything(lab):\n    assert lab, 'x'\n")
    drawing.starter.write_text("x = 1\n")
    assert whose(course)["sampler"] == (
        False,
        "lab 01-01: refused, starter.py has no class Sampler",
    )


def test_of_two_labs_the_last_that_passes_gives_the_part(course: Course, drawing: Lab) -> None:
    add_lab(
        course.root, "phase-01-parts/lab-02-drawing-better", DRAW_STARTER,
        drawing.solution.read_text(), drawing.test.read_text(), {},
        title="Better", extra="part: sampler\nclass: Sampler\n",
    )  # fmt: skip
    course = load_course(course.root)
    assert whose(course)["sampler"][1] == "lab 01-01: Sampler.__call__ is not written yet"
    drawing.starter.write_text("class Sampler:\n    pass\n", encoding="utf-8")
    assert whose(course)["sampler"][1].startswith("lab 01-01: refused"), (
        "the lab at which the learner sits, and not one behind it that is untouched"
    )
    solve(drawing)
    assert whose(course)["sampler"] == (True, "lab 01-01: passes")
    solve(course.labs[2])
    assert whose(course)["sampler"] == (True, "lab 01-02: passes")


def test_my_parts_says_whose_each_is(drawing: Lab) -> None:
    solve(drawing)
    parts, lines = my_parts()
    assert parts.sampler is not DEFAULT_PARTS.sampler
    others = [name for name in vars(DEFAULT_PARTS) if name != "sampler"]
    assert [" ".join(line.split()) for line in lines] == [
        "sampler yours lab 01-01: passes",
        f"no lab begun, so the reference's: {', '.join(others)}",
    ]


@pytest.mark.parametrize("with_git", [True, False], ids=["git", "a copy"])
def test_only_what_is_begun_is_listed_and_only_what_is_written_is_graded(
    course: Course, drawing: Lab, monkeypatch: pytest.MonkeyPatch, with_git: bool
) -> None:
    graded: list[str] = []

    def run(root: Path, jobs: Sequence[tuple[Lab, Job]], on_wait: object) -> list[LabRun]:
        graded.extend(lab.id for lab, _ in jobs)
        return cached_runs(root, jobs)

    monkeypatch.setattr("course.learner.assemble.cached_runs", run)
    if with_git:
        git(course.root, "init", "-q")
        git(course.root, "add", ".")
        git(course.root, "commit", "-q", "-m", "the author's")
    else:
        keep_untouched(course, drawing)
    every = ", ".join(vars(DEFAULT_PARTS))
    assert my_parts()[1] == [f"no lab begun, so the reference's: {every}"]
    drawing.starter.write_text("# mine\n" + drawing.starter.read_text())
    [line, _] = my_parts()[1]
    assert line.endswith("reference  lab 01-01: Sampler.__call__ is not written yet")
    assert graded == []
    solve(drawing)
    assert "yours" in my_parts()[1][0]
    assert graded == ["01-01"]


def test_what_course_grade_has_found_is_not_run_again(
    drawing: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("typer")
    solve(drawing)
    Ran(capsys, "grade", "--all")
    my_parts()
    assert "running the tests" not in capsys.readouterr().err
    drawing.starter.write_text(drawing.starter.read_text() + "\n# changed\n")
    my_parts()
    assert "1 lab has changed since the last grading: running the tests" in capsys.readouterr().err


def test_my_parts_outside_of_the_repository(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    with pytest.raises(CourseError, match="not inside"):
        my_parts()


@NEEDS_MODEL
def test_a_part_that_draws_other_tokens_is_seen(course: Course, drawing: Lab) -> None:
    solve(drawing)
    mine = build(find_parts(course))
    assert all(got == wanted for _, got, wanted in same_tokens(mine, max_tokens=8))
    drawing.test.write_text("def test_anything(lab):\n    assert lab, 'x'\n")
    drawing.starter.write_text(find_mistake(drawing, "always_5").text)
    compared = same_tokens(build(find_parts(course)), max_tokens=8)
    assert all(got == [5] * 8 != wanted for _, got, wanted in compared)


@NEEDS_MODEL
def test_the_command_assemble(
    course: Course, drawing: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("typer")
    ran = Ran(capsys, "assemble")
    assert ran.status == 0
    assert "all reference so far" in ran.line
    solve(drawing)
    ran = Ran(capsys, "assemble")
    assert ran.status == 0
    assert "sampler yours lab 01-01: passes" in ran.line
    assert "On your sampler the engine gave the reference's tokens for 6 of 6 requests" in ran.line


@NEEDS_MODEL
@pytest.mark.usefixtures("_installed")
def test_generate_mine_runs_on_the_learners_part(
    drawing: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["The scheduler", "--max-tokens", "8"]
    assert mini_vllm(["generate", *arguments]) == 0
    reference = capsys.readouterr().out
    solve(drawing)
    note = f"{drawing.folder}/called"
    text = drawing.starter.read_text()
    drawing.starter.write_text(
        text.replace(
            "        return super", f"        open({note!r}, 'w').close()\n        return super"
        )
    )
    assert mini_vllm(["generate", "--mine", *arguments]) == 0
    out, err = capsys.readouterr()
    assert out == reference
    assert "mini-vllm: sampler           yours      lab 01-01: passes" in err
    Path(note).unlink()
    assert mini_vllm(["generate", "--mine", *arguments]) == 0
    assert Path(note).exists(), (
        "the learner's sampler was called by the engine, not only by its tests"
    )


@pytest.mark.usefixtures("_installed")
def test_generate_mine_outside_of_the_repository(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert mini_vllm(["generate", "--mine", "x"]) == 2
    assert "mini-vllm: " in (err := capsys.readouterr().err)
    assert "not inside the course's repository" in err


def test_generate_mine_without_an_entry_point(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **what: [])
    assert mini_vllm(["generate", "--mine", "x"]) == 2
    err = capsys.readouterr().err
    assert "entry point 'mine'" in err
    assert "pip install -e ." in err
