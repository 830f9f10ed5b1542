"""Tracks: the data and its rules, what `course` makes of them, and the pages that show them."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import subprocess
import sys
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

from course.cite.share import WORDS_A_MINUTE
from course.docs.links import check_links
from course.docs.pages import read_page
from course.learner.labs import Course, CourseError, load_course
from course.learner.tracks import (
    WHOLE,
    Step,
    Track,
    as_json,
    link_to,
    page_of,
    read_bridges,
    read_tracks,
)

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
    assert re.search(r"Read first +tracks/short\.md, steps? \d", first), "the page with the bridges"
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
    assert track.steps[0].minutes == pytest.approx(words / WORDS_A_MINUTE)


def test_the_pages_steps_are_written_from_the_data(tracked: Course) -> None:
    [track] = read_tracks(tracked)
    text = page_of(track)
    track.page.write_text(text)
    line = "**1. [What it costs](../phase-00-beginnings/00-guide.md#what-it-costs)** (phase 00, guide, 1 min)"
    assert line in text
    assert text.index("Lab 01-01") < text.index("Lab 00-01")
    assert page_of(track) == text, "writing it again changes nothing"
    assert not check_links([read_page(track.page, tracked.root)], tracked.root)
    assert [s["page"] for s in json.loads(as_json(tracked))["short"]["steps"]][1:] == [
        "phase-01-parts/labs/lab-01-drawing/README.md",
        "phase-00-beginnings/labs/lab-01-totals/README.md",
    ]


def test_a_bridge_stays_with_its_step(tracked: Course) -> None:
    """What the author wrote before a step goes with it when the steps change their order."""
    [track] = read_tracks(tracked)
    text = page_of(track)
    track.page.write_text(text.replace("**2. [Lab 01-01", "Ada draws.\n\n**2. [Lab 01-01"))
    bridges = read_bridges(track)
    assert [bridges[link_to(step, track.page.parent)] for step in track.steps] == [
        "",
        "Ada draws.",
        "",
    ]
    data = tracked.root / "tracks" / "tracks.toml"
    data.write_text(TRACK.replace('"01-01", "00-01"', '"00-01", "01-01"'))
    [track] = read_tracks(tracked)
    assert "Ada draws.\n\n**3. [Lab 01-01" in page_of(track)
    assert json.loads(as_json(tracked))["short"]["steps"][2]["bridge"] == "Ada draws."


# -- this course's own ----------------------------------------------------------------------------

COURSE = load_course(ROOT)
TRACKS = read_tracks(COURSE)


@pytest.mark.parametrize("track", TRACKS, ids=lambda track: track.name)
def test_every_track_is_under_fifteen_hours_and_its_page_shows_its_steps(track) -> None:  # type: ignore[no-untyped-def]
    assert track.hours <= 15, f"{track.name} takes {track.hours:.1f} hours"
    text = track.page.read_text(encoding="utf-8")
    assert text == page_of(track), "python -m course.learner.tracks writes it"
    assert "## Your task" in text


def test_the_front_page_shows_the_tracks_with_their_hours() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| \[(.+?)\]\((tracks/[\w-]+\.md)\) \|.*\| (\d+) h \|$", readme)
    wanted = [(t.title, t.page.relative_to(ROOT).as_posix(), f"{t.hours:.0f}") for t in TRACKS]
    assert rows == wanted
    assert len(TRACKS) == 3


# -- a section is read by a reader who comes from another page --------------------------------------

PEOPLE = (
    "Ada", "Anna", "Ben", "Bo", "Cleo", "Cy", "Dov", "Eve", "Fay", "Gil",
    "Hal", "Ida", "Ilse", "Jon", "Kim", "Lou", "Nia", "Noor",
)  # fmt: skip
STEPS = [
    pytest.param(track, number, id=f"{track.name}-{number}")
    for track in TRACKS
    for number in range(1, len(track.steps) + 1)
]


def _bridge(track: Track, step: Step) -> str:
    return read_bridges(track).get(link_to(step, track.page.parent), "")


def _setup(bridge: str) -> str:
    """The statements among what a bridge has in backticks: imports, and names with their values."""
    found = []
    for code in re.findall(r"`([^`]+)`", bridge):
        with contextlib.suppress(SyntaxError):
            tree = ast.parse(code)
            if all(
                isinstance(node, ast.Import | ast.ImportFrom | ast.Assign) for node in tree.body
            ):
                found.append(code)
    return "\n".join(found)


def _examples(step: Step) -> str:
    text = step.path.read_text(encoding="utf-8").split("\n")
    return "\n".join(text[slice(*step.lines)]) if step.section else ""


@pytest.mark.parametrize("track", TRACKS, ids=lambda track: track.name)
def test_a_sections_examples_run_behind_its_bridge(track: Track) -> None:
    """With what the bridge defines or imports, and without the rest of the section's page."""
    folders: dict[Path, list[dict[str, str]]] = {}
    for number, step in enumerate(track.steps, 1):
        if step.lab is None and ">>>" in (text := _examples(step)):
            setup = "\n".join(f">>> {line}" for line in _setup(_bridge(track, step)).split("\n"))
            text = f"```python\n{setup}\n```\n\n{text}" if setup.strip(" >") else text
            given = {"path": str(step.path), "name": f"step {number}: {step.title}", "text": text}
            folders.setdefault(step.path.parent, []).append(given)
    assert folders
    failed = []
    for folder, sections in folders.items():
        ran = subprocess.run(
            [sys.executable, "-c", RUN_EXAMPLES], input=json.dumps(sections), cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if ran.returncode:
            failed.append(ran.stdout + ran.stderr)
    assert not failed, "\n".join(failed)


RUN_EXAMPLES = """
import json, sys
from pathlib import Path
from course.docs.examples import check_examples
from course.docs.pages import Page
wrong = []
for section in json.load(sys.stdin):
    page = Page(Path(section["path"]), section["name"], section["text"])
    wrong += check_examples(page)[0]
print(*wrong, sep="\\n")
sys.exit(bool(wrong))
"""


@pytest.mark.parametrize(("track", "number"), STEPS)
def test_a_step_stands_alone_behind_its_bridge(track: Track, number: int) -> None:
    """Before each step the track's page says who the people in it are, and of a lab what it builds on."""
    step = track.steps[number - 1]
    bridge = _bridge(track, step)
    words = len(bridge.split())
    assert 8 <= words <= 160, f"{words} words before {step.title!r}"
    if step.lab is not None:
        on_track = {lab.id for lab in track.labs}
        left_out = [name for name in step.lab.prerequisites if name not in on_track]
        unsaid = [name for name in left_out if name not in bridge]
        assert not unsaid, f"lab {step.lab.id} builds on {unsaid}, which the track leaves out"
        return
    people = {name for name in PEOPLE if re.search(rf"\b{name}\b", _examples(step))}
    met = " ".join(
        _bridge(track, other)
        for other in track.steps[:number]
        if other.path.parent == step.path.parent
    )
    strangers = {name for name in people if not re.search(rf"\b{name}\b", met)}
    assert not strangers, f"{step.title!r}: who are {sorted(strangers)}?"


def test_nothing_lies_in_the_folder_that_no_track_names() -> None:
    there = {path for path in Path(ROOT, "tracks").iterdir() if path.suffix == ".md"}
    named = {step.path for track in TRACKS for step in track.steps}
    assert there <= {track.page for track in TRACKS} | named
