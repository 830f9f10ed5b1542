"""The native backend: what a rule allows, going back, ending, and rules that are refused."""

from __future__ import annotations

import json
import random
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import mini_vllm
from mini_vllm.structured_output.automata.dfa import START, Dfa
from mini_vllm.structured_output.automata.limits import (
    DEFAULT_LIMITS,
    Limits,
    RuleTooLarge,
    UnsupportedRule,
)
from mini_vllm.structured_output.automata.regex import parse_regex
from mini_vllm.structured_output.automata.tokens import TokenAutomaton, TokenTrie
from mini_vllm.structured_output.automata.utf8 import byte_sequences
from mini_vllm.structured_output.backend_native import NativeBackend, NativeGrammar
from mini_vllm.structured_output.backend_types import StructuredOutputOptions
from mini_vllm.tokenizer.tokenizer import Tokenizer
from tests.engine.helpers.thorough import THOROUGH, either
from tests.engine.structured_output.random_rules import LETTERS, random_rule, random_vocabulary

TINY = Path(mini_vllm.__file__).parent / "checkpoints" / "tiny-llama"
REGEX, CHOICE = StructuredOutputOptions.REGEX, StructuredOutputOptions.CHOICE
JSON, JSON_OBJECT = StructuredOutputOptions.JSON, StructuredOutputOptions.JSON_OBJECT
EOS = 2
WIDTH = 270
"""Of the model's logits: more than the tokenizer has tokens."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(TINY)


@pytest.fixture
def backend(tokenizer: Tokenizer) -> NativeBackend:
    return NativeBackend(tokenizer, WIDTH)


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def allowed(grammar: NativeGrammar, width: int = WIDTH) -> list[int]:
    row = np.full((1, -(-width // 32)), -1, dtype=np.int32)
    grammar.fill_bitmask(row, 0)
    bits = np.unpackbits(row[0].view(np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits)]


def test_a_rule_matches_what_re_matches() -> None:
    """`re` is asked without U+00A0, which is a space here and none of ASCII's there."""
    rng = random.Random(1)
    matched = 0
    for _ in range(either(150, 3000)):
        pattern, dfa = random_rule(rng)
        expected = re.compile(pattern, re.ASCII | re.DOTALL)
        texts = ["", *("".join(rng.choices(LETTERS, k=rng.randint(1, 5))) for _ in range(20))]
        for _ in range(5):  # and some that match, as far as five letters lead
            texts.append("")
            state = START
            for _ in range(rng.randint(1, 6)):
                onward = [c for c in LETTERS if dfa.advance(state, c.encode())]
                if not onward:
                    break
                texts[-1] += (letter := rng.choice(onward))
                state = dfa.advance(state, letter.encode())
        for text in texts:
            match = expected.fullmatch(text) is not None
            assert bool(dfa.accepting[dfa.advance(START, text.encode())]) == match, (pattern, text)
            matched += match
    assert matched > 100


def test_byte_sequences_spell_every_character_of_a_range_and_no_other() -> None:
    rng = random.Random(2)
    edges = [0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF]
    for _ in range(200):
        first, last = sorted(rng.choice([*edges, rng.randrange(0x110000)]) for _ in range(2))
        sequences = list(byte_sequences(first, last))
        sizes = [np.prod([high - low + 1 for low, high in sequence]) for sequence in sequences]
        assert sum(sizes) == last - first + 1
        for character in (first, last, max(first, last - 1), rng.randint(first, last)):
            spelled = chr(character).encode("utf-8", errors="surrogatepass")
            hits = [
                len(sequence) == len(spelled)
                and all(low <= b <= high for b, (low, high) in zip(spelled, sequence, strict=True))
                for sequence in sequences
            ]
            assert sum(hits) == 1


def test_a_token_is_allowed_if_its_bytes_begin_a_match() -> None:
    """The walk over the tree of the vocabulary against a walk over each token alone."""
    rng = random.Random(3)
    vocabulary = random_vocabulary(rng, 300)
    trie = TokenTrie([*vocabulary, b""], [0])
    for _ in range(either(30, 300)):
        pattern, dfa = random_rule(rng)
        state = rng.randrange(1, len(dfa))
        alone = [dfa.advance(state, spelled) for spelled in vocabulary]
        assert trie.walk(dfa, state).tolist() == [0, *alone[1:], 0], pattern


def test_going_back_restores_every_row_bit_for_bit() -> None:
    rng = random.Random(4)
    vocabulary = random_vocabulary(rng, 300)
    trie = TokenTrie(vocabulary, [0])
    width = len(vocabulary)
    rolled_back = 0
    for _ in range(either(60, 1000)):
        dfa = random_rule(rng)[1]
        automaton = TokenAutomaton(dfa, trie, width)
        grammar = NativeGrammar(automaton)
        rows, path = [allowed(grammar, width)], list[int]()
        for _ in range(20):
            if path and (grammar.is_terminated() or not rows[-1] or rng.random() < 0.3):
                steps = rng.randint(1, min(3, len(path)))
                grammar.rollback(steps)
                del rows[-steps:], path[-steps:]
                rolled_back += steps
                assert allowed(grammar, width) == rows[-1]
                assert grammar.is_terminated() == (path[-1:] == [0])
                fresh = NativeGrammar(automaton)
                assert fresh.accept_tokens("r", path)
                assert (fresh.state, fresh.num_processed_tokens) == (grammar.state, len(path))
            elif rows[-1]:
                path.append(rng.choice(rows[-1]))
                assert grammar.accept_tokens("r", path[-1:])
                rows.append(allowed(grammar, width))
    assert rolled_back > 100


def test_the_end_must_be_accepted_before_the_grammar_is_terminated(
    backend: NativeBackend, tokenizer: Tokenizer
) -> None:
    grammar = backend.compile_grammar(REGEX, "[0-9]{2}")
    assert not grammar.accept_tokens("r", [EOS])
    assert grammar.accept_tokens("r", ids(tokenizer, "42"))
    assert not grammar.is_terminated()
    assert allowed(grammar) == [EOS]
    assert grammar.accept_tokens("r", [EOS])
    assert grammar.is_terminated()
    assert len(allowed(grammar)) == 32 * 9  # every bit: the row is free
    assert not grammar.accept_tokens("r", [EOS])
    assert not grammar.accept_tokens("r", [])
    grammar.rollback(1)
    assert not grammar.is_terminated()
    assert allowed(grammar) == [EOS]
    grammar.accept_tokens("r", [EOS])
    grammar.reset()
    assert (grammar.is_terminated(), grammar.num_processed_tokens) == (False, 0)


def test_tokens_are_taken_up_to_the_first_that_is_barred(
    backend: NativeBackend, tokenizer: Tokenizer
) -> None:
    grammar = backend.compile_grammar(REGEX, "ab?")
    a, b, c = ids(tokenizer, "abc")
    assert grammar.validate_tokens([a, b, c, a]) == [a, b]
    assert grammar.validate_tokens([a, EOS, EOS]) == [a, EOS]
    assert grammar.validate_tokens([c]) == []
    assert (grammar.num_processed_tokens, grammar.is_terminated()) == (0, False)
    assert not grammar.accept_tokens("r", [a, c])
    assert grammar.num_processed_tokens == 1
    for stray in (-1, WIDTH - 1, 10**6):
        assert not grammar.accept_tokens("r", [stray])
    with pytest.raises(ValueError, match="cannot roll back 2 tokens of 1"):
        grammar.rollback(2)


def test_only_the_asked_row_is_written(backend: NativeBackend) -> None:
    rows = backend.allocate_token_bitmask(3)
    backend.compile_grammar(REGEX, "a").fill_bitmask(rows, 1)
    assert (rows[[0, 2]] == -1).all()
    assert np.unpackbits(rows[1].view(np.uint8)).sum() == 1


def test_requests_with_one_rule_share_its_automaton_and_not_its_state(
    backend: NativeBackend, tokenizer: Tokenizer
) -> None:
    first, second = (backend.compile_grammar(REGEX, "ab") for _ in range(2))
    assert first._automaton is second._automaton
    assert first.accept_tokens("r", ids(tokenizer, "a"))
    assert allowed(second) == ids(tokenizer, "a")
    assert allowed(first) == ids(tokenizer, "b")
    for number in range(40):
        backend.compile_grammar(REGEX, f"a{number}")
    assert len(backend._compiled) == 16
    backend.destroy()
    assert not backend._compiled


def test_a_character_of_several_tokens_is_finished_before_the_end(
    backend: NativeBackend, tokenizer: Tokenizer
) -> None:
    grammar = backend.compile_grammar(REGEX, "[à-ü]")
    first, second = ids(tokenizer, "é")
    assert allowed(grammar) == [first]
    assert grammar.accept_tokens("r", [first])
    assert second in allowed(grammar)
    assert EOS not in allowed(grammar)


def test_a_choice_is_one_of_its_texts(backend: NativeBackend, tokenizer: Tokenizer) -> None:
    choices = ["a", "ab", 'q"\\', "line\nend", "é"]
    rule = json.dumps(choices)
    for text in choices:
        grammar = backend.compile_grammar(CHOICE, rule)
        assert grammar.accept_tokens("r", [*ids(tokenizer, text), EOS])
    grammar = backend.compile_grammar(CHOICE, rule)
    assert allowed(grammar) == sorted(ids(tokenizer, "aql") + ids(tokenizer, "é")[:1])
    grammar.accept_tokens("r", ids(tokenizer, "a"))
    assert allowed(grammar) == sorted([EOS, *ids(tokenizer, "b")])


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("a(?=b)", "character 2: look-ahead"),
        ("(?<!a)b", "look-behind"),
        ("(?i)a", "flags"),
        ("(?P<n>a)", "Python's notation"),
        ("(?<n n>a)", "not an identifier"),
        (r"(a)\1", r"a back-reference, \\1"),
        (r"\p{L}", "a Unicode property"),
        (r"\bword", "a word boundary"),
        (r"\Aword", r"\\A escapes nothing"),
        (r"\012", "an octal escape"),
        (r"[\w-z]", "begins or ends with a class"),
        ("[z-a]", "counts down"),
        ("a{3,2}", "counts down"),
        ("[[:alpha:]]", "a POSIX class"),
        ("[]a]", "an empty class"),
        ("[^]a]", "an empty class"),
        (r"[^\s\S]", "no character"),
        ("a**", "a quantifier behind a quantifier"),
        ("a++", "a quantifier behind a quantifier"),
        ("^*", "a quantifier behind an anchor"),
        ("*a", "nothing stands before the quantifier"),
        ("a{x}", "a repetition is written"),
        ("a{,3}", "a repetition is written"),
        ("a{2", "the pattern ends"),
        ("a|b)", "closes no group"),
        ("(a", "is not closed"),
        ("[a", "is not closed"),
        ("a\\", "the pattern ends"),
        (r"\xg1", "hexadecimal"),
        (r"\u{110000}", "up to 10FFFF"),
        (r"\ud800", "a surrogate"),
        ("a\ud800", "a surrogate"),
    ],
)
def test_a_regex_is_refused_by_the_name_of_what_is_wrong(pattern: str, named: str) -> None:
    with pytest.raises(UnsupportedRule, match=named):
        parse_regex(pattern)


@pytest.mark.parametrize("rule", ["{}", "[]", "[1]", "nonsense", '["\\ud800"]', "[" * 10_000])
def test_a_choice_is_a_list_of_texts(backend: NativeBackend, rule: str) -> None:
    with pytest.raises(UnsupportedRule, match="choice: "):
        backend.compile_grammar(CHOICE, rule)


def test_other_kinds_of_rules_are_refused_by_name(backend: NativeBackend) -> None:
    for kind in set(StructuredOutputOptions) - {REGEX, CHOICE, JSON_OBJECT, JSON}:
        with pytest.raises(UnsupportedRule, match=f"kind {kind.name.lower()}"):
            backend.compile_grammar(kind, "{}")


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        *either([], [("(a?){3000}", "2000000 steps"), ("((a*)*b?){500}", "2000000 steps")]),
        ("a{100000}", "50000 states before"),
        ("((a{0,99}){0,99}){0,99}", "50000 states before"),
        ("(){999999999}", "50000 states before"),
        ("a{99999999999}", "a count of 11 digits"),
        ("a{" + "9" * 10_000 + "}", "a count of 10000 digits"),
        ("(a|b)*a(a|b){30}", "20000 states"),
        ("(" * 1000 + ")" * 1000, "more than 100 deep"),
        ("a" * 60_000, "60000 characters"),
    ],
)
def test_a_huge_rule_is_refused_at_bounded_cost(
    backend: NativeBackend, pattern: str, named: str
) -> None:
    if THOROUGH:  # to trace memory takes three times as long
        tracemalloc.start()
    try:
        with pytest.raises(RuleTooLarge, match=named):
            backend.compile_grammar(REGEX, pattern)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 256 * 2**20
    # And the next rule is served.
    assert allowed(backend.compile_grammar(REGEX, "a"))


def test_the_limits_are_the_backends(tokenizer: Tokenizer) -> None:
    backend = NativeBackend(tokenizer, WIDTH, limits=Limits(dfa_states=5))
    assert backend.compile_grammar(REGEX, "a{3}")  # four states and the dead one
    with pytest.raises(RuleTooLarge, match="more than 5 states"):
        backend.compile_grammar(REGEX, "a{4}")
    with pytest.raises(RuleTooLarge, match="choice: "):
        backend.compile_grammar(CHOICE, json.dumps(["a" * DEFAULT_LIMITS.nfa_states]))


def test_rows_beyond_the_cache_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mini_vllm.structured_output.automata.tokens._ROW_BYTES", 100)
    vocabulary = random_vocabulary(random.Random(5), 50)
    dfa = Dfa(parse_regex("a{9}"))
    automaton = TokenAutomaton(dfa, TokenTrie(vocabulary, [0]), len(vocabulary))
    first = [automaton.row(state).copy() for state in range(1, len(dfa))]
    again = [automaton.row(state) for state in range(1, len(dfa))]
    assert len(automaton._rows) == 2
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
