"""What the commands of `course` share: the course, the progress, a place to print, the next lab."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from course.learner.hints import read_hints
from course.learner.labs import TAGS, Course, CourseError, Lab, Phase, load_course
from course.learner.progress import NOTHING, Progress
from course.learner.report import make_console
from course.learner.reset import keep_untouched


class Desk:
    """What every command begins with: the course, the progress, a place to print."""

    def __init__(self) -> None:
        self.course: Course = load_course()
        self.console = make_console()
        self.warn = make_console(stderr=True)
        self.progress = Progress(self.course.root, lambda text: self.note(text))
        for problem in self.course.problems:
            self.note(problem)

    def note(self, text: str) -> None:
        self.warn.print(Text(f"course: {text}"), soft_wrap=True)

    def say(self, text: str = "", style: str = "") -> None:
        self.console.print(Text(text, style=style), soft_wrap=True)

    def next_lab(self) -> Lab | None:
        return next((lab for lab in self.course.labs if not self.progress[lab].done), None)

    def lab(self, name: str | None) -> Lab:
        """The lab that `name` means; without a name the one around the current folder, or the next."""
        if name is not None:
            found = self.course.resolve(name)
        else:
            here = self.course.lab_at(Path.cwd()) or self.next_lab()
            if here is None and not self.course.labs:
                raise CourseError("there are no labs here yet")
            found = here or self.course.labs[-1]
        keep_untouched(self.course, found)
        return found

    def phase_of(self, lab: Lab) -> Phase:
        return next(phase for phase in self.course.phases if lab in phase.labs)


def state(desk: Desk, lab: Lab) -> str:
    entry = desk.progress[lab]
    if entry.done:
        return "done, changed since" if desk.progress.changed_since(lab) else "done"
    if entry.attempts:
        return f"{entry.passed} of {entry.passed + entry.failed} tests"
    return ""


def show_next(desk: Desk, lab: Lab) -> None:
    phase, entry = desk.phase_of(lab), desk.progress[lab]
    show = desk.course.show
    desk.say(f"Lab {lab.id}: {lab.title}", "bold")
    desk.say(f"{lab.tag} ({TAGS[lab.tag]}), about {lab.minutes} minutes")
    missing = [name for name in lab.prerequisites if not desk.progress.labs.get(name, NOTHING).done]
    if missing:
        desk.say(f"It builds on {', '.join(missing)}, not done yet.")
    rows = []
    begun = any(desk.progress[other].attempts for other in phase.labs)
    if not begun and phase.guide.is_file():
        rows.append(("Read first", show(phase.guide)))
    rows += [("Read", show(lab.readme)), ("Write", show(lab.starter))]
    rows.append(("Then run", f"course grade {lab.id}"))
    if entry.attempts:
        rows.append(("So far", f"{entry.passed} of {entry.passed + entry.failed} tests passed"))
    hints = len(read_hints(lab))
    if hints:
        seen = min(entry.hints, hints)
        rows.append(("Stuck?", f"course hint {lab.id} ({seen} of {hints} hints seen)"))
    for name, text in rows:
        desk.say(f"  {name:11} {text}")


def finished(desk: Desk) -> None:
    labs = desk.course.labs
    if not labs:
        desk.say("There are no labs here yet.")
        return
    desk.say(f"All {len(labs)} labs are done.", "bold green")
    changed = [lab.id for lab in labs if desk.progress.changed_since(lab)]
    if changed:
        desk.say(f"Changed since they passed: {', '.join(changed)}. Check: course grade --all")
    desk.say('Run the engine on your parts: mini-vllm generate --mine "The scheduler"')
