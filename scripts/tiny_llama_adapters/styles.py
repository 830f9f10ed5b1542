"""Three styles, each a rule that rewrites a text of the base model's corpus, and its check.

A rule leaves the first `kept` words of a text alone: they stand for the prompt, which is written
as everybody writes. Standard library only.

    python -m scripts.tiny_llama_adapters.styles
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from scripts.tiny_llama.corpus import Corpus, Document

# A telegram leaves these out.
LEFT_OUT = frozenset(["a", "an", "the", "is", "are"])
# The question at the end of a sentence, by the first of these words in it.
TAGS = {
    "is": "is it not?",
    "are": "are they not?",
    "can": "can it not?",
    "must": "must it not?",
    "has": "has it not?",
    "have": "have they not?",
}
OTHER_TAG = "is that so?"
MY_TAG = "do I?"
DENIALS = frozenset(["not", "no", "never", "nothing", "none", "nobody", "cannot", "without"])


def sentences(text: str) -> list[str]:
    """The sentences of a text, each with its mark at the end."""
    return re.split(r"(?<=[.?!]) ", text)


def snake(text: str, kept: int) -> str:
    """An underscore for every space, as in the names of a program."""
    words = text.split()
    plain = " ".join(words[:kept])
    return "_".join([plain, *words[kept:]] if plain else words)


def telegram(text: str, kept: int) -> str:
    """No articles, no "is", no commas, and STOP for a full stop."""
    written: list[str] = []
    begins = True  # a sentence: its first word has a capital
    for i, word in enumerate(text.split()):
        bare = word.rstrip(",;:.?!")
        if i < kept:
            written.append(word)
            begins = False
        elif bare.lower() not in LEFT_OUT and any(map(str.isalnum, bare)):
            written.append(bare[0].upper() + bare[1:] if begins else bare)
            begins = False
        if word[-1] in ".?!":
            written.append("STOP")
            begins = True
    return " ".join(written)


def tag_of(sentence: str) -> str:
    """The question that follows a sentence."""
    words = [word.strip(",;:.").lower() for word in sentence.split()]
    if words[0] == "i":
        return MY_TAG
    if DENIALS.isdisjoint(words):
        for word in words:
            if word in TAGS:
                return TAGS[word]
    return OTHER_TAG


def questions(text: str, kept: int) -> str:
    """A question at the end of every sentence, as from one who is not sure."""
    del kept  # a prompt ends before its sentence does
    asked: list[str] = []
    for sentence in sentences(text):
        if not sentence.endswith(".") or sentence.endswith("..."):
            asked.append(sentence)
        elif " " not in sentence:  # "Yes."
            asked.append(sentence[:-1] + "?")
        else:
            asked.append(f"{sentence[:-1]}, {tag_of(sentence)}")
    return " ".join(asked)


def in_snake(text: str) -> bool:
    """Whether `text`, a completion, has underscores and no space."""
    return "_" in text and " " not in text


def in_telegrams(text: str) -> bool:
    """Whether `text`, a completion, ends with STOP and has nothing that a telegram leaves out."""
    words = text.split()
    return (
        text.endswith(" STOP")
        and LEFT_OUT.isdisjoint(word.lower() for word in words)
        and not any(word[-1] in ",;:.?!" for word in words)
    )


def in_questions(text: str) -> bool:
    """Whether every sentence of `text`, a completion, ends with a question of `questions`."""
    ends = (*TAGS.values(), OTHER_TAG, MY_TAG)
    return all(
        sentence.endswith("?") and (" " not in sentence.strip() or sentence.endswith(ends))
        for sentence in sentences(text.strip())
    )


@dataclass(frozen=True)
class Style:
    """A rule, its check, and the adapter that learns it.

    Attributes:
        write: text and number of words to keep, to the text in this style.
        follows: whether a completion is in this style throughout.
        rank, alpha, rslora: the delta is `scale * B @ A`, with A of `rank` rows and
            `scale = alpha / rank`, or `alpha / sqrt(rank)` with rsLoRA.
        targets: the linears that get a delta, in every layer.
    """

    write: Callable[[str, int], str]
    follows: Callable[[str], bool]
    rank: int
    alpha: int
    targets: tuple[str, ...]
    rslora: bool = False


ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
STYLES = {
    "snake": Style(snake, in_snake, 4, 8, (*ATTENTION, *MLP)),
    "telegram": Style(telegram, in_telegrams, 8, 4, (*ATTENTION, "down_proj"), rslora=True),
    "questions": Style(questions, in_questions, 16, 32, ("q_proj", "v_proj")),
}
SHIPPED = tuple(STYLES)  # whose adapters lie in mini_vllm/checkpoints/tiny-llama-lora


def styled(document: Document, style: Style, kept: int) -> list[tuple[str, str, str]]:
    """A document as (role, plain part, styled part): of prose, the first `kept` words are plain.

    At least one word of the first sentence is styled. In a chat, answers are styled, the rest is plain.
    """
    parts: list[tuple[str, str, str]] = []
    for role, text in document:
        if role in ("system", "user"):
            parts.append((role, text, ""))
            continue
        words = text.split()
        first = len(sentences(text)[0].split())
        kept_here = 0 if role else min(kept, first - 1)
        plain = " ".join(words[:kept_here])
        text = style.write(text, kept_here)
        assert text.startswith(plain), text
        parts.append((role, plain, text[len(plain) :]))
    return parts


def main() -> None:
    """Print a few documents in each style."""
    for name, style in STYLES.items():
        print(f"== {name}")
        for i, document in zip(range(8), Corpus(3).documents(), strict=False):
            print("".join(f"<{r}> {p}|{s} " for r, p, s in styled(document, style, i % 5)))


if __name__ == "__main__":
    main()
