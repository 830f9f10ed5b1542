"""A file of ours beside vLLM's: which lines stand next to which, and what has no partner.

The pairs are those of `course.cite.correspondence` and of the docstrings (`cited_pairs`); with a tree,
also functions and classes of the same name (`same_names`) and, between two pairs, lines that are equal
to the letter. `sections` puts all of it in the order of our file. vLLM's text is read from the reader's
tree, and goes nowhere but into the page that `course.cite.compare_page` makes.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path

from course.cite.check import Source
from course.cite.correspond import Groups, Unresolved, cited_pairs, my_place, their_place
from course.cite.correspondence import GROUPS
from course.cite.source_file import SourceFile
from course.cite.symbols import Symbol
from course.cite.text import find_in_python
from course.docs.pages import ROOT

SMALL_GAP = 3  # a fold for fewer lines would save nothing
LONG_HEAD = 6  # a `with` over more lines than this is no help in seeing where a pair stands
WHOLE = 60  # a function without a pair inside is open if it has no more lines
DULL = {*keyword.kwlist, *dir(builtins), *dir(list), *dir(dict), "self", "cls"}
Read = Callable[[str], SourceFile | None]


@dataclass(frozen=True)
class Match:
    """A pair, resolved: our line, and vLLM's with its symbol. `equal`: the two lines are the same."""

    what: str
    mine: int
    path: str
    symbol: str
    line: int
    equal: bool = False


@dataclass(frozen=True)
class Section:
    """Lines of ours and the lines of vLLM's beside them.

    `why` is "ours" (nothing stands beside them), "lead" (the lines of vLLM's symbol above its first
    pair, none of ours), "pair" or "same" (the two begin with the first of `matches`), or "rest"
    (`rest` are the functions of vLLM's class that no pair of the file names). Of `theirs`, `shown`
    are open and the others folded.
    """

    mine: range
    why: str
    matches: tuple[Match, ...] = ()
    theirs: range = range(0)
    shown: frozenset[int] = frozenset()
    path: str = ""
    symbol: str = ""
    rest: tuple[Symbol, ...] = ()


# --- what there is ---


def paired_files(
    groups: Groups = GROUPS, root: Path = ROOT, among: Sequence[str] | None = None
) -> list[str]:
    """Our files that have a counterpart: first those of the groups, in their order, then the others."""
    every = our_files(root) if among is None else among
    mine = [pair.mine.split(" ")[0] for pairs in groups.values() for pair in pairs]
    grouped = dict.fromkeys(path for path in mine if path in every)
    others = (p for p in every if p not in grouped)
    return [*grouped, *(p for p in others if mirrored(p, root) or any(cited_pairs(p, root)))]


def our_files(root: Path = ROOT) -> list[str]:
    every = sorted(root.glob("mini_vllm/**/*.py"), key=lambda p: (len(p.parts), p))
    return [p.relative_to(root).as_posix() for p in every]


def mirrored(path: str, root: Path = ROOT) -> list[str]:
    """The files of vLLM's that the docstring of our file names."""
    text = (root / path).read_text(encoding="utf-8")
    first = ast.parse(text).body[:1]
    end = first[0].end_lineno or 0 if first else 0
    found = find_in_python(path, "\n".join(text.split("\n")[:end]), root)
    named = [(c.at, c.path) for c in found.citations] + [(m.at, m.path) for m in found.mentions]
    return list(dict.fromkeys(p for _, p in sorted(named) if re.match(r"vllm/.*\.py$", p)))


def matches(
    path: str, source: Source, groups: Groups = GROUPS, root: Path = ROOT
) -> tuple[list[Match], list[str]]:
    """The file's pairs in the order of its lines; and what is wrong with those that lead nowhere.

    Two pairs of the same two lines are one; that of a group, which has words, goes first."""
    found: dict[tuple[int, str, int], Match] = {}
    wrong = []
    listed = [pair for pairs in groups.values() for pair in pairs]
    for pair in [p for p in listed if p.mine.split(" ")[0] == path] + list(cited_pairs(path, root)):
        try:
            mine, theirs = my_place(pair, root), their_place(pair, source, root)
        except Unresolved as error:
            wrong.append(str(error))
            continue
        match = Match(pair.what, mine.line, theirs.path, theirs.symbol or "", theirs.line)
        found.setdefault((mine.line, theirs.path, theirs.line), match)
    return sorted(found.values(), key=lambda m: m.mine), wrong


def same_names(
    own: SourceFile, found: Sequence[Match], files: Sequence[str], read: Read
) -> list[Match]:
    """A match for each function and class of ours whose name one of `files` has, and `found` lacks.

    Where our class has a partner of another name, its methods are looked for there."""
    taken = {(own.statement(m.mine), m.symbol.rpartition(".")[2]) for m in found}
    partners = _partner_classes(own, found)
    result = []
    for symbol in own.definitions:
        class_, _, name = symbol.name.rpartition(".")
        if (own.statement(symbol.line), name) in taken:
            continue
        wanted = [f"{partner}.{name}" for partner in partners[class_]] if class_ else [name]
        other = next(
            (Match(f"`{name}`", symbol.line, path, s.name, s.line)
             for full in wanted for path in files if (theirs := read(path)) is not None
             for s in theirs.definitions if s.name == full), None
        )  # fmt: skip
        result += [other] if other is not None else []
    return result


def _partner_classes(own: SourceFile, found: Sequence[Match]) -> dict[str, list[str]]:
    """For each class of ours, what its counterpart may be called: the likeliest first."""
    partners = {}
    for name, span in own.classes.items():
        head = [m.symbol for m in found if m.mine in own.class_head(span)]
        around = Counter(m.symbol.rpartition(".")[0] for m in found if m.mine in span)
        most = [class_ for class_, _ in around.most_common() if class_]
        partners[name] = list(dict.fromkeys([name, *head[:1], *most[:1]]))
    return partners


def left_out(text: str) -> str:
    """What a file's docstring says that it leaves out, on one line; "" if it says nothing."""
    doc = ast.get_docstring(ast.parse(text)) or ""
    m = re.search(r"\bLeft\s+out:\s+(.+?)(?=\n\s*\n|\Z)", doc, re.DOTALL)
    return " ".join(m[1].split()) if m else ""


def unknown_names(theirs: SourceFile, lines: Iterable[int], own: SourceFile) -> list[str]:
    """Names that these lines of vLLM's use and our file does not; the most used first."""
    counts = Counter(word for line in lines for word in theirs.words_at(line))
    return [word for word, _ in counts.most_common() if word not in own.words and word not in DULL]


# --- the order ---


@dataclass(frozen=True)
class _Anchor:
    """Matches of one statement, where each side begins, our function around it, and vLLM's symbol."""

    matches: tuple[Match, ...]
    at: int
    scope: range
    start: int
    span: range

    @property
    def path(self) -> str:
        return self.matches[0].path

    @property
    def whole(self) -> bool:
        """Whether it pairs with the head of vLLM's symbol, not with a line inside."""
        return self.start == self.span.start


def sections(own: SourceFile, found: Sequence[Match], read: Read) -> list[Section]:
    """All lines of our file, in order, with what stands beside them.

    Args:
        found: from `matches`.
        read: vLLM's file by its path. Where it gives None, a section has a match and no lines.
    """
    result: list[Section] = []
    runs = _excerpts([_anchor(match, own, read(match.path)) for match in found])
    line = 1
    for run, following in zip(runs, [*runs[1:], None], strict=False):
        stop = run[-1].scope.stop if following is None else min(run[-1].scope.stop, following[0].at)
        if run[0].at > line:
            result.append(Section(range(line, run[0].at), "ours"))
            line = run[0].at
        theirs, shown = read(run[0].path), set[int]()
        if theirs is not None:
            run = _with_same_lines(run, stop, own, theirs)
            shown = _shown(run, theirs)
            above = range(run[0].span.start, run[0].start)
            result.append(_section(range(0), "lead", run[0], above, shown))
        ends = [(a.at, a.start) for a in run[1:]] + [(stop, run[0].span.stop)]
        for anchor, (end, their_end) in zip(run, ends, strict=True):
            mine = range(line, max(line, end))
            why = "same" if anchor.matches[0].equal else "pair"
            lines = range(anchor.start, their_end) if theirs is not None else range(0)
            result.append(_section(mine, why, anchor, lines, shown))
            line = mine.stop
    if line <= len(own.lines):
        result.append(Section(range(line, len(own.lines) + 1), "ours"))
    return _with_rest(result, own, found, read)


def _anchor(match: Match, own: SourceFile, theirs: SourceFile | None) -> _Anchor:
    at, scope = own.statement(match.mine).start, own.scope(match.mine)
    span = range(match.line, match.line + 1)
    if theirs is None:
        return _Anchor((match,), at, scope, match.line, span)
    for symbol in theirs.symbols:
        if symbol.name == match.symbol and symbol.covers(match.line):
            span = range(symbol.first, symbol.last + 1)
    if match.symbol in theirs.classes:
        span = theirs.class_head(span)
    start = max(theirs.statement(match.line).start, span.start)
    return _Anchor((match,), at, scope, start, span)


def _excerpts(anchors: list[_Anchor]) -> list[list[_Anchor]]:
    """The anchors in our order, in runs that go down one function of ours and one symbol of vLLM's."""
    runs: list[list[_Anchor]] = []
    for anchor in sorted(anchors, key=lambda a: (a.at, a.whole, a.matches[0].mine)):
        last = runs[-1][-1] if runs else None
        if last is None or (last.scope, last.path, last.span) != (
            anchor.scope, anchor.path, anchor.span
        ):  # fmt: skip
            runs.append([anchor])
        elif last.start == anchor.start or (last.at == anchor.at and last.start < anchor.start):
            runs[-1][-1] = replace(last, matches=last.matches + anchor.matches)
        elif last.start < anchor.start:
            runs[-1].append(anchor)
        else:
            runs.append([anchor])
    return runs


def _with_same_lines(
    run: list[_Anchor], stop: int, own: SourceFile, theirs: SourceFile
) -> list[_Anchor]:
    """The run, and between its pairs an anchor for each line that is the same on both sides."""
    result = []
    for anchor, following in zip(run, [*run[1:], None], strict=True):
        result.append(anchor)
        if following is None and not run[0].whole:
            break  # what follows in a long function may be anything
        mine = range(own.statement(anchor.at).stop, stop if following is None else following.at)
        end = anchor.span.stop if following is None else following.start
        other = range(theirs.statement(anchor.start).stop, end)
        for at, line in _same_lines(own, mine, theirs, other):
            same = Match("the same line", at, anchor.path, anchor.matches[0].symbol, line, True)
            result.append(replace(anchor, matches=(same,), at=at, start=line))
    return result


def _same_lines(
    own: SourceFile, mine: range, theirs: SourceFile, other: range
) -> list[tuple[int, int]]:
    """Pairs of equal lines that say something, in the order of both files."""

    def telling(file: SourceFile, lines: range) -> list[tuple[int, str]]:
        stripped = [(at, file.lines[at - 1].strip()) for at in lines if at not in file.quiet]
        return [(at, text) for at, text in stripped if len(text) > 11 and text[0] not in "#)]}"]

    left, right = telling(own, mine), telling(theirs, other)
    matcher = SequenceMatcher(None, [t for _, t in left], [t for _, t in right], autojunk=False)
    return [
        (left[block.a + i][0], right[block.b + i][0])
        for block in matcher.get_matching_blocks()
        for i in range(block.size)
    ]


def _section(mine: range, why: str, anchor: _Anchor, lines: range, shown: set[int]) -> Section:
    matches = anchor.matches if why != "lead" else ()
    symbol = anchor.matches[0].symbol
    return Section(mine, why, matches, lines, frozenset(shown & {*lines}), anchor.path, symbol)


def _shown(run: list[_Anchor], theirs: SourceFile) -> set[int]:
    """The lines of a run's symbol that are open: the paired statements, the heads around them, and
    gaps too small for a fold; all, where only the symbol itself is paired and it is short."""
    span = run[0].span
    shown: set[int] = set()
    for anchor in run:
        places = [anchor.start, *(match.line for match in anchor.matches)]
        heads = [
            h for h in theirs.heads(anchor.start) if h.start > span.start and len(h) <= LONG_HEAD
        ]
        for lines in (*map(theirs.statement, places), *heads):
            shown.update(set(lines) & set(span))
    if run[0].whole and all(anchor.matches[0].equal for anchor in run[1:]):
        most = len(span) if len(span) <= WHOLE else len(run[0].scope) + SMALL_GAP
        shown.update(at for at in span[:most] if at not in theirs.quiet)
    closed: list[int] = []
    for line in [*span, span.stop]:
        if line not in shown and line < span.stop:
            closed.append(line)
        else:
            if len(closed) <= SMALL_GAP:
                shown.update(closed)
            closed = []
    return shown


def _with_rest(
    result: list[Section], own: SourceFile, found: Sequence[Match], read: Read
) -> list[Section]:
    """After each of our classes, the functions of vLLM's class beside it that no pair names."""
    for name, partners in _partner_classes(own, found).items():
        span = own.classes[name]
        paths = dict.fromkeys(m.path for m in found if m.mine in span)
        beside = next(
            ((path, class_, theirs) for class_ in partners for path in paths
             if (theirs := read(path)) is not None and class_ in theirs.classes), None
        )  # fmt: skip
        if beside is None:
            continue
        path, class_, theirs = beside
        named = {m.symbol for m in found if m.path == path}
        rest = tuple(
            s for s in theirs.definitions
            if s.name.rpartition(".")[0] == class_ and s.name not in named
        )  # fmt: skip
        if rest:
            new = Section(range(0), "rest", path=path, symbol=class_, rest=rest)
            result = _put_after(result, span.stop, new)
    return result


def _put_after(result: list[Section], stop: int, new: Section) -> list[Section]:
    """`new` before our line `stop`; a section of ours alone that goes over it is cut there."""
    before, after = [], []
    for section in result:
        if section.mine and section.mine.start < stop < section.mine.stop:
            before.append(replace(section, mine=range(section.mine.start, stop)))
            after.append(Section(range(stop, section.mine.stop), "ours"))
        elif after or (section.mine and section.mine.start >= stop):
            after.append(section)
        else:
            before.append(section)
    return [*before, new, *after]
