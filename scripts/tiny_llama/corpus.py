"""Write the training text of the shipped tiny Llama: short, varied, true statements.

Sentences come from templates in `facts/*.txt`, expanded by a seeded random generator, from lists
of what is true of a thing (`entities.py`) or follows from a clause (`clauses.py`), and from
arithmetic that the program computes (`arithmetic.py`). Standard library only, and the same seed
gives the same text.

A template line is one sentence. `[a|b|]` picks one of its parts, and parts may nest.
`@is(X)` and `@are(X)` stand for a question about X. In a facts file

* `= name` opens a topic,
* lines that follow each other form a paragraph,
* `Q:` and `A:` lines form a question with its answer.

A document is a run of sentences of a topic, or a chat. It is a list of `(role, text)` pairs:
role "" for prose, "system", "user" and "assistant" for chats.

Held-out text, never trained on: 1 document in 100 by its hash ("documents"), and every document
in which a sentence begins with one of the held-out openings, 1 opening in 50 by the hash of its
first four words ("openings").
"""

from __future__ import annotations

import hashlib
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scripts.tiny_llama import arithmetic, clauses, entities

FACTS = Path(__file__).parent / "facts"
OPENING_WORDS = 4
HELD_OUT_OPENINGS = 50  # one opening in this many
HELD_OUT_DOCUMENTS = 100  # one document in this many

SYSTEM_PROMPTS = (
    "You are a [helpful|friendly|patient] assistant.",
    "You [explain|know] how inference engines work.",
    "Answer [in one or two sentences|briefly|in plain English].",
    "You are a tiny model that [talks|answers questions] about inference engines.",
)
# About one thing: `{be}` is "is" or "are", `{s}` the ending of the verb.
QUESTIONS = (
    *["What {be} {x}?"] * 6,
    *["Explain {x}.", "Define {x}."] * 2,
    "Can you explain what {x} {be}?",
    "Please explain {x}.",
    "Explain {x} to me.",
    "Please explain {x} to me.",
    "Tell me what {x} {be}.",
    "Please tell me what {x} {be}.",
    "In short, what {be} {x}?",
    "What does one mean by {x}?",
    "What is meant by {x}?",
    "Do you know what {x} {be}?",
    "I want to know what {x} {be}.",
    "What {be} {x} for?",
    "How {do} {x} work?",
    "Please tell me how {x} work{s}.",
    "Can you tell me how {x} work{s}?",
    "Why do we need {x}?",
)
TELL_ME = (
    "Tell me about {x}.",
    "Tell me something about {x}.",
    "Say something about {x}.",
    "What should I know about {x}?",
    "What can you tell me about {x}?",
    "Write a few words about {x}.",
    "What do you know about {x}?",
    "I have a question about {x}.",
)
OFF_TOPIC = (
    "What is the [capital|flag|weather|history|language] of [France|Japan|Peru|Kenya|Norway]?",
    "[Who|What] was [Mozart|Cleopatra|Newton|Shakespeare]?",
    "[How old|How tall|How far away] is the [moon|tower|sea|oldest tree]?",
    "[Write|Sing|Tell] me a [song|story|joke|poem][| about [cats|love|the sea|winter]].",
    "[What|Which] [food|music|film|colour|book] do you like?",
    "Can you [cook|dance|swim|drive|sing|fly]?",
    "What is the [best|worst] [film|song|football team|city]?",
    "[What time is it|What day is it|Is it raining|Where do you live]?",
    "How do I [bake bread|learn French|grow tomatoes|fix a bike]?",
)
OFF_TOPIC_ANSWERS = (
    "I do not know. I only know about inference engines.",
    "I cannot help with that. You can ask me about inference engines.",
)
# Leads that leave a statement true, and the first words that may lose their capital after one.
LEADS_FIRST = (
    "Note that",
    "Remember that",
    "It is good to know that",
    "As a rule,",
    "In short,",
    "Put simply,",
    "In general,",
    "In practice,",
    "In this engine,",
    "In an inference engine,",
    "It is true that",
    "Of course,",
    "You may know that",
    "Here is a fact:",
    "One can say that",
    "By design,",
)
LEADS_LATER = ("Moreover,", "Also,", "In addition,", "Besides,", "Note that")
_PLAIN = """
The A An Each Every All Only Two Both Three Keys Blocks Attention Sampling Sharing
Requests Batching Decode Prefill Training Rotary Weights Padding Special Larger Smaller
Speculation Quantization Shared Kernel Tensor Pipeline Data Expert Occupancy Paged Prefix
Continuous Chunked Preemption Priority Static Greedy Penalties Latency Throughput Goodput
Metrics Eviction Activations Memory Speculative When If Once Because Since Without
Whenever Some Many Tokens Long Short Logits Users
"""
PLAIN_FIRST_WORDS = frozenset(_PLAIN.split())
_INNERMOST = re.compile(r"\[([^\[\]]*)\]")
_QUESTION = re.compile(r"@(is|are)\(([^()]*)\)")

Document = tuple[tuple[str, str], ...]


@dataclass
class Topic:
    """One topic: its name, its paragraphs and its questions with answers."""

    name: str
    paragraphs: list[list[str]] = field(default_factory=list)
    questions: list[tuple[str, str]] = field(default_factory=list)


def load_topics(folder: Path = FACTS) -> list[Topic]:
    """Read every `*.txt` of `folder`.

    Raises:
        ValueError: a line that has no place, named by file and line number.
    """
    topics: list[Topic] = []
    for path in sorted(folder.glob("*.txt")):
        question = ""
        in_paragraph = False
        for number, raw in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            line = raw.strip()
            where = f"{path.name}:{number}"
            if line.startswith("= "):
                topics.append(Topic(line[2:]))
            elif line and not topics:
                raise ValueError(f"{where}: a sentence before the first topic")
            elif line.count("[") != line.count("]"):
                raise ValueError(f"{where}: brackets do not match: {line!r}")
            elif line.startswith("Q: "):
                question = line[3:]
            elif line.startswith("A: "):
                if not question:
                    raise ValueError(f"{where}: an answer without a question")
                topics[-1].questions.append((question, line[3:]))
                question = ""
            elif line:
                if not in_paragraph:
                    topics[-1].paragraphs.append([])
                topics[-1].paragraphs[-1].append(line)
                in_paragraph = True
                continue
            in_paragraph = False
    return topics


def expand(template: str, rng: random.Random) -> str:
    """Replace every `[a|b]` by one of its parts, then every `@is(X)` by a question about X."""

    def pick(match: re.Match[str]) -> str:
        parts: list[str] = match.group(1).split("|")
        return rng.choice(parts)

    def ask(match: re.Match[str]) -> str:
        one = match.group(1) == "is"
        be, do, ending = ("is", "does", "s") if one else ("are", "do", "")
        return rng.choice(QUESTIONS).format(x=match.group(2), be=be, do=do, s=ending)

    text, changed = template, 1
    while changed:
        text, changed = _INNERMOST.subn(pick, text)
    text = _QUESTION.sub(ask, text)
    return re.sub(r" +", " ", text).replace(" ,", ",").replace(" .", ".").replace(" ?", "?")


class Corpus:
    """An endless, seeded source of documents."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.topics = load_topics()
        weights = [len(t.paragraphs) for t in self.topics]
        self._by_paragraph = (self.topics, weights)
        self.entities = entities.load_entities()
        self.clauses = clauses.load_clauses()
        self._questions = [qa for t in self.topics for qa in t.questions]

    def documents(self) -> Iterator[Document]:
        """Yield documents without end, held-out ones included."""
        while True:
            dice = self.rng.random()
            if dice < 0.24:
                yield self._chat()
            elif dice < 0.30:
                yield (("", arithmetic.statement(self.rng)),)
            elif dice < 0.55:
                text = entities.statement(self.entities, self.rng)
                yield (("", self._led(text, LEADS_FIRST)),)
            elif dice < 0.69:
                text = clauses.statement(self.rng.choice(self.clauses), self.rng)
                yield (("", self._led(text, LEADS_FIRST)),)
            else:
                yield (("", self._prose()),)

    def _topic(self) -> Topic:
        return self.rng.choices(self._by_paragraph[0], self._by_paragraph[1])[0]

    def _prose(self) -> str:
        """A paragraph, or a tail of it, or two paragraphs of one topic."""
        topic = self._topic()
        count = 2 if len(topic.paragraphs) > 1 and self.rng.random() < 0.2 else 1
        chosen = self.rng.sample(topic.paragraphs, count)
        sentences = [s for p in chosen for s in p]
        starts = {0, len(chosen[0])}
        if count == 1 and self.rng.random() < 0.1:
            sentences = sentences[: self.rng.randint(1, len(sentences))]
        # A second sentence may follow from the first; only a second paragraph can be led in.
        return " ".join(
            self._led(expand(s, self.rng), LEADS_LATER if i else LEADS_FIRST)
            if i in starts
            else expand(s, self.rng)
            for i, s in enumerate(sentences)
        )

    def _led(self, sentence: str, leads: tuple[str, ...]) -> str:
        """The sentence, sometimes after a lead such as "Note that"."""
        first = sentence.split(maxsplit=1)[0]
        if first not in PLAIN_FIRST_WORDS or self.rng.random() > 0.22:
            return sentence
        return f"{self.rng.choice(leads)} {sentence[0].lower()}{sentence[1:]}"

    def _turn(self) -> tuple[str, str]:
        """A question and its answer."""
        kind = self.rng.choices(
            ["topic", "number", "entity", "clause", "off", "fact"], [9, 10, 19, 13, 4, 45]
        )[0]
        if kind == "number":
            asked, answer = arithmetic.question(self.rng)
        elif kind == "entity":
            asked, answer = entities.question(self.entities, self.rng)
        elif kind == "clause":
            asked, answer = clauses.question(self.rng.choice(self.clauses), self.rng)
        elif kind == "off":
            asked = expand(self.rng.choice(OFF_TOPIC), self.rng)
            answer = self.rng.choice(OFF_TOPIC_ANSWERS)
        elif kind == "topic":
            topic = self._topic()
            asked = self.rng.choice(TELL_ME).format(x=topic.name)
            answer = " ".join(expand(s, self.rng) for s in self.rng.choice(topic.paragraphs))
        else:
            asked, answer = (expand(part, self.rng) for part in self.rng.choice(self._questions))
        if self.rng.random() < 0.08:  # as people type
            asked = asked.lower().rstrip("?.")
        return asked, answer

    def _chat(self) -> Document:
        parts: list[tuple[str, str]] = []
        if self.rng.random() < 0.1:
            parts.append(("system", expand(self.rng.choice(SYSTEM_PROMPTS), self.rng)))
        for _ in range(2 if self.rng.random() < 0.12 else 1):
            question, answer = self._turn()
            parts += [("user", question), ("assistant", answer)]
        return tuple(parts)


def _one_in(text: str, n: int) -> bool:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % n == 0


def opening(sentence: str) -> str:
    """The first words of a sentence, which decide whether it is held out."""
    return " ".join(sentence.split()[:OPENING_WORDS])


def sentences(document: Document) -> list[str]:
    """All sentences of a document, questions included."""
    return [s for _, text in document for s in re.split(r"(?<=[.?!]) ", text)]


def split_of(document: Document) -> str:
    """Return "train", "documents" or "openings": where the document belongs."""
    if any(_one_in("opening:" + opening(s), HELD_OUT_OPENINGS) for s in sentences(document)):
        return "openings"
    if _one_in("document:" + repr(document), HELD_OUT_DOCUMENTS):
        return "documents"
    return "train"


def main() -> None:
    """Print documents: `python -m scripts.tiny_llama.corpus [COUNT [SEED]]`."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    corpus = Corpus(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    for _, document in zip(range(count), corpus.documents(), strict=False):
        shown = "".join(f"<{role}> {text} " if role else text for role, text in document)
        print(f"[{split_of(document)}] {shown}")


if __name__ == "__main__":
    main()
