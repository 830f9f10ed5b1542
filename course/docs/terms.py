"""Bold terms: defined once on the pages of the phases, and every one of them in GLOSSARY.md.

In the glossary an entry is a paragraph that begins `**Term.**`; each term stands there once, in
alphabetical order. On a phase's page bold means: here this term is defined. So it is in the
glossary, and no other page has it in bold. Bold that ends in `.`, `:`, `?` or `!` opens a paragraph
and is no term, nor is a bold number, nor bold in the first column of a table. Plural and capitals
do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from course.docs.pages import ROOT, Page, Problem

GLOSSARY = "GLOSSARY.md"
_ENTRY = re.compile(r"^\*\*(?P<term>[^*]+?)\.\*\*(?:\s|$)", re.MULTILINE)
_BOLD = re.compile(r"(?<![*\\\w])\*\*(?P<text>[^\s*](?:[^*]*[^\s*])?)\*\*(?![*\w])")


def normal(term: str) -> str:
    """The form in which terms are compared: lower case, singular, no backticks."""
    words = re.sub(r"\s+", " ", term.replace("`", "")).strip().lower()
    if (
        "_" not in words
        and len(words) > 3
        and words.endswith("s")
        and not words.endswith(("ss", "us", "is"))
    ):
        words = words[:-1]
    return words


def glossary_terms(page: Page) -> list[tuple[int, str]]:
    """(line, term as written) of every entry."""
    return [(page.line_of(m.start()), m["term"]) for m in _ENTRY.finditer(page.prose)]


def defined_terms(page: Page) -> Iterator[tuple[int, str]]:
    """(line, term) of every bold term of a page."""
    for m in _BOLD.finditer(page.plain):
        text = page.text[m.start("text") : m.end("text")]
        row = page.plain[page.plain.rfind("\n", 0, m.start()) + 1 : m.start()]
        first_cell = re.fullmatch(r"\s*\|\s*", row) is not None
        if text[-1] in ".:?!" or first_cell or re.match(r"[\W\d]*\d", text):
            continue
        yield page.line_of(m.start()), text


def check_terms(every: list[Page], root: Path = ROOT) -> list[Problem]:
    """Terms that stand twice, and bold terms that the glossary lacks."""
    problems = []
    glossary = next((page for page in every if page.name == GLOSSARY), None)
    entries: dict[str, int] = {}
    previous = ""
    for at, term in glossary_terms(glossary) if glossary else []:
        key = normal(term)
        if key in entries:
            message = f"{term}: stands here twice, first in line {entries[key]}"
            problems.append(Problem(GLOSSARY, at, message))
        elif key < previous:
            problems.append(Problem(GLOSSARY, at, f"{term}: out of alphabetical order"))
        entries.setdefault(key, at)
        previous = max(previous, key)
    first: dict[str, str] = {}
    for page in sorted(every, key=lambda p: p.name):
        if not page.name.startswith("phase-"):
            continue
        for at, term in defined_terms(page):
            key = normal(term)
            if key not in entries:
                message = (
                    f"**{term}**: bold marks a term where it is defined, and {GLOSSARY} has none of "
                    "that name; add it, or write it plain"
                )
                problems.append(Problem(page.name, at, message))
            elif key in first:
                problems.append(
                    Problem(page.name, at, f"**{term}**: defined before, in {first[key]}")
                )
            else:
                first[key] = f"{page.name}:{at}"
    return problems
