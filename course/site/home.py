"""The site's home: the four ideas as bars, the tracks as cards, a run to play, and one button to begin.

README.md stays what it is on GitHub. Its figures are taken from there, from the captured output of
`python -m benchmarks.ideas`; the cards are the tracks of `tracks/tracks.toml`.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from pathlib import Path

from course.drift.compare import recorded_releases
from course.learner.labs import Course
from course.learner.tracks import Track, read_tracks

COMMAND = "<!-- output: python -m benchmarks.ideas "
NOON = "phase-03-scheduler/scenarios/noon.json"
_PICTURE = "phase-03-scheduler/pictures/viewer.png"
_ROW = re.compile(r"(?m)^(\S.*?)\s{2,}([\d,]+)\s+([\d,]+)\s+([\d,.]+)$")

_HOME = """\
---
hide:
  - toc
---

# mini-vllm: how vLLM works, by building it small

Thirty-two people ask a language model at the same moment, and one engine has to answer them all.
Each row below adds one idea to the same engine with the same memory:

{bars}

These ideas are [vLLM](https://github.com/vllm-project/vllm)'s. The course builds them in
`mini_vllm`, an engine in numpy that runs on a laptop, and walks through the real code beside it,
frozen at release {pin} and [checked against {newest}](docs/RELEASES.md). The two
[take the same decisions](docs/PROOF.md), and a command shows it.

[Begin with the first guide]({first}){{ .md-button .md-button--primary }}

## Ways through

{cards}

## Watch an engine decide

Four requests at noon, more than the memory holds. Press the button and watch who is computed in
each step, who waits, and who loses their blocks.

{noon}
"""


@dataclass(frozen=True)
class Idea:
    """One row of `python -m benchmarks.ideas`: passes through the model, and the mean wait in passes."""

    name: str
    passes: int
    wait: float


def read_ideas(readme: str) -> list[Idea]:
    """The rows that README.md shows; none where it has no such output."""
    _, found, rest = readme.partition(COMMAND)
    shown = rest.partition("<!-- end output -->")[0] if found else ""
    return [
        Idea(name, int(passes.replace(",", "")), float(wait.replace(",", "")))
        for name, passes, _, wait in _ROW.findall(shown)
    ]


def home_page(course: Course) -> str | None:
    """The home page as Markdown; None where README.md has no table of the ideas to draw it from."""
    readme = course.root / "README.md"
    ideas = read_ideas(readme.read_text(encoding="utf-8")) if readme.is_file() else []
    if not ideas or not course.phases:
        return None
    first = course.phases[0].guide.relative_to(course.root).as_posix()
    pin, *_, newest = recorded_releases()
    return _HOME.format(
        pin=pin, newest=newest,
        bars=_bars(ideas), first=first, cards=_cards(course, read_tracks(course)), noon=_noon(course.root)
    )  # fmt: skip


def _bars(ideas: list[Idea]) -> str:
    """A definition list: the idea, then its two bars, each with its figure in words."""
    most = max(idea.passes for idea in ideas)

    def bar(kind: str, value: float, words: str) -> str:
        return (
            f'<dd><span class="bar {kind}" style="--share: {value / most:.4f}"></span> {words}</dd>'
        )

    rows = [
        f"<dt>{html.escape(idea.name)}</dt>"
        + bar("passes", idea.passes, f"{idea.passes:,} passes through the model")
        + bar("wait", idea.wait, f"{idea.wait:,.0f} until the first word, on average")
        for idea in ideas
    ]
    return f'<dl class="ideas">{"".join(rows)}</dl>'


def _cards(course: Course, tracks: list[Track]) -> str:
    minutes = sum(lab.minutes for lab in course.labs)
    cards = [
        f"-   **[{track.title}]({track.page.relative_to(course.root).as_posix()})**\n\n"
        f"    For {track.reader}\n\n    {track.hours:.0f} hours, {len(track.labs)} labs\n"
        for track in tracks
    ]
    whole = (
        f"-   **[The whole course]({course.show(course.phases[0].guide)})**\n\n"
        "    For those who want all of it, in order.\n\n"
        f"    {minutes / 60:.0f} hours in {len(course.labs)} labs, and the pages between them\n"
    )
    return '<div class="cards" markdown>\n\n' + "\n".join([*cards, whole]) + "\n</div>"


def _noon(root: Path) -> str:
    """A button with a picture of the run; pressed, the run itself plays in its place (`site.js`)."""
    if not (root / NOON).is_file():
        return ""
    source = f"{NOON.removesuffix('.json')}.html#step=1&play=1"
    return (
        '<figure class="viewer on-click">'
        f'<button type="button" class="play"><img src="{_PICTURE}" alt="" /><span>Play noon</span></button>'
        f'<iframe data-src="{html.escape(source)}" title="Noon, step by step" sandbox="allow-scripts" hidden '
        'style="height: 900px"></iframe></figure>'
    )
