"""Pages that cannot drift: examples, code, captured output, links and terms in Markdown.

    python -m course.docs check [PAGE...]    everything below, on all pages or some
    python -m course.docs fix [PAGE...]      writes code blocks and tables again from the code

Checked are, each in the test suite too:

- doctests: `>>>` lines in ```python blocks, one namespace a page (`course.docs.examples`);
- source blocks: `<!-- source: PATH SYMBOL -->`, then a ```python block (`course.docs.examples`);
- output blocks: `<!-- output: COMMAND | DATE | HARDWARE | VERSIONS -->`, a ```text block,
  `<!-- end output -->` (`course.docs.output`);
- tables that lay `mini_vllm` beside vLLM (`course.cite.correspond`);
- links and anchors between pages (`course.docs.links`);
- bold terms, each in GLOSSARY.md (`course.docs.terms`).

Exit code 0: all is well, 1: something is wrong, 2: bad arguments.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from course.cite.correspond import check_correspondence, fix_correspondence
from course.docs.examples import check_examples, check_sources, fix_sources
from course.docs.links import check_links
from course.docs.output import check_outputs
from course.docs.pages import ROOT, Page, pages
from course.docs.terms import check_terms

app = typer.Typer(help="Check that the pages still say what is so.", no_args_is_help=True)
Pages = Annotated[list[str] | None, typer.Argument(help="pages; default: all of them")]


def _chosen(every: list[Page], names: list[str] | None) -> list[Page]:
    if not names:
        return every
    wanted = {Path(name).resolve() for name in names}
    chosen = [page for page in every if page.path.resolve() in wanted]
    if len(chosen) != len(wanted):
        missing = wanted - {page.path.resolve() for page in chosen}
        print(
            f"no page of this repository: {', '.join(map(str, sorted(missing)))}", file=sys.stderr
        )
        raise typer.Exit(2)
    return chosen


@app.command()
def check(names: Pages = None) -> None:
    """Check the pages."""
    every = pages()
    chosen = _chosen(every, names)
    wanted = {page.name for page in chosen}
    problems = [p for p in (*check_links(every), *check_terms(every)) if p.path in wanted]
    examples = 0
    for page in chosen:
        problems += [*check_sources(page), *check_outputs(page), *check_correspondence(page)]
        found, count = check_examples(page)
        problems += found
        examples += count
    for problem in sorted(problems, key=lambda p: (p.path, p.line)):
        print(problem)
    print(f"{len(chosen)} pages, {examples} examples run: {len(problems)} wrong")
    raise typer.Exit(1 if problems else 0)


@app.command()
def fix(names: Pages = None) -> None:
    """Write source blocks and tables again from the code that they show."""
    edits = [edit for page in _chosen(pages(), names) for edit in fix_sources(page)]
    edits += [edit for page in _chosen(pages(), names) for edit in fix_correspondence(page)]
    for edit in edits:
        print(edit)
    again = _chosen(pages(), names)
    left = [p for page in again for p in (*check_sources(page), *check_correspondence(page))]
    for problem in left:
        print(problem)
    print(f"{len(edits)} blocks written, {len(left)} wrong")
    raise typer.Exit(1 if left else 0)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    app()
