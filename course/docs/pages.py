"""The repository's files, and a Markdown page cut into prose, code, captured output and comments.

What `course.docs` and `course.cite` read pages with. No Markdown library: the pages keep to a plain
subset (fences, indented code, inline code, links, headings, comments on lines of their own), and
both renderers, GitHub's and the site's, read that subset alike.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNREAD = {"venv", "upstream", "build", "dist", "site", "node_modules", "__pycache__"}

_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<ticks>`{3,}|~{3,})(?P<info>[^`]*)$")
_COMMENT = re.compile(r"^\s*<!--.*-->\s*$")
_OUTPUT = re.compile(r"^\s*<!--\s*output\b(?P<head>.*)-->\s*$")
_END_OUTPUT = re.compile(r"^\s*<!--\s*end output\s*-->\s*$")
_LIST_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s")
CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)

TEXT, CODE, OUTPUT, COMMENT, FRONT = "text", "code", "output", "comment", "front"


@dataclass(frozen=True)
class Problem:
    """Something wrong at a place: what `check` prints, one a line."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass(frozen=True)
class Fence:
    """A fenced block. `first` and `last` are the lines of its fences, from 1; `last` is 0 if open."""

    first: int
    last: int
    indent: str
    info: str
    body: tuple[str, ...]

    @property
    def language(self) -> str:
        return self.info.split()[0].lower() if self.info.split() else ""


@dataclass(frozen=True)
class OutputBlock:
    """A captured output: its comment's text, and the lines from there to the end comment."""

    first: int
    last: int
    head: str
    body: tuple[str, ...]


@dataclass
class Page:
    """A Markdown file. Lines count from 1 in everything it tells, offsets from 0."""

    path: Path
    name: str
    text: str
    fences: list[Fence] = field(default_factory=list)
    outputs: list[OutputBlock] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines = self.text.split("\n")
        self.kinds = [TEXT] * len(self.lines)
        at = self._front_matter()
        while at < len(self.lines):
            line = self.lines[at]
            if (head := _OUTPUT.match(line)) is not None:
                at = self._output(at, head["head"])
            elif (fence := _FENCE.match(line)) is not None:
                at = self._fence(at, fence)
            elif _COMMENT.match(line):
                self.kinds[at] = COMMENT
                at += 1
            elif self._is_indented_code(at):
                self.kinds[at] = CODE
                at += 1
            else:
                at += 1

    def _front_matter(self) -> int:
        if self.lines[0] != "---" or "---" not in self.lines[1:]:
            return 0
        end = self.lines.index("---", 1) + 1
        self.kinds[:end] = [FRONT] * end
        return end

    def _fence(self, at: int, opening: re.Match[str]) -> int:
        ticks = opening["ticks"]
        closing = re.compile(rf"^\s*{re.escape(ticks[0])}{{{len(ticks)},}}\s*$")
        end = at + 1
        while end < len(self.lines) and not closing.match(self.lines[end]):
            end += 1
        closed = end < len(self.lines)
        stop = end + 1 if closed else end
        self.kinds[at:stop] = [CODE] * (stop - at)
        indent = opening["indent"]
        body = tuple(line.removeprefix(indent) for line in self.lines[at + 1 : end])
        last = end + 1 if closed else 0
        self.fences.append(Fence(at + 1, last, indent, opening["info"].strip(), body))
        return stop

    def _output(self, at: int, head: str) -> int:
        end = at + 1
        while end < len(self.lines) and not _END_OUTPUT.match(self.lines[end]):
            if _OUTPUT.match(self.lines[end]):  # the first was never ended
                break
            end += 1
        closed = end < len(self.lines) and bool(_END_OUTPUT.match(self.lines[end]))
        # A block without an end hides no more than its own line, so that the rest is still read.
        stop = end + 1 if closed else at + 1
        self.kinds[at:stop] = [OUTPUT] * (stop - at)
        head = head.strip().removeprefix(":").strip()
        body = tuple(self.lines[at + 1 : end]) if closed else ()
        self.outputs.append(OutputBlock(at + 1, end + 1 if closed else 0, head, body))
        return stop

    def _is_indented_code(self, at: int) -> bool:
        line = self.lines[at]
        if not line.startswith(("    ", "\t")) or not line.strip():
            return False
        if at and self.kinds[at - 1] == CODE and self.lines[at - 1].startswith(("    ", "\t")):
            return True
        if at and self.lines[at - 1].strip():
            return False
        for back in range(at - 1, -1, -1):  # inside a list item it is a paragraph of the item
            above = self.lines[back]
            if above.strip() and not above.startswith((" ", "\t")):
                return not _LIST_ITEM.match(above)
        return True

    def line_of(self, offset: int) -> int:
        """The line, from 1, of an offset into `text`."""
        return self.text.count("\n", 0, offset) + 1

    @cached_property
    def prose(self) -> str:
        """`text` with everything but prose blanked out; offsets stay."""
        pairs = zip(self.lines, self.kinds, strict=True)
        return "\n".join(line if kind == TEXT else " " * len(line) for line, kind in pairs)

    @cached_property
    def plain(self) -> str:
        """`prose` with what stands in inline code blanked out too; the backticks stay."""

        def blank(match: re.Match[str]) -> str:
            inner = re.sub(r"[^\n]", " ", match[2])
            return f"{match[1]}{inner}{match[1]}"

        # A code span ends with its paragraph: a lone backtick must not swallow the page.
        parts = re.split(r"(\n[ \t]*\n)", self.prose)
        return "".join(CODE_SPAN.sub(blank, part) for part in parts)

    @cached_property
    def spans(self) -> list[tuple[int, str]]:
        """(offset, content) of every inline code in the prose."""
        found, at = [], 0
        for part in re.split(r"(\n[ \t]*\n)", self.prose):
            found += [(at + m.start(2), m[2]) for m in CODE_SPAN.finditer(part)]
            at += len(part)
        return found


def read_page(path: Path, root: Path = ROOT) -> Page:
    return Page(path, path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))


def repository_files(root: Path = ROOT, *suffixes: str) -> list[Path]:
    """The project's files, sorted: what git tracks or would track; without git, all but tool output."""
    chosen = [path for path in _all_files(root) if not suffixes or path.suffix in suffixes]
    return sorted(chosen)


def _all_files(root: Path) -> Iterator[Path]:
    if (root / ".git").exists():
        out = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"],
            capture_output=True, check=False,
        )  # fmt: skip
        if out.returncode == 0:
            tracked = {name.decode() for name in out.stdout.split(b"\0") if name}
            yield from (root / name for name in tracked if (root / name).is_file())
            return
    for folder, folders, names in os.walk(root):
        folders[:] = [
            f for f in folders
            if f not in UNREAD and not f.startswith(".") and not f.endswith(("_cache", ".egg-info"))
        ]  # fmt: skip
        yield from (Path(folder, name) for name in names)


def pages(root: Path = ROOT) -> list[Page]:
    """Every Markdown page of the project."""
    return [read_page(path, root) for path in repository_files(root, ".md")]
