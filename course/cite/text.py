"""The citations in the repository's pages and Python files: one grammar, and what breaks it.

    `PATH:LINE`              a line; the index says which symbol it lies in
    `PATH:LINE SYMBOL`       the line on which SYMBOL is defined (its qualified name, no parentheses)
    `PATH:LINE in SYMBOL`    a line inside SYMBOL
    `PATH:FIRST-LAST …`      lines; the first one is what the symbol is checked against
    `PATH SYMBOL`            of this repository, whose lines move with every edit: SYMBOL's definition
    `PATH in SYMBOL: CODE`   the same: where CODE stands in SYMBOL, once

PATH starts at the root of vLLM (`vllm/…`, `csrc/…`) or of this repository (`mini_vllm/…`). A path
that exists in both, `tests/…` say, is this repository's.

In Markdown it is the title of a link, whose text is the symbol alone, or its last parts:

    [`Scheduler.schedule`](URL "PATH:LINE Scheduler.schedule")

Where a page leads into one symbol of vLLM's more than once, a link to a line inside of it says which:
`schedule:392`.

The link leads to that line at the release tag; in this repository to the file, and the site finds the
line when it is built. (An author writes the citation in backticks, and `course cite fix` makes the
link.) In Python it stands in a docstring or comment, in backticks if it has a symbol. A file name
without its folders is an error: too many files are called the same. Captured output is not read.
"""

from __future__ import annotations

import html
import io
import os.path
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from course.docs.pages import CODE, Page, Problem, read_page, repository_files

SITE = "https://github.com/vllm-project/vllm"
_SUFFIX = r"\.(?:py|cuh?|cpp|cc|c|hpp|h|md|rs|txt|ya?ml|toml|sh)"
_PATH = rf"(?:[\w.-]+/)+[\w.-]+{_SUFFIX}"
_LINES = r"(?P<line>\d+)(?:-(?P<last>\d+))?"
PLACE = re.compile(rf"(?<![\w/.:-])(?P<path>{_PATH}):{_LINES}(?!\d)")
_WHOLE = re.compile(
    rf"(?P<path>{_PATH}):{_LINES}(?: (?P<inside>in )?(?P<symbol>[A-Za-z_~][\w.:~]*))?"
)
_OWN = re.compile(
    r"(?P<path>(?!vllm/|csrc/)(?:[\w.-]+/)+[\w.-]+\.py) (?P<inside>in )?(?P<symbol>[A-Za-z_][\w.]*)"
    r"(?(inside)(?:: (?P<code>\S.*))?)"
)
_BARE = re.compile(rf"(?<![\w/.-])(?P<path>\w[\w-]*{_SUFFIX}):(?P<line>\d+)(?!\d)")
_SPAN = re.compile(r"(?<!`)(`{1,2})(?!`)([^`\n]+)(?<!`)\1(?!`)")
_LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<url>[^()\s]*)(?:\s+\"(?P<title>[^\"\n]*)\")?\)")
_BLOB = re.compile(
    rf"{re.escape(SITE)}/(?P<kind>blob|tree)/(?P<tag>[^/\s)#]+)(?:/(?P<path>[^\s)#\"']*))?"
    r"(?:#L(?P<line>\d+)(?:-L(?P<last>\d+))?)?"
)
_PACKAGES = ("mini_vllm/", "course/")
MENTION = re.compile(r"(?<![\w/.:-])(?P<path>(?:vllm|csrc)/[\w./-]*\w/?)(?![\w:]|\.\w)")


@dataclass(frozen=True)
class Citation:
    """A place that the repository points to.

    Attributes:
        offset, end: bounds in the file of what `fix` rewrites: the citation, in Markdown its link.
        linkable: in prose, where it is to be a link.
        line: 0 where none is named; then the citation is of this repository, `own`.
        code: what stands on the line of this repository that is meant, if not the symbol's own.
        label, url: of that link, if it is one.
        numbered: whether the link's text ends in the line, because others on the page have the same symbol.
    """

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
    linkable: bool = False
    label: str | None = None
    url: str | None = None
    numbered: bool = False
    code: str | None = None

    @property
    def named(self) -> bool:
        """Whether it cites a definition, and not some line in or outside of a symbol."""
        return self.symbol is not None and not self.inside

    def text(self, line: int | None = None) -> str:
        """The citation as written, or moved to another line: 0 for none, in this repository."""
        line = self.line if line is None else line
        last = f"-{self.last + line - self.line}" if self.last is not None else ""
        number = f":{line}{last}" if line or not self.own else ""
        middle = " in " if self.inside and (number or self.code) else " "
        code = f": {self.code}" if self.code else ""
        return f"{self.path}{number}" + (f"{middle}{self.symbol}{code}" if self.symbol else "")

    def link(self, release: str, line: int | None = None) -> str:
        """Where the link leads: to the line at the release tag, or to this repository's file."""
        if self.own:
            return os.path.relpath(self.path, PurePosixPath(self.file).parent)
        line = self.line if line is None else line
        last = f"-L{self.last + line - self.line}" if self.last is not None else ""
        return f"{SITE}/blob/v{release}/{self.path}#L{line}{last}"

    @property
    def labels(self) -> list[str]:
        """What the link's text may be: the symbol or its last parts; without one, the file's name."""
        return self._labels(self.line)

    def _labels(self, line: int) -> list[str]:
        if self.symbol is None:
            return [self.path.rsplit("/", 1)[-1]]
        starts = [0, *(m.end() for m in re.finditer(r"\.|::", self.symbol))]
        end = f":{line}" if self.numbered else ""
        return [self.symbol[at:] + end for at in starts]

    def markdown(self, release: str, line: int | None = None) -> str:
        """The link that stands for the citation on a page."""
        labels = self._labels(self.line if line is None else line)
        # A link without its number keeps the part of the symbol that it shows; a new one has its last part.
        shown = re.sub(r"(?<=[\w~]):\d+$", "", self.label or "")
        usual = labels[-1] if self.numbered and self.label is None else labels[0]
        label = next((each for each in labels if re.sub(r":\d+$", "", each) == shown), usual)
        # What would end a title, a cell of a table or a link's text, where it is code.
        title = re.sub(r'["&<>|\[\]]', lambda m: f"&#{ord(m[0])};", self.text(line))
        return f'[`{label}`]({self.link(release, line)} "{title}")'

    def written(self, release: str, line: int | None = None) -> str:
        """What belongs in the file: the link on a page, else the citation itself."""
        return self.markdown(release, line) if self.linkable else self.text(line)

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
            if not re.search(rf"{_SUFFIX}:\d|\bvllm/|\bcsrc/|\.py \w", text):
                continue
            found = find_in_python(name, text, root)
        every.citations += found.citations
        every.mentions += found.mentions
        every.problems += found.problems
    return every


def _is_own(path: str, root: Path) -> bool:
    return not path.startswith(("vllm/", "csrc/")) and (root / path).is_file()


def own_place(text: str, root: Path) -> re.Match[str] | None:
    """A place of this repository, which has no line: its `path`, `symbol`, and `code` or None."""
    m = _OWN.fullmatch(text)
    return m if m is not None and (root / m["path"].split("/")[0]).is_dir() else None


def _whole_place(text: str, root: Path, linked: bool = False) -> re.Match[str] | None:
    """The citation that a whole text is. Outside of a package, a word behind a script in backticks may
    be its argument; then only a link is a citation."""
    if (own := own_place(text, root)) is not None:
        return own if linked or own["path"].startswith(_PACKAGES) else None
    return _WHOLE.fullmatch(text)


def _foreign(path: str, root: Path) -> bool:
    """Whether a path belongs to neither: its first folder is not vLLM's and not here."""
    top = path.split("/")[0]
    known = {"vllm", "csrc", "tests", "docs", "examples", "benchmarks", "tools", "cmake", "rust"}
    return top not in known and not (root / top).exists()


def _citation(
    file: str, at: int, offset: int, match: re.Match[str], root: Path, linkable: bool = False
) -> Citation:
    groups = match.groupdict()
    own = "line" not in groups or _is_own(match["path"], root)
    return Citation(
        file, at, offset + match.start(), offset + match.end(), match["path"],
        int(groups.get("line", 0)), int(match["last"]) if groups.get("last") else None,
        groups.get("symbol"), bool(groups.get("inside")), own, linkable, code=groups.get("code"),
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
    for start, _, content in spans:
        if PLACE.match(content) is None and (own := _whole_place(content, root)) is not None:
            yield _citation(file, at, offset + start, own, root)
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
        if re.search(rf"{_SUFFIX}:\d|\.py \w", line):
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
    links = list(_links(page))
    read = {o for link in links if _read_link(page, link, root, release, found) for o in link.spans}
    for offset, span in page.spans:
        at = page.line_of(offset)
        place = PLACE.match(span)
        if offset in read or (place is not None and _foreign(place["path"], root)):
            continue
        whole = _whole_place(span, root)
        if whole is not None:
            citation = _citation(page.name, at, offset, whole, root, linkable=True)
            citation = replace(citation, offset=offset - 1, end=offset + len(span) + 1)
            found.citations.append(citation)
            found.problems.append(citation.problem("not linked (`course cite fix` links it)"))
        elif place is not None:
            found.problems.append(_shape(page.name, at, span))
        elif (m := _BARE.match(span)) is not None:
            found.problems.append(_no_path(page.name, at, m))
        elif (m := MENTION.fullmatch(span)) is not None:
            found.mentions.append(Mention(page.name, at, m["path"]))

    def outside(m: re.Match[str]) -> bool:
        return not any(link.start <= m.start() < link.end for link in links)

    for m in filter(outside, PLACE.finditer(page.plain)):
        if not _foreign(m["path"], root):
            at = page.line_of(m.start())
            found.problems.append(Problem(page.name, at, f"{m.group()}: set it in backticks"))
    for m in filter(outside, _BLOB.finditer(page.prose)):
        if m["line"]:
            why = "write `PATH:LINE SYMBOL`, and `course cite fix` links it"
            at = page.line_of(m.start())
            found.problems.append(Problem(page.name, at, f"{m.group()}: {why}"))
    offset = 0
    for at, (line, kind) in enumerate(zip(page.lines, page.kinds, strict=True), 1):
        if kind == CODE and ("vllm/" in line or "csrc/" in line):
            for item in _in_line(page.name, at, offset, line, root, bare=False):
                if isinstance(item, Problem):
                    found.problems.append(item)
                elif not item.own:
                    found.citations.append(item)
        offset += len(line) + 1
    if not page.name.endswith("-correspondence.md"):  # its tables have the line beside the link
        found.citations = _number(found.citations)
    found.problems += _check_labels(found.citations)
    return found


@dataclass(frozen=True)
class Link:
    """A link of a page; `spans` are the offsets of the inline code in its text."""

    start: int
    end: int
    text: str
    url: str
    title: str | None
    spans: tuple[int, ...]


def _links(page: Page) -> Iterator[Link]:
    for m in _LINK.finditer(page.plain):
        text, url = (page.text[m.start(name) : m.end(name)] for name in ("text", "url"))
        inner = tuple(o for o, _ in page.spans if m.start("text") <= o < m.end("text"))
        yield Link(m.start(), m.end(), text, url, m["title"], inner)


def _read_link(page: Page, link: Link, root: Path, release: str, found: Found) -> bool:
    """Take in a link that is a citation, or leads to vLLM. False if its text is still to be read."""
    target = _BLOB.fullmatch(link.url)
    label = link.text[1:-1] if re.fullmatch(r"`[^`]+`", link.text) else None
    title = html.unescape(link.title or "")
    whole = _whole_place(title, root, linked=True) or _whole_place(label or "", root)
    at = page.line_of(link.start)
    if target is not None and target["tag"] != f"v{release}":
        message = f"{link.url}: the pin is v{release}, this links to {target['tag']}"
        found.problems.append(Problem(page.name, at, message))
    if whole is None:
        if target is None:
            return False
        if target["line"]:
            why = f'the link\'s title must be "{target["path"]}:{target["line"]} SYMBOL"'
            found.problems.append(Problem(page.name, at, f"{link.url}: {why}"))
        if target["path"]:
            found.mentions.append(Mention(page.name, at, target["path"]))
        return link.text == f"`{target['path']}`"
    citation = replace(
        _citation(page.name, at, 0, whole, root, linkable=True),
        offset=link.start, end=link.end, label=label, url=link.url,
    )  # fmt: skip
    found.citations.append(citation)
    elsewhere = link.url != citation.link(release) and not (citation.own and citation.line)
    if elsewhere and (target is None or target["tag"] == f"v{release}"):
        found.problems.append(citation.problem(f"its link leads elsewhere, to {link.url}"))
    return True


def _number(citations: list[Citation]) -> list[Citation]:
    """The links into a symbol of vLLM's that the page links more than once have the line in their text."""
    times = Counter((c.path, c.symbol or "") for c in citations if c.linkable)
    return [
        replace(
            c, numbered=c.linkable and c.inside and not c.own and times[c.path, c.symbol or ""] > 1
        )
        for c in citations
    ]


def _check_labels(citations: list[Citation]) -> Iterator[Problem]:
    for citation in citations:
        if citation.url is not None and citation.label not in citation.labels:
            why = f"the link's text must be `{citation.labels[0]}`, and the citation its title"
            yield citation.problem(f"{why} (`course cite fix`)")
