"""Sentences put together from things and what is true of them, `facts/entities.lst`.

Each line of the file names a thing and, after the colon, what it does: every part is true on its
own, so any choice of parts makes a true sentence. A `*` after the name marks a plural.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

PATH = Path(__file__).parent / "facts" / "entities.lst"
FORMS = (
    *["{n} {a}."] * 6,
    *["{n} {a}. {It} {b}."] * 3,
    "{n} {a}, and {it} {b}.",
    "{n}, which {a}, {b}.",
    "one thing is true of {n}: {it} {a}.",
)
# True whatever follows, because what follows is always true.
ALWAYS = (
    "in a small engine or a large one,",
    "in an engine like this one,",
    "with one request or with many,",
    "with a batch of one or of a hundred,",
    "with or without a prefix cache,",
    "for short and for long prompts,",
    "for one user or for many users,",
    "whatever the policy is,",
    "whatever the prompt says,",
    "whether the batch is small or large,",
    "whether the cache is full or empty,",
    "before and after a preemption,",
    "before a request runs and after it,",
    "during prefill and decode,",
    "during each step,",
    "at every moment,",
    "at the end of a step as at its beginning,",
    "after the first token as before it,",
    "on a GPU and on a CPU,",
    "on a busy day,",
    "under heavy load,",
    "by definition,",
    "according to the guide,",
    "first of all,",
    "to begin with,",
    "as engineers know,",
    "as we have seen,",
    "from the first step to the last,",
    "even when many requests wait,",
    "even if memory is short,",
    "since the first version,",
    "for each user and each request,",
    "not only in vLLM,",
)
MANY = ("some", "many", "most", "all", "several", "two", "three", "these", "our", "your", "such")
ONE = ("every", "each", "any", "this", "our", "one", "your", "another")
# Of these there may be more than one engine's.
_PARTS = (
    "scheduler|block pool|cache manager|model runner|sampler|tokenizer|detokenizer|engine|server"
)
PARTS = frozenset(_PARTS.split("|"))
PART = ("our {x}", "this {x}", "every {x}", "the {x} of vLLM", "the {x} of an engine", "your {x}")
MODALS = ("can", "may", "must", "should")
ADVERBS = ("never", "only", "often", "usually")


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
    """The text with its first letter in upper case, but for the name vLLM."""
    return text if text.startswith("vLLM") else text[0].upper() + text[1:]


def base_verb(verb: str) -> str:
    """The form of a third-person verb that stands after "does" and after a plural."""
    if verb in MODALS:
        return verb
    if verb in ("is", "has", "does"):
        return {"is": "are", "has": "have", "does": "do"}[verb]
    if verb.endswith("ies"):
        return verb[:-3] + "y"
    if verb.endswith(("ches", "shes", "sses", "xes", "zzes", "oes")):
        return verb[:-2]
    return verb.removesuffix("s")


def many(entity: Entity, rng: random.Random) -> Entity | None:
    """`some blocks` for `a block`, with the facts that survive the plural, if there are three."""
    words = entity.name.split()
    if words[0] != "a" or {"of", "with"} & set(words):
        return None
    facts = []
    for fact in entity.facts:
        verb, _, rest = fact.partition(" ")
        # A second verb or a pronoun would have to change too.
        if verb in ADVERBS or {"and", "it", "its", "it."} & set(rest.split()):
            continue
        facts.append(f"{base_verb(verb)} {rest}".strip())
    if len(facts) < 3:
        return None
    last = words[-1]
    plural = last[:-1] + "ies" if last.endswith("y") and last[-2] not in "aeiou" else last + "s"
    if last.endswith(("ch", "sh", "x")):
        plural = last + "es"
    name = " ".join([rng.choice(MANY), *words[1:-1], plural])
    return Entity(name, True, tuple(facts))


def varied(entity: Entity, rng: random.Random) -> Entity:
    """The entity, or `every block`, or `some blocks`, for `a block`."""
    dice = rng.random()
    if entity.name.startswith("a ") and dice < 0.2:
        # What is true of a block is true of every block.
        return Entity(rng.choice(ONE) + entity.name[1:], False, entity.facts)
    if entity.name[4:] in PARTS and dice < 0.3:
        return Entity(rng.choice(PART).format(x=entity.name[4:]), False, entity.facts)
    return (many(entity, rng) if dice < 0.45 else None) or entity


def statement(entities: list[Entity], rng: random.Random) -> str:
    """One or two sentences about an entity."""
    entity = varied(rng.choice(entities), rng)
    it = "they" if entity.plural else "it"
    a, b = rng.sample(entity.facts, 2)
    text = rng.choice(FORMS).format(n=entity.name, a=a, b=b, it=it, It=capital(it))
    if rng.random() < 0.2:
        text = f"{rng.choice(ALWAYS)} {text}"
    return capital(text)
