"""Check citations against facts, move them to where their symbols went, say what drifted.

The facts come from the committed index or from a vLLM tree. Both answer alike: `facts(path)`, `paths`,
`folders`, `find(name)`. A citation of this repository has no line, and is looked up in its files.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from course.cite.index import NEW, SUFFIXES, FileFacts, Index, Tree
from course.cite.own import own_line, repository_facts
from course.cite.symbols import Symbol, line_hash
from course.cite.text import Citation, Found
from course.docs.pages import ROOT, Problem

Source = Index | Tree


def check(found: Found, source: Source, root: Path = ROOT) -> list[Problem]:
    """Every citation and mention that the source does not bear out, in the order of the files."""
    problems = []
    for citation in found.citations:
        problems += list(_check(citation, source, root))
    for mention in found.mentions:
        path = mention.path.rstrip("/")
        if not _could_hold(source, path) or Path(path).suffix not in ("", *SUFFIXES):
            continue
        if path not in source.paths and path not in source.folders:
            near = _near_path(path, source)
            message = f"{mention.path}: vLLM has no such file or folder{near}"
            if isinstance(source, Index):
                message = f"{mention.path}: not in the index{near}; {NEW}"
            problems.append(Problem(mention.file, mention.at, message))
    return sorted(problems, key=lambda p: (p.path, p.line))


def _could_hold(source: Source, path: str) -> bool:
    return not isinstance(source, Tree) or source.has(path)


def _check(citation: Citation, source: Source, root: Path) -> Iterator[Problem]:
    if citation.own:
        yield from map(citation.problem, filter(None, [_wrong_own(citation, root)]))
        return
    if not _could_hold(source, citation.path):
        return
    facts = source.facts(citation.path)
    is_index = isinstance(source, Index)
    if facts is None:
        near = _gone(citation.path, citation.symbol, source)
        yield citation.problem(
            f"not in the index{near}; {NEW}" if is_index else f"no such file{near}"
        )
        return
    line, last = citation.line, citation.last or citation.line
    if not 1 <= line <= facts.length or last > facts.length or last < line:
        where = nearest(citation, facts)
        yield citation.problem(f"the file has {facts.length} lines{'; ' + where if where else ''}")
        return
    if is_index and not _is_indexed(citation, facts, source):
        yield citation.problem(f"not in the index; {NEW}")
        return
    if source.line_hash(citation.path, line) == line_hash(""):
        here = facts.at(line)
        at = f"; {here.name} is defined at line {here.line}" if here else ""
        yield citation.problem(f"line {line} is blank{at}")
        return
    if citation.symbol is None or any(_holds(citation, s) for s in facts.defined(citation.symbol)):
        return
    here = facts.at(line)
    what = "outside of every symbol" if here is None else _describe(here, line)
    where = nearest(citation, facts) or _elsewhere(citation.symbol, facts, source)
    yield citation.problem(f"line {line} is {what}; {where}")


def _wrong_own(citation: Citation, root: Path) -> str:
    """What is wrong with a citation of this repository; "" if nothing is."""
    if citation.symbol is None:
        facts = repository_facts(root, citation.path)
        here = facts.at(citation.line) if facts else None
        form = f", as in `{citation.path} {here.name}`" if here else ""
        return f"lines of this repository move: name a symbol{form}"
    try:
        own_line(root, citation.path, citation.symbol, citation.code)
    except ValueError as error:
        return str(error)
    if citation.line:
        return "lines of this repository move: name the symbol alone (`course cite fix`)"
    return ""


def _is_indexed(citation: Citation, facts: FileFacts, index: Source) -> bool:
    """Whether the index has the facts to judge the citation by, and those to move it."""
    named = facts.defined(citation.symbol or "")
    if citation.symbol is not None and not named:
        return False
    inside = citation.symbol is None or any(s.covers(citation.line) for s in named)
    knows_line = index.line_hash(citation.path, citation.line) is not None
    return citation.named or not inside or knows_line


def _holds(citation: Citation, symbol: Symbol) -> bool:
    return symbol.covers(citation.line) if citation.inside else symbol.line == citation.line


def _describe(symbol: Symbol, line: int) -> str:
    return f"the definition of {symbol.name}" if symbol.line == line else f"in {symbol.name}"


def nearest(citation: Citation, facts: FileFacts) -> str:
    """Where the file defines the citation's symbol, nearest to its line; "" if it does not."""
    defined = facts.defined(citation.symbol or "")
    if not defined:
        return ""
    best = min(defined, key=lambda s: abs(s.line - citation.line))
    if citation.inside:
        return f"{best.name} covers lines {best.first} to {best.last}"
    return f"{best.name} is defined at line {best.line}"


def _elsewhere(name: str, facts: FileFacts, source: Source) -> str:
    own = re.split(r"\.|::", name)[-1]
    others = source.find(name)
    alike = [s for s in facts.symbols if re.split(r"\.|::", s.name)[-1] == own]
    if alike and len({path for path, _ in others}) != 1:
        return f"the file has no {name}, but {alike[0].name} at line {alike[0].line}"
    if others:
        return _defined_at(name, others, facts.path)
    close = difflib.get_close_matches(name, [s.name for s in facts.symbols], n=1, cutoff=0.6)
    near = [s for s in facts.symbols if s.name in close]
    hint = f"; did you mean {near[0].name} (line {near[0].line})?" if near else ""
    return f"the file does not define {name}{hint}"


def _defined_at(name: str, found: list[tuple[str, Symbol]], path: str) -> str:
    """Where `name` is defined; of several files the one with the path most like `path`."""
    files = sorted({other for other, _ in found})
    [best] = difflib.get_close_matches(path, files, n=1, cutoff=0.0)
    line = next(symbol.line for other, symbol in found if other == best)
    if len(files) == 1:
        return f"{name} is defined at {best}:{line}"
    return f"{name} is defined in {len(files)} files, the nearest by its path {best}:{line}"


def _gone(path: str, symbol: str | None, source: Source) -> str:
    """Where to look for what a missing file defined.

    By the symbol: a file of the same name may define something else. Without one, the path most like it.
    """
    if symbol is None:
        return _near_path(path, source)
    parts = re.split(r"(\.|::)", symbol)
    for end in range(len(parts), 0, -2):  # where the method is gone, its class
        name, rest = "".join(parts[:end]), "".join(parts[end + 1 :])
        if found := source.find(name):
            return f"; {_defined_at(name, found, path)}" + (f", without {rest}" if rest else "")
    if isinstance(source, Index):  # it knows only what is cited
        return _near_path(path, source)
    return f"; no file defines {symbol}"


def _near_path(path: str, source: Source) -> str:
    name = path.rsplit("/", 1)[-1]
    same = [p for p in source.paths | source.folders if p.rsplit("/", 1)[-1] == name]
    close = difflib.get_close_matches(path, same, n=1, cutoff=0.0) or difflib.get_close_matches(
        path, list(source.paths), n=1, cutoff=0.8
    )
    return f"; did you mean {close[0]}?" if close else ""


# --- moving ---


@dataclass(frozen=True)
class Move:
    """What happened to a citation between two sets of facts: a new line, or why there is none.

    `kind` is `same`, `moved`, `changed` (the symbol's code is another), `vanished` or `unknown`.
    """

    citation: Citation
    kind: str
    line: int | None
    message: str


def move(citation: Citation, old: Source, new: Source, root: Path = ROOT) -> Move:
    """Where the cited thing stands in `new`. `old` tells what an unnamed line lay in."""
    if citation.own:  # whose line goes, if it still has one
        wrong = _wrong_own(replace(citation, line=0), root)
        return Move(
            citation, "vanished" if wrong else "same", 0 if citation.symbol else None, wrong
        )
    if not _could_hold(new, citation.path):
        return Move(citation, "unknown", None, f"{new.label} has no {citation.path.split('/')[0]}/")
    before, after = old.facts(citation.path), new.facts(citation.path)
    if after is None:
        holder = _holder(citation, before) if citation.symbol is None else None
        symbol = holder.name if holder is not None else citation.symbol
        message = f"the file is gone{_gone(citation.path, symbol, new)}"
        return Move(citation, "vanished", None, message)
    if citation.symbol is not None and not citation.inside:
        return _move_named(citation, citation.symbol, after, before, new)
    return _move_line(citation, before, after, old, new)


def _move_named(
    citation: Citation, symbol: str, after: FileFacts, before: FileFacts | None, new: Source
) -> Move:
    """The citation of a definition: by name."""
    defined = after.defined(symbol)
    if not defined:
        where = _elsewhere(symbol, after, new)
        return Move(citation, "vanished", None, where)
    was = [s for s in before.defined(symbol) if s.line == citation.line] if before else []
    best = min(defined, key=lambda s: abs(s.line - citation.line))
    if len(defined) > 1 and was and before is not None:  # overloads and setters keep their order
        order = before.defined(symbol).index(was[0])
        best = defined[min(order, len(defined) - 1)]
    changed = bool(was) and was[0].digest != best.digest
    return _moved(citation, best.line, changed, symbol)


def _moved(citation: Citation, line: int, changed: bool, name: str) -> Move:
    way = f"line {citation.line} is now line {line}" if line != citation.line else ""
    if changed:
        return Move(citation, "changed", line, "; ".join(filter(None, (f"{name} is another", way))))
    return Move(citation, "moved" if way else "same", line, way)


def _move_line(
    citation: Citation, before: FileFacts | None, after: FileFacts, old: Source, new: Source
) -> Move:
    """The citation of a line in a symbol: by the symbol, and in it by the line's own hash."""
    was = _holder(citation, before)
    if was is None:
        if before is not None and before.length == after.length:
            return Move(citation, "same", citation.line, "")
        return Move(citation, "unknown", None, "the line lay in no symbol that is known")
    now = min(after.defined(was.name), key=lambda s: abs(s.first - was.first), default=None)
    if now is None:
        return Move(citation, "vanished", None, _elsewhere(was.name, after, new))
    shifted = citation.line - was.line + now.line
    if was.line == citation.line or was.digest == now.digest:
        return _moved(citation, shifted, was.digest != now.digest, was.name)
    digest = old.line_hash(citation.path, citation.line)
    lines = new.lines(citation.path) if isinstance(new, Tree) else None
    if digest is None or lines is None:
        message = f"{was.name} is another, and nothing is known of the line: look"
        return Move(citation, "changed", None, message)
    alike = [n for n in range(now.first, now.last + 1) if line_hash(lines[n - 1]) == digest]
    if not alike:
        return Move(citation, "changed", None, f"{was.name} has lost that line: look")
    return _moved(citation, min(alike, key=lambda n: abs(n - shifted)), True, was.name)


def _holder(citation: Citation, facts: FileFacts | None) -> Symbol | None:
    if facts is None:
        return None
    if citation.symbol is None:
        return facts.at(citation.line)
    return next((s for s in facts.defined(citation.symbol) if s.covers(citation.line)), None)


# --- rewriting ---


@dataclass(frozen=True)
class Edit:
    """A citation rewritten in its file."""

    file: str
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before} -> {self.after}"


def fix(
    found: Found, old: Source, new: Source, release: str, root: Path = ROOT, write: bool = True
) -> tuple[list[Edit], list[Move]]:
    """Rewrite lines that moved, links that disagree and citations without a link; own lines go.

    Returns the edits and the moves that a person must look at: `changed`, `vanished`, `unknown`.
    """
    edits: list[Edit] = []
    looks: list[Move] = []
    changes: dict[str, list[tuple[int, int, str]]] = {}
    for citation in found.citations:
        moved = move(citation, old, new, root)
        if moved.kind not in ("same", "moved"):
            looks.append(moved)
        if moved.kind == "vanished" and citation.url is None and citation.linkable:
            continue
        line = citation.line if moved.line is None else moved.line
        same = citation.url == citation.link(release, line) and citation.label in citation.labels
        if line == citation.line and (same or not citation.linkable):
            continue
        text = citation.written(release, line)
        changes.setdefault(citation.file, []).append((citation.offset, citation.end, text))
        edits.append(Edit(citation.file, citation.at, citation.text(), text))
    if write:
        for file, replacements in changes.items():
            _rewrite(root / file, replacements)
    return edits, looks


def _rewrite(path: Path, replacements: list[tuple[int, int, str]]) -> None:
    if not replacements:
        return
    text = path.read_bytes().decode("utf-8")
    for start, end, new in sorted(replacements, reverse=True):
        text = text[:start] + new + text[end:]
    path.write_bytes(text.encode("utf-8"))
