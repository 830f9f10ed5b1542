"""Sentences put together from things and what is true of them, `facts/entities.lst`.

Each line of the file names a thing and, after the colon, what it does: every part is true on its
own, so any choice of parts makes a true sentence. A `*` after the name marks a plural.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

PATH = Path(__file__).parent / "facts" / "entities.lst"
SINGLE = (
    "{n} {a}.",
    "{n} {a}.",
    "{n} {a} and {b}.",
    "{n} {a}, and {it} {b}.",
    "{n} {a}. {It} {b}.",
    "{n} {a} and {b}. {It} {c}.",
    "{n} {a}, {b} and {c}.",
    "{n}, which {a}, {b}.",
    "one thing is true of {n}: {it} {a}.",
    "this is what we know about {n}: {it} {a} and {b}.",
    "what can be said about {n} is that {it} {a}.",
)
PAIR = (
    "{n} {a}, and {m} {b}.",
    "{n} {a}, while {m} {b}.",
    "{n} {a}, whereas {m} {b}.",
    "{n} {a}. {M} {b}.",
    "while {n} {a}, {m} {b}.",
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
MANY = ("some", "many", "most", "all", "several", "two")
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
        name = rng.choice(("every", "each", "any")) + entity.name[1:]
        return Entity(name, False, entity.facts)
    return (many(entity, rng) if dice < 0.45 else None) or entity


def statement(entities: list[Entity], rng: random.Random) -> str:
    """One or two sentences about one or two entities."""
    entity, other = (varied(e, rng) for e in rng.sample(entities, 2))
    it = "they" if entity.plural else "it"
    a, b, c = rng.sample(entity.facts, 3)
    if rng.random() < 0.3:
        form = rng.choice(PAIR)
        b = rng.choice(other.facts)
    else:
        form = rng.choice(SINGLE)
    text = form.format(
        n=entity.name, m=other.name, M=capital(other.name), a=a, b=b, c=c, it=it, It=capital(it)
    )
    if rng.random() < 0.2:
        text = f"{rng.choice(ALWAYS)} {text}"
    return capital(text)


def question(entities: list[Entity], rng: random.Random) -> tuple[str, str]:
    """A question about an entity and an answer."""
    entity, other = rng.sample(entities, 2)
    a, b = rng.sample(entity.facts, 2)
    do, it = ("do", "They") if entity.plural else ("does", "It")
    dice = rng.random()
    if dice < 0.3:
        return _yes(entity, a, rng)
    if dice < 0.4:
        answer = f"{entity.name} {a}, while {other.name} {rng.choice(other.facts)}."
        return f"What is the difference between {entity.name} and {other.name}?", capital(answer)
    asked = rng.choice(
        (
            f"What {do} {entity.name} do?",
            f"What is true of {entity.name}?",
            f"What can you say about {entity.name}?",
            f"What do you know about {entity.name}?",
            f"Say two things about {entity.name}.",
            f"Describe {entity.name}.",
            f"Give me a fact about {entity.name}.",
        )
    )
    return asked, rng.choice((f"{it} {a} and {b}.", f"{it} {a}. {it} {b}."))


def _yes(entity: Entity, fact: str, rng: random.Random) -> tuple[str, str]:
    """A question that is answered with yes."""
    verb, _, rest = fact.partition(" ")
    it = "They" if entity.plural else "It"
    if verb in ADVERBS or rng.random() < 0.2 or " and " in rest:
        return f"Is it true that {entity.name} {fact}?", f"Yes. {it} {fact}."
    if verb in (*MODALS, "is", "are"):
        return f"{capital(verb)} {entity.name} {rest}?", f"Yes. {it} {fact}."
    do, base = ("Do", verb) if entity.plural else ("Does", base_verb(verb))
    return f"{do} {entity.name} {base} {rest}?", f"Yes. {it} {fact}."
