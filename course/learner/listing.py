"""`course list`: the labs, all of them or those that somebody asks for."""

from __future__ import annotations

from collections.abc import Sequence

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from course.learner.desk import Desk, state
from course.learner.labs import TAGS, CourseError, Lab
from course.learner.report import linked


def choose(
    desk: Desk,
    words: Sequence[str] = (),
    phase: str | None = None,
    tag: str | None = None,
    undone: bool = False,
) -> list[Lab]:
    """The labs of the reader's track, or of a phase, that fit everything asked for.

    Every word must occur in a lab's number, title, folder's name, tag or part; case does not matter.
    """
    labs = desk.labs if phase is None else list(desk.course.phase(phase).labs)
    if tag is not None:
        wanted = [there for there in TAGS if tag.upper() in there]
        if not wanted:
            raise CourseError(f"no lab can have the tag {tag!r}; there are {', '.join(TAGS)}")
        labs = [lab for lab in labs if lab.tag in wanted]
    if undone:
        progress = desk.progress
        labs = [lab for lab in labs if not progress[lab].done or progress.fails_now(lab)]
    return [lab for lab in labs if all(word.lower() in _says(lab) for word in words)]


def _says(lab: Lab) -> str:
    return f"{lab.id} {lab.title} {lab.folder.name} {lab.tag} {lab.part or ''}".lower()


def show_list(desk: Desk, labs: Sequence[Lab]) -> None:
    """Print `labs`, phase by phase, a track's in its order. A lab's number and title open its README."""
    course = desk.course
    if not course.phases:
        desk.say("There are no phases here yet.")
        return
    if not labs and course.labs:
        desk.say("No lab fits. All of them: course list")
        return
    if desk.track is not None:
        desk.say(f"Track: {desk.track.title}  ({_minutes(labs)} min)", "bold")
        desk.console.print(Padding(_table(desk, labs), (0, 0, 1, 2)))
        desk.say("Labs that it leaves out: course list --all")
        return
    for phase in course.phases:
        here = [lab for lab in phase.labs if lab in labs]
        if here:
            desk.say(f"Phase {phase.number:02}  {phase.title}  ({_minutes(here)} min)", "bold")
            desk.console.print(Padding(_table(desk, here), (0, 0, 1, 2)))
        elif not phase.labs and len(labs) == len(course.labs):
            desk.say(f"Phase {phase.number:02}  {phase.title}  (no labs)\n", "bold")


def _minutes(labs: Sequence[Lab]) -> int:
    return sum(lab.minutes for lab in labs)


def _table(desk: Desk, labs: Sequence[Lab]) -> Table:
    coming = desk.next_lab()
    table = Table.grid(padding=(0, 2))
    for lab in labs:
        part = f"builds {lab.part}" if lab.part else ""
        coming_now = "next" if lab == coming and not desk.progress[lab].attempts else ""
        style = "red" if desk.progress.fails_now(lab) else "green"
        table.add_row(
            linked(lab.id, lab.readme), linked(lab.title, lab.readme), lab.tag,
            f"{lab.minutes} min", "core" if lab.core else "", part,
            Text(state(desk, lab) or coming_now, style=style),
        )  # fmt: skip
    return table
