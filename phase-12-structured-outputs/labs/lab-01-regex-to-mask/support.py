"""What the lab's tests and scripts share: rules, vocabularies, what xgrammar allows, and the tiny Llama."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.model_loader import get_model
from mini_vllm.structured_output.automata.regex import parse_regex
from mini_vllm.structured_output.automata.syntax import Characters, Either, Joined, Repeated
from mini_vllm.structured_output.automata.utf8 import byte_sequences
from mini_vllm.structured_output.backend_native import NativeGrammar
from mini_vllm.tokenizer.tokenizer import Tokenizer

RECORDED = Path(__file__).resolve().parent / "recorded.json"
Row = NDArray[np.int32]

SHELF = "[A-F]{2}-?[0-9]{2,3}"
PART = "[A-Z]{2}-[0-9]{3,4}"
KIND = "repair|return|question"
LONGER = [b"A", b"CD", b"D-", b"D-4", b"D42", b"D-423", b"D4231", b"-", b"4", b"</s>"]
"""The README's tokens of several characters; the last one ends the output."""


# ---- rules -------------------------------------------------------------------------------------------


def read_rule(lab: Any, pattern: str) -> Any:
    """A regex as a tree of the lab's nodes: the engine parses it and spells its characters in UTF-8."""

    def convert(node: Any) -> Any:
        match node:
            case Joined():
                return lab.Joined(tuple(map(convert, node.parts)))
            case Either():
                return lab.Either(tuple(map(convert, node.options)))
            case Repeated():
                return lab.Repeated(convert(node.part), node.least, node.most)
            case Characters():
                spelled = [
                    [lab.Bytes(*span) for span in sequence]
                    for ends in node.ranges
                    for sequence in byte_sequences(*ends)
                ]
                options = [one[0] if len(one) == 1 else lab.Joined(tuple(one)) for one in spelled]
                return options[0] if len(options) == 1 else lab.Either(tuple(options))
        raise AssertionError(f"{node} is no part of a regex")

    return convert(parse_regex(pattern))


_ATOMS = [
    "a",
    "b",
    "0",
    "9",
    "-",
    "é",
    "€",
    "ab",
    "a9",
    ".",
    r"\.",
    r"\d",
    r"\w",
    "[^a-c]",
    "[é-ü]",
]
_MEMBERS = ["a", "b", "0", "é", "€", "😀", r"\-", r"\d", "a-c", "0-9", "à-€"]
_COUNTS = ["*", "+", "?", "{2}", "{0,3}", "{1,2}", "{2,}"]


def random_rule(rng: random.Random, depth: int = 3) -> str:
    """A regex that Python's `re` (with ASCII and DOTALL) and xgrammar read alike."""
    kind = rng.random()
    if depth == 0 or kind < 0.25:
        if rng.random() < 0.3:
            members = "".join(rng.choice(_MEMBERS) for _ in range(rng.randint(1, 3)))
            return f"[{members}]"
        return rng.choice(_ATOMS)
    left = random_rule(rng, depth - 1)
    if kind < 0.6:
        return left + random_rule(rng, depth - 1)
    if kind < 0.75:
        return f"({left}|{random_rule(rng, depth - 1)})"
    return f"({left}){rng.choice(_COUNTS)}"


# ---- vocabularies ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Vocabulary:
    """Tokens, the one of them that ends the output, and how wide the model's logits are."""

    tokens: tuple[bytes, ...]
    stop: int
    vocab_size: int

    def show(self, ids: Sequence[int], most: int = 5) -> str:
        """Some tokens, as they are spelled."""
        said = [repr(self.tokens[i])[1:] if i < len(self.tokens) else f"id {i}" for i in ids]
        return ", ".join(said[:most]) + (
            f" and {len(said) - most} more" if len(said) > most else ""
        )

    def text(self, ids: Sequence[int]) -> str:
        """What the ids spell."""
        return repr(b"".join(self.tokens[i] for i in ids))[1:]


@cache
def tiny() -> Vocabulary:
    """The tiny Llama's: every byte, and a few tokens with names."""
    tokenizer = Tokenizer.from_folder(DEFAULT_MODEL)
    spelled = tuple(tokenizer.token_bytes(i) for i in range(len(tokenizer)))
    return Vocabulary(spelled, tokenizer.eos_token_id or 0, len(spelled))


@cache
def pieces(seed: int) -> Vocabulary:
    """A vocabulary with tokens of several characters, some of which begin or end inside of one."""
    rng = random.Random(seed)
    letters = ["a", "b", "c", "0", "9", "-", ".", "é", "ü", "€", "😀"]
    tokens = {bytes([byte]) for byte in (*b"abc09-.x", *"éü€😀".encode())}
    while len(tokens) < 220:
        spelled = "".join(rng.choice(letters) for _ in range(rng.randint(1, 4))).encode()
        if rng.random() < 0.4:
            spelled = spelled[rng.randrange(2) : rng.randint(2, 8)]
        tokens.add(spelled or b"a")
    return Vocabulary((*sorted(tokens), b"a9-"), len(tokens), len(tokens) + 1 + rng.randrange(40))


def make_mask(lab: Any, pattern: str, vocabulary: Vocabulary) -> Any:
    """A rule over a vocabulary, by the lab's two classes."""
    automaton = lab.ByteAutomaton(read_rule(lab, pattern))
    return lab.TokenMask(automaton, vocabulary.tokens, vocabulary.stop, vocabulary.vocab_size)


def allowed(row: Row) -> list[int]:
    """The ids whose bits are 1."""
    return [32 * w + i for w, word in enumerate(row.tolist()) for i in range(32) if word >> i & 1]


# ---- what xgrammar allows ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Walk:
    """A rule, the tokens that were taken one after another, and xgrammar's row before each of them and after
    the last."""

    rule: str
    vocabulary: Vocabulary
    tokens: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]


@cache
def recorded() -> dict[str, Any]:
    """`walks`, by group a list of walks, and `runs`, by rule the tokens that real vLLM's answer has."""
    raw = json.loads(RECORDED.read_text(encoding="utf-8"))
    walks: dict[str, list[Walk]] = {}
    for name, group in raw["walks"].items():
        rows = [tuple(np.frombuffer(bytes.fromhex(row), "<i4").tolist()) for row in group["rows"]]
        walks[name] = [
            Walk(rule, vocabulary_of(name), tuple(tokens), tuple(rows[i] for i in which))
            for rule, tokens, which in group["walks"]
        ]
    return {"walks": walks, "runs": raw["runs"]}


def vocabulary_of(group: str) -> Vocabulary:
    """The vocabulary of a group of walks."""
    return tiny() if group == "bytes" else pieces(1 if group == "several characters" else 2)


def first_difference(lab: Any, walk: Walk) -> str:
    """Where the lab's rows part from xgrammar's on a walk; "" if nowhere."""
    vocabulary = walk.vocabulary
    mask = make_mask(lab, walk.rule, vocabulary)
    state = mask.start
    for taken, theirs in enumerate(walk.rows):
        so_far = f"rule {walk.rule}, after {vocabulary.text(walk.tokens[:taken])}"
        mine = np.asarray(mask.row(state))
        if mine.tolist() != list(theirs):
            return f"{so_far}: {compare_rows(vocabulary, mine, np.array(theirs, np.int32))}"
        if taken < len(walk.tokens):
            state = mask.advance(state, walk.tokens[taken])
            if state is None:
                token = vocabulary.show(walk.tokens[taken : taken + 1])
                return f"{so_far}: your row allows {token}, and your advance bars it"
    return ""


def compare_rows(vocabulary: Vocabulary, mine: Row, theirs: Row) -> str:
    """In words."""
    if mine.shape != theirs.shape:
        return f"a row has {len(theirs)} words; yours has the shape {mine.shape}"
    a, b = set(allowed(mine)), set(allowed(theirs))
    words = []
    for title, ids in (("yours allows also", a - b), ("yours bars", b - a)):
        if vocabulary.stop in ids:
            words.append(f"{title} the end token")
            ids.discard(vocabulary.stop)
        if ids:
            words.append(f"{title} {vocabulary.show(sorted(ids))}")
    return f"xgrammar allows {len(b)} tokens; " + "; ".join(words)


# ---- texts and matches -------------------------------------------------------------------------------


def texts(letters: str, longest: int) -> Iterator[str]:
    """All texts of these letters, up to a length."""
    for length in range(longest + 1):
        yield from map("".join, itertools.product(letters, repeat=length))


def read_text(automaton: Any, text: bytes) -> Any:
    """The state after a text; a false one as soon as no match begins so."""
    state = automaton.start
    for byte in text:
        if not state:
            break
        state = automaton.step(state, byte)
    return state


# ---- the tiny Llama ----------------------------------------------------------------------------------


class Bound:
    """The shipped model, whose logits of barred tokens are -inf, as the grammar's row says."""

    def __init__(self, model: Any, grammar: Any, vocab_size: int) -> None:
        self._model = model
        self._grammar = grammar
        self._words = -(-vocab_size // 32)
        self.rows: list[Row] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def compute_logits(self, hidden: Any) -> Any:
        logits = self._model.compute_logits(hidden)
        bitmask = np.empty((1, self._words), dtype=np.int32)
        self._grammar.fill_bitmask(bitmask, 0)
        self.rows.append(bitmask[0])
        logits[
            :, [i for i in range(logits.shape[1]) if not bitmask[0, i // 32] >> i % 32 & 1]
        ] = -np.inf
        return logits


@dataclass(frozen=True)
class Answer:
    """What the tiny Llama said under a rule, and the row of each of its steps."""

    tokens: tuple[int, ...]
    text: str
    rows: tuple[Row, ...]


@cache
def _model() -> Any:
    return get_model(str(DEFAULT_MODEL), EngineConfig().attention, None)


PROMPT = "<|user|>the handle of my kettle is loose<|assistant|>"
MAX_TOKENS = 24


def prompt_ids() -> list[int]:
    """The tokens of the prompt."""
    return Tokenizer.from_folder(DEFAULT_MODEL).encode(PROMPT)


def generate(automaton: Any, **sampling: Any) -> Answer:
    """One request on the engine, bound by a rule over the tiny Llama's tokens.

    Args:
        automaton: a `TokenMask`, which the engine's `NativeGrammar` asks as it asks its own.
    """
    grammar = NativeGrammar(automaton)
    bound = Bound(_model(), grammar, tiny().vocab_size)
    config = EngineConfig(max_model_len=256, num_gpu_blocks=32, max_num_batched_tokens=256)
    engine = LLMEngine(bound, config)
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": MAX_TOKENS, **sampling})
    engine.add_request("bo", {"prompt_token_ids": prompt_ids()}, params)
    tokens: list[int] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            new = list(output.outputs[0].token_ids)[len(tokens) :]
            assert grammar.accept_tokens("bo", new), f"the rule bars {new}, which its row allowed"
            tokens += new
    spelled = b"".join(tiny().tokens[token] for token in tokens if token != tiny().stop)
    return Answer(tuple(tokens), spelled.decode("utf-8", "replace"), tuple(bound.rows))
