"""`json_object` in the native backend: a stack, so what may follow depends on what is open."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import mini_vllm
from mini_vllm.structured_output.automata.json_rules import json_rules
from mini_vllm.structured_output.automata.limits import Limits
from mini_vllm.structured_output.automata.pushdown import Pushdown
from mini_vllm.structured_output.automata.syntax import Call
from mini_vllm.structured_output.automata.tokens import TokenAutomaton, TokenTrie
from mini_vllm.structured_output.backend_native import NativeBackend, NativeGrammar
from mini_vllm.structured_output.backend_types import BackendConfig, StructuredOutputOptions
from mini_vllm.tokenizer.tokenizer import Tokenizer
from tests.engine.helpers.thorough import either
from tests.engine.structured_output.random_rules import json_vocabulary, random_json

TINY = Path(mini_vllm.__file__).parent / "checkpoints" / "tiny-llama"
BLANKS = ["", "", "", " ", "\n  ", "\t\r"]


def spread(rng: random.Random, value: Any) -> str:
    """JSON with blanks at random places."""
    gap = lambda: rng.choice(BLANKS)  # noqa: E731
    if isinstance(value, dict):
        parts = [
            f"{gap()}{json.dumps(k)}{gap()}:{gap()}{spread(rng, v)}{gap()}"
            for k, v in value.items()
        ]
        return "{" + (",".join(parts) or gap()) + "}"
    if isinstance(value, list):
        return "[" + (",".join(f"{gap()}{spread(rng, v)}{gap()}" for v in value) or gap()) + "]"
    return json.dumps(value, ensure_ascii=rng.random() < 0.5)


def is_object(text: str) -> bool:
    """What `json` takes for an object, without its extensions NaN and Infinity and blanks around."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(word)

    try:
        return isinstance(json.loads(text, parse_constant=refuse), dict) and text == text.strip()
    except ValueError:
        return False


def test_it_takes_what_json_takes() -> None:
    """Random objects, with blanks, and then with a character dropped, doubled or replaced."""
    rng = random.Random(1)
    automaton = Pushdown(Call("object"), json_rules(True))
    valid = broken = 0
    for _ in range(either(60, 3000)):
        text = spread(rng, {"a": random_json(rng, 3), "é": random_json(rng, 2)})
        for _ in range(6):
            state = automaton.advance(automaton.start, text.encode())
            assert automaton.accepts(state) == is_object(text), text
            valid += is_object(text)
            broken += not is_object(text)
            at = rng.randrange(len(text))
            instead = rng.choice(["", text[at] * 2, rng.choice('{}[]",:0e-.tu\\ ')])
            text = text[:at] + instead + text[at + 1 :]
    assert min(valid, broken) > 100


@pytest.mark.parametrize(
    "value", ["0", "-0", "10", "0.50", "1e5", "1E-5", "-0.0e+0", r'"\u00aF\/"']
)
def test_a_value_of_json(value: str) -> None:
    automaton = Pushdown(Call("object"), json_rules(True))
    assert automaton.accepts(automaton.advance(automaton.start, f'{{"a":{value}}}'.encode()))


@pytest.mark.parametrize(
    "value",
    [
        "00",
        "01",
        "-",
        "+1",
        ".5",
        "1.",
        "1e",
        "1e+",
        "NaN",
        r'"\a"',
        r'"\u00g0"',
        '"\n"',
        "[1,]",
        "{a:1}",
    ],
)
def test_no_value_of_json(value: str) -> None:
    automaton = Pushdown(Call("object"), json_rules(True))
    assert not automaton.advance(automaton.start, f'{{"a":{value}}}'.encode())


def test_without_blanks_there_is_one_behind_comma_and_colon() -> None:
    backend = NativeBackend(
        Tokenizer.from_folder(TINY), 264, BackendConfig(disable_any_whitespace=True)
    )
    rng = random.Random(2)
    for _ in range(30):
        value = {"a": random_json(rng, 3)}
        for text, taken in ((json.dumps(value), True), (json.dumps(value, indent=1), False)):
            grammar = backend.compile_grammar(StructuredOutputOptions.JSON_OBJECT, "")
            tokens = backend.tokenizer.encode(text, add_special_tokens=False)
            assert grammar.accept_tokens("r", [*tokens, 2]) == taken, text


def test_deep_nesting_costs_no_recursion() -> None:
    automaton = Pushdown(Call("object"), json_rules(True))
    depth = 5000
    state = automaton.advance(automaton.start, b'{"a":' + b"[" * depth)
    assert not automaton.advance(state, b"}")
    closed = automaton.advance(state, b"]" * depth)
    assert automaton.accepts(automaton.advance(closed, b"}"))


@pytest.mark.parametrize("limits", [Limits(), Limits(dfa_states=4)])
def test_going_back_restores_every_row_bit_for_bit(limits: Limits) -> None:
    """Also where the table is emptied again and again."""
    rng = random.Random(3)
    vocabulary = json_vocabulary(rng, 300)
    trie, width = TokenTrie(vocabulary, [0]), len(vocabulary)
    automaton = TokenAutomaton(Pushdown(Call("object"), json_rules(True), limits), trie, width)
    row = np.empty((1, -(-width // 32)), dtype=np.int32)

    def allowed(grammar: NativeGrammar) -> list[int]:
        grammar.fill_bitmask(row, 0)
        bits = np.unpackbits(row[0].view(np.uint8), bitorder="little")
        return [int(token) for token in np.flatnonzero(bits)]

    for _ in range(either(6, 60)):
        grammar = NativeGrammar(automaton)
        rows, path = [allowed(grammar)], list[int]()
        for _ in range(30):
            if path and (grammar.is_terminated() or rng.random() < 0.3):
                steps = rng.randint(1, min(3, len(path)))
                grammar.rollback(steps)
                del rows[-steps:], path[-steps:]
                automaton._rows.clear()
                assert allowed(grammar) == rows[-1]
                fresh = NativeGrammar(automaton)
                assert fresh.accept_tokens("r", path)
                assert fresh.state == grammar.state
            else:
                path.append(rng.choice(rows[-1]))
                assert grammar.accept_tokens("r", path[-1:])
                rows.append(allowed(grammar))


def test_a_tokens_verdict_may_depend_on_the_stack() -> None:
    """`]}` closes a list in an object and nothing else; the state on top is the same."""
    vocabulary = [b"<eos>", b"]}", b"]]", b"}}", b"]"]
    automaton = TokenAutomaton(
        Pushdown(Call("object"), json_rules(True)), TokenTrie(vocabulary, [0]), len(vocabulary)
    )
    over_bytes = automaton._automaton
    rows = {}
    for text in (b'{"a":[1', b'{"a":[[1', b'{"a":{"b":1', b'{"a":1'):
        state = over_bytes.advance(over_bytes.start, text)
        rows[text] = f"{int(automaton.row(state)[0]):05b}"[::-1]
    assert rows == {
        b'{"a":[1': "01001",
        b'{"a":[[1': "00101",
        b'{"a":{"b":1': "00010",
        b'{"a":1': "00000",
    }
