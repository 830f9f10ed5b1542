"""Viewers in pages: a line of Markdown that becomes a run to step through.

    <!-- viewer: scenarios/long-prompt.json | step 4 | request B | height 620 -->

Indented by four spaces or more it is an example, and stays one.

The path is relative to the page. It leads to a scenario, which the engine runs when the site is
built, or to recorded decisions of vLLM's (`.jsonl`, `.jsonl.gz`), with `index N` or `seed N`. `step`
and `request` say where it opens. The frame takes the height of what stands in it, which the page
tells it (`site.js`); `height` fixes it, in pixels, and what is longer is scrolled.

    <!-- viewer: ../course/drift/results/shown.tsv | rule a request alone -->

becomes a link to a page with two runs side by side, without and with a rule of a later release; its command
is `course drift --rule NAME --trace OUT.html`.

A renderer that knows nothing of this shows nothing. So the page has to name the command that makes
the same page, `mini-vllm trace PATH`, with the path from the root.
"""

from __future__ import annotations

import html
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

from course.learner.labs import CourseError

HEIGHT = 900
"""Of a frame in pixels until its page has told its own: about that of a run of three requests."""
_LINE = re.compile(r"^ {0,3}<!--\s*viewer:(?P<text>.*)-->\s*$")
_NUMBERS = ("index", "seed", "step", "height")
_OPTIONS = (*_NUMBERS, "request", "rule")


class ViewerError(ValueError):
    """A viewer line, or what it leads to, that cannot be used."""


@dataclass(frozen=True)
class Viewer:
    """One viewer line, read.

    Attributes:
        path: the file that it leads to.
        uri: where the site has the page made of it, from the site's root.
    """

    path: Path
    uri: str
    index: int | None = None
    seed: int | None = None
    step: int | None = None
    request: str | None = None
    height: int | None = None
    rule: str | None = None


def is_viewer(line: str) -> bool:
    return _LINE.match(line) is not None


def read_viewer(line: str, page: Path, root: Path) -> Viewer:
    """What a viewer line on `page` says. Raises ViewerError naming what is wrong with it."""
    match = _LINE.match(line)
    if match is None:
        raise ViewerError(f"not a viewer line: {line.strip()}")
    name, *options = (part.strip() for part in match["text"].split("|"))
    path = Path(os.path.normpath(page.parent / name))
    if not name or not path.is_relative_to(root) or not path.is_file():
        raise ViewerError(f"viewer: no file {name!r} beside the page")
    given: dict[str, str] = {}
    for option in options:
        key, _, value = option.partition(" ")
        if key not in _OPTIONS or key in given or not value.strip():
            raise ViewerError(
                f"viewer: {option!r}; an option is one of {', '.join(_OPTIONS)}, once, and its value"
            )
        given[key] = value.strip()
    numbers: dict[str, int] = {}
    for key in _NUMBERS:
        if key in given:
            if not given[key].isdecimal():
                raise ViewerError(f"viewer: {key} must be a number, got {given[key]!r}")
            numbers[key] = int(given[key])
    if "index" in numbers and "seed" in numbers:
        raise ViewerError("viewer: either index or seed, not both")
    stem = re.sub(r"(\.trace)?\.(json|html|jsonl|jsonl\.gz)$", "", path.name)
    for key in ("index", "seed"):
        if key in numbers:
            stem += f"-{key}-{numbers[key]}"
    if rule := given.get("rule"):
        stem = re.sub(r"\W+", "-", rule)
    uri = (path.parent / f"{stem}.html").relative_to(root).as_posix()
    return Viewer(path, uri, request=given.get("request"), rule=given.get("rule"), **numbers)


def missing_command(viewer: Viewer, text: str, root: Path) -> str | None:
    """What is wrong if the page's text does not say how to make the viewer's page oneself."""
    if viewer.rule is not None:
        command = f'course drift --rule "{viewer.rule}" --trace'
        if command in text:
            return None
        return f"viewer: the page must name the command that makes it: `{command} OUT.html`"
    command = f"mini-vllm trace {viewer.path.relative_to(root).as_posix()}"
    if re.search(re.escape(command) + r"(?![\w.-])", text):
        return None
    return f"viewer: the page must name the command that makes it: `{command} -o NAME.html`"


def title_of(viewer: Viewer) -> str:
    """The scenario's title, or the rule; for anything else, the file's name."""
    if viewer.rule is not None:
        return f"{viewer.rule[0].upper()}{viewer.rule[1:]}"
    if viewer.path.suffix == ".json":
        try:
            value = json.loads(viewer.path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ViewerError(f"viewer: {viewer.path.name} is not JSON: {error}") from error
        title = value.get("title") if isinstance(value, dict) else None
        if isinstance(title, str) and title:
            return title
    return viewer.path.name


def frame(viewer: Viewer, page_url: str) -> str:
    """The HTML that stands in the page.

    Args:
        page_url: the page's address from the site's root, a folder: `phase-00-x/00-guide/`.
    """
    address = quote(Path(os.path.relpath(viewer.uri, page_url or ".")).as_posix())
    view = {"step": viewer.step, "request": viewer.request}
    view_text = urlencode({key: value for key, value in view.items() if value is not None})
    source = html.escape(f"{address}#{view_text}" if view_text else address)
    title = html.escape(title_of(viewer))
    if viewer.rule is not None:  # two runs need a whole window
        return f'<p><a href="{source}">{title}: both runs side by side</a></p>'
    fixed = "" if viewer.height is None else " fixed"
    return (
        f'<figure class="viewer{fixed}"><iframe src="{source}" title="{title}" loading="lazy" '
        f'sandbox="allow-scripts" style="height: {viewer.height or HEIGHT}px"></iframe>'
        f'<figcaption><a href="{source}">{title}: on a page of its own</a></figcaption></figure>'
    )


def make_page(viewer: Viewer, *others: Viewer) -> str:
    """The page for a viewer, and for others that show the same run: it is made without times, so
    that it is always the same.

    Raises ViewerError for a file that is no scenario and no recording, or that cannot be run, and
    for a step or a request that the run does not have.
    """
    from mini_vllm.entrypoints.cli.trace import read_trace
    from mini_vllm.trace.page import to_html

    if viewer.rule is not None:
        from course.drift.shown import page, rule_named, show

        try:
            return page(show(rule_named(viewer.rule)))
        except CourseError as error:
            raise ViewerError(f"viewer: {error}") from error
    try:
        trace = read_trace(viewer.path, viewer.index, viewer.seed, timed=False)
    except (OSError, ValueError) as error:
        raise ViewerError(f"viewer: {viewer.path.name}: {error}") from error
    requests = {r.request_id for r in trace.requests}
    numbers = {step.index for step in trace.steps}
    for each in (viewer, *others):
        if each.request is not None and each.request not in requests:
            raise ViewerError(f"viewer: {viewer.path.name} has no request {each.request!r}")
        if each.step is not None and each.step not in numbers:
            raise ViewerError(
                f"viewer: {viewer.path.name} has no step {each.step}, but {min(numbers)} to {max(numbers)}"
            )
    return to_html(trace)
