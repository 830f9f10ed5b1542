"""`course watch`: grades whatever starter.py is saved, and listens to a few keys.

After a save, the tests that failed the last time are run first, and the others only when those pass.
A lab that passes makes room for the next one that is not done. Without a terminal (output into a file,
no keyboard) there are no keys, and nothing is cleared; Ctrl-C ends either way.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
from collections.abc import Iterator
from pathlib import Path

from course.authors.command import extra_missing
from course.learner.desk import Desk, finished, show_hint, show_next
from course.learner.labs import CourseError, Lab, is_test_file
from course.learner.listing import show_list
from course.learner.live import bar, grade_aloud
from course.learner.reset import keep_untouched, reset, untouched
from course.learner.results import LabRun

KEYS = {
    "n": "next lab",
    "h": "hint",
    "l": "list",
    "x": "untouched starter",
    "r": "run all",
    "q": "quit",
}
_LONG_KEY = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)?")  # what an arrow or Alt sends
_TICK = 100  # milliseconds between two looks at the keyboard


class Watch:
    """One `course watch`.

    Attributes:
        lab: the lab that keys are about; a save of another lab's starter.py makes it that one.
        last: its last run, from which the next one knows what failed.
        asking: whether the next key answers "put the untouched starter.py back?".
        said: a sentence for below the next grade.
    """

    def __init__(self, desk: Desk, lab: Lab) -> None:
        self.desk = desk
        self.lab = lab
        self.last: LabRun | None = None
        self.asking = False
        self.said = ""
        self.has_keys = sys.stdin.isatty() and desk.console.is_terminal and _termios() is not None

    def run(self) -> None:
        """Until q or Ctrl-C."""
        try:
            from watchfiles import watch as changes
        except ModuleNotFoundError:
            raise extra_missing("watch", "watchfiles", "course") from None

        def wanted(change: object, path: str) -> bool:
            return Path(path).name == "starter.py" or is_test_file(path)

        saves = changes(
            *(lab.folder for lab in self.desk.course.labs), watch_filter=wanted, recursive=False,
            debounce=200, step=50, rust_timeout=_TICK, yield_on_timeout=True,
        )  # fmt: skip
        next(saves)  # it looks from now on: what is saved during the first grade is graded after it
        with _keyboard() if self.has_keys else contextlib.nullcontext():
            self.grade()
            for changed in saves:
                paths = sorted(Path(path) for _, path in changed)
                if paths:
                    self.saved(paths)
                for key in _pressed() if self.has_keys else "":
                    if key == "q":
                        return
                    self.press(key)

    # -- what happens

    def saved(self, paths: list[Path]) -> None:
        """Grade the lab of the file that was saved: the one watched, if it is among them."""
        labs = [lab for path in paths if (lab := self.desk.course.lab_at(path)) is not None]
        lab = self.lab if self.lab in labs else labs[0]
        if lab != self.lab or any(is_test_file(str(path)) for path in paths):
            self.last = None
        self.lab = lab
        self.grade()

    def grade(self) -> None:
        """Grade the lab, and go on to the next one if it passes."""
        desk = self.desk
        self.clear()
        try:
            run = grade_aloud(desk, self.lab, self.last).run
        except CourseError as error:  # the file may be gone for the moment of a save
            desk.note(str(error))
        else:
            self.last = run
            if run.passed:
                self.go_on()
        self.foot()

    def go_on(self) -> None:
        """The next lab of the track that is not done becomes the one watched: after this, if there is one."""
        desk, labs = self.desk, self.desk.labs
        here = labs.index(self.lab) if self.lab in labs else -1
        following = [
            lab for lab in labs[here + 1 :] + labs[: max(here, 0)] if not desk.progress[lab].done
        ]
        desk.say()
        if following:
            self.lab, self.last = following[0], None
            keep_untouched(desk.course, self.lab)
            desk.say("Next:")
            show_next(desk, self.lab)
        elif desk.progress[self.lab].done:
            finished(desk)
        else:
            desk.say("All other labs are done.")

    def press(self, key: str) -> None:
        """What a key does; q is `run`'s business."""
        desk = self.desk
        if self.asking:
            self.asking = False
            if key == "y":
                self.put_back()
                return
            desk.say("Nothing was changed.")
        elif key == "n":
            self.clear()
            self.go_on()
        elif key == "h":
            try:
                show_hint(desk, self.lab)
            except CourseError as error:
                desk.note(str(error))
        elif key == "l":
            self.clear()
            show_list(desk, desk.labs)
        elif key == "x":
            self.asking = True
            path = desk.course.show(self.lab.starter)
            desk.say(f"Put the untouched {path} back? Yours is kept as a backup. y: yes", "bold")
            return
        elif key == "r":
            self.last = None
            self.grade()
            return
        else:
            return
        self.foot()

    def put_back(self) -> None:
        """The untouched starter.py again; it counts as a save, so it is graded next."""
        course, lab = self.desk.course, self.lab
        try:
            backup = reset(course, lab, untouched(course, lab)[1])
        except CourseError as error:
            self.desk.note(str(error))
            self.foot()
            return
        self.last = None
        kept = f" Yours: {course.show(backup)}" if backup else ""
        self.said = f"{course.show(lab.starter)} is untouched again.{kept}"

    # -- what is shown

    def clear(self) -> None:
        if self.desk.console.is_terminal:
            self.desk.console.clear()

    def foot(self) -> None:
        """How far the course or the track is, what is watched, and the keys."""
        desk, labs = self.desk, self.desk.labs
        done = sum(desk.progress[lab].done for lab in labs)
        if self.said:
            desk.say(f"\n{self.said}")
            self.said = ""
        desk.say(f"\n{bar(done, len(labs))} labs")
        end = "" if self.has_keys else " Ctrl-C ends."
        desk.say(
            f"Waiting for {self.lab.starter.name} of lab {self.lab.id} to be saved.{end}", "dim"
        )
        if self.has_keys:
            desk.say("  ".join(f"{key} {does}" for key, does in KEYS.items()), "dim")


# -- the keyboard ---------------------------------------------------------------------------------


def _termios() -> object | None:
    try:
        import termios
    except ImportError:  # Windows
        return None
    return termios


@contextlib.contextmanager
def _keyboard() -> Iterator[None]:
    """Keys come one by one, unseen, while this lasts; Ctrl-C still interrupts."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed() -> str:
    """The letters pressed since the last call; arrows and other keys of several bytes are left out."""
    if not select.select([sys.stdin], [], [], 0)[0]:
        return ""
    keys = os.read(sys.stdin.fileno(), 64)
    if not keys:  # the terminal is gone
        return "q"
    return _LONG_KEY.sub(b"", keys).decode("ascii", "ignore").lower()
