"""The two engines side by side: tables of `mini_vllm` lines and the vLLM lines that do the same.

    python -m course.cite.correspond check [PAGE...]    are the tables what they should be?
    python -m course.cite.correspond fix [PAGE...]      writes them again

A table stands between `<!-- correspond: begin NAME... -->` and `<!-- correspond: end -->`. A NAME is a
group of `course.cite.correspondence`, whose rows take vLLM's side from our docstrings where they name none,
or a Python file of this repository: then the rows are the vLLM places that the docstrings of the file's
functions and classes cite. Without a NAME come all groups.

Lines of `mini_vllm` stand in no table: its link names a symbol, and of a statement a piece of code that
is found once in the symbol. Lines of vLLM come from the citation index. Where a row cannot be resolved,
both of its sides are named.
Exit code 0: all is well, 1: something is wrong, 2: bad arguments.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated

import typer

from course.cite.check import Source
from course.cite.correspondence import GROUPS
from course.cite.index import NEW, Index, Tree, TreeError, find_tree
from course.cite.own import own_line
from course.cite.pair import Pair
from course.cite.text import Citation, find_in_python
from course.docs.pages import COMMENT, ROOT, Page, Problem, pages

app = typer.Typer(help="The two engines side by side: check, fix.", no_args_is_help=True)
Pages = Annotated[list[str] | None, typer.Argument(help="pages; default: all of them")]
Groups = Mapping[str, Sequence[Pair]]

_BEGIN = re.compile(r"^\s*<!--\s*correspond:\s*begin\b(?P<names>.*?)-->\s*$")
_END = re.compile(r"^\s*<!--\s*correspond:\s*end\s*-->\s*$")
_THEIRS = re.compile(
    r"`?(?P<path>vllm/\S+?\.py)(?::(?P<line>\d+) in)? (?P<symbol>[A-Za-z_][\w.]*)`?"
)
_ROW = re.compile(r'"(?P<place>[\w./-]+\.py:\d+)')
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Unresolved(ValueError):
    """A row one of whose sides is not where the list says; the message names both."""


@dataclass(frozen=True)
class Row:
    """A resolved pair: what it is about, and a place on either side, as citations are written."""

    what: str
    mine: Citation
    theirs: Citation

    def markdown(self, release: str, page: str) -> str:
        """The row, for the page of that name: a link to this repository's files is relative.

        A line inside of vLLM's symbol is told behind the link, for many rows name the same symbol."""
        mine = replace(self.mine, file=page).markdown(release, 0)
        number = f" {self.theirs.line}" if self.theirs.inside else ""
        return f"| {self.what} | {mine} | {self.theirs.markdown(release)}{number} |"


@dataclass(frozen=True)
class Table:
    """The place of a table on a page: the lines of its markers, and the names it is made of."""

    begin: int
    end: int
    names: tuple[str, ...]


def _both(pair: Pair) -> str:
    return f"{pair.mine} <-> {pair.theirs.strip('`') or 'its source'}"


# --- this repository's side ---


def my_place(pair: Pair, root: Path = ROOT) -> Citation:
    """The pair's place in this repository, a definition or a line inside of one, with today's line.

    Raises Unresolved if the symbol, or the piece of code, is not there exactly once."""
    path, _, name = pair.mine.partition(" ")
    try:
        line = own_line(root, path, name, pair.code)
    except ValueError as error:
        raise Unresolved(f"{_both(pair)}: {error}") from None
    inside = pair.code is not None
    return Citation("", 0, 0, 0, path, line, None, name, inside, own=True, code=pair.code)


# --- vLLM's side ---


def their_place(pair: Pair, source: Source, root: Path = ROOT) -> Citation:
    """The pair's place in vLLM, with the line of its definition if it names none.

    Raises Unresolved if there is no such symbol, or the line lies outside of it, or (where the source
    is a tree) the line does not hold `pair.word`, or neither the pair nor our docstring names a symbol."""
    if not pair.theirs:
        pair = pair._replace(theirs=_docstring_source(pair, root))
    m = _THEIRS.fullmatch(pair.theirs)
    if m is None:
        raise Unresolved(f"{_both(pair)}: write PATH SYMBOL, or PATH:LINE in SYMBOL")
    facts = source.facts(m["path"])
    if facts is None:
        raise _lacking(pair, f"file {m['path']}", source)
    found = facts.defined(m["symbol"])
    if not found:
        raise _lacking(pair, f"{m['symbol']} in {m['path']}", source)
    if m["line"] is None:
        return Citation("", 0, 0, 0, m["path"], found[0].line, None, m["symbol"])
    line = int(m["line"])
    if not any(symbol.covers(line) for symbol in found):
        where = f"{m['symbol']} covers lines {found[0].first} to {found[0].last}"
        raise Unresolved(f"{_both(pair)}: line {line} is not in it; {where}")
    if isinstance(source, Tree) and pair.word is not None:
        lines = source.lines(m["path"]) or []
        if not re.search(rf"\b{re.escape(pair.word)}\b", lines[line - 1]):
            raise Unresolved(f"{_both(pair)}: line {line} says nothing of {pair.word}")
    return Citation("", 0, 0, 0, m["path"], line, None, m["symbol"], inside=True)


def _docstring_source(pair: Pair, root: Path) -> str:
    for cited in cited_pairs(pair.mine.split(" ")[0], root):
        if cited.mine == pair.mine and ":" not in cited.theirs:
            return cited.theirs
    raise Unresolved(f"{pair.mine}: its docstring cites no definition of vLLM's, nor does the pair")


def _lacking(pair: Pair, what: str, source: Source) -> Unresolved:
    if isinstance(source, Tree):
        return Unresolved(f"{_both(pair)}: vLLM has no {what}")
    return Unresolved(f"{_both(pair)}: the index has no {what}; {NEW}")


def pair_symbols(groups: Groups = GROUPS) -> set[tuple[str, str]]:
    """The definitions that the groups name, (path, name), for the index."""
    places = (_THEIRS.fullmatch(pair.theirs) for pairs in groups.values() for pair in pairs)
    return {(m["path"], m["symbol"]) for m in places if m is not None}


# --- what the code says itself ---


def cited_pairs(path: str, root: Path = ROOT) -> Sequence[Pair]:
    """A pair for each vLLM place that the docstring of a function or class in `path` cites."""
    return _cited(path, (root / path).read_text(encoding="utf-8"), root)


@lru_cache(maxsize=256)
def _cited(path: str, text: str, root: Path) -> Sequence[Pair]:
    spans = dict(_docstrings(ast.parse(text).body, ""))
    pairs = []
    for citation in find_in_python(path, text, root).citations:
        name = next((n for n, lines in spans.items() if citation.at in lines), None)
        if name is None or citation.symbol is None or not citation.path.startswith("vllm/"):
            continue
        where = f":{citation.line} in" if citation.inside else ""
        own = name.rsplit(".", 1)[-1]
        theirs = f"{citation.path}{where} {citation.symbol}"
        pairs.append(Pair(f"`{own}`", f"{path} {name}", theirs))
    return tuple(dict.fromkeys(pairs))


def _docstrings(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, range]]:
    for node in body:
        if isinstance(node, _DEFINITIONS):
            first = node.body[0]
            if ast.get_docstring(node) is not None:
                end = first.end_lineno or first.lineno
                yield prefix + node.name, range(first.lineno, end + 1)
            yield from _docstrings(node.body, f"{prefix}{node.name}.")


# --- tables on pages ---


def tables(page: Page) -> tuple[list[Table], list[Problem]]:
    """The page's tables, and markers that have no partner."""
    found, problems, begin = [], [], None
    for at, (line, kind) in enumerate(zip(page.lines, page.kinds, strict=True), 1):
        if kind != COMMENT:
            continue
        if (m := _BEGIN.match(line)) is not None:
            if begin is not None:
                problems.append(Problem(page.name, begin[0], "correspond: begins, never ends"))
            begin = (at, tuple(m["names"].split()))
        elif _END.match(line):
            if begin is None:
                problems.append(Problem(page.name, at, "correspond: ends, and never began"))
            else:
                found.append(Table(begin[0], at, begin[1]))
            begin = None
    if begin is not None:
        problems.append(Problem(page.name, begin[0], "correspond: begins, never ends"))
    return found, problems


def _pairs(names: Sequence[str], groups: Groups, root: Path) -> list[Pair]:
    pairs: list[Pair] = []
    for name in names or groups:
        if name in groups:
            pairs += groups[name]
        elif name.endswith(".py") and (root / name).is_file():
            pairs += cited_pairs(name, root)
        else:
            known = ", ".join(groups)
            raise Unresolved(
                f"{name!r} is no group ({known}) and no Python file of this repository"
            )
    return pairs


def render(
    names: Sequence[str],
    source: Source,
    release: str,
    page: str,
    groups: Groups = GROUPS,
    root: Path = ROOT,
) -> tuple[list[str], list[str]]:
    """A table's lines, and what is wrong with rows that cannot be resolved (they are left out)."""
    wrong: list[str] = []
    try:
        pairs = _pairs(names, groups, root)
    except Unresolved as error:
        return [], [str(error)]
    lines = ["| what | `mini_vllm` | vLLM " + release + " |", "| --- | --- | --- |"]
    for pair in pairs:
        try:
            row = Row(pair.what, my_place(pair, root), their_place(pair, source, root))
        except Unresolved as error:
            wrong.append(str(error))
        else:
            lines.append(row.markdown(release, page))
    return lines, wrong


@cache
def _index() -> Index:
    return Index()


def check_correspondence(
    page: Page, source: Source | None = None, groups: Groups = GROUPS, root: Path = ROOT
) -> list[Problem]:
    """Every table of the page that is not what it should be, row by row."""
    found, problems = tables(page)
    release = _index().release
    for table in found:
        wanted, wrong = render(table.names, source or _index(), release, page.name, groups, root)
        problems += [Problem(page.name, table.begin, f"correspond: {text}") for text in wrong]
        shown = [line for line in page.lines[table.begin : table.end - 1] if line.strip()]
        if wrong or shown == wanted:
            continue
        problems.append(_difference(page, table, shown, wanted))
    return problems


def _difference(page: Page, table: Table, shown: list[str], wanted: list[str]) -> Problem:
    """The first row that differs, said with the names of both sides."""
    fix = "(`course correspond fix`)"
    pairs = enumerate(zip(shown, wanted, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(shown), len(wanted)))
    line = table.begin + 1 + page.lines[table.begin :].index(shown[at]) if at < len(shown) else 0
    if at >= len(wanted):
        return Problem(page.name, line, f"correspond: no such row: {shown[at]} {fix}")
    names = " <-> ".join(re.findall(r'"([^"]+)"\)', wanted[at])[-2:])
    if at >= len(shown):
        return Problem(page.name, table.end, f"correspond: the row {names} is missing {fix}")
    old, new = (_ROW.findall(row) for row in (shown[at], wanted[at]))
    moved = [f"the page says {a}, it is {b}" for a, b in zip(old, new, strict=False) if a != b]
    what = "; ".join(moved) if moved and len(old) == len(new) else f"the page says {shown[at]}"
    return Problem(page.name, line, f"correspond: {names}: {what} {fix}")


def fix_correspondence(
    page: Page, source: Source | None = None, groups: Groups = GROUPS, root: Path = ROOT
) -> list[str]:
    """Write the page's tables again. Returns one line for each that changed."""
    lines, edits = list(page.lines), []
    release = _index().release
    for table in reversed(tables(page)[0]):
        wanted, wrong = render(table.names, source or _index(), release, page.name, groups, root)
        new = ["", *wanted, ""]
        if not wrong and lines[table.begin : table.end - 1] != new:
            lines[table.begin : table.end - 1] = new
            edits.append(f"{page.name}:{table.begin}: {' '.join(table.names) or 'all groups'}")
    if edits:
        page.path.write_text("\n".join(lines), encoding="utf-8")
    return edits[::-1]


def _chosen(names: list[str] | None) -> list[Page]:
    every = pages()
    if not names:
        return every
    wanted = {Path(name).resolve() for name in names}
    chosen = [page for page in every if page.path.resolve() in wanted]
    if len(chosen) != len(wanted):
        print(f"no page of this repository among {', '.join(names)}", file=sys.stderr)
        raise typer.Exit(2)
    return chosen


def _tree() -> Tree | None:
    try:
        return find_tree(ROOT, _index().release)
    except TreeError:
        return None


@app.command()
def check(names: Pages = None) -> None:
    """Check every table against the code, the index, and your vLLM tree if there is one."""
    chosen = _chosen(names)
    problems = [p for page in chosen for p in check_correspondence(page)]
    tree = _tree()
    if tree is not None and not problems:
        problems = [p for page in chosen for p in check_correspondence(page, tree)]
    for problem in problems:
        print(problem)
    count = sum(
        len([line for line in page.lines[t.begin : t.end - 1] if line.strip()]) - 2
        for page in chosen
        for t in tables(page)[0]
    )
    where = tree.label if tree is not None else "no vLLM tree looked at"
    print(f"{count} pairs on {len(chosen)} pages: {len(problems)} wrong (index; {where})")
    raise typer.Exit(1 if problems else 0)


@app.command()
def fix(names: Pages = None) -> None:
    """Write the tables again."""
    edits = [edit for page in _chosen(names) for edit in fix_correspondence(page)]
    for edit in edits:
        print(edit)
    left = [p for page in _chosen(names) for p in check_correspondence(page)]
    for problem in left:
        print(problem)
    print(f"{len(edits)} tables written, {len(left)} wrong")
    raise typer.Exit(1 if left else 0)


if __name__ == "__main__":
    app()
