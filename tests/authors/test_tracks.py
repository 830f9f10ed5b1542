"""Tracks: the data and its rules, what `course` makes of them, and the pages that show them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from course_helpers import (
    ROOT,
    TOTALS_MISTAKES,
    TOTALS_SOLUTION,
    TOTALS_STARTER,
    TOTALS_TEST,
    Ran,
    add_lab,
    solve,
)

pytest.importorskip("typer")
pytest.importorskip("rich")

from course.docs.links import check_links
from course.docs.pages import read_page
from course.learner.labs import Course, CourseError, load_course
from course.learner.tracks import WHOLE, as_json, page_of, read_tracks

Capsys = pytest.CaptureFixture[str]

GUIDE = """\
# Beginnings

## What it costs

one two three

```python
# Not a heading
```

### More of it

four five

## Another thing

six
"""
TRACK = """\
[[track]]
name = "short"
title = "A short way"
reader = "people in a hurry."
gain = "add up."
steps = ["phase-00-beginnings/00-guide.md#What it costs", "01-01", "00-01"]
"""
PAGE = "# A short way\n\n<!-- steps of the track -->\n<!-- end steps -->\n\n## The task\n\nAdd.\n"


@pytest.fixture
def tracked(course: Course) -> Course:
    """The small repository with a guide, a third lab, and a track that takes two in another order."""
    add_lab(
        course.root, "phase-01-parts/lab-02-more", TOTALS_STARTER, TOTALS_SOLUTION, TOTALS_TEST,
        TOTALS_MISTAKES, title="More",
    )  # fmt: skip
    (course.root / "phase-00-beginnings" / "00-guide.md").write_text(GUIDE)
    folder = course.root / "tracks"
    folder.mkdir()
    (folder / "tracks.toml").write_text(TRACK)
    (folder / "short.md").write_text(PAGE)
    return load_course(course.root)


def test_a_track_is_set_followed_and_left(tracked: Course, capsys: Capsys) -> None:
    assert "0 of 2 labs done" in Ran(capsys, "track").out
    assert "You are on the track A short way now" in Ran(capsys, "track", "short").out
    first = Ran(capsys).out
    assert "0 of 2 labs done" in first
    assert "Lab 01-01: Drawing" in first
    assert "Read first" in first
    assert "What it costs" in first
    listed = Ran(capsys, "list").out
    assert listed.index("01-01") < listed.index("00-01")
    assert "01-02" not in listed
    assert "01-02" in Ran(capsys, "list", "--all").out
    solve(tracked.labs[1])
    assert Ran(capsys, "grade").status == 0, "without a name, the track's next lab is graded"
    assert "Lab 00-01: Totals" in Ran(capsys, "next").out
    assert Ran(capsys, "grade", "01-02").status == 1, "nothing is locked"
    solve(tracked.labs[0])
    assert Ran(capsys, "grade").status == 0
    done = Ran(capsys, "next").out
    assert "All 2 labs of the track A short way are done" in done
    assert "tracks/short.md" in done
    assert "the whole course now" in Ran(capsys, "track", WHOLE).out
    assert "2 of 3 labs done" in Ran(capsys).out


def test_what_a_track_leaves_out_is_not_asked_for(tracked: Course, capsys: Capsys) -> None:
    """A lab's prerequisites outside of the track are named as such; those on it are still to be done."""
    readme = tracked.labs[1].readme
    text = readme.read_text()
    assert text.count("prerequisites: [") == 1
    lines = [
        'prerequisites: ["00-01", "01-02"]' if line.startswith("prerequisites:") else line
        for line in text.split("\n")
    ]
    readme.write_text("\n".join(lines))
    Ran(capsys, "track", "short")
    out = Ran(capsys, "next").out
    assert "It builds on 01-02, which this track does without." in out
    assert "It builds on 00-01, not done yet." in out
    Ran(capsys, "track", WHOLE)
    solve(tracked.labs[0])
    assert Ran(capsys, "grade", "00-01").status == 0
    assert "It builds on 01-02, not done yet." in Ran(capsys, "next").out


def test_an_unknown_track_is_refused_by_name(tracked: Course, capsys: Capsys) -> None:
    ran = Ran(capsys, "track", "long")
    assert ran.status == 2
    assert "no track is called 'long'; there are short, whole" in ran.err


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("#What it costs", "#What it cost", "00-guide.md has no heading 'What it cost'"),
        ("#What it costs", "#Not a heading", "no heading 'Not a heading'"),
        ('"01-01"', '"07-01"', "there is no lab 07-01"),
        ("00-guide.md", "09-guide.md", "there is no page phase-00-beginnings/09-guide.md"),
        ('name = "short"', 'name = "whole"', "a name is small letters, digits and hyphens, not whole"),
        ('name = "short"', 'name = "long"', "there is no page tracks/long.md"),
        ('gain = "add up."\n', "", "it must have"),
        ("[[track]]", "[[track]", "tracks/tracks.toml: "),
    ],
)  # fmt: skip
def test_a_broken_track_is_named_and_the_course_goes_on(
    tracked: Course, capsys: Capsys, old: str, new: str, wanted: str
) -> None:
    assert old in TRACK
    (tracked.root / "tracks" / "tracks.toml").write_text(TRACK.replace(old, new))
    with pytest.raises(CourseError, match=re.escape(wanted)):
        read_tracks(tracked)
    ran = Ran(capsys)
    assert ran.status == 0
    assert wanted in " ".join(ran.err.split())
    assert "Lab 00-01: Totals" in ran.out


def test_a_section_ends_at_the_next_heading_of_its_level(tracked: Course) -> None:
    [track] = read_tracks(tracked)
    assert track.steps[0].lines == (2, 14)
    words = 14  # What it costs one two three Not a heading More of it four five
    assert track.steps[0].minutes == pytest.approx(words / 200)


def test_the_pages_steps_are_written_from_the_data(tracked: Course) -> None:
    [track] = read_tracks(tracked)
    text = page_of(tracked, track)
    track.page.write_text(text)
    assert "- Beginnings: [What it costs](../phase-00-beginnings/00-guide.md#what-it-costs)" in text
    assert text.index("Lab 01-01") < text.index("Lab 00-01")
    assert page_of(tracked, track) == text, "writing it again changes nothing"
    assert not check_links([read_page(track.page, tracked.root)], tracked.root)
    assert [s["page"] for s in json.loads(as_json(tracked))["short"]["steps"]][1:] == [
        "phase-01-parts/labs/lab-01-drawing/README.md",
        "phase-00-beginnings/labs/lab-01-totals/README.md",
    ]


# -- this course's own ----------------------------------------------------------------------------

COURSE = load_course(ROOT)
TRACKS = read_tracks(COURSE)


@pytest.mark.parametrize("track", TRACKS, ids=lambda track: track.name)
def test_every_track_is_under_fifteen_hours_and_its_page_shows_its_steps(track) -> None:  # type: ignore[no-untyped-def]
    assert track.hours <= 15, f"{track.name} takes {track.hours:.1f} hours"
    text = track.page.read_text(encoding="utf-8")
    assert text == page_of(COURSE, track), "python -m course.learner.tracks writes it"
    assert "## Your task" in text


def test_the_front_page_shows_the_tracks_with_their_hours() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| \[(.+?)\]\((tracks/[\w-]+\.md)\) \|.*\| (\d+) h \|$", readme)
    wanted = [(t.title, t.page.relative_to(ROOT).as_posix(), f"{t.hours:.0f}") for t in TRACKS]
    assert rows == wanted
    assert len(TRACKS) == 3


def test_nothing_lies_in_the_folder_that_no_track_names() -> None:
    there = {path for path in Path(ROOT, "tracks").iterdir() if path.suffix == ".md"}
    named = {step.path for track in TRACKS for step in track.steps}
    assert there <= {track.page for track in TRACKS} | named
