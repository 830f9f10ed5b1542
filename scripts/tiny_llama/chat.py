"""Questions and answers: about one thing, a condition, a cause, a number, or something else.

An answer names its subject again, so that it is a whole sentence. What lies outside inference
engines gets one fixed answer.
"""

from __future__ import annotations

import random
from pathlib import Path

from scripts.tiny_llama import arithmetic
from scripts.tiny_llama.clauses import Clause
from scripts.tiny_llama.entities import ADVERBS, MODALS, Entity, base_verb, capital, varied
from scripts.tiny_llama.grammar import Grammar, Subject

OUTSIDE = Path(__file__).parent / "facts" / "outside.lst"
REFUSAL = "I do not know that. I only know about inference engines."
# About one thing: `{be}` is "is" or "are", `{s}` the ending of the verb.
DEFINE = (
    *["What {be} {x}?"] * 7,
    *["Explain {x}.", "Define {x}.", "Describe {x}.", "Tell me what {x} {be}."] * 2,
    "Can you explain what {x} {be}?",
    "Could you tell me what {x} {be}?",
    "Please explain {x}.",
    "Explain {x} to me.",
    "Please explain {x} to me.",
    "Explain to me what {x} {be}.",
    "Explain in one sentence what {x} {be}.",
    "Please tell me what {x} {be}.",
    "Please describe {x}.",
    "In short, what {be} {x}?",
    "So what {be} {x}?",
    "And what {be} {x}?",
    "What exactly {be} {x}?",
    "What does one mean by {x}?",
    "What do you mean by {x}?",
    "What is meant by {x}?",
    "What is the meaning of {x}?",
    "Give me a definition of {x}.",
    "Do you know what {x} {be}?",
    "I want to know what {x} {be}.",
    "I do not understand {x}.",
    "I would like to learn about {x}.",
    "What {be} {x} for?",
    "What {be} {x} good for?",
    "How {do} {x} work?",
    "Please tell me how {x} work{s}.",
    "Can you tell me how {x} work{s}?",
    "Explain how {x} work{s}.",
    "Why do we need {x}?",
    "Why {be} {x} useful?",
    "Who needs {x}?",
    "Who has heard of {x}?",
    "{x}?",
    "{x}",
)
ABOUT = (
    "What {do} {x} do?",
    "What is true of {x}?",
    "What can you say about {x}?",
    "What do you know about {x}?",
    "What should I know about {x}?",
    "Tell me about {x}.",
    "Tell me something about {x}.",
    "Tell me more about {x}.",
    "Say something about {x}.",
    "Please tell me about {x}.",
    "Describe {x}.",
    "Give me a fact about {x}.",
    "Give me an example of what {x} {do}.",
    "Write a sentence about {x}.",
    "I have a question about {x}.",
    "What about {x}?",
    "What is special about {x}?",
    "What happens to {x}?",
    "Why {be} {x} important?",
    "Why {do} {x} matter?",
    "How important {be} {x}?",
    "{Be} {x} important?",
    "{Be} {x} needed?",
    "Do we need {x}?",
    "Where {be} {x}?",
    "When {be} {x} used?",
    "How {be} {x} used?",
    "Who uses {x}?",
    "Which facts do you know about {x}?",
    "How should I think of {x}?",
    "{Be} {x} slow?",
    "{Be} {x} expensive?",
    "{Be} {x} useful?",
    "{Be} {x} hard to understand?",
    "{Be} {x} always the same?",
    "How big {be} {x}?",
    "How fast {be} {x}?",
    "How {be} {x} made?",
    "How can I see {x}?",
    "How does an engine use {x}?",
    "How does a server handle {x}?",
    "Who made {x}?",
    "Who cares about {x}?",
    "Which part of the engine uses {x}?",
    "When {do} {x} help?",
    "When {do} {x} change?",
    "Can {x} change?",
    "Can {x} be tested?",
    "Can I change {x}?",
    "Can I use {x}?",
    "Should I use {x}?",
    "Do users see {x}?",
    "Does the model know {x}?",
    "Does every engine have {x}?",
    "I heard about {x}.",
    "My teacher asks about {x}.",
)
WHY = (
    "Why is it that {r}?",
    "Tell me why {r}.",
    "Explain why {r}.",
    "Explain to me why {r}.",
    "Can you explain why {r}?",
    "Do you know why {r}?",
    "Please tell me why {r}.",
    "What is the reason that {r}?",
    "Is it true that {r}?",
    "I wonder why {r}.",
)
CLAUSES = {
    "conditions": (
        ("What happens when {c}?", "When {c}, {r}."),
        ("What happens if {c}?", "If {c}, {r}."),
        ("What happens once {c}?", "Once {c}, {r}."),
        ("What happens after {c}?", "Once {c}, {r}."),
        ("What does the engine do when {c}?", "When {c}, {r}."),
        ("What will happen when {c}?", "When {c}, {r}."),
        ("Tell me what happens when {c}.", "When {c}, {r}."),
        ("And if {c}?", "If {c}, {r}."),
        ("What if {c}?", "If {c}, {r}."),
        ("Is it true that {r} when {c}?", "Yes. When {c}, {r}."),
    ),
    "causes": (
        ("What follows if {c}?", "If {c}, {r}."),
        *((asked, "{r}, because {c}.") for asked in WHY),
    ),
    "without": (
        ("What would happen without {c}?", "Without {c}, {r}."),
        ("What if there were no such thing as {c}?", "Without {c}, {r}."),
        ("Do we need {c}?", "Yes. Without {c}, {r}."),
        ("Can an engine work without {c}?", "Without {c}, {r}."),
        ("Why do we use {c}?", "Without {c}, {r}."),
        ("What is the use of {c}?", "Without {c}, {r}."),
    ),
}


def frame(asked: str, name: str, plural: bool) -> str:
    """The question about a thing."""
    be, do, ending = ("are", "do", "") if plural else ("is", "does", "s")
    text = asked.format(x=name, be=be, Be=capital(be), do=do, s=ending)
    return capital(text)


def define(name: str, plural: bool, rng: random.Random) -> str:
    """A question that asks what a thing is."""
    return frame(rng.choice(DEFINE), name, plural)


def of_clause(clause: Clause, rng: random.Random) -> tuple[str, str]:
    """A question about a condition or a cause."""
    asked, answer = rng.choice(CLAUSES[clause.kind])
    words = {"c": clause.text, "r": rng.choice(clause.results)}
    return asked.format(**words), _sentences(answer.format(**words))


def of_entity(entities: list[Entity], rng: random.Random) -> tuple[str, str]:
    """A question about a thing that has facts of its own."""
    entity = rng.choice(entities)
    first, second = rng.sample(entity.facts, 2)
    it = "They" if entity.plural else "It"
    dice = rng.random()
    if dice < 0.2:
        return _yes(entity, first, rng)
    if dice < 0.35 and not entity.plural:
        who = rng.choice(["What", "Who", "Which part", "What is it that"])
        return f"{who} {first}?", capital(f"{entity.name} {first}.")
    answer = f"{entity.name} {first}."
    if rng.random() < 0.3:
        answer += f" {it} {second}."
    return frame(rng.choice(ABOUT), entity.name, entity.plural), capital(answer)


def _yes(entity: Entity, fact: str, rng: random.Random) -> tuple[str, str]:
    verb, _, rest = fact.partition(" ")
    yes = f"Yes. {capital(entity.name)} {fact}."
    if verb in ADVERBS or rng.random() < 0.2 or " and " in rest:
        return f"Is it true that {entity.name} {fact}?", yes
    if verb in (*MODALS, "is", "are"):
        return f"{capital(verb)} {entity.name} {rest}?", yes
    do, base = ("Do", verb) if entity.plural else ("Does", base_verb(verb))
    return f"{do} {entity.name} {base} {rest}?", yes


def of_anything(grammar: Grammar, known: frozenset[str], rng: random.Random) -> tuple[str, str]:
    """A question about a noun of the subject, answered by what is true of its class.

    Args:
        known: the nouns that have better answers; none of them is asked for.
    """
    kind = rng.choice(["req", "mem", "sys", "idea"])
    plural = rng.random() < 0.4
    subject = Subject(kind, plural, "")
    noun = grammar.fill("{N}", subject)
    while noun.removesuffix("s") in known:
        noun = grammar.fill("{N}", subject)
    adjective = grammar.fill("{adj_any}", subject) + " " if rng.random() < 0.3 else ""
    name = f"{adjective}{noun}"
    if not plural:
        article = rng.choice(["the", "an" if name[0] in "aeiou" else "a"])
        name = f"{article} {name}"
    asked = rng.choice((*DEFINE, *ABOUT, *ABOUT))
    return frame(asked, name, plural), capital(f"{name} {grammar.fill('{VP}', subject)}.")


def off_topic(grammar: Grammar, rng: random.Random, frames: list[str]) -> tuple[str, str]:
    """A question that has nothing to do with engines."""
    asked = grammar.fill(rng.choice(frames), Subject("out", rng.random() < 0.3, ""))
    return capital(asked), REFUSAL


def of_number(rng: random.Random) -> tuple[str, str]:
    """A question about small numbers."""
    return arithmetic.question(rng)


def outside_frames() -> list[str]:
    """Frames of questions that have nothing to do with engines."""
    return OUTSIDE.read_text(encoding="utf-8").splitlines()


def difference(entities: list[Entity], rng: random.Random) -> tuple[str, str]:
    """A question about two things, answered by a sentence about each."""
    one, other = (varied(e, rng) for e in rng.sample(entities, 2))
    asked = rng.choice(
        (
            f"What is the difference between {one.name} and {other.name}?",
            f"How do {one.name} and {other.name} differ?",
            f"Compare {one.name} and {other.name}.",
            f"What do {one.name} and {other.name} do?",
        )
    )
    answer = f"{one.name} {rng.choice(one.facts)}. {other.name} {rng.choice(other.facts)}."
    return asked, _sentences(answer)


def as_typed(asked: str, rng: random.Random) -> str:
    """The question as people type it: sometimes with a greeting, or in small letters."""
    dice = rng.random()
    if dice < 0.03:
        lead = rng.choice(["Hello.", "Hi.", "Hi!", "Hey,", "Excuse me,", "Thanks.", "OK.", "Well,"])
        return f"{lead} {asked}"
    if dice < 0.12:
        return asked.lower().rstrip("?.")
    if dice < 0.16:
        return asked.rstrip("?.")
    return asked


def _sentences(text: str) -> str:
    return ". ".join(capital(part) for part in text.split(". "))
