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
    """The labs that fit everything asked for.

    Every word must occur in a lab's number, title, folder's name, tag or part; case does not matter.
    """
    labs = desk.course.labs if phase is None else list(desk.course.phase(phase).labs)
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
    """Print `labs`, phase by phase. On a terminal, a lab's number and title open its README."""
    course = desk.course
    if not course.phases:
        desk.say("There are no phases here yet.")
        return
    if not labs and course.labs:
        desk.say("No lab fits. All of them: course list")
        return
    coming = desk.next_lab()
    for phase in course.phases:
        here = [lab for lab in phase.labs if lab in labs]
        if not here:
            if not phase.labs and len(labs) == len(course.labs):
                desk.say(f"Phase {phase.number:02}  {phase.title}  (no labs)\n", "bold")
            continue
        minutes = sum(lab.minutes for lab in here)
        desk.say(f"Phase {phase.number:02}  {phase.title}  ({minutes} min)", "bold")
        table = Table.grid(padding=(0, 2))
        for lab in here:
            part = f"builds {lab.part}" if lab.part else ""
            coming_now = "next" if lab == coming and not desk.progress[lab].attempts else ""
            style = "red" if desk.progress.fails_now(lab) else "green"
            table.add_row(
                linked(lab.id, lab.readme), linked(lab.title, lab.readme), lab.tag,
                f"{lab.minutes} min", part, Text(state(desk, lab) or coming_now, style=style),
            )  # fmt: skip
        desk.console.print(Padding(table, (0, 0, 1, 2)))
