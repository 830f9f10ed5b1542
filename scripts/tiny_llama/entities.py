"""Sentences put together from things and what is true of them, `facts/entities.lst`.

Each line of the file names a thing and, after the colon, what it does: every part is true on its
own, so any choice of parts makes a true sentence. A `*` after the name marks a plural.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

PATH = Path(__file__).parent / "facts" / "entities.lst"


@dataclass(frozen=True)
class Entity:
    """A thing, whether it is a plural, and what is true of it."""

    name: str
    plural: bool
    facts: tuple[str, ...]


def load_entities(path: Path = PATH) -> list[Entity]:
    """Read the file.

    Raises:
        ValueError: a line with fewer than three facts, which the longest sentence needs.
    """
    entities = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        name, _, rest = line.partition(":")
        facts = tuple(part.strip() for part in rest.split("|"))
        if len(facts) < 3:
            raise ValueError(f"{path.name}:{number}: needs three facts: {line!r}")
        entities.append(Entity(name.rstrip("*"), name.endswith("*"), facts))
    return entities


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[0].upper() + text[1:]


def statement(entity: Entity, rng: random.Random) -> str:
    """One or two sentences about the entity."""
    a, b, c = rng.sample(entity.facts, 3)
    name = entity.name
    if name.startswith("a ") and rng.random() < 0.3:
        # What is true of a block is true of every block.
        name = rng.choice(("every", "each", "any")) + name[1:]
    it = "they" if entity.plural else "it"
    forms = (
        f"{name} {a}.",
        f"{name} {a} and {b}.",
        f"{name} {a}, and {it} {b}.",
        f"{name} {a}. {capital(it)} {b}.",
        f"{name} {a} and {b}. {capital(it)} {c}.",
        f"{name} {a}, {b} and {c}.",
        f"{name}, which {a}, {b}.",
    )
    return capital(rng.choice(forms))


def question(entity: Entity, rng: random.Random) -> tuple[str, str]:
    """A question about the entity and an answer."""
    a, b = rng.sample(entity.facts, 2)
    do, it = ("do", "They") if entity.plural else ("does", "It")
    asked = rng.choice(
        (
            f"What {do} {entity.name} do?",
            f"What is true of {entity.name}?",
            f"What can you say about {entity.name}?",
            f"What do you know about {entity.name}?",
            f"Say two things about {entity.name}.",
        )
    )
    return asked, rng.choice((f"{it} {a} and {b}.", f"{it} {a}. {it} {b}."))
