"""Citations of vLLM: check them, mend them, read the lines they point to.

    python -m course.cite check              against the index, and your vLLM tree if there is one
    python -m course.cite fix                moves lines to their symbols, writes missing links, and
                                             the index again if there is a tree
    python -m course.cite show PATH:LINE     prints the source from your own tree
    python -m course.cite drift              what holds in the newest release, and what is to be read again
    python -m course.cite drift TREE         the same of another release, by its tree
    python -m course.cite index              writes course/cite/citations.tsv again, from your tree

The form of a citation stands in `course.cite.text`. A tree is `upstream/vllm`, an installed vLLM of
the pin's release, or what `--tree` names; UPSTREAM_PIN.md says how to get one.

To bump the pin: `fix --tree NEW --release X.Y.Z` rewrites lines, links and index, and lists what
changed. Exit code 0: all is well, 1: something is wrong or must be looked at, 2: bad arguments.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from course.cite.check import check as check_citations
from course.cite.check import fix as fix_citations
from course.cite.correspond import pair_symbols
from course.cite.index import (
    Index,
    Names,
    Tree,
    TreeError,
    cited,
    find_tree,
    tree_names,
    write_index,
)
from course.cite.names import check_names, known_flag, used_names
from course.cite.text import SITE, Citation, find_all
from course.docs.pages import ROOT, Problem, repository_files

app = typer.Typer(help="Check, mend and follow the citations of vLLM.", no_args_is_help=True)
TreeOption = Annotated[
    Path | None,
    typer.Option("--tree", help="a vLLM tree; default: upstream/vllm or the installed one"),
]
ReleaseOption = Annotated[
    str | None, typer.Option("--release", help="the release of the tree, if it is not the pin's")
]
_PLACE = re.compile(
    r"(?P<path>[\w./-]+?)(?::(?P<line>\d+)(?:-(?P<last>\d+))?)?(?: (?:in )?(?P<symbol>\S+))?"
)


class Stop(SystemExit):
    """Ends the command with a line for the reader."""

    def __init__(self, message: str, code: int = 2) -> None:
        print(message, file=sys.stderr)
        super().__init__(code)


def _index() -> Index:
    try:
        return Index()
    except TreeError as error:
        raise Stop(str(error)) from None


def _tree(named: Path | None, release: str | None) -> Tree | None:
    """The tree to use. One that is named must be there, and of `release` if that is given."""
    try:
        tree = Tree(named) if named else find_tree(ROOT, release)
    except TreeError as error:
        raise Stop(str(error)) from None
    if tree and release and tree.release not in (None, release):
        message = f"{tree.label} is vLLM {tree.release}, the pin is {release}"
        if named:
            raise Stop(f"{message}; compare them with `drift`, move the pin with `fix --release`")
        print(f"{message}: not used", file=sys.stderr)
        return None
    return tree


def _needed(tree: Tree | None, also: str = "") -> Tree:
    if tree is None:
        raise Stop(
            "There is no vLLM source on this machine. `scripts/get_upstream.sh` fetches it into "
            f"upstream/vllm; UPSTREAM_PIN.md has other ways.{also}"
        )
    return tree


def _write(tree: Tree, release: str, kept: Index | None) -> tuple[int, list[Problem]]:
    """Write the index again; its number of rows, and the citations that it could not take in."""
    found = find_all(ROOT, release)
    names = (name for _, _, name in used_names())
    facts = cited(found, pair_symbols(), names)
    rows = write_index(tree, release, facts, kept=kept)
    return rows, check_citations(found, Index())


@app.command()
def check(
    tree: TreeOption = None,
    offline: Annotated[bool, typer.Option("--offline", help="the index only")] = False,
) -> None:
    """Check every citation, link and name of vLLM's in the repository."""
    index = _index()
    found = find_all(ROOT, index.release)
    used = None if offline else _tree(tree, index.release)
    problems = [*found.problems, *check_names(index.names)]
    problems += check_citations(found, used) if used is not None else []
    known = {(p.path, p.line) for p in problems}  # the tree can say more of them
    problems += [p for p in check_citations(found, index) if (p.path, p.line) not in known]
    for problem in sorted(problems, key=lambda p: (p.path, p.line)):
        print(problem)
    own = sum(c.own for c in found.citations)
    files = len({c.file for c in found.citations})
    where = f"{used.label}" if used else "no vLLM tree looked at"
    print(
        f"{len(found.citations) - own} citations of vLLM {index.release} and {own} of this repository "
        f"in {files} files, {len(found.mentions)} paths without a line: {len(problems)} wrong "
        f"(index; {where})"
    )
    raise typer.Exit(1 if problems else 0)


@app.command()
def fix(
    tree: TreeOption = None,
    release: ReleaseOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say it, write nothing")] = False,
) -> None:
    """Move citations to where their symbols are defined, and write the links that are missing."""
    index = _index()
    bump = release is not None and release != index.release
    if bump and tree is None:
        raise Stop("--release names another release: give its tree with --tree")
    used = _tree(tree, release if bump else index.release)
    target = release if bump and release else index.release
    found = find_all(ROOT, index.release)
    edits, looks = fix_citations(found, index, used or index, target, write=not dry_run)
    if not bump:  # an installed vLLM holds no csrc/; what the index knows of it stands
        looks = [look for look in looks if look.kind != "unknown"]
    for edit in edits:
        print(edit)
    for look in looks:
        print(f"look: {look.citation.problem(look.message)}")
    if used is not None and not dry_run:
        if bump:
            _bump_links(index.release, target)
        rows, _ = _write(used, target, None if bump else index)
        print(f"index written for {target}, {rows} rows")
    if bump and not dry_run:
        print("the commit in UPSTREAM_PIN.md is yours to change")
    done = "would be rewritten" if dry_run else "rewritten"
    print(f"{len(edits)} places {done}, {len(looks)} to look at")
    raise typer.Exit(1 if looks else 0)


def _bump_links(old: str, new: str) -> None:
    """The links to vLLM's pages that carry no line."""
    for path in repository_files(ROOT, ".md"):
        text = path.read_text(encoding="utf-8")
        moved = text
        for kind in ("blob", "tree"):
            moved = re.sub(rf"{SITE}/{kind}/v{re.escape(old)}\b", f"{SITE}/{kind}/v{new}", moved)
        if moved != text:
            path.write_text(moved, encoding="utf-8")


@app.command()
def drift(
    tree: Annotated[
        Path | None,
        typer.Argument(help="the tree of another release; default: what is kept of the newest"),
    ] = None,
    page: Annotated[
        str | None, typer.Option("--page", help="of this page alone, with all that holds, too")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="keep what became of each citation")
    ] = False,
) -> None:
    """Say which citations hold in another release, and where they stand there; which are to be read again."""
    from course.drift import cited as fates

    index = _index()
    found = find_all(ROOT, index.release)
    of_page = [c for c in found.citations if not c.own and page in (None, c.file)]
    if not of_page:
        raise Stop(f"{page} cites nothing of vLLM")
    other = _tree(tree, None) if tree is not None else None
    if other is None:
        release, kept = fates.load()
    else:
        release = other.release or other.label
        before = _pin_tree(index.release)
        if write:
            _needed(before)
        judge = fates.Judge(index, before, other)
        kept = {text: judge.fate(c) for text, c in {c.text(): c for c in of_page}.items()}
        if write and page is None:
            fates.save(release, kept)
    places: dict[str, list[str]] = {}
    for citation in of_page:
        places.setdefault(citation.text(), []).append(f"{citation.file}:{citation.at}")
    for kind in fates.KINDS if page is not None else ("gone", "changed"):
        for text, where in sorted(places.items()):
            fate = kept.get(text, fates.Fate("unknown"))
            if fate.kind == kind:
                print(fates.told(text, fate, release) + ("" if page else f"  [{', '.join(where)}]"))
    if other is not None:
        for name, uses in _lost(index.names, tree_names(other)).items():
            print(f"gone: {name}  [{', '.join(uses)}]")
    totals: Counter[str] = Counter()
    for file, counts in fates.by_page(of_page, kept).items():
        print(f"{file}: {fates.in_words(counts, release)}")
        totals += counts
    print(f"{index.release} to {release}: {fates.in_words(totals, release)}")


def _pin_tree(release: str) -> Tree | None:
    """The pin's tree: the reader's, or what `course drift` has fetched."""
    from course.drift.record import cache_folder

    fetched = cache_folder() / release
    return find_tree(ROOT, release) or (Tree(fetched) if (fetched / "vllm").is_dir() else None)


def _lost(old: Names, new: Names) -> dict[str, list[str]]:
    """The variables and flags of `old` that the repository uses and `new` lacks, with the places."""
    lost: dict[str, list[str]] = {}
    for file, at, name in used_names():
        is_flag = name.startswith("--")
        there = known_flag(name, new) if is_flag else name in new.env
        if name in (old.flags if is_flag else old.env) and not there:
            lost.setdefault(name, []).append(f"{file}:{at}")
    return lost


@app.command()
def show(
    place: Annotated[list[str], typer.Argument(help="PATH:LINE, PATH:FIRST-LAST or PATH SYMBOL")],
    context: Annotated[int, typer.Option("--context", "-c", help="lines around it")] = 8,
    tree: TreeOption = None,
) -> None:
    """Print the source around a place, from your own vLLM tree."""
    named = " ".join(place).strip("`")
    m = _PLACE.fullmatch(named)
    if m is None or not (m["line"] or m["symbol"]):
        raise Stop(f"{named!r} is no place: write PATH:LINE, as in vllm/v1/request.py:239")
    try:
        release = Index().release
    except TreeError:  # an installed `course` has no index, and needs none to print a file
        release = None
    first = int(m["line"] or 1)
    url = Citation("", 0, 0, 0, m["path"], first).link(release) if release else SITE
    used = _needed(_tree(tree, release), f"\nOn the web: {url}")
    if not used.has(m["path"]):
        raise Stop(
            f"{used.label} has only vllm/; get the whole tree (UPSTREAM_PIN.md), or see {url}"
        )
    lines, facts = used.lines(m["path"]), used.facts(m["path"])
    if lines is None or facts is None:
        raise Stop(f"{used.label} has no {m['path']}")
    last = int(m["last"] or first)
    if m["symbol"] and not m["line"]:
        found = facts.defined(m["symbol"])
        if not found:
            raise Stop(f"{m['path']} does not define {m['symbol']}")
        first, last, context = found[0].first, found[0].last, 0
    if not 1 <= first <= last <= facts.length:
        raise Stop(f"{m['path']} has {facts.length} lines, not {m['last'] or first}")
    here = facts.at(first)
    print(f"{m['path']}:{first}" + (f"  in {here.name} ({here.first}-{here.last})" if here else ""))
    for number in range(max(1, first - context), min(facts.length, last + context) + 1):
        mark = ">" if first <= number <= last and context else " "
        print(f"{mark}{number:6} | {lines[number - 1]}".rstrip())


@app.command("index")
def index_command(tree: TreeOption = None, release: ReleaseOption = None) -> None:
    """Write the committed index from a tree. What is cited of csrc/ takes a whole one."""
    try:
        old: Index | None = Index(lenient=True)
    except TreeError:
        old = None
    wanted = release or (old.release if old else None)
    used = _needed(_tree(tree, wanted))
    target = wanted or used.release
    if target is None:
        raise Stop(f"{used.label} does not say its version: name it with --release")
    if old is not None and old.release != target:
        old = None
    rows, problems = _write(used, target, old)
    for problem in problems:
        print(problem)
    print(f"{rows} rows about vLLM {target}, {len(problems)} citations wrong")
    raise typer.Exit(1 if problems else 0)


if __name__ == "__main__":
    app()
