"""The page of `course compare`: our files left, vLLM's right, in one file that fetches nothing.

Everything is laid out here; the script in `assets/` levels both sides, scrolls them together and answers
keys. The two sides hold the same number of blocks, one a section: block N stands beside block N.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from itertools import groupby
from pathlib import Path

from pygments.lexers.python import PythonLexer
from pygments.token import Token, _TokenType

from course.cite.compare import Match, Section, unknown_names
from course.cite.source_file import SourceFile
from course.cite.text import SITE

ASSETS = Path(__file__).parent / "assets"
NAMES, MORE_NAMES = 4, 24  # of what a fold holds: on it, and when pointed at
_CLASSES = (
    (Token.Comment, "c"), (Token.Literal.String, "s"), (Token.Keyword, "k"),
    (Token.Operator.Word, "k"), (Token.Literal.Number, "m"), (Token.Name.Function, "f"),
    (Token.Name.Class, "f"), (Token.Name.Decorator, "d"), (Token.Name.Builtin, "b"),
)  # fmt: skip


@dataclass(frozen=True)
class Sheet:
    """One file of ours with what stands beside it.

    Args:
        mirrored: the files of vLLM's that stand beside it.
        left_out: what its docstring says that it leaves out.
    """

    path: str
    own: SourceFile
    sections: Sequence[Section]
    mirrored: Sequence[str]
    left_out: str


def page(
    sheets: Sequence[Sheet], release: str, read: Callable[[str], SourceFile | None], label: str
) -> str:
    """The whole page.

    Args:
        read: vLLM's file by its path, None where there is no tree.
        label: where the right half comes from, in words.
    """
    style, script = (_asset(name) for name in ("compare.css", "compare.js"))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    title = sheets[0].path if len(sheets) == 1 else "mini_vllm"
    options = "".join(f"<option>{escape(sheet.path)}</option>" for sheet in sheets)
    body = "\n".join(_Writer(sheet, n, release, read).html() for n, sheet in enumerate(sheets))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{escape(title)} beside vLLM {escape(release)}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1 class="quiet">mini_vllm beside vLLM {escape(release)}</h1>
<button type="button" id="list" aria-expanded="true" title="l">Pairs</button>
<label>File <select id="file">{options}</select></label>
<label>Find <input id="find" type="search" placeholder="/" spellcheck="false"></label>
<output id="hits"></output>
<button type="button" id="all" aria-pressed="false" title="e">Unfold all</button>
<output id="where" aria-live="polite"></output>
</header>
<noscript>The two halves are laid side by side by a script of this page's own. Let it run.</noscript>
<main>
{body}
</main>
<footer>
<span>Left: this repository. Right: {escape(label)}.</span>
<span class="keys"><kbd>j</kbd> <kbd>k</kbd> next pair, the one before
 <kbd>/</kbd> find <kbd>e</kbd> unfold all <kbd>l</kbd> list of pairs</span>
</footer>
<script>{script}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return "\n" + (ASSETS / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def highlight(text: str) -> list[str]:
    """The lines of a piece of Python, as HTML."""
    lines = [""]
    for kind, value in PythonLexer(stripnl=False, ensurenl=False).get_tokens(text):
        css = _class(kind)
        for n, part in enumerate(value.split("\n")):
            if n:
                lines.append("")
            html = escape(part, quote=False)
            lines[-1] += f'<i class="{css}">{html}</i>' if css and part.strip() else html
    return lines


@cache
def _class(kind: _TokenType) -> str:
    return next((css for wanted, css in _CLASSES if kind in wanted), "")


class _Writer:
    """Writes one sheet. `number` makes the marks of its pairs its own."""

    def __init__(
        self, sheet: Sheet, number: int, release: str, read: Callable[[str], SourceFile | None]
    ) -> None:
        self.sheet, self.own, self.number = sheet, sheet.own, number
        self.release, self.read = release, read
        self.our_lines = highlight(self.own.text)
        self.pairs = [m for section in sheet.sections for m in section.matches]
        self.marks = {match: f"{number}-{n}" for n, match in enumerate(self.pairs)}
        self.ours: dict[int, list[Match]] = {}
        for match in self.pairs:
            for line in self.own.statement(match.mine):
                self.ours.setdefault(line, []).append(match)

    def html(self) -> str:
        ours = "\n".join(_block(self._our_lines(s.mine), s.why) for s in self.sheet.sections)
        theirs = "\n".join(_block(self._right(s), s.why) for s in self.sheet.sections)
        path = escape(self.sheet.path)
        return f"""<section class="sheet" data-path="{path}" hidden>
<nav class="pairs" aria-label="Pairs of {path}">{"".join(self._list())}</nav>
<div class="pane ours" tabindex="0" role="region" aria-label="{path}">
{ours}
</div>
<div class="pane theirs" tabindex="0" role="region" aria-label="vLLM {self.release}">
{theirs}
</div>
</section>"""

    # -- left --

    def _our_lines(self, lines: range) -> Iterator[str]:
        for line in lines:
            found = self.ours.get(line, [])
            whats = [m.what for m in found if not m.equal and m.mine == line]
            said = self.own.lines[line - 1]  # a name that stands there anyway is no news
            what = "; ".join(w.replace("`", "") for w in whats if w.strip("`") not in said)
            label = f' data-what="{escape(what)}" title="{escape(what)}"' if what else ""
            yield _line(f"<b>{line}</b>", self.our_lines[line - 1], self._marked(found), label)

    def _marked(self, found: Iterable[Match]) -> str:
        marks = [(self.marks[m], m.equal) for m in found]
        if not marks:
            return ""
        css = "equal" if all(equal for _, equal in marks) else "pair"
        return f' class="{css}" data-pair="{" ".join(mark for mark, _ in marks)}"'

    def _list(self) -> Iterator[str]:
        """The pairs, under the function or class of ours that each stands in."""

        def holder(match: Match) -> str:
            around = [s for s in self.own.definitions if s.covers(match.mine)]
            return min(around, key=lambda s: s.last - s.first).name if around else self.sheet.path

        class_ = ""
        for name, group in groupby((m for m in self.pairs if not m.equal), holder):
            found, (outer, _, last) = list(group), name.rpartition(".")
            is_member = bool(outer) and name != self.sheet.path
            if is_member and outer != class_:
                yield f"<h2>{escape(outer)}</h2>"
            class_ = outer if is_member else name
            if found[0].what == f"`{last}`":  # the heading is a pair itself
                heading, title = self._button(found.pop(0)), ""
            else:
                heading, title = escape(last), f' title="{escape(name)}"'
            css = ' class="member"' if is_member else ""
            yield f"<h2{css}{title}>{heading}</h2>"
            items = "".join(f"<li>{self._button(m)}</li>" for m in found)
            yield f"<ul>{items}</ul>" if items else ""

    def _button(self, match: Match) -> str:
        place = f"{self.sheet.path}:{match.mine} beside {match.path}:{match.line}"
        what = escape(match.what.replace("`", ""))
        mark = self.marks[match]
        return f'<button type="button" data-go="{mark}" title="{escape(place)}">{what}</button>'

    # -- right --

    def _about(self) -> Iterator[str]:
        if self.sheet.mirrored:
            links = ", ".join(self._link(path, path) for path in self.sheet.mirrored)
            yield f'<p class="note">Beside it: {links}</p>'
        if self.sheet.left_out:
            yield f'<p class="note"><strong>Ours leaves out:</strong> {escape(self.sheet.left_out)}</p>'

    def _link(self, path: str, text: str, line: int | None = None) -> str:
        url = f"{SITE}/blob/v{self.release}/{path}" + (f"#L{line}" if line else "")
        return f'<a href="{escape(url)}" target="_blank" rel="noopener">{escape(text)}</a>'

    def _right(self, section: Section) -> Iterator[str]:
        theirs = self.read(section.path) if section.path else None
        if section is self.sheet.sections[0]:
            yield from self._about()
        if section.why == "rest":
            yield from self._rest(section)
        elif theirs is None:
            for match in section.matches:
                what = match.what.replace("`", "")
                text = f"{match.path}:{match.line} {match.symbol}"
                marks = self._marked([match])
                yield f"<p{marks}>{self._link(match.path, text, match.line)} {escape(what)}</p>"
        else:
            if section.why == "lead":
                name = self._link(section.path, section.symbol, section.theirs.start)
                yield f'<p class="head"><strong>{name}</strong> {escape(section.path)}</p>'
            yield from self._their_lines(section, theirs)

    def _their_lines(self, section: Section, theirs: SourceFile) -> Iterator[str]:
        text = "\n".join(theirs.lines[section.theirs.start - 1 : section.theirs.stop - 1])
        html = dict(zip(section.theirs, highlight(text), strict=False))
        marks: dict[int, list[Match]] = {}
        for match in section.matches:
            for line in theirs.statement(match.line):
                marks.setdefault(line, []).append(match)

        def row(line: int) -> str:
            number = self._link(section.path, str(line), line)
            return _line(number, html[line], self._marked(marks.get(line, [])))

        for is_open, group in groupby(section.theirs, section.shown.__contains__):
            lines = list(group)
            rows = "".join(map(row, lines))
            yield rows if is_open else _fold(*self._fold_label(section.path, lines, theirs), rows)

    def _fold_label(self, path: str, lines: list[int], theirs: SourceFile) -> tuple[str, str]:
        """What a fold says of its lines, and what it says when pointed at."""
        count = f"{len(lines)} lines: {lines[0]} to {lines[-1]}"
        elsewhere = [m for m in self.pairs if not m.equal and m.path == path and m.line in lines]
        if elsewhere:
            count += f"; {len(elsewhere)} paired elsewhere"
        if all(line in theirs.quiet or not theirs.words_at(line) for line in lines):
            return f"{count}; documentation", ""
        names = unknown_names(theirs, lines, self.own)
        if not names:
            return count, ""
        long = f"Names that {self.sheet.path} does not have: {', '.join(names[:MORE_NAMES])}"
        return f"{count}; not in ours: {', '.join(names[:NAMES])}", long

    def _rest(self, section: Section) -> Iterator[str]:
        number = len(section.rest)
        links = ", ".join(
            self._link(section.path, s.name.rpartition(".")[2], s.line) for s in section.rest
        )
        text = f"{number} more function{'s' * (number > 1)} of {section.symbol}, not in this file of ours"
        yield _fold(text, "", f'<p class="note">{links}</p>')


def _line(number: str, code: str, marked: str, label: str = "") -> str:
    return f"<div{marked}{label}>{number}<code>{code}</code></div>"


def _block(parts: Iterable[str], why: str) -> str:
    return f'<div class="block {why}">{"".join(parts)}</div>'


def _fold(text: str, title: str, inner: str) -> str:
    tip = f' title="{escape(title)}"' if title else ""
    return (
        f'<button type="button" class="fold" aria-expanded="false"{tip}>{escape(text)}</button>'
        f'<div class="more" hidden>{inner}</div>'
    )
