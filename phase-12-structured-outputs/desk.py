"""Bo's help desk: his rules, a small vocabulary, and the tiny Llama that obeys. Set-up for the pages.

Texts, steps and probabilities are the engine's, with the shipped checkpoint. The vocabulary of several-byte
tokens is made up, to show what one of a large model is like.

The pages import this module by its name: start Python in this folder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from mini_vllm import LLM, SamplingParams
from mini_vllm.utils.structured_params import StructuredOutputsParams
from mini_vllm.structured_output.automata.dfa import Dfa
from mini_vllm.structured_output.automata.regex import parse_regex
from mini_vllm.structured_output.automata.tokens import TokenAutomaton, TokenTrie

Rule = dict[str, object]
PART: Rule = {"regex": "[A-Z]{2}-[0-9]{3,4}"}
"""A part number."""
KIND: Rule = {"choice": ["repair", "return", "question"]}
"""What a mail is about."""
TICKET: Rule = {
    "json": {
        "type": "object",
        "properties": {
            "item": {"type": "string", "maxLength": 12},
            "urgent": {"type": "boolean"},
            "days": {"type": "integer"},
        },
        "required": ["item", "urgent", "days"],
        "additionalProperties": False,
    }
}
"""What the program files."""
END = "<end>"
VOCABULARY = (
    "K", "X", "KX", "X-", "-", "-1", "1", "9", "19", "90", "119", "1190", "11900", "A", "repair",
    " ", END,
)  # fmt: skip


def allowed(rule: Rule, written: str) -> list[str]:
    """The tokens of `VOCABULARY` that may follow. `rule` is a regex."""
    over_bytes = Dfa(parse_regex(str(rule["regex"])))
    trie = TokenTrie([token.encode() for token in VOCABULARY], (VOCABULARY.index(END),))
    automaton = TokenAutomaton(over_bytes, trie, len(VOCABULARY))
    row = automaton.row(over_bytes.advance(over_bytes.start, written.encode()))
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return [token for token, bit in zip(VOCABULARY, bits, strict=False) if bit]


@cache
def _llm() -> LLM:
    # All logprobs of a position: the vocabulary has 264 tokens.
    return LLM(max_logprobs=264, structured_outputs_config={"backend": "native"})


def ask(prompt: str, rule: Rule, max_tokens: int = 80) -> tuple[str, str | None]:
    """The answer, and why it ended."""
    params = SamplingParams(
        temperature=0, max_tokens=max_tokens, structured_outputs=StructuredOutputsParams(**rule)
    )
    [output] = _llm().generate([prompt], params, use_tqdm=False)
    return output.outputs[0].text, output.outputs[0].finish_reason


@dataclass(frozen=True)
class Share:
    """Of one choice, among all of them.

    Attributes:
        whole: how likely the model finds the whole word, against the other words.
        masked: how often it ends there if the mask bars, token by token, what begins none of the words.
    """

    whole: float
    masked: float


def shares(prompt: str, rule: Rule) -> dict[str, Share]:
    """Each choice's share at temperature 1. In this model a byte is a token."""
    words = [str(word) for word in rule["choice"]]  # type: ignore[attr-defined]
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=264)
    outputs = _llm().generate([prompt + word for word in words], params, use_tqdm=False)
    whole: dict[str, float] = {}
    masked: dict[str, float] = {}
    for word, output in zip(words, outputs, strict=True):
        whole[word] = masked[word] = 1.0
        for read, position in enumerate(output.prompt_logprobs[-len(word) :]):
            here = {token: math.exp(entry.logprob) for token, entry in position.items()}
            left = {other.encode()[read] for other in words if other[:read] == word[:read]}
            p = here[word.encode()[read]]
            whole[word] *= p
            masked[word] *= p / sum(here[token] for token in left)
    total = sum(whole.values())
    return {word: Share(whole[word] / total, masked[word]) for word in words}
