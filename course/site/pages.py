"""The site's pages, in course order, as plain Markdown.

Nothing here knows which generator makes HTML of them. The pages stand where they are in the
repository; what changes on the way to the site is this:

- front matter goes; a lab shows its tag, its minutes and what comes before it;
- a link to a file of the repository leads to a page that shows the file. A lab's solution and its
  known mistakes stand behind a warning, and no file's text is in the search index;
- a viewer line (`course.site.viewer`) becomes a frame with a run to step through, and the picture that GitHub
  needs of it goes, with the sentence that leads to it;
- other comments go, doctests are marked as sessions, and Markdown inside `<details>` is read, as on
  GitHub.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from course.docs.pages import COMMENT, OUTPUT, TEXT, Page, read_page
from course.learner.labs import TAGS, Course, Lab, Phase, load_course
from course.learner.mistakes import read_mistakes
from course.learner.tracks import read_tracks
from course.site.home import home_page
from course.site.screenshots import SHOTS
from course.site.viewer import (
    Viewer,
    ViewerError,
    frame,
    is_viewer,
    missing_command,
    read_viewer,
)

HOME, FIRST = "README.md", ("README.md", "SETUP.md")
AFTER_PHASES = (
    "docs/PROOF.md",
    "docs/CONFORMANCE.md",
    "docs/ASSUMPTIONS.md",
    "docs/RELEASES.md",
    "docs/GPU.md",
    "GLOSSARY.md",
    "mini_vllm/README.md",
    "mini_vllm/CORE.md",
    "UPSTREAM_PIN.md",
    "docs/FOUND_IN_VLLM.md",
    "CHANGELOG.md",
)
AFTER_LABS = ("STORIES.md", "EXERCISES.md", "INTERVIEW.md", "CHEATSHEET.md")
PICTURES = {".png", ".svg", ".jpg", ".jpeg", ".gif", ".webp"}
LANGUAGES = {".py": "python", ".sh": "bash", ".json": "json", ".toml": "toml", ".yml": "yaml"}
MOST_SHOWN = 200_000  # bytes of a file shown as a page; a longer one is handed out as it is

_TARGET = re.compile(r"\]\((?P<inline>[^()\s]+)|^ {0,3}\[[^\]^\n]+\]:[ \t]+(?P<defined>\S+)", re.M)
_ONLY_PICTURE = re.compile(r"!\[[^\]]*\]\((?P<path>[^()\s]+)\)\s*")
_LEADS_ON = re.compile(r"(?:^|(?<=[.!?])\s+)[^.!?]*:\s*$")  # a paragraph's last sentence
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


@dataclass
class Site:
    """What the site is made of.

    Attributes:
        pages: path from the root, `/` between parts, ending in `.md` -> Markdown.
        files: path from the root -> a file to be handed out as it is.
        nav: in reading order, a path, `{"title": path}` or `{"title": [paths]}`.
        viewers: path from the root, ending in `.html` -> the viewer lines that show what is there.
        problems: what keeps a lab or a viewer from the site, one sentence each.
    """

    root: Path
    pages: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    nav: list[Any] = field(default_factory=list)
    viewers: dict[str, list[Viewer]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def order(self) -> list[str]:
        """The pages of `nav`, flat: what "previous" and "next" walk along."""
        return list(_flat(self.nav))


def _flat(nav: list[Any]) -> Iterator[str]:
    for item in nav:
        value = next(iter(item.values())) if isinstance(item, dict) else item
        yield from _flat(value) if isinstance(value, list) else [value]


def read_site(root: Path) -> Site:
    """Every page that the order names, and every page and file that these lead to."""
    root = root.resolve()
    course = load_course(root)
    site = Site(root, nav=_nav(course), problems=course.problems)
    builder = _Builder(site, course)
    for uri in site.order:
        builder.add(root / uri)
    for lab in course.labs:
        for path in (lab.starter, *lab.tests, *lab.shared, lab.solution, lab.mistakes):
            if path.is_file():
                builder.add(path)
    builder.finish()
    return site


# -- order ----------------------------------------------------------------------------------------


def _nav(course: Course) -> list[Any]:
    root = course.root
    there = sorted(path.name for path in root.glob("*.md"))
    there += sorted(path.relative_to(root).as_posix() for path in root.glob("docs/*.md"))
    after = [name for name in AFTER_PHASES if (root / name).is_file()]
    after += [name for name in there if name not in (*FIRST, *after)]
    nav: list[Any] = [{"Home": name} if name == HOME else name for name in FIRST if name in there]
    if ways := [path.relative_to(root).as_posix() for path in track_pages(course)]:
        nav.append({"Tracks": ways})
    for phase in course.phases:
        if pages := [path.relative_to(root).as_posix() for path in phase_pages(phase)]:
            nav.append({f"{phase.number:02} {phase.title}": pages})
    return [*nav, {"Reference": after}] if after else nav


def track_pages(course: Course) -> list[Path]:
    """The tracks' own pages, then what else lies in their folder, as they first name it."""
    tracks = read_tracks(course)
    own = [track.page for track in tracks]
    named = [step.path for track in tracks for step in track.steps]
    beside = [path for path in dict.fromkeys(named) if own and path.parent == own[0].parent]
    return [*own, *beside]


def phase_pages(phase: Phase) -> list[Path]:
    """A phase's pages in reading order: numbered ones, the labs, then what one does after them.

    `00-guide.md` comes before any other page numbered 00, on which the guide goes on.
    """
    folder = phase.folder
    there = sorted(path.name for path in folder.glob("*.md"))
    numbered = [name for name in there if re.match(r"\d\d-", name)]
    numbered.sort(key=lambda name: (name[:2], name != phase.guide.name, name))
    after = [name for name in AFTER_LABS if name in there]
    rest = [name for name in there if name not in (HOME, *numbered, *after)]
    before = [name for name in (HOME, *numbered) if name in there]
    labs = [folder / "labs" / HOME] if (folder / "labs" / HOME).is_file() else []
    labs += [lab.readme for lab in phase.labs]
    return [*(folder / n for n in before), *labs, *(folder / n for n in (*after, *rest))]


# -- pages ----------------------------------------------------------------------------------------


class _Builder:
    """Adds pages, and what they link to, until nothing is missing."""

    def __init__(self, site: Site, course: Course) -> None:
        self.site = site
        self.course = course
        self.queue: list[Path] = []
        self.known: dict[Path, str | None] = {}

    def add(self, path: Path) -> str | None:
        """The uri under which the site has `path`; None where it cannot have it."""
        if path not in self.known:
            uri = self.known[path] = self._uri(path)
            if uri is not None and uri.endswith(".md"):
                self.queue.append(path)
            elif uri is not None:
                self.site.files[uri] = path
        return self.known[path]

    def _uri(self, path: Path) -> str | None:
        if not path.is_relative_to(self.site.root) or not path.exists():
            return None
        name = path.relative_to(self.site.root).as_posix()
        if path.is_dir():
            return f"{name}/{HOME if (path / HOME).is_file() else 'index.md'}"
        if path.suffix == ".md":
            return name
        if path.suffix.lower() in PICTURES or _text(path) is None:
            return name
        return f"{name}.md"

    def finish(self) -> None:
        while self.queue:
            path = self.queue.pop()
            uri = self.known[path]
            assert uri is not None
            if uri in self.site.pages:
                continue
            if path.is_dir() and uri.endswith(HOME):
                self.add(path / HOME)
            elif path.is_dir():
                self.site.pages[uri] = self._folder(path)
            elif path.suffix == ".md":
                self.site.pages[uri] = self._page(path)
            else:
                self.site.pages[uri] = self._file(path, uri)

    def _page(self, path: Path) -> str:
        page = read_page(path, self.site.root)
        if page.name == HOME and (home := home_page(self.course)) is not None:
            page = Page(path, HOME, home)
        lines = self._linked(page).split("\n")
        lab = self.course.lab_at(path)
        facts = _facts(lab, self.course) if lab is not None and path == lab.readme else None
        sessions = {
            fence.first
            for fence in page.fences
            if fence.language == "python" and _first(fence.body).startswith(">>>")
        }
        live = self._live(page)
        out: list[str] = []
        for number, (line, kind) in enumerate(zip(lines, page.kinds, strict=True), 1):
            if kind == COMMENT and is_viewer(line):
                out.append(self._viewer(line, page))
            elif kind == TEXT and self._shows(line, page) in live:
                _cut_lead(out)
            elif kind in (COMMENT, OUTPUT) and re.fullmatch(r"\s*<!--.*-->\s*", line):
                out.append("")
            elif number in sessions:
                out.append(line.replace("python", "pycon", 1))
            elif kind == TEXT:
                line = re.sub(r"<details(?=[\s>])", '<details markdown="1"', line)
                out.append(re.sub(r"<summary>", '<summary markdown="span">', line))
                if facts is not None and line.startswith("# "):
                    out += ["", facts]
                    facts = None
            elif kind != "front":
                out.append(line)
        text = "\n".join(out).lstrip("\n")
        # Who searches must not be told the answer.
        return _HEAD + text if lab is not None and path == lab.hints else text

    def _viewer(self, line: str, page: Page) -> str:
        """The frame that a viewer line becomes; nothing, and a problem, if that cannot be."""
        try:
            viewer = read_viewer(line, page.path, self.site.root)
            if (wrong := missing_command(viewer, page.text, self.site.root)) is not None:
                raise ViewerError(wrong)
            folder, _, name = page.name.rpartition("/")
            url = folder if name in (HOME, "index.md") else page.name.removesuffix(".md")
            shown = frame(viewer, url)
        except ViewerError as error:
            self.site.problems += (f"{page.name}: {error}",)
            return ""
        self.site.viewers.setdefault(viewer.uri, []).append(viewer)
        return shown

    def _live(self, page: Page) -> set[str]:
        """The runs that the page's viewers show, as paths from the root. What is wrong `_viewer` says."""
        found = set()
        for line, kind in zip(page.lines, page.kinds, strict=True):
            if kind == COMMENT and is_viewer(line):
                with contextlib.suppress(ViewerError):
                    path = read_viewer(line, page.path, self.site.root).path
                    found.add(path.relative_to(self.site.root).as_posix())
        return found

    def _shows(self, line: str, page: Page) -> str | None:
        """The run of which the line is a screenshot."""
        if (match := _ONLY_PICTURE.fullmatch(line)) is None:
            return None
        there = os.path.relpath(page.path.parent / match["path"], self.site.root)
        run, *_ = SHOTS.get(Path(there).as_posix(), (None,))
        return run

    def _linked(self, page: Page) -> str:
        """The page's text, its links to files of the repository led to their pages."""
        text = page.text
        for match in reversed(list(_TARGET.finditer(page.plain))):
            start, end = match.span(match.lastgroup or 0)
            if (target := self._target(page, text[start:end])) is not None:
                text = text[:start] + target + text[end:]
        return text

    def _target(self, page: Page, url: str) -> str | None:
        """What to write for a link target, or None to leave it. What is broken the generator says."""
        path, _, anchor = url.partition("#")
        if not path or _SCHEME.match(url) or path.startswith("/"):
            return None
        there = Path(os.path.normpath(page.path.parent / unquote(path)))
        uri = self.add(there)
        if uri is None:
            return None
        keep = f"#{anchor}" if anchor and there.suffix == ".md" else ""
        return _relative(uri, page.name) + keep

    def _folder(self, path: Path) -> str:
        name = path.relative_to(self.site.root).as_posix()
        inside = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        entries = [(p.name, self.add(p)) for p in inside]
        rows = [f"- [`{n}`]({_relative(uri, f'{name}/index.md')})" for n, uri in entries if uri]
        return f"{_HEAD}# `{path.name}/`\n\n" + "\n".join(rows) + "\n"

    def _file(self, path: Path, uri: str) -> str:
        """The page that shows a file."""
        text = _text(path) or ""
        ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
        language = LANGUAGES.get(path.suffix, "text")
        code = f'{ticks}{language} linenums="1"\n{text.rstrip()}\n{ticks}'
        lab = self.course.lab_at(path)
        head = f"{_HEAD}# `{path.name}`\n\n`{path.relative_to(self.site.root).as_posix()}`"
        if lab is None:
            return f"{head}\n\n{code}\n"
        readme = lab.readme.relative_to(self.site.root).as_posix()
        back = f"[lab {lab.id}]({_relative(readme, uri)})"
        head += f", of {back}."
        if path == lab.solution:
            label, warning = "Show the solution", (
                f"This is the answer to {back}. Your own is worth more, even half of one: "
                f"`course grade {lab.id}` says how far it is, and `course hint {lab.id}` gives one "
                "step more each time."
            )  # fmt: skip
            names = "".join(f"- {one.name}\n" for one in read_mistakes(lab.folder))
            link = f"[`{lab.mistakes.name}`]({_relative(self.add(lab.mistakes) or '', uri)})"
            after = f"\n## Mistakes people make\n\nEach fails a test. How, is in {link}.\n\n{names}"
        elif path == lab.mistakes:
            label, warning, after = "Show the mistakes", (
                f"These are mistakes in {back}'s solution, with its lines, and give much of the answer away."
            ), ""  # fmt: skip
        else:
            return f"{head}\n\n{code}\n"
        shown = "\n".join(f"    {line}".rstrip() for line in code.split("\n"))
        return (
            f'{head}\n\n!!! warning "Not yet?"\n\n    {warning}\n\n'
            f'??? example "{label}"\n\n{shown}\n{after}'
        )


# Out of the search index; and without a table of contents, so that a line of code has room.
_HEAD = "---\nsearch:\n  exclude: true\nhide:\n  - toc\n---\n\n"


def _facts(lab: Lab, course: Course) -> str:
    """The line under a lab's title: tag, minutes, what comes before, its files."""
    page = lab.readme.relative_to(course.root).as_posix()
    by_id = {other.id: other for other in course.labs}

    def link(text: str, path: Path) -> str:
        name = path.relative_to(course.root).as_posix()
        return f"[{text}]({_relative(name if path.suffix == '.md' else name + '.md', page)})"

    needs = [link(n, by_id[n].readme) if n in by_id else n for n in lab.prerequisites]
    facts = [f"{lab.minutes} minutes"]
    facts.append(f"after {', '.join(needs)}" if needs else "needs no other lab")
    if lab.class_name is not None:
        facts.append(f"builds the engine's <code>{lab.class_name}</code>")
    files = [
        link(text, path)
        for text, path in (
            ("starter.py", lab.starter),
            *((path.name, path) for path in (*lab.tests, *lab.shared)),
            ("solution (spoiler)", lab.solution),
        )
        if path.is_file()
    ]
    kind = f"lab-tag lab-tag-{lab.tag.lower()}"
    tag = f'<span class="{kind}" title="{TAGS[lab.tag]}">{lab.tag}</span>'
    spans = "".join(f'<span class="lab-fact">{fact}</span>' for fact in facts)
    spans += f'<span class="lab-files">{" · ".join(files)}</span>'
    return f'<div class="lab-facts" markdown="span">{tag}{spans}</div>'


def _cut_lead(lines: list[str]) -> None:
    """Take from the end of `lines` the sentence that leads to a picture: "It looks like this:"."""
    end = len(lines)
    while end and not lines[end - 1].strip():
        end -= 1
    start = end
    while start and lines[start - 1].strip():
        start -= 1
    lines[start:end] = _LEADS_ON.sub("", "\n".join(lines[start:end])).split("\n")


def _relative(uri: str, page: str) -> str:
    return Path(os.path.relpath(uri, Path(page).parent)).as_posix()


def _first(lines: tuple[str, ...]) -> str:
    return next((line for line in lines if line.strip()), "").lstrip()


def _text(path: Path) -> str | None:
    """The file's text, or None: too long, or no text."""
    if not path.is_file() or path.stat().st_size > MOST_SHOWN:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
