"""Links between the pages: the file is there, and so is the heading.

An anchor must work in both places where pages are read. GitHub and the site (Python-Markdown) make
anchors from headings by rules of their own: where they differ, in `A & B` say, or between equal
headings, the link would break in one of them. Then set `<a id="name"></a>` before the heading, or
word it differently.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from course.docs.pages import ROOT, TEXT, Page, Problem, read_page

_INLINE = re.compile(
    r"!?\[(?:[^\[\]]|\[[^\[\]]*\](?:\([^()]*\))?+)*+\]\((?P<url><[^<>]*>|[^()\s]*(?:\([^()\s]*\))?[^()\s]*)"
)
_DEFINED = re.compile(r"^[ ]{0,3}\[(?P<name>[^\[\]^]+)\]:\s+(?P<url>\S+)", re.MULTILINE)
_REFERENCE = re.compile(r"\[(?P<text>[^\[\]]+)\]\[(?P<name>[^\[\]]*)\]")
_HTML = re.compile(r"""<(?:a|img)\b[^>]*?\b(?:href|src)=["'](?P<url>[^"']*)["']""")
_EXPLICIT = re.compile(r"""<a\b[^>]*?\b(?:id|name)=["'](?P<id>[^"']+)["']""")
_ATTRIBUTE = re.compile(r"\s*\{:?\s*(?:[^{}]*\s)?#(?P<id>[\w-]+)[^{}]*\}\s*$")
_HEADING = re.compile(r"^(?P<level>#{1,6})\s+(?P<text>.*?)\s*#*\s*$")
_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


@dataclass(frozen=True)
class Anchors:
    """The anchors of a page, as GitHub makes them and as the site makes them."""

    github: frozenset[str]
    site: frozenset[str]


def _heading_text(text: str) -> str:
    """What is left of a heading when its markup is gone."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>]+>", "", text)
    kept = re.split(r"(`[^`]*`)", text)
    plain = [p[1:-1] if p.startswith("`") else re.sub(r"\*+|(?<!\w)_|_(?!\w)", "", p) for p in kept]
    return "".join(plain)


def github_slug(text: str) -> str:
    text = _heading_text(text).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def site_slug(text: str) -> str:
    ascii_ = unicodedata.normalize("NFKD", _heading_text(text)).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_).strip().lower())


def anchors(page: Page) -> Anchors:
    """Equal headings are numbered, `-1` by GitHub and `_1` by the site."""
    github: list[str] = []
    site: list[str] = []
    seen: Counter[str] = Counter()
    taken: set[str] = set()
    explicit = {m["id"] for m in _EXPLICIT.finditer(page.prose)}
    for line, kind in zip(page.lines, page.kinds, strict=True):
        m = _HEADING.match(line) if kind == TEXT else None
        if m is None:
            continue
        text = m["text"]
        given = _ATTRIBUTE.search(text)
        slug = github_slug(text)
        github.append(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
        slug = given["id"] if given else site_slug(text)
        number, base = 1, slug
        while slug in taken:
            slug, number = f"{base}_{number}", number + 1
        taken.add(slug)
        site.append(slug)
    return Anchors(frozenset(github) | explicit, frozenset(site) | explicit)


def _links(page: Page) -> Iterator[tuple[int, str]]:
    """(line, target) of every link and image of the page."""
    for pattern in (_INLINE, _HTML, _DEFINED):
        for m in pattern.finditer(page.plain):
            url = page.text[m.start("url") : m.end("url")].strip("<>")
            yield page.line_of(m.start()), url


def check_links(every: list[Page], root: Path = ROOT) -> list[Problem]:
    """Every link of the pages that leads nowhere. Addresses of the web are not looked up."""
    root = root.resolve()
    known = {page.path.resolve(): page for page in every}
    made: dict[Path, Anchors] = {}

    def anchors_of(path: Path) -> Anchors:
        if path not in made:
            made[path] = anchors(known[path] if path in known else read_page(path, root))
        return made[path]

    problems = []
    for page in every:
        names = {m["name"].lower() for m in _DEFINED.finditer(page.plain)}
        for m in _REFERENCE.finditer(page.plain):
            name = page.text[m.start("name") : m.end("name")]
            name = (name or page.text[m.start("text") : m.end("text")]).lower()
            if name not in names:
                at = page.line_of(m.start())
                problems.append(Problem(page.name, at, f"[{name}]: no such reference on the page"))
        for at, url in _links(page):
            message = _wrong(page, url, root, anchors_of)
            if message:
                problems.append(Problem(page.name, at, f"{url or '()'}: {message}"))
    return problems


def _wrong(page: Page, url: str, root: Path, anchors_of: Callable[[Path], Anchors]) -> str | None:
    if _SCHEME.match(url) or url.startswith("//"):
        return None
    path, _, anchor = url.partition("#")
    path = unquote(path.partition("?")[0])
    if not url:
        return "a link to nowhere"
    if path.startswith("/"):
        return "links here are relative: begin without the /"
    target = (page.path.parent / path).resolve() if path else page.path.resolve()
    if not target.is_relative_to(root):
        return "leads out of the repository"
    if not target.exists():
        same = (
            sorted(p for p in page.path.parent.rglob(Path(path).name) if p != page.path)
            if Path(path).name
            else []
        )
        hint = f"; did you mean {same[0].relative_to(page.path.parent)}?" if same else ""
        return f"no such file{hint}"
    if not anchor:
        return None
    if target.suffix == ".md" and target.is_file():
        have = anchors_of(target)
        anchor = unquote(anchor)
        if anchor in have.github and anchor in have.site:
            return None
        where = target.relative_to(root)
        if anchor in have.github:
            return f"#{anchor} works on GitHub but not on the site; set <a id=…> in {where}"
        if anchor in have.site:
            return f"#{anchor} works on the site but not on GitHub; set <a id=…> in {where}"
        close = [a for a in sorted(have.github & have.site) if anchor[:6] and anchor[:6] in a]
        return f"{where} has no heading #{anchor}" + (f"; it has #{close[0]}" if close else "")
    return f"{target.relative_to(root)} has no anchors; lines move, so name the symbol in the title"
