"""The hints of a lab: the `<details>` of its HINTS.md, one after the other.

They stand in a file of their own because a reader of plain text would meet them all in the README."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from course.learner.labs import CourseError, Lab

_DETAILS = re.compile(
    r"<details[^>]*>\s*<summary>\s*Hint\s+(\d+)\s*[:.]?\s*(.*?)\s*</summary>(.*?)</details>",
    re.DOTALL | re.IGNORECASE,
)
_SMALL = {"the", "a", "an", "of", "its", "and"}  # words of a title that no function is named by


@dataclass(frozen=True)
class Hint:
    """One hint: its number, what its summary says, and the Markdown below."""

    number: int
    title: str
    body: str

    def names(self, function: str) -> bool:
        """Whether it is about a function: its name stands in backticks, or holds all words of the title."""
        name = function.rpartition(".")[2]
        code = " ".join(re.findall(r"`([^`]+)`", f"{self.title}\n{self.body}"))
        words = {*re.findall(r"[a-z]+", self.title.lower())} - _SMALL
        in_code = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", code)
        return in_code is not None or (bool(words) and words <= {*name.split("_")})


def read_hints(lab: Lab) -> list[Hint]:
    """The hints of `lab` in order; none where it has no HINTS.md.

    Raises CourseError where they are not numbered 1, 2, 3 … in a row.
    """
    if not lab.hints.is_file():
        return []
    text = lab.hints.read_text(encoding="utf-8")
    hints = [
        Hint(int(number), html.unescape(re.sub(r"<[^>]+>", "", title)), body.strip())
        for number, title, body in _DETAILS.findall(text)
    ]
    if [hint.number for hint in hints] != list(range(1, len(hints) + 1)):
        raise CourseError(
            f"{lab.hints}: hints are numbered from 1 without gaps, found "
            f"{[hint.number for hint in hints]}"
        )
    return hints
