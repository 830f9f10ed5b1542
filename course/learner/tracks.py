"""Tracks: ways through part of the course, told by `tracks/tracks.toml` and by nothing else.

A step of a track is a page, one section of a page, or a lab. Nothing is locked: a track says what comes
next and counts what is done, and every other page and lab stays where it is. Which track a reader is on
stands in `.course/track`; without that file it is the whole course.

`python -m course.learner.tracks` writes the steps of each track into its page (a test holds them equal).
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from course.learner.labs import Course, CourseError, Lab, load_course
from course.learner.progress import state_folder, write_atomically

DATA = "tracks/tracks.toml"
WHOLE = "whole"  # the name by which the whole course is chosen again
_LAB_ID = re.compile(r"\d{2}-\d{2}")
_HEADING = re.compile(r"(#{1,6})\s+(.+?)\s*")
_BEGIN, _END = "<!-- steps of the track -->", "<!-- end steps -->"
_KEYS = ("name", "title", "reader", "gain", "steps")


@dataclass(frozen=True)
class Step:
    """One thing to do: read `path`, or of it only the section headed `section`; or do `lab`.

    Attributes:
        path: absolute; a lab's is its README.
        section: the heading as it stands on the page, without its #; None: the whole page.
        lab: the lab, or None where there is only something to read.
    """

    path: Path
    section: str | None = None
    lab: Lab | None = None

    @cached_property
    def lines(self) -> tuple[int, int]:
        """The lines of the page that are to be read: from the first (counted from 0) up to the second."""
        text = self.path.read_text(encoding="utf-8").split("\n")
        if self.section is None:
            return 0, len(text)
        headings = list(headings_of(text))
        [(at, level)] = [(at, level) for at, level, title in headings if title == self.section]
        after = [other for other, depth, _ in headings if other > at and depth <= level]
        return at, after[0] if after else len(text)

    @cached_property
    def title(self) -> str:
        """The section's heading, or the page's."""
        if self.lab is not None:
            return f"Lab {self.lab.id}: {self.lab.title}"
        if self.section is not None:
            return self.section
        text = self.path.read_text(encoding="utf-8").split("\n")
        return next((title for _, _, title in headings_of(text)), self.path.name)

    @cached_property
    def minutes(self) -> float:
        """What it takes: a lab's minutes, and what is to be read at 200 words a minute."""
        from course.cite.share import WORDS_A_MINUTE, words_of
        from course.docs.pages import read_page

        if self.lab is not None:
            words = sum(
                words_of(read_page(path, path.parent)) for path in self.lab.folder.glob("*.md")
            )
            return self.lab.minutes + words / WORDS_A_MINUTE
        return words_of(read_page(self.path, self.path.parent), *self.lines) / WORDS_A_MINUTE


@dataclass(frozen=True)
class Track:
    """A way through part of the course.

    Attributes:
        name: what `course track NAME` takes; the track's page is `tracks/NAME.md`.
        reader: for whom it is, one sentence.
        gain: what one can do after it, one sentence.
    """

    name: str
    title: str
    reader: str
    gain: str
    page: Path
    steps: tuple[Step, ...]

    @property
    def labs(self) -> list[Lab]:
        return [step.lab for step in self.steps if step.lab is not None]

    @property
    def hours(self) -> float:
        """Its own page read, every step taken."""
        return (sum(step.minutes for step in self.steps) + Step(self.page).minutes) / 60

    def reads_before(self, lab: Lab) -> list[Step]:
        """What is to be read after the lab before `lab`, and before `lab` itself."""
        found: list[Step] = []
        for step in self.steps:
            if step.lab == lab:
                return found
            found = [] if step.lab is not None else [*found, step]
        return []


def headings_of(lines: list[str]) -> Iterator[tuple[int, int, str]]:
    """(line from 0, level, text) of each heading outside of fences."""
    fenced = False
    for at, line in enumerate(lines):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and (match := _HEADING.fullmatch(line)):
            yield at, len(match[1]), match[2]


def read_tracks(course: Course) -> list[Track]:
    """The tracks of the course, in the order of `tracks/tracks.toml`; none where there is no such file.

    Raises CourseError naming the value and the rule it breaks.
    """
    path = course.root / DATA
    if not path.is_file():
        return []
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("track", [])
    except tomllib.TOMLDecodeError as error:
        raise CourseError(f"{DATA}: {error}") from None
    tracks: list[Track] = []
    for table in tables:
        where = f"{DATA}: track {table.get('name')!r}"
        if sorted(table) != sorted(_KEYS):
            raise CourseError(f"{where} has {', '.join(sorted(table))}; it must have {_KEYS}")
        name = table["name"]
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name) or name == WHOLE:
            raise CourseError(f"{where}: a name is small letters, digits and hyphens, not {WHOLE}")
        if any(name == other.name for other in tracks):
            raise CourseError(f"{where} is there twice")
        page = path.with_name(f"{name}.md")
        if not page.is_file():
            raise CourseError(f"{where}: there is no page {course.show(page)}")
        steps = tuple(_read_step(course, where, text) for text in table["steps"])
        title, reader, gain = (table[key] for key in ("title", "reader", "gain"))
        tracks.append(Track(name, title, reader, gain, page, steps))
    return tracks


def _read_step(course: Course, where: str, text: str) -> Step:
    if _LAB_ID.fullmatch(text):
        for lab in course.labs:
            if lab.id == text:
                return Step(lab.readme, lab=lab)
        raise CourseError(f"{where}: there is no lab {text}")
    name, _, section = text.partition("#")
    page = course.root / name
    if not page.is_file():
        raise CourseError(f"{where}: step {text!r}: there is no page {name}")
    if not section:
        return Step(page)
    titles = [title for _, _, title in headings_of(page.read_text(encoding="utf-8").split("\n"))]
    if titles.count(section) != 1:
        found = "no heading" if section not in titles else "several headings"
        raise CourseError(f"{where}: {name} has {found} {section!r}")
    return Step(page, section)


def chosen_track(course: Course, tracks: list[Track]) -> Track | None:
    """The track that the reader is on; None: the whole course."""
    try:
        name = (course.root / ".course" / "track").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    return next((track for track in tracks if track.name == name), None)


def choose_track(course: Course, tracks: list[Track], name: str) -> Track | None:
    """Set the reader on the track `name`, or with `whole` on the whole course again.

    Raises CourseError for any other name.
    """
    found = next((track for track in tracks if track.name == name), None)
    if found is None and name != WHOLE:
        there = ", ".join([*(track.name for track in tracks), WHOLE])
        raise CourseError(f"no track is called {name!r}; there are {there}")
    path = state_folder(course.root) / "track"
    if found is None:
        path.unlink(missing_ok=True)
    else:
        write_atomically(path, f"{name}\n")
    return found


# -- a track's page --------------------------------------------------------------------------------
#
# Between two markers the page has a line for each step, and before it the step's bridge: some words for a
# reader who comes from another page, saying who and what the section speaks of. The lines are written from
# the data; the bridges are the author's, and belong to the step whose line follows.

_KINDS = {"00-guide.md": "guide", "01-deep-dive.md": "deep dive", "CHEATSHEET.md": "cheatsheet"}
_LINE = re.compile(r"(?m)^\*\*\d+\. \[.*?\]\((?P<link>[^()\s]+)\)\*\* \(.*\)$")


def link_to(step: Step, folder: Path) -> str:
    """Where a step is, as a link from a page in `folder`."""
    from course.docs.links import site_slug

    target = Path(os.path.relpath(step.path, folder)).as_posix()
    return f"{target}#{site_slug(step.section)}" if step.section else target


def line_of(track: Track, number: int) -> str:
    """The line of the step `number`, counted from 1, as it stands on the track's page."""
    step = track.steps[number - 1]
    phase = re.match(r"phase-(\d\d)-", step.path.parent.name)
    place = f"phase {phase[1]}, {_KINDS.get(step.path.name, step.path.stem)}, " if phase else ""
    title = re.sub(r"^\d+\. ", "", step.title)  # a section's number on its own page
    link = f"[{title}]({link_to(step, track.page.parent)})"
    minutes = step.minutes
    shown = 5 * round(minutes / 5) if minutes > 10 else max(1, round(minutes))
    return f"**{number}. {link}** ({place}{shown} min)"


def _split(track: Track) -> tuple[str, str, str]:
    """The track's page: before the steps, the steps, after them."""
    text = track.page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(_BEGIN)
    steps, end, after = rest.partition(_END)
    if not begin or not end:
        raise CourseError(f"{track.page.name} needs the lines {_BEGIN} and {_END}")
    return before, steps, after


def read_bridges(track: Track) -> dict[str, str]:
    """What the track's page says before each step, by the step's link: Markdown, "" where it says nothing.

    Raises CourseError where the page lacks the markers between which the steps stand.
    """
    _, region, _ = _split(track)
    bridges: dict[str, str] = {}
    at = 0
    for match in _LINE.finditer(region):
        bridges[match["link"]] = region[at : match.start()].strip()
        at = match.end()
    return bridges


def page_of(track: Track) -> str:
    """The text of the track's page, its steps as the data say, each behind its bridge."""
    bridges = read_bridges(track)
    before, _, after = _split(track)
    parts = []
    for number, step in enumerate(track.steps, 1):
        bridge = bridges.get(link_to(step, track.page.parent), "")
        parts += [bridge] * bool(bridge) + [line_of(track, number)]
    steps = "\n\n".join(parts)
    return f"{before}{_BEGIN}\n\n{steps}\n\n{_END}{after}"


def as_json(course: Course) -> str:
    """The tracks for the site's script: of each its title and steps, with their page, anchor and bridge."""
    from course.docs.links import site_slug

    found = {}
    for track in read_tracks(course):
        bridges = read_bridges(track)
        found[track.name] = {
            "title": track.title,
            "page": track.page.relative_to(course.root).as_posix(),
            "steps": [
                {
                    "title": step.title,
                    "page": step.path.relative_to(course.root).as_posix(),
                    "anchor": site_slug(step.section) if step.section else "",
                    "bridge": bridges.get(link_to(step, track.page.parent), ""),
                }
                for step in track.steps
            ],
        }
    return json.dumps(found, ensure_ascii=False)


def main() -> None:
    """Write the steps into the tracks' pages."""
    course = load_course()
    for track in read_tracks(course):
        track.page.write_text(page_of(track), encoding="utf-8")
        print(f"{course.show(track.page)}: {len(track.steps)} steps, {track.hours:.1f} hours")


if __name__ == "__main__":
    main()
