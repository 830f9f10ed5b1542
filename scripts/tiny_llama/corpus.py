"""Write the training text of the shipped tiny Llama: short, varied, true statements.

Sentences come from templates in `facts/*.txt`, expanded by a seeded random generator, from lists
of what is true of a thing (`entities.py`) or follows from a clause (`clauses.py`), from rules of
grammar (`grammar.py`), and from arithmetic that the program computes (`arithmetic.py`); `chat.py`
asks about all of them. Standard library only, and the same seed gives the same text.

A template line is one sentence. `[a|b|]` picks one of its parts, and parts may nest.
`@is(X)` and `@are(X)` stand for a question about X. In a facts file

* `= name` opens a topic,
* lines that follow each other form a paragraph,
* `Q:` and `A:` lines form a question with its answer.

A document is a run of sentences of a topic, or a chat. It is a list of `(role, text)` pairs:
role "" for prose, "system", "user" and "assistant" for chats.

Held-out text, never trained on: 1 document in 100 by its hash ("documents"), and every document
in which a sentence begins with one of the held-out openings, 1 opening in 50 by the hash of its
first four words ("openings"). No document either in which a line of `prompts_fresh.txt` or
`prompts_unseen.txt` begins a sentence or is a question ("prompts").
"""

from __future__ import annotations

import hashlib
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scripts.tiny_llama import arithmetic, chat, clauses, entities
from scripts.tiny_llama.grammar import Grammar

FACTS = Path(__file__).parent / "facts"
OPENING_WORDS = 4
HELD_OUT_OPENINGS = 50  # one opening in this many
HELD_OUT_DOCUMENTS = 100  # one document in this many
UNSEEN = ("prompts_fresh.txt", "prompts_unseen.txt")

SYSTEM_PROMPTS = (
    "You are a [helpful|friendly|patient] assistant.",
    "You [explain|know] how inference engines work.",
    "Answer [in one or two sentences|briefly|in plain English].",
    "You are a tiny model that [talks|answers questions] about inference engines.",
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

# How often each kind of document, and of a turn of a chat, comes.
KINDS = {"chat": 40, "grammar": 29, "facts": 13, "entity": 8, "clause": 4, "asked": 3, "number": 3}
TURNS = {"fact": 42, "entity": 15, "outside": 11, "clause": 10, "anything": 9}
TURNS |= {"number": 6, "topic": 4, "difference": 3}

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
        return chat.define(match.group(2), match.group(1) == "are", rng)

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
        self.grammar = Grammar(self.entities, self.rng)
        self._outside = chat.outside_frames()
        self._questions = [qa for t in self.topics for qa in t.questions]
        asked = " ".join(question for question, _ in self._questions)
        names = [found.group(2) for found in _QUESTION.finditer(asked)]
        names += [entity.name for entity in self.entities]
        self._known = frozenset(re.sub("^(a|an|the) ", "", n).removesuffix("s") for n in names)
        self._kinds = list(KINDS)
        self._turns = list(TURNS)

    def documents(self) -> Iterator[Document]:
        """Yield documents without end, held-out ones included."""
        while True:
            kind = self.rng.choices(self._kinds, list(KINDS.values()))[0]
            yield self._chat() if kind == "chat" else (("", self._text(kind)),)

    def _text(self, kind: str) -> str:
        if kind == "grammar":
            return self.grammar.sentence()
        if kind == "facts":
            return self._prose()
        if kind == "entity":
            return self._led(entities.statement(self.entities, self.rng), LEADS_FIRST)
        if kind == "clause":
            text = clauses.statement(self.rng.choice(self.clauses), self.rng)
            return self._led(text, LEADS_FIRST)
        if kind == "asked":
            asked, answer = self._turn()
            return f"{asked} {answer}" if asked.endswith("?") else answer
        return arithmetic.statement(self.rng)

    def _topic(self) -> Topic:
        return self.rng.choices(self._by_paragraph[0], self._by_paragraph[1])[0]

    def _prose(self) -> str:
        """A paragraph of one subject, or its beginning."""
        chosen = self.rng.choice(self._topic().paragraphs)
        if self.rng.random() < 0.15:
            chosen = chosen[: self.rng.randint(1, len(chosen))]
        first, *others = [expand(s, self.rng) for s in chosen]
        return " ".join([self._led(first, LEADS_FIRST), *others])

    def _led(self, sentence: str, leads: tuple[str, ...]) -> str:
        """The sentence, sometimes after a lead such as "Note that"."""
        first = sentence.split(maxsplit=1)[0]
        if first not in PLAIN_FIRST_WORDS or self.rng.random() > 0.22:
            return sentence
        return f"{self.rng.choice(leads)} {sentence[0].lower()}{sentence[1:]}"

    def _turn(self) -> tuple[str, str]:
        """A question and its answer."""
        kind = self.rng.choices(self._turns, list(TURNS.values()))[0]
        if kind == "number":
            return chat.of_number(self.rng)
        if kind == "entity":
            return chat.of_entity(self.entities, self.rng)
        if kind == "difference":
            return chat.difference(self.entities, self.rng)
        if kind == "clause":
            return chat.of_clause(self.rng.choice(self.clauses), self.rng)
        if kind == "anything":
            return chat.of_anything(self.grammar, self._known, self.rng)
        if kind == "outside":
            return chat.off_topic(self.grammar, self.rng, self._outside)
        if kind == "topic":
            topic = self._topic()
            asked = self.rng.choice(TELL_ME).format(x=topic.name)
            return asked, " ".join(expand(s, self.rng) for s in self.rng.choice(topic.paragraphs))
        asked, answer = (expand(part, self.rng) for part in self.rng.choice(self._questions))
        return asked, answer

    def _chat(self) -> Document:
        parts: list[tuple[str, str]] = []
        if self.rng.random() < 0.1:
            parts.append(("system", expand(self.rng.choice(SYSTEM_PROMPTS), self.rng)))
        for _ in range(2 if self.rng.random() < 0.08 else 1):
            asked, answer = self._turn()
            parts += [("user", chat.as_typed(asked, self.rng)), ("assistant", answer)]
        return tuple(parts)


def _one_in(text: str, n: int) -> bool:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % n == 0


def opening(sentence: str) -> str:
    """The first words of a sentence, which decide whether it is held out."""
    return " ".join(sentence.split()[:OPENING_WORDS])


def sentences(document: Document) -> list[str]:
    """All sentences of a document, questions included."""
    return [s for _, text in document for s in re.split(r"(?<=[.?!]) ", text)]


def _plain(text: str) -> str:
    return text.lower().rstrip("?. ")


def _unseen() -> tuple[tuple[str, ...], frozenset[str]]:
    """The prompts kept out of the training: openings of prose, and questions in small letters."""
    lines = [
        line
        for name in UNSEEN
        for line in (FACTS.parent / name).read_text(encoding="utf-8").splitlines()
    ]
    asked = frozenset(
        _plain(found.group(1))
        for line in lines
        if (found := re.search(r"<\|user\|>(.*)<\|assistant\|>", line))
    )
    return tuple(line for line in lines if "<|" not in line), asked


UNSEEN_OPENINGS, UNSEEN_QUESTIONS = _unseen()


def split_of(document: Document) -> str:
    """Return "train", "documents", "openings" or "prompts": where the document belongs."""
    parts = sentences(document)
    if any(_plain(s) in UNSEEN_QUESTIONS or s.startswith(UNSEEN_OPENINGS) for s in parts):
        return "prompts"
    if any(_one_in("opening:" + opening(s), HELD_OUT_OPENINGS) for s in parts):
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
