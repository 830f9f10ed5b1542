"""The citations in the repository's pages and Python files: one grammar, and what breaks it.

    `PATH:LINE`              a line; the index says which symbol it lies in
    `PATH:LINE SYMBOL`       the line on which SYMBOL is defined (its qualified name, no parentheses)
    `PATH:LINE in SYMBOL`    a line inside SYMBOL
    `PATH:FIRST-LAST …`      lines; the first one is what the symbol is checked against

PATH starts at the root of vLLM (`vllm/…`, `csrc/…`) or of this repository (`mini_vllm/…`). A path
that exists in both, `tests/…` say, is this repository's. A citation of this repository names a
symbol, because its lines move with every edit.

In Markdown a citation of vLLM is the text of a link to that line at the release tag. In Python it
stands in a docstring or comment, in backticks if it has a symbol. A file name without its
folders is an error: too many files are called the same. Captured output is not read.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from course.docs.pages import CODE, Page, Problem, read_page, repository_files

SITE = "https://github.com/vllm-project/vllm"
_SUFFIX = r"\.(?:py|cuh?|cpp|cc|c|hpp|h|md|rs|txt|ya?ml|toml|sh)"
_PATH = rf"(?:[\w.-]+/)+[\w.-]+{_SUFFIX}"
_LINES = r"(?P<line>\d+)(?:-(?P<last>\d+))?"
PLACE = re.compile(rf"(?<![\w/.:-])(?P<path>{_PATH}):{_LINES}(?!\d)")
_WHOLE = re.compile(
    rf"(?P<path>{_PATH}):{_LINES}(?: (?P<inside>in )?(?P<symbol>[A-Za-z_~][\w.:~]*))?"
)
_BARE = re.compile(rf"(?<![\w/.-])(?P<path>\w[\w-]*{_SUFFIX}):(?P<line>\d+)(?!\d)")
_SPAN = re.compile(r"(?<!`)(`{1,2})(?!`)([^`\n]+)(?<!`)\1(?!`)")
_LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<url>[^()\s]*)\)")
_BLOB = re.compile(
    rf"{re.escape(SITE)}/(?P<kind>blob|tree)/(?P<tag>[^/\s)#]+)(?:/(?P<path>[^\s)#\"']*))?"
    r"(?:#L(?P<line>\d+)(?:-L(?P<last>\d+))?)?"
)
MENTION = re.compile(r"(?<![\w/.:-])(?P<path>(?:vllm|csrc)/[\w./-]*\w/?)(?![\w:]|\.\w)")


@dataclass(frozen=True)
class Citation:
    """A place that the repository points to. `offset` and `end` bound its text in the file."""

    file: str
    at: int
    offset: int
    end: int
    path: str
    line: int
    last: int | None = None
    symbol: str | None = None
    inside: bool = False
    own: bool = False
    url: tuple[int, int, str] | None = None
    linkable: bool = False

    @property
    def named(self) -> bool:
        """Whether it cites a definition, and not some line in or outside of a symbol."""
        return self.symbol is not None and not self.inside

    def text(self, line: int | None = None) -> str:
        """The citation as written, or moved to another line."""
        line = self.line if line is None else line
        last = f"-{self.last + line - self.line}" if self.last is not None else ""
        middle = " in " if self.inside else " "
        return f"{self.path}:{line}{last}" + (f"{middle}{self.symbol}" if self.symbol else "")

    def link(self, release: str, line: int | None = None) -> str:
        line = self.line if line is None else line
        last = f"-L{self.last + line - self.line}" if self.last is not None else ""
        return f"{SITE}/blob/v{release}/{self.path}#L{line}{last}"

    def problem(self, message: str) -> Problem:
        return Problem(self.file, self.at, f"{self.text()}: {message}")


@dataclass(frozen=True)
class Mention:
    """A path of vLLM's without a line, in prose or as a link's target."""

    file: str
    at: int
    path: str


@dataclass
class Found:
    """What one file or all of them cite, and what breaks the grammar."""

    citations: list[Citation]
    mentions: list[Mention]
    problems: list[Problem]


def find_all(root: Path, release: str) -> Found:
    """Read every Markdown and Python file of the repository."""
    every = Found([], [], [])
    for path in repository_files(root, ".md", ".py"):
        name = path.relative_to(root).as_posix()
        if path.suffix == ".md":
            found = find_in_page(read_page(path, root), root, release)
        else:
            text = path.read_text(encoding="utf-8", errors="replace")
            if not re.search(rf"{_SUFFIX}:\d|\bvllm/|\bcsrc/", text):
                continue
            found = find_in_python(name, text, root)
        every.citations += found.citations
        every.mentions += found.mentions
        every.problems += found.problems
    return every


def _is_own(path: str, root: Path) -> bool:
    return not path.startswith(("vllm/", "csrc/")) and (root / path).is_file()


def _foreign(path: str, root: Path) -> bool:
    """Whether a path belongs to neither: its first folder is not vLLM's and not here."""
    top = path.split("/")[0]
    known = {"vllm", "csrc", "tests", "docs", "examples", "benchmarks", "tools", "cmake", "rust"}
    return top not in known and not (root / top).exists()


def _citation(
    file: str, at: int, offset: int, match: re.Match[str], root: Path, linkable: bool = False
) -> Citation:
    groups = match.groupdict()
    return Citation(
        file, at, offset + match.start(), offset + match.end(), match["path"], int(match["line"]),
        int(match["last"]) if match["last"] else None, groups.get("symbol"),
        bool(groups.get("inside")), _is_own(match["path"], root), None, linkable,
    )  # fmt: skip


def _shape(file: str, at: int, span: str) -> Problem:
    """Why an inline code that begins with a place is no citation."""
    if "(" in span:
        why = "write the symbol without parentheses"
    else:
        why = "after the line comes nothing, ` SYMBOL` or ` in SYMBOL`"
    return Problem(file, at, f"{span}: {why}")


def _in_line(
    file: str, at: int, offset: int, line: str, root: Path, bare: bool
) -> Iterator[Citation | Problem]:
    """The citations of one line of Python, or of a code block in Markdown."""
    spans = [(m.start(2), m.end(2), m[2]) for m in _SPAN.finditer(line)]
    for place in PLACE.finditer(line):
        if _foreign(place["path"], root):
            continue
        around = next((s for s in spans if s[0] <= place.start() < s[1]), None)
        if around is None:
            if line[: place.start()].endswith("`"):
                yield Problem(
                    file, at, f"{place.group()}: close the backticks on the same line, or the "
                    "symbol after it is not read",
                )  # fmt: skip
            yield _citation(file, at, offset, place, root)
            continue
        start, _, content = around
        whole = _WHOLE.fullmatch(content)
        if whole is not None:
            yield _citation(file, at, offset + start, whole, root)
        elif place.start() == start:
            yield _shape(file, at, content)
        else:  # a command or a sentence that holds a place
            yield _citation(file, at, offset, place, root)
    if bare:
        for m in _BARE.finditer(line):
            yield _no_path(file, at, m)


def _no_path(file: str, at: int, match: re.Match[str]) -> Problem:
    return Problem(
        file, at, f"{match.group()}: name the whole path, as in `vllm/v1/request.py:1`; "
        f"more than one file is called {match['path']}",
    )  # fmt: skip


def find_in_python(name: str, text: str, root: Path) -> Found:
    """Citations in the docstrings and comments of a Python file; vLLM's also in other strings."""
    found = Found([], [], [])
    commented: set[int] | None = None
    offset = 0
    for at, line in enumerate(text.split("\n"), 1):
        if re.search(rf"{_SUFFIX}:\d", line):
            commented = _commentary(text) if commented is None else commented
            for item in _in_line(name, at, offset, line, root, bare=at in commented):
                if isinstance(item, Problem):
                    found.problems.append(item)
                elif at in commented or item.path.startswith(("vllm/", "csrc/")):
                    found.citations.append(item)
        if "vllm/" in line or "csrc/" in line:
            commented = _commentary(text) if commented is None else commented
            if at in commented:
                found.mentions += [
                    Mention(name, at, m["path"])
                    for m in _SPAN.finditer(line)
                    for m in MENTION.finditer(m[2])
                    if m.span() == (0, len(m.string))
                ]
        offset += len(line) + 1
    return found


def _commentary(text: str) -> set[int]:
    """The lines of comments and of strings that stand alone as statements (docstrings)."""
    lines: set[int] = set()
    before = tokenize.NEWLINE
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                lines.add(token.start[0])
                continue
            if token.type == tokenize.STRING and before in (
                tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING
            ):  # fmt: skip
                lines.update(range(token.start[0], token.end[0] + 1))
            if token.type != tokenize.NL:
                before = token.type
    except (tokenize.TokenError, SyntaxError):
        return set(range(1, text.count("\n") + 2))
    return lines


def find_in_page(page: Page, root: Path, release: str) -> Found:
    """Citations and links to vLLM of a Markdown page."""
    found = Found([], [], [])
    linked = _links(page, root, release, found)
    for offset, span in page.spans:
        at = page.line_of(offset)
        place = PLACE.match(span)
        if offset in linked or (place is not None and _foreign(place["path"], root)):
            continue
        whole = _WHOLE.fullmatch(span)
        if whole is not None:
            citation = _citation(page.name, at, offset, whole, root, linkable=True)
            found.citations.append(citation)
            if not citation.own:
                found.problems.append(
                    citation.problem(f"not linked to {citation.link(release)} (`fix` links it)")
                )
        elif place is not None:
            found.problems.append(_shape(page.name, at, span))
        elif (m := _BARE.match(span)) is not None:
            found.problems.append(_no_path(page.name, at, m))
        elif (m := MENTION.fullmatch(span)) is not None:
            found.mentions.append(Mention(page.name, at, m["path"]))
    for m in PLACE.finditer(page.plain):
        if not _foreign(m["path"], root):
            at = page.line_of(m.start())
            found.problems.append(Problem(page.name, at, f"{m.group()}: set it in backticks"))
    offset = 0
    for at, (line, kind) in enumerate(zip(page.lines, page.kinds, strict=True), 1):
        if kind == CODE and ("vllm/" in line or "csrc/" in line):
            for item in _in_line(page.name, at, offset, line, root, bare=False):
                if isinstance(item, Problem):
                    found.problems.append(item)
                elif not item.own:
                    found.citations.append(item)
        offset += len(line) + 1
    return found


def _links(page: Page, root: Path, release: str, found: Found) -> set[int]:
    """Read the links that lead to vLLM; returns the offsets of the inline code in their texts."""
    linked: set[int] = set()
    spans = dict(page.spans)
    in_links: list[tuple[int, int]] = []
    for link in _LINK.finditer(page.plain):
        url = page.text[link.start("url") : link.end("url")]
        text_at = link.start("text")
        inner = [o for o in spans if text_at <= o < link.end("text")]
        at = page.line_of(link.start())
        target = _BLOB.fullmatch(url)
        whole = _WHOLE.fullmatch(spans[inner[0]]) if len(inner) == 1 else None
        in_links.append(link.span())
        if target is None:
            if whole is not None:
                linked.add(inner[0])
                _own_link(page, at, url, whole, inner[0], link, root, release, found)
            continue
        if target["tag"] != f"v{release}":
            found.problems.append(
                Problem(
                    page.name, at, f"{url}: the pin is v{release}, this links to {target['tag']}"
                )
            )
        if whole is None:
            linked.update(o for o in inner if spans[o] == target["path"])
            if target["line"]:
                why = f"the link's text must name `{target['path']}:{target['line']}`"
                found.problems.append(Problem(page.name, at, f"{url}: {why}"))
            if target["path"]:
                found.mentions.append(Mention(page.name, at, target["path"]))
            continue
        linked.add(inner[0])
        place = (link.start("url"), link.end("url"), url)
        citation = _citation(page.name, at, inner[0], whole, root)
        citation = Citation(**{**vars(citation), "url": place, "own": False})
        found.citations.append(citation)
        if target["tag"] == f"v{release}" and url != citation.link(release):
            found.problems.append(citation.problem(f"its link leads elsewhere, to {url}"))
    for m in _BLOB.finditer(page.prose):
        inside = any(a <= m.start() < b for a, b in in_links)
        if m["line"] and not inside:
            why = "write [`PATH:LINE SYMBOL`](URL), so that it can be checked"
            found.problems.append(
                Problem(page.name, page.line_of(m.start()), f"{m.group()}: {why}")
            )
    return linked


def _own_link(
    page: Page, at: int, url: str, whole: re.Match[str], offset: int, link: re.Match[str],
    root: Path, release: str, found: Found,
) -> None:  # fmt: skip
    """A citation whose link leads to no vLLM page: right for this repository's files only."""
    citation = _citation(page.name, at, offset, whole, root)
    place = (link.start("url"), link.end("url"), url)
    citation = Citation(**{**vars(citation), "url": place})
    found.citations.append(citation)
    if not citation.own:
        found.problems.append(citation.problem(f"its link leads elsewhere, to {url}"))
        return
    path, _, anchor = url.partition("#")
    target = (page.path.parent / path).resolve()
    if target != (root / citation.path).resolve():
        found.problems.append(citation.problem(f"its link leads elsewhere, to {url}"))
    elif anchor and not re.fullmatch(rf"L{citation.line}(?:-L\d+)?", anchor):
        found.problems.append(citation.problem(f"its link leads to #{anchor}"))
