"""What the lab's tests and scripts share: the language, vocabularies, xgrammar's rows, the model."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.model_loader import get_model
from mini_vllm.tokenizer.tokenizer import Tokenizer

RECORDED = Path(__file__).resolve().parent / "recorded.json"
Row = NDArray[np.int32]

EBNF = r"""root ::= value
value ::= object | array | string | number
object ::= "{" "}" | "{" member ("," member)* "}"
member ::= string ":" value
array ::= "[" "]" | "[" value ("," value)* "]"
string ::= "\"" [ !#-\[\]-~]* "\""
number ::= "-"? ("0" | [1-9] [0-9]*)
"""
"""The lab's language, as xgrammar reads grammars."""

AFTER_A_NUMBER = ["}", "]", "}]", "]}", "},", "},{", ",", ',"', "0", '"', "</s>"]
IN_A_STRING = ["}", '"}', '"]', '","', '":', "{", "</s>"]
"""The README's tokens after `[{"a":1` and after `{"a":"x`; the last one ends the output."""

PAIRS = [
    *((mode, "") for mode in ("value", "string", "minus", "zero", "digits", "end")),
    *((mode, "[") for mode in ("value", "string", "minus", "zero", "digits", "end")),
    *((mode, "{") for mode in ("value", "string", "minus", "zero", "digits", "end")),
    ("first", "["), ("member", "{"), ("key", "{"), ("in key", "{"), ("colon", "{"),
]  # fmt: skip
"""The modes, each with the innermost brackets that it can have."""


# ---- vocabularies ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Vocabulary:
    """Tokens, the one of them that ends the output, and how wide the model's logits are."""

    tokens: tuple[bytes, ...]
    stop: int
    vocab_size: int

    def show(self, ids: Sequence[int], most: int = 5) -> str:
        """Some tokens, as they are spelled."""
        said = [
            (self.tokens[i].decode("utf-8", "replace") or "''")
            if i < len(self.tokens)
            else f"id {i}"
            for i in ids
        ]
        return "  ".join(said[:most]) + (
            f"  and {len(said) - most} more" if len(said) > most else ""
        )

    def text(self, ids: Sequence[int]) -> str:
        """What the ids spell."""
        return b"".join(self.tokens[i] for i in ids if i != self.stop).decode("utf-8", "replace")


@cache
def tiny() -> Vocabulary:
    """The tiny Llama's: every byte, and a few tokens with names."""
    tokenizer = Tokenizer.from_folder(DEFAULT_MODEL)
    spelled = tuple(tokenizer.token_bytes(i) for i in range(len(tokenizer)))
    return Vocabulary(spelled, tokenizer.eos_token_id or 0, len(spelled))


_USUAL = """
{" [{ [{" "} "] "}] "}} "}, "],  "," "," ":" ":{ ":[ ":0 ":7 }] ]} }} ]] }, ], },{ },{" ],[ }]} ]]] }}, ]}, 0}
0] 7} 7] 7, 12 12, 07 -1 }},{ ]],[ [] {} [[ [0 :[ :{ }} ]]}
"""
_PIECES = [*'{}[]",:-07a', "12", "days", " ", "é", '"}', "],", '":', '",']


@cache
def pieces() -> Vocabulary:
    """Every character of the language, and tokens of several, usual and drawn ones. The last two are the end
    token and one without bytes."""
    rng = random.Random(2)
    tokens = {bytes([byte]) for byte in range(0x20, 0x7F)} | {
        token.encode() for token in _USUAL.split()
    }
    while len(tokens) < 298:
        tokens.add("".join(rng.choice(_PIECES) for _ in range(rng.randint(2, 4))).encode())
    return Vocabulary((*sorted(tokens), b"</s>", b""), 298, 310)


def vocabulary_of(group: str) -> Vocabulary:
    """The vocabulary of a group of walks."""
    return tiny() if group == "bytes" else pieces()


def listed(tokens: Sequence[str]) -> Vocabulary:
    """Tokens as they are given; the last one ends the output."""
    return Vocabulary(tuple(token.encode() for token in tokens), len(tokens) - 1, len(tokens))


def make_mask(lab: Any, vocabulary: Vocabulary) -> Any:
    """The lab's language over a vocabulary."""
    return lab.JsonMask(
        lab.JsonAutomaton(), vocabulary.tokens, vocabulary.stop, vocabulary.vocab_size
    )


def allowed(row: Row) -> list[int]:
    """The ids whose bits are 1."""
    return [32 * w + i for w, word in enumerate(row.tolist()) for i in range(32) if word >> i & 1]


def row_of(grammar: Any, vocabulary: Vocabulary) -> Row:
    """The row that a grammar fills."""
    bitmask = np.zeros((1, -(-vocabulary.vocab_size // 32)), dtype=np.int32)
    grammar.fill_bitmask(bitmask, 0)
    return bitmask[0]


def read_text(lab: Any, text: str) -> Any:
    """The state after a text, byte by byte; None if no document begins so."""
    automaton = lab.JsonAutomaton()
    state = automaton.start
    for byte in text.encode():
        state = automaton.step(state, byte)
        if state is None:
            return None
    return state


# ---- what xgrammar allows ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Walk:
    """The tokens that were taken one after another, and xgrammar's row before each of them, and the last."""

    vocabulary: Vocabulary
    tokens: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]


@cache
def recorded() -> dict[str, Any]:
    """`walks`, by group a list of walks; `runs`, for each of RUNS the tokens of real vLLM's answer."""
    raw = json.loads(RECORDED.read_text(encoding="utf-8"))
    walks: dict[str, list[Walk]] = {}
    for name, group in raw["walks"].items():
        rows = [tuple(np.frombuffer(bytes.fromhex(row), "<i4").tolist()) for row in group["rows"]]
        walks[name] = [
            Walk(vocabulary_of(name), tuple(tokens), tuple(rows[i] for i in which))
            for tokens, which in group["walks"]
        ]
    return {"walks": walks, "runs": raw["runs"]}


def compare_rows(vocabulary: Vocabulary, mine: Row, theirs: Sequence[int]) -> str:
    """Where a row is not xgrammar's, in words; "" if it is."""
    if list(mine) == list(theirs):
        return ""
    a, b = set(allowed(mine)), set(allowed(np.array(theirs, np.int32)))
    words = []
    for title, ids in (("yours allows also", a - b), ("yours bars", b - a)):
        if vocabulary.stop in ids:
            words.append(f"{title} the end token")
            ids.discard(vocabulary.stop)
        if ids:
            words.append(f"{title} {vocabulary.show(sorted(ids))}")
    return f"xgrammar allows {len(b)} tokens; " + "; ".join(words)


def first_difference(lab: Any, mask: Any, walk: Walk, rng: random.Random | None = None) -> str:
    """Where the lab's rows part from xgrammar's on a walk; "" if nowhere.

    Args:
        mask: over the walk's vocabulary.
        rng: where given, some tokens are rolled back on the way, and written again.
    """
    vocabulary = walk.vocabulary
    grammar = lab.JsonGrammar(mask)
    taken, back = 0, ""
    while True:
        so_far = f"after {vocabulary.text(walk.tokens[:taken]) or 'nothing'}{back}"
        apart = compare_rows(vocabulary, row_of(grammar, vocabulary), walk.rows[taken])
        if apart:
            return f"{so_far}: {apart}"
        if taken == len(walk.tokens):
            return ""
        if rng is not None and taken and rng.random() < 0.3:
            steps = rng.randint(1, min(taken, 6))
            back = f" (rolled back from {vocabulary.text(walk.tokens[:taken])})"
            grammar.rollback(steps)
            taken -= steps
            continue
        if not grammar.accept_tokens("bo", [walk.tokens[taken]]):
            token = vocabulary.show(walk.tokens[taken : taken + 1])
            return f"{so_far}: your row allows {token}, and your accept_tokens refuses it"
        taken += 1


# ---- the tiny Llama ----------------------------------------------------------------------------------


class Bound:
    """The shipped model, whose logits of barred tokens are -inf, as the grammar's row says."""

    def __init__(self, model: Any, grammar: Any) -> None:
        self._model = model
        self._grammar = grammar
        self.num_allowed: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def compute_logits(self, hidden: Any) -> Any:
        logits = self._model.compute_logits(hidden)
        ids = allowed(row_of(self._grammar, tiny()))
        self.num_allowed.append(len(ids))
        barred = np.ones(logits.shape[1], dtype=np.bool_)
        barred[ids] = False
        logits[:, barred] = -np.inf
        return logits


@dataclass(frozen=True)
class Answer:
    """What the tiny Llama said, and how many tokens were allowed in each step."""

    tokens: tuple[int, ...]
    text: str
    num_allowed: tuple[int, ...]


@cache
def _model() -> Any:
    return get_model(str(DEFAULT_MODEL), EngineConfig().attention, None)


PROMPT = "<|user|>the handle of my kettle is loose<|assistant|>"


def prompt_ids() -> list[int]:
    """The tokens of the prompt."""
    return Tokenizer.from_folder(DEFAULT_MODEL).encode(PROMPT)


RUNS: dict[str, dict[str, float]] = {
    "left alone": {},
    "likes braces": {"{": 19.0, '"': 14.0, ",": 10.0, "7": 9.0},
    "likes brackets": {"[": 18.0, "{": 18.0, "}": 14.0},
}
"""What is added to the logits of some characters, because the tiny Llama hardly ever writes a bracket."""


def sampling(name: str) -> dict[str, Any]:
    """What to make `SamplingParams` of, here and in vLLM: greedy."""
    likes = {tiny().tokens.index(char.encode()): bias for char, bias in RUNS[name].items()}
    return {"temperature": 0.0, "max_tokens": 32, "logit_bias": likes}


def generate(grammar: Any, params: dict[str, Any]) -> Answer:
    """One request on the engine, bound by a `JsonGrammar` over the tiny Llama's tokens."""
    bound = Bound(_model(), grammar)
    config = EngineConfig(max_model_len=256, num_gpu_blocks=32, max_num_batched_tokens=256)
    engine = LLMEngine(bound, config)
    engine.add_request("bo", {"prompt_token_ids": prompt_ids()}, SamplingParams(**params))
    tokens: list[int] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            new = list(output.outputs[0].token_ids)[len(tokens) :]
            assert grammar.accept_tokens("bo", new), (
                f"after {tiny().text(tokens)!r} your accept_tokens refuses {tiny().show(new)}, which your "
                "row allowed"
            )
            tokens += new
    return Answer(tuple(tokens), tiny().text(tokens), tuple(bound.num_allowed))
