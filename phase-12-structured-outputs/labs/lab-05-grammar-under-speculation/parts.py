"""Lab 12-05, given: grammars that count, a model, a drafter, and random requests.

The grammars are `mini_vllm`'s own. The model is a table of logits, looked up by a number that depends on
every token before. The drafter knows what the model will say, and is often wrong on purpose.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.structured_output.backend_native import NativeBackend, NativeGrammar
from mini_vllm.structured_output.backend_types import Bitmask, StructuredOutputOptions

END = 0
"""The end token."""
PART_NUMBER = "[A-Z]{2}-[0-9]{3,4}"


# ---- vocabularies and grammars ---------------------------------------------------------------------


class Vocabulary:
    """A tokenizer, as far as a backend reads one: what each token spells. Token 0 is the end."""

    eos_token_id = END

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = ["<end>", *pieces]

    def __len__(self) -> int:
        return len(self.pieces)

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token].encode()

    def read(self, text: str) -> list[int]:
        """Tokens of one character; `.` is the end token, `_` a draft of -1."""
        special = {".": END, "_": -1}
        return [special[c] if c in special else self.pieces.index(c) for c in text]

    def spell(self, tokens: Sequence[int]) -> str:
        """The other way round, for messages."""
        return " ".join("-1" if t == -1 else self.pieces[t] for t in tokens) or "nothing"


CHARACTERS = Vocabulary([*"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"])
"""For the part number: a token is a character."""
PIECES = Vocabulary(
    [*'abc01-{}[]",: ', "ab", "ba", "aa", "01", "10", "a1", "-1", '{"', '":', '",', '"}', "{}", "[]",
     "true", "null", ": ", "a0-", "bb0", "c c"]
)  # fmt: skip
"""For random rules: some tokens have several characters."""


class RefusedError(Exception):
    """A function asks for what vLLM, or xgrammar, refuses. The tests turn it into a failure."""


def refuse_unless(right: bool, reason: str) -> None:
    """Raise `RefusedError` for this reason."""
    if not right:
        raise RefusedError(reason)


PHASES = ("filter", "fill", "accept")


@dataclass
class Counts:
    """What was asked of grammars while drafts were filtered, rows filled, or sampled tokens accepted.

    Attributes:
        fills: rows filled by a grammar.
        accepted: tokens that a grammar has taken, by phase.
        rolled_back: tokens that it went back by, by phase.
        calls: of the learner's functions, by phase.
    """

    fills: int = 0
    accepted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    rolled_back: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    calls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))

    def flat(self) -> dict[str, int]:
        """All of them, under the names that `recorded.json` has."""
        found = {"fills": self.fills}
        for phase in PHASES:
            found[f"{phase}: calls"] = self.calls[phase]
            found[f"{phase}: tokens taken"] = self.accepted[phase]
            found[f"{phase}: tokens rolled back"] = self.rolled_back[phase]
        return found


class Counter:
    """Counts for the grammars of a run. `during` says which of your functions is at work;
    where it says nothing, drafts are filtered."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.phase = "filter"

    def during(self, phase: str, call: Callable[..., Any], *args: Any) -> Any:
        """Call a function, and count what it asks of grammars under `phase`."""
        self.counts.calls[phase] += 1
        self.phase = phase
        try:
            return call(*args)
        finally:
            self.phase = "filter"


class CountingGrammar:
    """A grammar as `lab.Grammar` describes it, round `mini_vllm`'s. It refuses what xgrammar refuses."""

    def __init__(self, grammar: NativeGrammar, counter: Counter | None = None) -> None:
        self.grammar = grammar
        self.counter = counter or Counter()

    def accept_token(self, token: int) -> bool:
        phase = self.counter.phase
        accepted = self.grammar.accept_tokens("", [token])
        refuse_unless(
            accepted or phase != "fill",
            f"fill_rows: the grammar refuses token {token}; an assertion ends vLLM's engine there",
        )
        refuse_unless(
            accepted or phase != "accept",
            f"accept: the grammar refuses token {token}; vLLM ends the request by an error there",
        )
        self.counter.counts.accepted[phase] += accepted
        return accepted

    def rollback(self, num_tokens: int) -> None:
        taken = self.grammar.num_processed_tokens
        refuse_unless(
            0 <= num_tokens <= taken,
            f"rollback({num_tokens}), and the grammar has accepted {taken} tokens",
        )
        self.grammar.rollback(num_tokens)
        self.counter.counts.rolled_back[self.counter.phase] += num_tokens

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        refuse_unless(
            not self.grammar.is_terminated(),
            "fill_bitmask was asked of a terminated grammar; xgrammar raises an error there",
        )
        self.grammar.fill_bitmask(bitmask, row)
        self.counter.counts.fills += 1

    def is_terminated(self) -> bool:
        return self.grammar.is_terminated()


def part_number(text: str = "", counter: Counter | None = None) -> CountingGrammar:
    """The grammar of a part number, after `text`."""
    grammar = _part_numbers().compile_grammar(StructuredOutputOptions.REGEX, PART_NUMBER)
    assert grammar.accept_tokens("", CHARACTERS.read(text))
    return CountingGrammar(grammar, counter)


@cache
def _part_numbers() -> NativeBackend:
    tokenizer: Any = CHARACTERS
    return NativeBackend(tokenizer, len(CHARACTERS))


Rule = tuple[StructuredOutputOptions, str]


def draw_rule(rng: random.Random) -> Rule:
    """A random rule: mostly a regex, now and then a choice or any JSON object."""
    kind = rng.random()
    if kind < 0.05:
        return StructuredOutputOptions.JSON_OBJECT, ""
    if kind < 0.15:
        words = ["".join(rng.choices("abc01-", k=rng.randint(1, 8))) for _ in range(4)]
        return StructuredOutputOptions.CHOICE, json.dumps(words)
    return StructuredOutputOptions.REGEX, _draw_regex(rng, rng.randint(2, 4))


def _draw_regex(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.15:
        return rng.choice(["a", "b", "0", "1", "-", "[ab]", "[0-1]", "[a-c]", "[^a]", "ab", "a1"])
    left = _draw_regex(rng, depth - 1)
    if kind < 0.6:
        return left + _draw_regex(rng, depth - 1)
    if kind < 0.75:
        return f"({left}|{_draw_regex(rng, depth - 1)})"
    return f"({left}){rng.choice(['*', '+', '?', '{2}', '{1,3}', '{4}'])}"


# ---- the model, the drafter, and requests ----------------------------------------------------------

_TABLE = np.random.default_rng(12).random((257, len(PIECES)), dtype=np.float32)
_TABLE[:, END] -= 0.3  # else most answers have two tokens


class TableModel:
    """Logits that depend on every token before."""

    end = END

    def logits(self, history: Sequence[int]) -> NDArray[np.float32]:
        number = 7
        for token in history:
            number = (number * 31 + token + 1) % 1_000_003
        found: NDArray[np.float32] = _TABLE[number % len(_TABLE)]
        return found


class CharacterModel:
    """Likes the later tokens better, and the end token least."""

    end = END

    def logits(self, history: Sequence[int]) -> NDArray[np.float32]:
        return np.arange(len(CHARACTERS), dtype=np.float32)


class ReplayModel:
    """Says a recorded text again, and nonsense anywhere else."""

    def __init__(self, texts: Sequence[Sequence[int]], vocab_size: int, end: int) -> None:
        self.texts, self.vocab_size, self.end = [list(t) for t in texts], vocab_size, end

    def logits(self, history: Sequence[int]) -> NDArray[np.float32]:
        found = np.zeros(self.vocab_size, dtype=np.float32)
        for text in self.texts:
            if len(history) < len(text) and text[: len(history)] == list(history):
                found[text[len(history)]] = 1
        return found


def choose(logits: NDArray[np.float32], row: NDArray[np.int32] | None) -> int:
    """The best token that the row allows: the mask, then greedy sampling."""
    if row is None:
        return int(logits.argmax())
    bits = np.unpackbits(row.view(np.uint8), count=len(logits), bitorder="little")
    refuse_unless(bool(bits.any()), "a row of a sampled place allows no token at all")
    return int(np.where(bits, logits, -np.inf).argmax())


@dataclass
class Job:
    """A request to run.

    Attributes:
        prompt: tokens.
        rule: None for a free request.
        max_tokens: at most so many are generated.
        chunks: steps that its prompt takes, where scheduling is asynchronous.
        make_grammar: a grammar in its first state; None for a free request.
        answer: what it gets without speculation.
    """

    prompt: list[int]
    rule: Rule | None
    max_tokens: int
    chunks: int = 1
    make_grammar: Callable[[], NativeGrammar] | None = None
    answer: list[int] = field(default_factory=list)


def plain_run(job: Job, model: Any) -> list[int]:
    """The tokens of a request alone, one by one, without drafts."""
    grammar = job.make_grammar() if job.make_grammar else None
    tokens: list[int] = []
    rows = np.empty((1, -(-len(model.logits([])) // 32)), dtype=np.int32)
    while len(tokens) < job.max_tokens and model.end not in tokens:
        if grammar is not None:
            grammar.fill_bitmask(rows, 0)
        token = choose(model.logits(job.prompt + tokens), rows[0] if grammar else None)
        tokens.append(token)
        if grammar is not None:
            assert grammar.accept_tokens("", [token])
    return tokens


Drafter = Callable[[int, Sequence[int]], list[int]]
"""`drafter(number of the request, its tokens, prompt included)`: at most k drafts."""


def wrong_drafter(jobs: Sequence[Job], k: int, seed: int, unknown: bool) -> Drafter:
    """Drafts that are right two times in three, and otherwise any token: barred, or the end.

    Args:
        jobs: whose answers it knows.
        k: drafts at most; sometimes it has fewer.
        seed: draws.
        unknown: some drafts are -1, as those of vLLM's `ngram_gpu` are where it has found fewer.
    """

    def propose(number: int, tokens: Sequence[int]) -> list[int]:
        job = jobs[number]
        done = len(tokens) - len(job.prompt)
        rng = random.Random(seed * 1_000_003 + number * 1009 + done)
        right = job.answer[done : done + k]
        drafts = [
            right[i] if i < len(right) and rng.random() < 0.67 else rng.randrange(len(PIECES))
            for i in range(k)
        ]
        if rng.random() < 0.1:
            drafts[rng.randrange(k)] = END
        if not unknown:
            return drafts[: rng.randint(0, k)] if rng.random() < 0.2 else drafts
        known = rng.randint(0, k) if rng.random() < 0.2 else k
        return drafts[:known] + [-1] * (k - known)

    return propose


def make_batch(seed: int, backend: NativeBackend) -> list[Job]:
    """Four requests with random rules and a free one among them."""
    rng = random.Random(f"batch {seed}")
    free = rng.randrange(5)
    jobs = []
    for number in range(5):
        prompt = rng.choices(range(1, len(PIECES)), k=rng.randint(1, 4))
        rule = None if number == free else draw_rule(rng)
        job = Job(prompt, rule, rng.randint(4, 14), rng.randint(1, 3))
        if rule is not None:
            automaton = backend.compile_grammar(*rule)._automaton  # by which no state is held
            job.make_grammar = partial(NativeGrammar, automaton)
        job.answer = plain_run(job, TableModel())
        jobs.append(job)
    return jobs


def batches(count: int, first: int = 0) -> Iterator[tuple[int, list[Job]]]:
    """So many batches, each with its seed."""
    tokenizer: Any = PIECES
    backend = NativeBackend(tokenizer, len(PIECES))
    for seed in range(first, first + count):
        yield seed, make_batch(seed, backend)
