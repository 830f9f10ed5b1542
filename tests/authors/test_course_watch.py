"""`course watch` and `course grade` on a terminal: keys, results while they come, links."""

from __future__ import annotations

import re
import sys

import pytest
from course_helpers import TOTALS_SOLUTION, TOTALS_STARTER, solve, take_totals
from terminal import Terminal

pytest.importorskip("typer")
pytest.importorskip("rich")

from course.learner.grade import Job, run_jobs
from course.learner.labs import Course, Lab
from course.learner.progress import Progress

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")

FOOT = "q quit"  # the last words below every answer


def save(lab: Lab, text: str) -> None:
    """As editors do: whole, or not at all."""
    fresh = lab.starter.with_name("starter.py.tmp")
    fresh.write_text(text)
    fresh.replace(lab.starter)


def with_bodies(total: str, clip: str) -> str:
    first, second = TOTALS_STARTER.split("    raise NotImplementedError\n")[:2]
    return f"{first}    {total}\n{second}    {clip}\n"


# -- watch ----------------------------------------------------------------------------------------


def test_keys_and_what_follows_a_pass(course: Course, totals: Lab) -> None:
    pytest.importorskip("watchfiles")
    with Terminal(course.root, "course", "watch") as terminal:
        said = terminal.read_until(FOOT)
        assert "not written yet: total" in said
        assert "0 of 2 labs Waiting for starter.py of lab 00-01 to be saved." in said

        terminal.types("h")
        assert "Lab 00-01, hint 1 of 3: look" in terminal.read_until(FOOT)
        terminal.types("h")
        assert "Lab 00-01, hint 2 of 3: count" in terminal.read_until(FOOT)
        terminal.types("l")
        said = terminal.read_until(FOOT)
        assert "01-01 Drawing CPU-OK 20 min builds sampler" in said
        terminal.types("n")
        said = terminal.read_until(FOOT)
        assert "Lab 01-01: Drawing" in said
        assert "Waiting for starter.py of lab 01-01" in said
        terminal.types("n")
        assert "Waiting for starter.py of lab 00-01" in terminal.read_until(FOOT)
        terminal.types("\x1bOQ\x1b[1;2Qz")  # F2, Shift-F2, and a letter without a meaning
        terminal.types("r")
        assert "not written yet: total" in terminal.read_until(FOOT)

        save(totals, TOTALS_SOLUTION)
        said = terminal.read_until(FOOT)
        assert "Lab 00-01 passes: 3 tests." in said
        assert "Next: Lab 01-01: Drawing" in said
        assert "1 of 2 labs Waiting for starter.py of lab 01-01" in said

        # The one just passed is graded again when it is saved: somebody goes on with it.
        save(totals, with_bodies("return 8", "return min(max(x, low), high)"))
        said = terminal.read_until(FOOT)
        assert "1 of 3 tests pass, 2 fail" in said
        assert "Waiting for starter.py of lab 00-01" in said

        # Closed by q, with the terminal as it was.
        terminal.types("q")
        assert terminal.ends() == 0
        assert terminal.modes == terminal.before
        assert "Traceback" not in terminal.raw
    assert Progress(course.root)[totals].hints == ["1", "2"]


def test_what_failed_is_run_first_and_the_rest_once_it_passes(course: Course, totals: Lab) -> None:
    """Each test notes that it ran."""
    pytest.importorskip("watchfiles")
    notes = course.root / "notes"
    text = totals.test.read_text().replace('"""total adds', '"""Total adds')
    for name in ("adds_every_item", "of_nothing_is_zero"):
        head = f"def test_total_{name}(lab):\n"
        doc, _, rest = text.partition(head)[2].partition('"""\n')
        note = f"    open({str(notes)!r}, 'a').write('{name} ')\n"
        text = text.partition(head)[0] + head + doc + '"""\n' + note + rest
    totals.test.write_text(text)

    def ran() -> list[str]:
        names = notes.read_text().split()
        notes.unlink()
        return names

    with Terminal(course.root, "course", "watch", "00-01") as terminal:
        terminal.read_until(FOOT)
        assert ran() == ["adds_every_item", "of_nothing_is_zero"]
        clip = "return min(max(x, low), high)"
        save(totals, with_bodies("return sum(items, 1)", clip))
        assert "1 of 3 tests pass, 2 fail." in terminal.read_until(FOOT)
        assert ran() == ["adds_every_item", "of_nothing_is_zero"], "none had passed"
        save(totals, with_bodies("return sum(items[1:])", clip))
        said = terminal.read_until(FOOT)
        assert "2 of 3 tests pass, 1 fail." in said
        assert "Run first: the 2 that did not pass before." in said
        ran()
        save(totals, with_bodies("return sum(items[:-1])", clip))
        said = terminal.read_until(FOOT)
        assert "2 of 3 tests pass, 1 fail." in said
        assert "Run first: the 1 that did not pass before." in said
        assert ran() == ["adds_every_item"], "the rest waits"
        save(totals, with_bodies("return sum(items) or 1", clip))
        said = terminal.read_until(FOOT)
        assert "2 of 3 tests pass, 1 fail." in said, "what passed before is run again in the end"
        assert "no items add up to 0" in said
        assert ran() == ["adds_every_item", "of_nothing_is_zero"]
        save(totals, with_bodies("return sum(items", clip))
        assert "starter.py cannot be loaded" in terminal.read_until(FOOT)
        save(totals, TOTALS_SOLUTION)
        assert "Lab 00-01 passes: 3 tests." in terminal.read_until(FOOT)
        assert ran() == ["adds_every_item", "of_nothing_is_zero"]


def test_x_puts_the_untouched_starter_back(course: Course, totals: Lab) -> None:
    pytest.importorskip("watchfiles")
    with Terminal(course.root, "course", "watch", "00-01") as terminal:
        terminal.read_until(FOOT)
        mine = with_bodies("return 7", "return x")
        save(totals, mine)
        terminal.read_until(FOOT)
        terminal.types("x")
        terminal.read_until("y: yes")
        terminal.types("n")
        assert "Nothing was changed." in terminal.read_until(FOOT)
        assert totals.starter.read_text() == mine
        terminal.types("x")
        terminal.read_until("y: yes")
        terminal.types("y")
        said = terminal.read_until(FOOT)
        assert "not written yet: total" in said
        assert "is untouched again. Yours: .course/backups/00-01/" in said
        assert totals.starter.read_text() == TOTALS_STARTER
        [backup] = (course.root / ".course" / "backups" / "00-01").iterdir()
        assert backup.read_text() == mine


def test_ctrl_c_leaves_the_terminal_as_it_was(course: Course) -> None:
    pytest.importorskip("watchfiles")
    with Terminal(course.root, "course", "watch", "00-01") as terminal:
        terminal.read_until(FOOT)
        terminal.interrupts()
        assert terminal.ends() == 130
        assert terminal.modes == terminal.before
        assert "Traceback" not in terminal.raw


def test_a_lab_whose_file_is_gone_can_come_back(course: Course, totals: Lab) -> None:
    pytest.importorskip("watchfiles")
    with Terminal(course.root, "course", "watch", "00-01") as terminal:
        terminal.read_until(FOOT)
        totals.starter.unlink()
        assert "there is no phase-00-beginnings" in terminal.read_until(FOOT)
        save(totals, TOTALS_SOLUTION)
        assert "Lab 00-01 passes" in terminal.read_until(FOOT)


# -- grade ----------------------------------------------------------------------------------------


def test_each_result_is_shown_while_the_tests_still_run(course: Course, totals: Lab) -> None:
    """The second test waits until the first one's line has been seen."""
    solve(totals)
    go = course.root / "go"
    text = totals.test.read_text()
    wait = f"    import pathlib, time\n    while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\n"
    head = "def test_total_of_nothing_is_zero(lab):\n"
    totals.test.write_text(text.replace(head, head + wait))
    with Terminal(course.root, "course", "grade", "00-01") as terminal:
        said = terminal.read_until("1 of 3 tests")
        assert "pass total adds all items, the first and the last too." in said
        go.touch()
        assert "Lab 00-01 passes: 3 tests." in terminal.read_until("Go on: course next")
        assert terminal.ends() == 0


def test_a_known_mistake_is_named(course: Course, totals: Lab) -> None:
    take_totals(totals)
    totals.starter.write_text(with_bodies("return sum(items)", "return x if x > low else low"))
    with Terminal(course.root, "course", "grade", "00-01") as terminal:
        said = terminal.read_until("Every detail")
        assert "2 of 3 tests pass, 1 fail." in said
        assert "This looks like" in said
        assert terminal.ends() == 1


def test_paths_are_links_on_a_terminal(course: Course, totals: Lab) -> None:
    def link(path: str, text: str) -> str:
        return f";{(totals.folder / path).as_uri()}\x1b\\{text}\x1b]8;;\x1b\\"

    for words, path, text in (
        (("list",), "README.md", "Totals"),
        (("next",), "starter.py", course.show(totals.starter)),
        ((), "README.md", course.show(totals.readme)),
    ):
        with Terminal(course.root, "course", *words, columns=200) as terminal:
            terminal.ends()
            assert link(path, text) in terminal.raw
    totals.starter.write_text(with_bodies("return items / 2", "return x"))
    with Terminal(course.root, "course", "grade", "00-01") as terminal:
        terminal.ends()
        raw = re.sub(r"\x1b\[[0-9;]*m", "", terminal.raw)
        for text in (course.show(totals.starter), "starter.py, line 10"):
            assert link("starter.py", text) in raw


# -- what watch stands on -------------------------------------------------------------------------


def test_the_first_tests_decide_whether_the_others_are_run(totals: Lab, course: Course) -> None:
    totals.starter.write_text(with_bodies("return sum(items, 1)", "return x"))
    first = ("test_clip_keeps_to_both_bounds[3-3]", "test_total_of_nothing_is_zero")
    jobs = [
        Job(totals.folder, totals.starter, first=names)
        for names in ((), first, first[:1], first[::-1][:1])
    ]
    runs = run_jobs(course.root, jobs)
    count = [sum(test.outcome != "not_run" for test in run.tests) for run in runs]
    assert count == [5, 2, 5, 1]
    assert [run.problem for run in runs] == [None] * 4
    assert {test.name for test in runs[1].tests if test.outcome != "not_run"} == {*first}
