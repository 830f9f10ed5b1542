"""The command `course compare`: our files beside vLLM's, on a page of its own.

The right half is read from the reader's own vLLM (`upstream/vllm`, an installed one, or `--tree`) and
is written to nothing but the page. Exit status 2: there is no such file or no such tree.
"""

from __future__ import annotations

import sys
import tempfile
import webbrowser
from functools import cache
from pathlib import Path
from typing import Annotated

import typer

from course.cite.command import Stop, TreeOption
from course.cite.compare import (
    left_out,
    matches,
    mirrored,
    our_files,
    paired_files,
    same_names,
    sections,
)
from course.cite.compare_page import Sheet, page
from course.cite.index import Index, Tree, TreeError, find_tree
from course.cite.source_file import SourceFile
from course.docs.pages import ROOT

app = typer.Typer(help="mini_vllm beside vLLM.", add_completion=False)


def chosen(name: str | None, root: Path = ROOT) -> list[str]:
    """The files that a name means, all that have a counterpart without one. Raises ValueError."""
    if name is None:
        return paired_files(root=root)
    wanted, every = name.replace("\\", "/").removeprefix("./"), our_files(root)
    found = [p for p in every if wanted in (p, p.removeprefix("mini_vllm/"))]
    if not found:  # settings give way to what they set
        found = [p for p in every if p.endswith(f"/{wanted}")]
        found = [p for p in found if not p.startswith("mini_vllm/config/")] or found
    if not found:
        raise ValueError(f"mini_vllm has no file {name}")
    if len(found) > 1:
        raise ValueError(f"{name} may be any of {', '.join(found)}")
    if found[0] not in paired_files(root=root, among=found):
        raise ValueError(f"{found[0]} names no counterpart in vLLM, so there is nothing beside it")
    return found


def readers_tree(named: Path | None, release: str) -> Tree:
    """The reader's vLLM. Raises TreeError where there is none, or one of another release."""
    tree = Tree(named) if named is not None else find_tree(ROOT, release)
    if tree is None:
        raise TreeError(
            "no vLLM source here: scripts/get_upstream.sh fetches it (UPSTREAM_PIN.md has other ways); "
            "--tree names one, --links does without"
        )
    if tree.release not in (None, release):
        raise TreeError(f"{tree.label} is vLLM {tree.release}, the pin is {release}")
    return tree


def compare_page(names: list[str], tree: Tree | None, index: Index) -> tuple[str, int, list[str]]:
    """The page of these files, its number of pairs, and what is wrong with pairs it lacks."""

    @cache
    def read(path: str) -> SourceFile | None:
        lines = tree.lines(path) if tree is not None else None
        return None if lines is None else SourceFile("\n".join(lines))

    sheets, wrong, count = [], [], 0
    for name in names:
        own = SourceFile((ROOT / name).read_text(encoding="utf-8"))
        found, lacking = matches(name, tree or index)
        files = list(dict.fromkeys([*mirrored(name), *(match.path for match in found)]))
        found += same_names(own, found, files, read)
        sheets.append(Sheet(name, own, sections(own, found, read), files, left_out(own.text)))
        wrong += lacking
        count += len(found)
    label = f"links to vLLM {index.release}, no tree was read"
    if tree is not None:
        label = f"{tree.label}, your vLLM {index.release}"
    return page(sheets, index.release, read, label), count, wrong


@app.command()
def compare(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="A file of mini_vllm; all of them without it."),
    ] = None,
    tree: TreeOption = None,
    links: Annotated[
        bool, typer.Option("--links", help="No vLLM tree: links stand in its place.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="OUT", help="Where to write; default: a new folder."
        ),
    ] = None,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Write the page, and open nothing.")
    ] = False,
) -> None:
    """mini_vllm beside your own vLLM, file by file: a page that scrolls both together.

    course compare scheduler.py      one file

    course compare                   all that have a counterpart
    """
    try:
        names = chosen(file)
        index = Index()
        used = None if links else readers_tree(tree, index.release)
        html, count, wrong = compare_page(names, used, index)
        target = output or Path(tempfile.mkdtemp(prefix="course-compare-")) / "compare.html"
        target.write_text(html, encoding="utf-8")
    except (ValueError, OSError) as error:
        raise Stop(f"course compare: {error}") from None
    for line in wrong:
        print(f"course compare: left out: {line}", file=sys.stderr)
    if used is not None and target.resolve().is_relative_to(ROOT):
        print("The page holds vLLM's text: it does not belong in this repository.", file=sys.stderr)
    print(f"{target}: {len(names)} file{'s' * (len(names) > 1)}, {count} pairs")
    if not no_open and sys.stdout.isatty():
        webbrowser.open(target.resolve().as_uri())


if __name__ == "__main__":
    app()
