"""The native backend's rows against xgrammar's, the library that vLLM compiles its rules with.

Where a row differs, xgrammar is asked twice. Its row may allow a token that ends inside a character
and that its own `accept_token` then refuses: for `(é)+\\sa9` it allows the bytes `c3 a9 f0`, though
nothing in the rule begins with `f0`. Such a token is counted; the verdict of `accept_token` must be
ours. Bits past `vocab_size`, in the last word of a row, stand for no token and are not compared.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import mini_vllm
from mini_vllm.structured_output.automata.dfa import Dfa
from mini_vllm.structured_output.automata.json_rules import json_rules
from mini_vllm.structured_output.automata.pushdown import Pushdown
from mini_vllm.structured_output.automata.regex import parse_regex
from mini_vllm.structured_output.automata.syntax import Call
from mini_vllm.structured_output.automata.tokens import TokenAutomaton, TokenTrie
from mini_vllm.structured_output.backend_native import (
    NativeBackend,
    NativeGrammar,
    parse_choice,
)
from mini_vllm.structured_output.backend_types import StructuredOutputOptions
from mini_vllm.tokenizer.tokenizer import Tokenizer
from tests.engine.helpers.thorough import either
from tests.engine.structured_output.random_rules import (
    LETTERS,
    json_vocabulary,
    random_rule,
    random_vocabulary,
)

pytestmark = pytest.mark.vllm
TINY = Path(mini_vllm.__file__).parent / "checkpoints" / "tiny-llama"


class Walk:
    """A native grammar and xgrammar's matcher, kept in step and compared."""

    rows = 0
    contradictions = 0
    """Tokens of which xgrammar's row and its `accept_token` say different things."""
    barred = 0
    """Of these, what the row bars. Only schemas have such."""

    def __init__(self, grammar: NativeGrammar, matcher: Any, vocab_size: int) -> None:
        import xgrammar

        self._grammar, self._matcher, self._vocab_size = grammar, matcher, vocab_size
        self._theirs = xgrammar.allocate_token_bitmask(1, vocab_size)
        self._ours = np.empty((1, self._theirs.shape[1]), dtype=np.int32)

    def _bits(self, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
        return np.unpackbits(rows[0].view(np.uint8), bitorder="little")[: self._vocab_size]

    def compare(self, rule: str) -> list[int]:
        """Compare the row of the present state; return the allowed tokens."""
        self._theirs.fill_(-1)
        self._matcher.fill_next_token_bitmask(self._theirs, 0)
        self._grammar.fill_bitmask(self._ours, 0)
        ours, theirs = self._bits(self._ours), self._bits(self._theirs.numpy())
        Walk.rows += 1
        for token in map(int, np.flatnonzero(ours != theirs)):
            if accepted := self._matcher.accept_token(token):
                self._matcher.rollback(1)
            if accepted and not ours[token] and self.explain(token):
                continue
            assert theirs[token] != accepted == ours[token], (rule, token)
            Walk.contradictions += 1
            Walk.barred += int(accepted)
        return [int(token) for token in np.flatnonzero(ours)]

    def explain(self, token: int) -> bool:
        """Whether it is known why xgrammar takes a token that is barred here."""
        return False

    def step(self, token: int) -> None:
        """Accept a token on both sides, there and back and there."""
        assert self._matcher.accept_token(token)
        assert self._grammar.accept_tokens("r", [token])
        assert self._grammar.is_terminated() == self._matcher.is_terminated()

    def back(self, steps: int) -> None:
        """Roll back on both sides."""
        self._matcher.rollback(steps)
        self._grammar.rollback(steps)
        assert self._grammar.is_terminated() == self._matcher.is_terminated()

    def run(self, rng: random.Random, rule: str, steps: int) -> None:
        """A random walk, now and then a step or two back."""
        taken = 0
        for _ in range(steps):
            onward = self.compare(rule)
            if not onward:
                return
            self.step(rng.choice(onward))
            taken += 1
            if self._grammar.is_terminated() or rng.random() < 0.2:
                steps_back = rng.randint(1, min(2, taken))
                self.back(steps_back)
                taken -= steps_back


def test_rows_of_random_regexes_along_random_walks(capsys: pytest.CaptureFixture[str]) -> None:
    import xgrammar

    wanted = either(600, 10_000)
    Walk.rows = Walk.contradictions = rules = 0
    rng = random.Random(7)
    while Walk.rows < wanted:
        vocabulary = random_vocabulary(rng)
        width = len(vocabulary) + rng.randrange(40)
        info = xgrammar.TokenizerInfo(
            vocabulary, xgrammar.VocabType.RAW, vocab_size=width, stop_token_ids=[0]
        )
        compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        trie = TokenTrie(vocabulary, [0])
        for _ in range(50):
            rule, dfa = random_rule(rng)
            automaton = TokenAutomaton(dfa, trie, width)
            matcher = xgrammar.GrammarMatcher(compiler.compile_regex(rule))
            Walk(NativeGrammar(automaton), matcher, width).run(rng, rule, 12)
            rules += 1
    with capsys.disabled():
        print(
            f"\n{rules} regexes, {Walk.rows} rows: equal, but for {Walk.contradictions} tokens that "
            "xgrammar's row allows and its accept_token refuses"
        )


@pytest.mark.parametrize("any_whitespace", [True, False])
def test_rows_of_json_objects_along_random_walks(
    any_whitespace: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    import xgrammar

    wanted = either(200, 5000)
    Walk.rows = Walk.contradictions = 0
    rng = random.Random(11)
    while Walk.rows < wanted:
        vocabulary = json_vocabulary(rng, 500)
        width = len(vocabulary)
        info = xgrammar.TokenizerInfo(
            vocabulary, xgrammar.VocabType.RAW, vocab_size=width, stop_token_ids=[0]
        )
        compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_json_schema(
            '{"type": "object"}', any_whitespace=any_whitespace
        )
        automaton = TokenAutomaton(
            Pushdown(Call("object"), json_rules(any_whitespace)), TokenTrie(vocabulary, [0]), width
        )
        for _ in range(10):
            walk = Walk(NativeGrammar(automaton), xgrammar.GrammarMatcher(compiled), width)
            walk.run(rng, "json_object", 40)
    with capsys.disabled():
        print(f"\n{Walk.rows} rows of JSON: equal, but for {Walk.contradictions} tokens, as above")


def test_rows_over_a_checkpoints_vocabulary() -> None:
    """Special tokens too: a rule allows `<bos>` wherever its five characters fit, in both."""
    import xgrammar
    from transformers import AutoTokenizer

    width = 270
    info = xgrammar.TokenizerInfo.from_huggingface(
        AutoTokenizer.from_pretrained(TINY), vocab_size=width
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    backend = NativeBackend(Tokenizer.from_folder(TINY), width)
    rng = random.Random(8)
    for rule in (".*", r"<\w+>", r"[0-9]{2}", r'\{"name": "[^"\\]*"\}', "(a|é)+", r"\W{2,}"):
        grammar = backend.compile_grammar(StructuredOutputOptions.REGEX, rule)
        matcher = xgrammar.GrammarMatcher(compiler.compile_regex(rule))
        Walk(grammar, matcher, width).run(rng, rule, 30)


def test_rows_of_choices() -> None:
    """Against the grammar that vLLM makes of a choice. Without line ends, which that grammar lacks."""
    import xgrammar
    from vllm.v1.structured_output.utils import choice_as_grammar

    rng = random.Random(9)
    info = xgrammar.TokenizerInfo(
        vocabulary := random_vocabulary(rng, 600),
        xgrammar.VocabType.RAW,
        vocab_size=(width := len(vocabulary)),
        stop_token_ids=[0],
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    trie = TokenTrie(vocabulary, [0])
    letters = [*(letter for letter in LETTERS if letter != "\n"), '"', "\\"]
    for _ in range(either(30, 500)):
        choices = [
            "".join(rng.choices(letters, k=rng.randint(1, 6))) for _ in range(rng.randint(1, 5))
        ]
        automaton = TokenAutomaton(Dfa(parse_choice(json.dumps(choices))), trie, width)
        matcher = xgrammar.GrammarMatcher(compiler.compile_grammar(choice_as_grammar(choices)))
        Walk(NativeGrammar(automaton), matcher, width).run(rng, repr(choices), 10)


def test_a_token_that_xgrammar_allows_and_refuses() -> None:
    import xgrammar

    vocabulary = [b"<eos>", *(bytes([byte]) for byte in range(256)), b"\xc3\xa9\xf0"]
    width = len(vocabulary)
    info = xgrammar.TokenizerInfo(
        vocabulary, xgrammar.VocabType.RAW, vocab_size=width, stop_token_ids=[0]
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    automaton = TokenAutomaton(Dfa(parse_regex(r"(é)+\sa9")), TokenTrie(vocabulary, [0]), width)
    Walk.contradictions = 0
    matcher = xgrammar.GrammarMatcher(compiler.compile_regex(r"(é)+\sa9"))
    assert Walk(NativeGrammar(automaton), matcher, width).compare("") == [1 + 0xC3]
    assert Walk.contradictions == 1


@pytest.mark.parametrize(
    ("rule", "read_as"),
    [(r"[\x00-\x1fa-c]", "[\\u0000-\u01fa\\-c]"), (r"\Aa", "Aa"), ("a$b", "ab")],
)
def test_what_xgrammar_reads_otherwise(rule: str, read_as: str) -> None:
    """Why the random regexes have no `\\x1f` before a hexadecimal digit, and what `\\A` is there."""
    import xgrammar

    vocabulary = random_vocabulary(random.Random(10), 1)
    info = xgrammar.TokenizerInfo(
        vocabulary, xgrammar.VocabType.RAW, vocab_size=len(vocabulary), stop_token_ids=[0]
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    rows = []
    for pattern in (rule, read_as):
        row = xgrammar.allocate_token_bitmask(1, len(vocabulary))
        matcher = xgrammar.GrammarMatcher(compiler.compile_regex(pattern))
        matcher.fill_next_token_bitmask(row, 0)
        bits = np.unpackbits(row[0].numpy().view(np.uint8), bitorder="little")
        rows.append(bits[: len(vocabulary)].tolist())
    assert rows[0] == rows[1]
