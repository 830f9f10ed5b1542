"""Sentences about conditions and causes, from three lists of clauses.

A line of `facts/conditions.lst`, `causes.lst` or `without.lst` is `clause => result | result`.
Each result follows from the clause, whatever the form of the sentence.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from scripts.tiny_llama.entities import capital

FACTS = Path(__file__).parent / "facts"
SENTENCES = {
    "conditions": (
        "when {c}, {r}.",
        "when {c}, {r}.",
        "if {c}, {r}.",
        "once {c}, {r}.",
        "whenever {c}, {r}.",
        "as soon as {c}, {r}.",
        "{r} when {c}.",
        "{r} if {c}.",
        "when {c}, {r}, and {s}.",
    ),
    "causes": (
        "because {c}, {r}.",
        "since {c}, {r}.",
        "{c}, so {r}.",
        "{r}, because {c}.",
        "{c}. Therefore {r}.",
        "{r}. The reason is that {c}.",
    ),
    "without": (
        "without {c}, {r}.",
        "without {c}, {r}.",
        "if there were no such thing as {c}, {r}.",
        "without {c}, {r}, and {s}.",
    ),
}


@dataclass(frozen=True)
class Clause:
    """A clause and what follows from it; `kind` names the list it stands in."""

    kind: str
    text: str
    results: tuple[str, ...]


def load_clauses(folder: Path = FACTS) -> list[Clause]:
    """Read the three lists.

    Raises:
        ValueError: a line without `=>`.
    """
    clauses = []
    for kind in SENTENCES:
        path = folder / f"{kind}.lst"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            text, arrow, rest = line.partition(" => ")
            if not arrow:
                raise ValueError(f"{path.name}:{number}: expected 'clause => result': {line!r}")
            clauses.append(Clause(kind, text, tuple(part.strip() for part in rest.split("|"))))
    return clauses


def statement(clause: Clause, rng: random.Random) -> str:
    """One or two sentences."""
    form = rng.choice([f for f in SENTENCES[clause.kind] if "{s}" not in f or clause.results[1:]])
    first, *other = rng.sample(clause.results, min(2, len(clause.results)))
    return _sentences(form.format(c=clause.text, r=first, s="".join(other)))


def _sentences(text: str) -> str:
    return ". ".join(capital(part) for part in text.split(". "))
