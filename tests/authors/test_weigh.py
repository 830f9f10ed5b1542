"""`course weigh`: what it counts, its limits, and that new phases keep them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from course_helpers import (
    TOTALS_MISTAKES,
    TOTALS_SOLUTION,
    TOTALS_STARTER,
    TOTALS_TEST,
    Ran,
    add_lab,
)

from course.authors.weigh import (
    ALLOWANCES,
    EXEMPT,
    LIMITS,
    PhaseWeight,
    breaches,
    findings_of,
    lines_to_write,
    weigh,
    words_of,
)
from course.authors.weigh_table import show_weights
from course.cite.share import WORDS_A_MINUTE
from course.docs.pages import ROOT, Page
from course.learner.labs import Course, CourseError, Lab, load_course, read_lab
from course.learner.report import make_console

Capsys = pytest.CaptureFixture[str]

PAGE = """\
---
title: not counted
---

# Lab 1: A title

<!-- not counted -->
Read [the source](https://example.org/not/counted "nor this"), `now` &mdash; 3 + 4 = 7.

```text
## What you should find
code counts
```

## What you should find

Five words stand here, <b>bold</b>.

### And below

Three words more.

## Next

Go on.
"""
FINDINGS = "Five words stand here, bold. And below Three words more."
HELPER = '''

def helper(a):
    """No code.

    None.
    """
    # nor this

    return (
        a
    )
'''


@pytest.fixture(scope="module")
def real() -> tuple[Course, list[PhaseWeight]]:
    course = load_course(ROOT)
    return course, [weigh(course, phase) for phase in course.phases]


@pytest.fixture
def heavy(course: Course, monkeypatch: pytest.MonkeyPatch) -> Course:
    """The small repository, its phases exempt, with one more that is held and keeps the limits."""
    exempt = {phase.number: "lightened later" for phase in course.phases}
    monkeypatch.setattr("course.authors.weigh.EXEMPT", exempt)
    for lab in (1, 2):
        add_lab(
            course.root, f"phase-07-new/lab-{lab:02}-totals",
            TOTALS_STARTER, TOTALS_SOLUTION, TOTALS_TEST, TOTALS_MISTAKES,
            title="Totals", extra="path: core\n",
        )  # fmt: skip
    (course.root / "phase-07-new" / "00-guide.md").write_text("word " * 3500)
    return load_course(course.root)


def found(course: Course) -> list[str]:
    return breaches(course, weigh(course, course.phases[-1]))


def make_page(text: str) -> Page:
    return Page(Path("page.md"), "page.md", text)


# --- what is counted ---


def test_words_are_what_a_reader_sees() -> None:
    page = make_page(PAGE)
    title, line, code = (
        "Lab 1: A title",
        "Read the source, now &mdash; 3 4 7.",
        "What you should find code counts",
    )
    wanted = " ".join([title, line, code, "What you should find", FINDINGS, "Next Go on."])
    assert words_of(page) == len(wanted.split())


def test_findings_are_the_section_without_its_heading() -> None:
    assert findings_of(make_page(PAGE)) == len(FINDINGS.split())
    assert findings_of(make_page("# Lab\n\n## Next\n\nGo on.\n")) is None


def test_lines_to_write_are_those_of_open_and_of_new_functions() -> None:
    assert lines_to_write(TOTALS_STARTER, TOTALS_SOLUTION) == 4 + 3
    assert lines_to_write(TOTALS_SOLUTION, TOTALS_SOLUTION) == 0
    assert lines_to_write(TOTALS_STARTER, TOTALS_SOLUTION + HELPER) == 7 + 4


def test_hours_are_minutes_and_pages_and_the_core_is_what_is_marked(heavy: Course) -> None:
    weight = weigh(heavy, heavy.phases[-1])
    pages = [*heavy.phases[-1].folder.rglob("*.md")]
    words = sum(words_of(make_page(path.read_text())) for path in pages)
    assert weight.words == words
    assert weight.hours == pytest.approx(40 / 60 + words / WORDS_A_MINUTE / 60)
    assert weight.core_hours == pytest.approx(weight.hours), (
        "guide and both labs, and there is nothing else"
    )
    [first, _] = weight.labs
    text = first.lab.readme.read_text()
    first.lab.readme.write_text(text.replace("path: core\n", ""))
    weight = weigh(again := load_course(heavy.root), again.phases[-1])
    assert [lab.lab.number for lab in weight.core] == [2]
    assert weight.core_hours is not None
    assert weight.core_hours < weight.hours - 20 / 60


def test_path_is_core_or_not_there(totals: Lab) -> None:
    assert not totals.core
    text = totals.readme.read_text()
    totals.readme.write_text(text.replace("minutes:", "path: core\nminutes:"))
    assert read_lab(totals.folder).core
    totals.readme.write_text(text.replace("minutes:", "path: scenic\nminutes:"))
    with pytest.raises(CourseError, match="path must be core, or not be there, got 'scenic'"):
        read_lab(totals.folder)


# --- the limits ---


def test_the_limits_are_those_of_the_table() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## The weight of a phase\n")[1].split("\n## ")[0]
    rows = re.findall(r"(?m)^\| (.+?) \| (.+?) \|$", section)
    assert rows[2:] == [(what, str(limit)) for what, limit in LIMITS.items()]


def test_a_phase_at_its_limits_is_let_pass(heavy: Course) -> None:
    assert found(heavy) == []


def test_a_heavy_guide_is_named_with_its_value_and_the_rule(heavy: Course, capsys: Capsys) -> None:
    phase = heavy.phases[-1]
    phase.guide.write_text("word " * 3501)
    said = f"{phase.folder.name}/00-guide.md: guide: 3,501 words; the rule is at most 3,500 words"
    assert found(heavy) == [said]
    ran = Ran(capsys, "weigh", "--check")
    assert ran.status == 1
    assert ran.out.splitlines() == [said, "3 phases weighed, 1 limits exceeded."]
    assert Ran(capsys, "weigh", "--check", "00").status == 0
    assert Ran(capsys, "weigh", "--check", phase.folder.name).status == 1
    assert Ran(capsys, "weigh").status == 0


def test_a_guide_on_two_pages_keeps_the_limit_on_each(heavy: Course, capsys: Capsys) -> None:
    phase = heavy.phases[-1]
    (phase.folder / "00-further.md").write_text("word " * 3500)
    assert found(heavy) == []
    weight = weigh(heavy, phase)
    assert weight.pages["guide"] == {"00-guide.md": 3500, "00-further.md": 3500}
    assert weight.core_hours == pytest.approx(weight.hours)
    assert "words, 00-further.md" in Ran(capsys, "weigh", phase.folder.name).out
    (phase.folder / "00-further.md").write_text("word " * 3501)
    assert [each.split(": ")[0] for each in found(heavy)] == [f"{phase.folder.name}/00-further.md"]


def test_each_weight_of_a_lab_is_held(heavy: Course) -> None:
    lab = heavy.phases[-1].labs[0]
    folder = heavy.show(lab.folder)
    text = lab.readme.read_text().replace("minutes: 20", "minutes: 61")
    lab.readme.write_text(
        f"{text}\n## What you should find\n\n{'word ' * 251}\n\n## Next\n\n{'word ' * 700}\n"
    )
    body = "\n".join(f"    {name} = items" for name in map("x{}".format, range(88)))
    lab.solution.write_text(
        TOTALS_SOLUTION.replace("    result = 0\n", f"    result = 0\n{body}\n")
    )
    known = lab.mistakes.read_text()
    first, *_ = re.findall(r"(?m)^\[(\w+)\]$", known)
    for n in range(10):
        again = known.split("\n[")[0].replace(f"[{first}]", f"[copy_{n}]")
        lab.mistakes.write_text(f"{lab.mistakes.read_text()}\n{again}\n")
    readme, finds, minutes, lines, mistakes = found(load_course(heavy.root))
    assert re.fullmatch(
        rf"{folder}/README.md: a lab's README: [\d,]+ words; the rule is at most 900 words", readme
    )
    assert finds == f"{folder}/README.md: what one finds: 251 words; the rule is at most 250 words"
    assert minutes == f"{folder}/README.md: a lab's time: 61 minutes; the rule is 30 to 60 minutes"
    assert lines == (
        f"{folder}/solution.py: a lab's code: 95 lines to write; the rule is 30 to 90 lines to write"
    )
    assert mistakes == (
        f"{folder}: a lab's mistakes: 13 known mistakes; the rule is at most 12 known mistakes"
    )


def test_a_phase_without_a_marked_lab_is_refused(heavy: Course) -> None:
    for lab in heavy.phases[-1].labs:
        lab.readme.write_text(lab.readme.read_text().replace("path: core\n", ""))
    [only] = found(load_course(heavy.root))
    assert only.endswith("-new: core labs: 0; the rule is 2 to 4 labs marked `path: core`")


def test_too_long_a_core_is_refused(heavy: Course) -> None:
    for lab in heavy.phases[-1].labs:
        lab.readme.write_text(lab.readme.read_text().replace("minutes: 20", "minutes: 150"))
    core = [text for text in found(load_course(heavy.root)) if ": core: " in text]
    assert len(core) == 1
    assert core[0].endswith("hours; the rule is at most 5 hours")


def test_an_exempt_phase_may_be_heavy(heavy: Course) -> None:
    first, *_, held = heavy.phases
    for phase in (first, held):
        phase.guide.write_text("word " * 9000)
    assert breaches(heavy, weigh(heavy, first)) == []
    assert len(breaches(heavy, weigh(heavy, held))) == 1


def test_an_allowance_is_for_one_phase_and_one_limit(
    heavy: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase = heavy.phases[-1]
    phase.guide.write_text("word " * 3501)
    monkeypatch.setitem(ALLOWANCES, (phase.number, "guide"), (3501, "a word more"))
    assert found(heavy) == []
    phase.guide.write_text("word " * 3502)
    assert len(found(heavy)) == 1, "it says how much"
    phase.guide.write_text("word")
    (phase.folder / "01-deep-dive.md").write_text("word " * 3501)
    assert len(found(heavy)) == 1, "it says of what"


def test_every_allowance_is_needed_and_used_up(real: tuple[Course, list[PhaseWeight]]) -> None:
    course, weights = real
    for (number, what), (most, why) in ALLOWANCES.items():
        (weight,) = [each for each in weights if each.phase.number == number]
        assert why
        values = [measure.value for measure in weight.measures(course) if measure.what == what]
        assert max(values) == most > LIMITS[what].most, (number, what, values)


def test_every_exempt_phase_is_there(real: tuple[Course, list[PhaseWeight]]) -> None:
    assert set(EXEMPT) <= {phase.number for phase in real[0].phases}


def test_every_phase_that_must_keeps_the_limits(real: tuple[Course, list[PhaseWeight]]) -> None:
    course, weights = real
    assert weights
    too_heavy = [text for weight in weights for text in breaches(course, weight)]
    assert not too_heavy, "\n".join(too_heavy)


def test_the_front_page_says_the_hours(real: tuple[Course, list[PhaseWeight]]) -> None:
    hours = sum(weight.hours for weight in real[1])
    said = re.search(r"about (\d+) hours, of which", (ROOT / "README.md").read_text("utf-8"))
    assert said is not None
    assert abs(int(said[1]) - hours) <= 1, f"course weigh counts {hours:.1f} hours"


# --- what is printed ---


def test_the_tables_mark_what_is_too_heavy(heavy: Course, capsys: Capsys) -> None:
    heavy.phases[-1].guide.write_text("word " * 3501)
    ran = Ran(capsys, "author", "weigh")
    assert ran.status == 0
    assert "guide 3,501! 3,500 words" in ran.line
    assert "no lab is marked path: core" in ran.line
    assert "\x1b" not in ran.out
    weights = [weigh(heavy, phase) for phase in heavy.phases]
    words, hours = sum(w.words for w in weights), sum(w.hours for w in weights)
    assert f" all {words:,} {hours:.1f} 4 80 " in ran.line


def test_the_tables_fit_into_80_columns(
    real: tuple[Course, list[PhaseWeight]], capsys: Capsys
) -> None:
    show_weights(make_console(), real[1])
    lines = capsys.readouterr().out.splitlines()
    assert f"Phase {real[1][-1].phase.number:02}" in "\n".join(lines)
    assert max(map(len, lines)) <= 80
