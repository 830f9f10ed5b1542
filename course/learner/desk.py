"""What the commands of `course` share: the course, the progress, a place to print, the next lab."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from rich.markdown import Markdown
from rich.padding import Padding
from rich.text import Text

from course.learner.causes import PREDICTIONS, read_causes
from course.learner.hints import Hint, read_hints
from course.learner.labs import TAGS, Course, CourseError, Lab, Phase, load_course
from course.learner.mistakes import read_mistakes
from course.learner.progress import NOTHING, LabProgress, Progress
from course.learner.report import linked, make_console
from course.learner.reset import keep_untouched
from course.learner.stubs import functions, unwritten
from course.learner.tracks import WHOLE, Track, chosen_track, read_tracks


class Desk:
    """What every command begins with: the course, the progress, a place to print."""

    def __init__(self) -> None:
        self.course: Course = load_course()
        self.console = make_console()
        self.warn = make_console(stderr=True)
        self.progress = Progress(self.course.root, lambda text: self.note(text))
        self.tracks: list[Track] = []
        try:
            self.tracks = read_tracks(self.course)
        except CourseError as error:  # a broken track keeps nobody from the course
            self.note(str(error))
        self.track = chosen_track(self.course, self.tracks)
        for problem in self.course.problems:
            self.note(problem)

    def note(self, text: str) -> None:
        self.warn.print(Text(f"course: {text}"), soft_wrap=True)

    def say(self, text: str = "", style: str = "") -> None:
        self.console.print(Text(text, style=style), soft_wrap=True)

    @property
    def labs(self) -> list[Lab]:
        """The labs of the track that the reader is on, in its order; without one, all of them."""
        return self.course.labs if self.track is None else self.track.labs

    def next_lab(self) -> Lab | None:
        return next((lab for lab in self.labs if not self.progress[lab].done), None)

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
    """How far a lab is, in a few words; "" where nothing was done."""
    entry = desk.progress[lab]
    if desk.progress.fails_now(lab):
        return f"done once, fails now ({entry.tests})"
    if entry.done:
        return "done, changed since" if desk.progress.changed_since(lab) else "done"
    return entry.tests if entry.attempts else ""


def show_where(desk: Desk) -> None:
    """How much is done: a line per phase, or for a track, and a character per lab."""
    labs = desk.labs
    done = sum(desk.progress[lab].done for lab in labs)
    failing = [lab for lab in labs if desk.progress.fails_now(lab)]
    also = f", {len(failing)} of them fail{'s' * (len(failing) == 1)} now" if failing else ""
    desk.say(f"{done} of {len(labs)} labs done{also}.", "bold")

    def marks(labs: Iterable[Lab]) -> str:
        return "".join(
            "!" if lab in failing else "#" if desk.progress[lab].done else "." for lab in labs
        )

    if desk.track is not None:
        desk.say(f"  Track  {desk.track.title:30} {marks(labs)}")
        desk.say(
            f"  Its page: {desk.course.show(desk.track.page)}. Off it again: course track {WHOLE}"
        )
    for phase in desk.course.phases if desk.track is None else ():
        desk.say(f"  Phase {phase.number:02}  {phase.title:24} {marks(phase.labs) or 'no labs'}")
    for lab in failing:
        tests = desk.progress[lab].tests
        desk.say(f"Lab {lab.id} passed once and fails now ({tests}): course grade {lab.id}", "red")


def show_next(desk: Desk, lab: Lab) -> None:
    phase, entry = desk.phase_of(lab), desk.progress[lab]
    show = desk.course.show
    desk.say(f"Lab {lab.id}: {lab.title}", "bold")
    desk.say(f"{lab.tag} ({TAGS[lab.tag]}), about {lab.minutes} minutes")
    missing = [name for name in lab.prerequisites if not desk.progress.labs.get(name, NOTHING).done]
    if desk.track is not None and lab in desk.track.labs:
        there = {other.id for other in desk.track.labs}
        without = [name for name in missing if name not in there]
        missing = [name for name in missing if name in there]
        if without:
            desk.say(f"It builds on {', '.join(without)}, which this track does without.")
    if missing:
        desk.say(f"It builds on {', '.join(missing)}, not done yet.")
    rows: list[tuple[str, str | Text]] = []
    if desk.track is not None and lab in desk.track.labs:
        rows += _reads(desk, desk.track, lab)
    elif phase.guide.is_file() and not any(desk.progress[o].attempts for o in phase.labs):
        rows.append(("Read first", linked(show(phase.guide), phase.guide)))
    rows += [("Read", linked(show(lab.readme), lab.readme))]
    rows += [("Write", linked(show(lab.starter), lab.starter))]
    rows.append(("Then run", f"course grade {lab.id}, or course watch: it grades at every save"))
    if entry.attempts:
        rows.append(("So far", f"{entry.tests} passed"))
    hints = [str(hint.number) for hint in read_hints(lab)]
    if hints:
        seen = len([name for name in hints if name in entry.hints])
        rows.append(("Stuck?", f"course hint {lab.id} ({seen} of {len(hints)} hints seen)"))
    for name, text in rows:
        desk.console.print(Text.assemble(f"  {name:11} ", text), soft_wrap=True)


def _reads(desk: Desk, track: Track, lab: Lab) -> list[tuple[str, str | Text]]:
    """Rows for the track's own page, for each page that it wants read before `lab`, and for its sections."""
    steps = track.reads_before(lab)
    last = 1 + next(at for at, step in enumerate(track.steps) if step.lab == lab)
    which = f"steps {last - len(steps)} to {last}" if steps else f"step {last}"
    own = f"{desk.course.show(track.page)}, {which}: what each needs"
    rows: list[tuple[str, str | Text]] = [("Read first", linked(own, track.page))]
    page: Path | None = None
    for step in steps:
        if step.path != page:
            rows.append(("", linked(desk.course.show(step.path), step.path)))
            page = step.path
        if step.section is not None:
            rows.append(("", f"  {step.section}"))
    return rows


def show_tracks(desk: Desk) -> None:
    """The tracks, what each is for, how long it takes, and which one the reader is on."""
    for track in desk.tracks:
        done = sum(desk.progress[lab].done for lab in track.labs)
        here = ", you are on it" if track == desk.track else ""
        desk.say(f"{track.name}: {track.title}{here}", "bold")
        desk.say(f"  For {track.reader}")
        desk.say(f"  Afterwards you can {track.gain}")
        desk.say(f"  {track.hours:.0f} hours, {done} of {len(track.labs)} labs done")
    labs = desk.course.labs
    done = sum(desk.progress[lab].done for lab in labs)
    here = ", you are on it" if desk.track is None else ""
    desk.say(f"{WHOLE}: The whole course{here}", "bold")
    desk.say(f"  Every phase in order, {done} of {len(labs)} labs done")
    desk.say()
    desk.say(
        "Set one: course track NAME. Nothing is locked: every lab can be graded from every track."
    )


def finished(desk: Desk) -> None:
    labs = desk.labs
    if not labs:
        desk.say("There are no labs here yet.")
        return
    of_track = f" of the track {desk.track.title}" if desk.track is not None else ""
    desk.say(f"All {len(labs)} labs{of_track} are done.", "bold green")
    if desk.track is not None:
        desk.say(f"What is left is its task: {desk.course.show(desk.track.page)}")
    changed = [lab.id for lab in labs if desk.progress.changed_since(lab)]
    if changed:
        desk.say(f"Changed since they passed: {', '.join(changed)}. Check: course grade --all")
    desk.say('Run the engine on your parts: mini-vllm generate --mine "The scheduler"')


def show_hint(desk: Desk, lab: Lab, again: bool = False) -> None:
    """The next hint of `lab`, which counts as seen then; with `again` those seen before.

    First comes that of the known mistake which the last grade named. Then come those of HINTS.md in their
    order, but those that name the function which the first failure is about before the others.
    """
    hints = read_hints(lab)
    if not hints:
        raise CourseError(f"{desk.course.show(lab.folder)} has no hints")
    entry = desk.progress[lab]
    there = [one for one in hints if str(one.number) in entry.hints]
    if again:
        if not there:
            raise CourseError(f"no hint of {lab.id} was shown yet: course hint {lab.id}")
        for one in there:
            _print_hint(desk, lab, one, len(hints))
        return
    for mistake in read_mistakes(lab.folder):
        if mistake.key in entry.likely and mistake.key not in entry.hints:
            _saw_hint(desk, lab, mistake.key)
            desk.say(f"Lab {lab.id}, on “{mistake.name.rstrip('.')}”", "bold")
            desk.console.print(Padding(Text(mistake.hint), (0, 0, 1, 2)))
            desk.say(f"If that is not it, the lab has {len(hints)} hints: course hint {lab.id}")
            return
    new = [one for one in hints if one not in there]
    function, why = find_first_cause(lab, entry, new)
    if function not in ("", PREDICTIONS):
        new.sort(key=lambda one: one.names(PREDICTIONS))  # these hold, so their hint comes last
    fits = [one for one in new if function and one.names(function)]
    if not fits:
        no_more = f"No hint left is about {function}, which fails first; this is the next one."
        why = no_more if function and entry.failing else ""
    one = [*fits, *new, hints[-1]][0]
    _saw_hint(desk, lab, str(one.number))
    _print_hint(desk, lab, one, len(hints), why)
    if len(there) == len(hints):
        desk.say("You have seen all hints; this is the last one again.")
    if len(there) >= len(hints) - 1:
        desk.say(f"To look at the solution before you have your own: course diff {lab.id} --peek")


def find_first_cause(lab: Lab, entry: LabProgress, hints: list[Hint]) -> tuple[str, str]:
    """The function to look at first, and why: what the first failure of the last grade is about, or what is
    the first to write where none failed; "" where nothing says. A wrong prediction that none of `hints` is
    for does not keep back a hint for the code."""
    failing = list(zip(entry.failing, entry.causes, strict=False))
    if not any(one.names(PREDICTIONS) for one in hints):
        failing = [(test, cause) for test, cause in failing if cause != PREDICTIONS] or failing
    if failing:
        test, cause = failing[0]
        pins = read_causes(lab).headline(test.partition("[")[0].rpartition("::")[2])
        return cause, f"For {cause}, which fails: {pins}"
    source = lab.starter.read_text(encoding="utf-8", errors="replace")
    if not (open_ := unwritten(source)):
        return "", ""
    first = next(name for name in functions(ast.parse(source)) if name in open_)
    return first, f"For {first}, which is not written yet."


def _saw_hint(desk: Desk, lab: Lab, name: str) -> None:
    with desk.progress.update(lab) as entry:
        entry.hints += [name] if name not in entry.hints else []


def _print_hint(desk: Desk, lab: Lab, hint: Hint, number: int, why: str = "") -> None:
    desk.say(f"Lab {lab.id}, hint {hint.number} of {number}: {hint.title}", "bold")
    if why:
        desk.say(f"  {why}", "dim")
    desk.console.print(Padding(Markdown(hint.body), (0, 0, 1, 2)))
