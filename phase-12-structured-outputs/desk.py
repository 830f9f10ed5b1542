"""Bo's help desk: his rules, a small vocabulary, and the tiny Llama that obeys. Set-up for the pages.

Texts, steps and probabilities are the engine's, with the shipped checkpoint. The vocabulary of several-byte
tokens is made up, to show what one of a large model is like.

The pages import this module by its name: start Python in this folder.
"""

from __future__ import annotations

import math
import threading
from concurrent.futures import wait
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from mini_vllm import LLM, SamplingParams
from mini_vllm.engine.step_record import StepRecord
from mini_vllm.sampling_params import StructuredOutputsParams
from mini_vllm.structured_output.automata.dfa import Dfa
from mini_vllm.structured_output.automata.regex import parse_regex
from mini_vllm.structured_output.automata.tokens import TokenAutomaton, TokenTrie
from mini_vllm.structured_output.backend_native import NativeBackend
from mini_vllm.structured_output.backend_types import BackendConfig
from mini_vllm.structured_output.manager import StructuredOutputManager
from mini_vllm.structured_output.request import get_structured_output_key
from mini_vllm.structured_output.scheduling import GrammarScheduling

Rule = dict[str, Any]
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
            "days": {"type": "integer", "minimum": 1, "maximum": 30},
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


class Answer(NamedTuple):
    """What came, and why it ended."""

    text: str
    finish_reason: str | None


def allowed(rule: Rule, written: str) -> list[str]:
    """The tokens of `VOCABULARY` that may follow. `rule` is a regex."""
    over_bytes = Dfa(parse_regex(str(rule["regex"])))
    trie = TokenTrie([token.encode() for token in VOCABULARY], (VOCABULARY.index(END),))
    automaton = TokenAutomaton(over_bytes, trie, len(VOCABULARY))
    row = automaton.row(over_bytes.advance(over_bytes.start, written.encode()))
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return [token for token, bit in zip(VOCABULARY, bits, strict=False) if bit]


@cache
def _llm(blanks: bool = False) -> LLM:
    # All logprobs of a position: the vocabulary has 264 tokens.
    config = {"backend": "native", "disable_any_whitespace": not blanks}
    return LLM(max_logprobs=264, structured_outputs_config=config)


def ask(prompt: str, rule: Rule, max_tokens: int = 80, blanks: bool = False) -> Answer:
    """A greedy answer.

    Args:
        blanks: JSON may have them between any two parts.
    """
    params = SamplingParams(
        temperature=0, max_tokens=max_tokens, structured_outputs=StructuredOutputsParams(**rule)
    )
    [output] = _llm(blanks).generate([prompt], params, use_tqdm=False)
    return Answer(output.outputs[0].text, output.outputs[0].finish_reason)


class Forced(NamedTuple):
    """Tokens of an answer, the end token included."""

    forced: int
    all: int


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
    """Each choice's share at temperature 1."""
    words: list[str] = rule["choice"]
    spelled = {word: _llm().get_tokenizer().encode(word, False) for word in words}
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=264)
    outputs = _llm().generate([prompt + word for word in words], params, use_tqdm=False)
    whole: dict[str, float] = {}
    masked: dict[str, float] = {}
    for word, output in zip(words, outputs, strict=True):
        whole[word] = masked[word] = 1.0
        tokens = spelled[word]
        for read, position in enumerate((output.prompt_logprobs or [])[-len(tokens) :]):
            assert position is not None
            here = {token: math.exp(entry.logprob) for token, entry in position.items()}
            left = {other[read] for other in spelled.values() if other[:read] == tokens[:read]}
            p = here[tokens[read]]
            whole[word] *= p
            masked[word] *= p / sum(here[token] for token in left)
    total = sum(whole.values())
    return {word: Share(whole[word] / total, masked[word]) for word in words}


def count_forced(prompt: str, rule: Rule) -> Forced:
    """How many of an answer's tokens were the only one allowed."""
    tokenizer = _llm().get_tokenizer()
    backend = NativeBackend(tokenizer, len(tokenizer), BackendConfig(disable_any_whitespace=True))
    params = StructuredOutputsParams(**rule)
    grammar = backend.compile_grammar(*get_structured_output_key(params))
    rows = backend.allocate_token_bitmask(1)
    tokens = [*tokenizer.encode(ask(prompt, rule).text, False), tokenizer.eos_token_id]
    forced = 0
    for token in tokens:
        grammar.fill_bitmask(rows, 0)
        forced += int(np.unpackbits(rows.view(np.uint8)).sum()) == 1
        grammar.accept_tokens("ticket", [token])
    return Forced(forced, len(tokens))


def list_steps(compiling: int) -> list[list[str]]:
    """Who is in each step: a bound request and two free ones, which came in this order.

    Args:
        compiling: steps after which the rule is compiled.
    """
    engine = LLM(structured_outputs_config={"backend": "native"}).llm_engine
    core = engine.engine_core
    core.grammars = grammars = core.make_grammars()
    assert isinstance(grammars, GrammarScheduling)
    manager, ready = grammars.manager, threading.Event()
    assert isinstance(manager, StructuredOutputManager)
    compile_rule = manager._compile

    def compile_late(*args: Any) -> Any:
        ready.wait()
        return compile_rule(*args)

    manager._compile = compile_late  # type: ignore[method-assign, assignment]
    steps: list[list[str]] = []

    def note(record: StepRecord) -> None:
        steps.append(list(record.scheduler_output.num_scheduled_tokens))
        if len(steps) == compiling:
            structured = core.scheduler.requests["bound"].structured_output_request
            ready.set()
            wait([structured.future])

    core.step_observers.append(note)
    for name, rule, max_tokens in (("bound", PART, 8), ("free 1", None, 4), ("free 2", None, 3)):
        params = SamplingParams(temperature=0, max_tokens=max_tokens)
        if rule is not None:
            params.structured_outputs = StructuredOutputsParams(**rule)
        engine.add_request(name, "Part ", params)
    while engine.has_unfinished_requests():
        engine.step()
    return steps
