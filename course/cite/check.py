"""Check citations against facts, move them to where their symbols went, say what drifted.

The facts come from the committed index, from a vLLM tree, or for citations of this repository from
its own files. All three answer alike: `facts(path)`, `paths`, `folders`, `find(name)`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from course.cite.index import (
    NEW,
    SUFFIXES,
    FileFacts,
    Index,
    Tree,
    repository_facts,
    repository_line_hash,
)
from course.cite.symbols import Symbol, line_hash
from course.cite.text import Citation, Found
from course.docs.pages import ROOT, Problem

Source = Index | Tree


def facts_for(citation: Citation, source: Source, root: Path = ROOT) -> FileFacts | None:
    if citation.own:
        return repository_facts(root, citation.path)
    return source.facts(citation.path)


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
    if not citation.own and not _could_hold(source, citation.path):
        return
    facts = facts_for(citation, source, root)
    is_index = isinstance(source, Index) and not citation.own
    if facts is None:
        near = _near_path(citation.path, source)
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
    if not citation.own and source.line_hash(citation.path, line) == line_hash(""):
        here = facts.at(line)
        at = f"; {here.name} is defined at line {here.line}" if here else ""
        yield citation.problem(f"line {line} is blank{at}")
        return
    if citation.symbol is None:
        if citation.own:
            here = facts.at(line)
            form = f", as in `{citation.text()} in {here.name}`" if here else ""
            yield citation.problem(f"lines of this repository move: name a symbol{form}")
        return
    defined = facts.defined(citation.symbol)
    if any(_holds(citation, s) for s in defined):
        if citation.own and citation.inside and isinstance(source, Index):
            yield from _check_pin(citation, source, root)
        return
    here = facts.at(line)
    what = "outside of every symbol" if here is None else _describe(here, line)
    where = nearest(citation, facts) or _elsewhere(citation.symbol, facts, source)
    yield citation.problem(f"line {line} is {what}; {where}")


def _check_pin(citation: Citation, index: Index, root: Path) -> Iterator[Problem]:
    """A line inside a symbol of this repository must be the line that was cited."""
    pin = index.pin(citation.path, citation.line)
    if pin is None:
        yield citation.problem("not pinned; `course cite fix` takes it in")
    elif pin != repository_line_hash(root, citation.path, citation.line):
        yield citation.problem("the line is another than the one cited; `course cite fix` moves it")


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
    alike = [s for s in facts.symbols if re.split(r"\.|::", s.name)[-1] == own]
    if alike:
        return f"the file has no {name}, but {alike[0].name} at line {alike[0].line}"
    if others := source.find(name):
        path, symbol = others[0]
        return f"{name} is defined at {path}:{symbol.line}"
    close = difflib.get_close_matches(name, [s.name for s in facts.symbols], n=1, cutoff=0.6)
    near = [s for s in facts.symbols if s.name in close]
    hint = f"; did you mean {near[0].name} (line {near[0].line})?" if near else ""
    return f"the file does not define {name}{hint}"


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
    if citation.own:
        here = repository_facts(root, citation.path)
        if here is not None and citation.inside and isinstance(old, Index):
            return _move_own_line(citation, here, old, root)
        return _move_named(citation, here, None, new)
    if not _could_hold(new, citation.path):
        return Move(citation, "unknown", None, f"{new.label} has no {citation.path.split('/')[0]}/")
    before, after = old.facts(citation.path), new.facts(citation.path)
    if after is None:
        return Move(citation, "vanished", None, f"the file is gone{_near_path(citation.path, new)}")
    if citation.symbol is not None and not citation.inside:
        return _move_named(citation, after, before, new)
    return _move_line(citation, before, after, old, new)


def _move_named(
    citation: Citation, after: FileFacts | None, before: FileFacts | None, new: Source
) -> Move:
    """The citation of a definition, or of this repository: by name."""
    symbol = citation.symbol
    if after is None or symbol is None:
        return Move(citation, "unknown", None, "the file is missing or no symbol is named")
    defined = after.defined(symbol)
    if not defined:
        where = _elsewhere(symbol, after, new)
        return Move(citation, "vanished", None, where)
    was = [s for s in before.defined(symbol) if s.line == citation.line] if before else []
    best = min(defined, key=lambda s: abs(s.line - citation.line))
    if len(defined) > 1 and was and before is not None:  # overloads and setters keep their order
        order = before.defined(symbol).index(was[0])
        best = defined[min(order, len(defined) - 1)]
    if citation.inside:
        if best.covers(citation.line):
            return Move(citation, "same", citation.line, "")
        return Move(citation, "unknown", None, nearest(citation, after))
    changed = bool(was) and was[0].digest != best.digest
    return _moved(citation, best.line, changed, symbol)


def _move_own_line(citation: Citation, here: FileFacts, index: Index, root: Path) -> Move:
    """The citation of a line in a symbol of this repository: by the hash it was pinned with."""
    defined = here.defined(citation.symbol or "")
    pin = index.pin(citation.path, citation.line)
    if not defined or pin is None:
        return _move_named(citation, here, None, index)
    lines = [n for symbol in defined for n in range(symbol.first, symbol.last + 1)]
    alike = [n for n in lines if pin == repository_line_hash(root, citation.path, n)]
    if citation.line in alike:
        return Move(citation, "same", citation.line, "")
    if not alike:
        message = f"{citation.symbol} has lost that line: look, then `course cite index`"
        return Move(citation, "changed", None, message)
    return _moved(citation, min(alike, key=lambda n: abs(n - citation.line)), False, "")


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
    """Rewrite lines that moved, links that disagree and citations without a link.

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
