"""The bench: what is listed, what failed after it had passed, the order of what is printed, the diff."""

from __future__ import annotations

import json
import re

import pytest
from course_helpers import TOTALS_SOLUTION, TOTALS_STARTER, Ran, solve

pytest.importorskip("typer")
pytest.importorskip("rich")

from course.learner import judge
from course.learner.diff import difference, without_docstrings
from course.learner.grade import Grade, grade_many, run_lab
from course.learner.labs import Course, Lab
from course.learner.progress import Progress
from course.learner.results import LabRun

Capsys = pytest.CaptureFixture[str]
BROKEN = TOTALS_SOLUTION.replace("result = 0", "result = 1")


def listed(capsys: Capsys, *words: str) -> list[str]:
    ran = Ran(capsys, "list", *words)
    assert ran.status == 0
    return re.findall(r"^  (\d\d-\d\d) ", ran.out, re.MULTILINE)


# -- list -----------------------------------------------------------------------------------------


def test_list_takes_words_a_phase_and_a_tag(course: Course, capsys: Capsys) -> None:
    drawing = course.labs[1]
    drawing.readme.write_text(drawing.readme.read_text().replace("CPU-OK", "GPU-OPT"))
    for words, wanted in (
        ((), ["00-01", "01-01"]),
        (("total",), ["00-01"]),
        (("SAMPLER",), ["01-01"]),
        (("gpu", "draw"), ["01-01"]),
        (("gpu", "totals"), []),
        (("01-01",), ["01-01"]),
        (("--phase", "0"), ["00-01"]),
        (("--phase", "parts"), ["01-01"]),
        (("--phase", "1", "totals"), []),
        (("--tag", "cpu-ok"), ["00-01"]),
        (("--tag", "GPU"), ["01-01"]),
    ):
        assert listed(capsys, *words) == wanted, words
    assert "No lab fits. All of them: course list" in Ran(capsys, "list", "nothing").out
    assert "Phase 01" not in Ran(capsys, "list", "total").out
    for words in (("--tag", "TPU"), ("--phase", "9")):
        assert Ran(capsys, "list", *words).status == 2
    assert "CPU-OK, GPU-OPT, GPU-REQ" in Ran(capsys, "list", "--tag", "TPU").err


def test_list_of_what_is_not_done(course: Course, totals: Lab, capsys: Capsys) -> None:
    assert listed(capsys, "--undone") == ["00-01", "01-01"]
    solve(totals)
    Ran(capsys, "grade", "00-01")
    assert listed(capsys, "--undone") == ["01-01"]
    totals.starter.write_text(BROKEN)
    Ran(capsys, "grade", "00-01")
    assert listed(capsys, "--undone") == ["00-01", "01-01"], "what fails now is work too"


def test_no_links_in_a_file(course: Course, capsys: Capsys) -> None:
    for words in ((), ("list",), ("next",), ("grade", "00-01")):
        assert "\x1b" not in Ran(capsys, *words).out


# -- done once, fails now -------------------------------------------------------------------------


def test_what_passed_once_and_fails_now_is_shown(
    course: Course, totals: Lab, capsys: Capsys
) -> None:
    solve(totals)
    Ran(capsys, "grade", "00-01")
    totals.starter.write_text(BROKEN)
    assert "done, changed since" in Ran(capsys, "list").out, "not graded yet"
    Ran(capsys, "grade", "00-01")
    assert re.search(r"00-01 .* done once, fails now \(1 of 3 tests\)", Ran(capsys, "list").out)
    ran = Ran(capsys)
    assert "1 of 2 labs done, 1 of them fails now." in ran.out
    assert "Phase 00 Beginnings !" in ran.line
    assert "Lab 00-01 passed once and fails now (1 of 3 tests): course grade 00-01" in ran.out
    assert "Lab 01-01: Drawing" in ran.out, "what comes next is another matter"
    solve(totals)
    assert re.search(r"00-01 .* done$", Ran(capsys, "list").out, re.MULTILINE), "put back"
    Ran(capsys, "grade", "00-01")
    assert "fails" not in Ran(capsys).out


def test_the_very_file_that_passed_may_fail_now(
    course: Course, totals: Lab, capsys: Capsys
) -> None:
    """The tests have changed, with a newer course; or the file was never loaded."""
    solve(totals)
    Ran(capsys, "grade", "00-01")
    text = totals.test.read_text()
    # Longer, because Python takes a file of the same second and size for the one it has compiled.
    totals.test.write_text(text.replace("== 7", "== 7 + 1"))
    Ran(capsys, "grade", "00-01")
    assert "done once, fails now (2 of 3 tests)" in Ran(capsys, "list").out
    totals.test.write_text("import nothing_of_the_kind\n")
    Ran(capsys, "grade", "00-01")
    assert "done once, fails now (0 of 1 tests)" in Ran(capsys, "list").out
    totals.test.write_text(text)
    Ran(capsys, "grade", "--all")
    assert "fails now" not in Ran(capsys, "list").out
    kept = json.loads((course.root / ".course" / "progress.json").read_text())
    assert kept["version"] == 2
    assert kept["labs"]["00-01"]["passed_digest"]


# -- results as they come -------------------------------------------------------------------------


def test_the_comparison_comes_before_the_failures(
    totals: Lab, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a mistake looks like stands above the failures, so nothing is compared after they are shown."""
    totals.starter.write_text(BROKEN)
    said = []

    def compare(lab: Lab, run: LabRun) -> None:
        said.append(capsys.readouterr().out)

    monkeypatch.setattr(judge, "compare", compare)
    ran = Ran(capsys, "grade", "00-01")
    assert said[0].startswith("Lab 00-01  Totals")
    assert "FAIL" not in said[0]
    assert "no items add up to 0" in ran.out
    assert "1 of 3 tests pass, 2 fail." in ran.out


def test_a_run_says_what_it_has_so_far(course: Course, totals: Lab) -> None:
    """The second test goes on only when the first one's result has been heard."""
    solve(totals)
    go = course.root / "go"
    text = totals.test.read_text()
    head = "def test_total_of_nothing_is_zero(lab):\n"
    wait = f"    import pathlib, time\n    while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\n"
    totals.test.write_text(text.replace(head, head + wait))
    heard: list[list[str]] = []

    def hear(run: LabRun) -> None:
        heard.append([test.outcome for test in run.tests])
        if heard[-1][:1] == ["passed"]:
            go.touch()

    run = run_lab(course, totals, Progress(course.root), hear)
    assert run.passed
    assert ["passed", *["not_run"] * 4] in heard


def test_many_labs_are_told_as_they_end(course: Course, totals: Lab) -> None:
    solve(totals)
    progress = Progress(course.root)
    told: list[tuple[str, bool, list[str]]] = []

    def hear(graded: Grade) -> None:
        told.append((graded.lab.id, graded.run.passed, sorted(Progress(course.root).labs)))

    grade_many(course, course.labs, progress, hear)
    assert told == [("00-01", True, ["00-01"]), ("01-01", False, ["00-01", "01-01"])]


# -- diff -----------------------------------------------------------------------------------------


def test_diff_leaves_docstrings_out(course: Course, totals: Lab, capsys: Capsys) -> None:
    first, second = TOTALS_STARTER.split("    raise NotImplementedError\n")[:2]
    clip = TOTALS_SOLUTION.partition("def clip")[2].partition('"""\n')[2]
    body = TOTALS_SOLUTION.partition('`items`."""\n')[2].partition("\n\n\n")[0]
    totals.starter.write_text(f"{first}{body}\n{second}{clip}")
    ran = Ran(capsys, "diff", "00-01")
    assert "No difference but docstrings: course diff 00-01 --docstrings" in ran.out
    assert "-    Args:" in Ran(capsys, "diff", "00-01", "--docstrings").out
    totals.starter.write_text(totals.starter.read_text().replace("return low", "return int(low)"))
    lines = Ran(capsys, "diff", "00-01", "--peek").out.splitlines()
    assert [line for line in lines if line[0] in "+-"][2:] == [
        "-        return int(low)",
        "+        return low",
    ]
    [head] = [line for line in lines if line.startswith("@@")]
    mine, theirs = map(int, re.findall(r"line (\d+)", head))
    for number, path in ((mine, totals.starter), (theirs, totals.solution)):
        first_line = next(line for line in lines if line.startswith(" "))[1:]
        assert path.read_text().splitlines()[number - 1] == first_line
    totals.starter.write_text("def total(items:\n" + TOTALS_STARTER)
    assert "Args:" in difference(course, totals), "what does not parse is shown as it stands"


def test_what_counts_as_a_docstring() -> None:
    source = '''\
"""Module."""

import os

class Empty(Exception):
    """All that there is."""

class Full:
    """One
    and two."""

    text = """no docstring"""

    def f(self): "on the line"; return 1

    @property
    def g(self):
        r"""Raw."""
        # a comment stays
        return "é", """x"""
'''
    left = without_docstrings(source)
    gone = {1, 2, 9, 10, 11, 18}
    assert [number for number, _ in left] == [n for n in range(1, 21) if n not in gone]
    assert all(source.splitlines()[number - 1] == line for number, line in left)
