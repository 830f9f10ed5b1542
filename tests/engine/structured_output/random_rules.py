"""Random regular expressions and JSON, and vocabularies whose tokens begin and end inside characters."""

from __future__ import annotations

import random
from typing import Any

from mini_vllm.structured_output.automata.dfa import Dfa
from mini_vllm.structured_output.automata.limits import RuleError, RuleTooLarge
from mini_vllm.structured_output.automata.regex import parse_regex

LETTERS = ["a", "b", "c", "0", "9", " ", "_", "-", "\n", "é", "ü", "€", "😀"]
_ATOMS = ["a", "b", "0", "9", " ", "_", "é", "€", "😀", "ab", "a9", ".", r"\.", r"\n"]
_ESCAPES = [r"\d", r"\w", r"\s", r"\D", r"\W", r"\S"]
_MEMBERS = ["a", "b", "0", "_", "é", "€", "😀", " ", r"\n", r"\-", r"\]", r"\\", *_ESCAPES]
# No `\x1f` here: where `a` follows it, xgrammar reads one escape of three digits, U+01FA.
_RANGES = ["a-c", "0-9", "é-ü", "à-€", "€-😀", r"\n-\r", r"\u00e0-\u20ac"]
_QUANTIFIERS = ["*", "+", "?", "{2}", "{0,3}", "{1,2}", "{2,}", "*?", "{0,12}"]


def random_regex(rng: random.Random) -> str:
    """Of the whole dialect that the native automata and xgrammar share."""
    return rng.choice(["", "^"]) + _random_part(rng, rng.randint(1, 4)) + rng.choice(["", "$"])


def random_rule(rng: random.Random) -> tuple[str, Dfa]:
    """A random regex and its automaton. A few are refused, for an empty class or their size."""
    while True:
        pattern = random_regex(rng)
        try:
            return pattern, Dfa(parse_regex(pattern))
        except RuleTooLarge:
            continue
        except RuleError as error:
            if "has no character" not in str(error):
                raise


def _random_part(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.3:
        return rng.choice([*_ATOMS, *_ESCAPES, _random_class(rng), _random_class(rng)])
    left = _random_part(rng, depth - 1)
    if kind < 0.55:
        return left + _random_part(rng, depth - 1)
    if kind < 0.7:
        return f"({left}|{_random_part(rng, depth - 1)})"
    if kind < 0.75:
        return f"(?:{left}|{_random_part(rng, depth - 1)}|)"
    return f"({left}){rng.choice(_QUANTIFIERS)}"


def _random_class(rng: random.Random) -> str:
    members = [rng.choice(rng.choice([_MEMBERS, _RANGES])) for _ in range(rng.randint(1, 3))]
    return "[" + rng.choice(["", "", "^"]) + "".join(members) + "]"


def random_vocabulary(rng: random.Random, size: int = 900) -> list[bytes]:
    """`<eos>`, every byte, and `size` tokens of letters, of which half may be cut inside them."""
    tokens = {bytes([byte]) for byte in range(256)}
    for _ in range(size):
        spelled = "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 4))).encode()
        if rng.random() < 0.5:
            spelled = spelled[rng.randrange(2) : rng.randint(2, 8)]
        tokens.add(spelled or b"a")
    return [b"<eos>", *sorted(tokens)]


def random_json(rng: random.Random, depth: int) -> Any:
    """A JSON value, nested at most so deep."""
    kind = rng.randrange(4 if depth == 0 else 6)
    if kind == 4:
        return [random_json(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    if kind == 5:
        return {
            rng.choice(['k"', "", "é", "\n"]): random_json(rng, depth - 1)
            for _ in range(rng.randint(0, 3))
        }
    return [
        rng.choice([True, False, None]),
        rng.randint(-200, 200),
        rng.choice([0.5, -1e30, 1e-9]),
        "".join(
            rng.choices(["a", '"', "\\", "/", "\n", "\x01", "é", "😀", "\x7f"], k=rng.randint(0, 4))
        ),
    ][kind]


def json_vocabulary(rng: random.Random, size: int) -> list[bytes]:
    """`<eos>`, every byte, and `size` tokens of what JSON is made of."""
    pieces = [
        "{",
        "}",
        "[",
        "]",
        '"',
        ",",
        ":",
        " ",
        "\n",
        "0",
        "12",
        "-",
        ".",
        "e",
        "true",
        "null",
    ]
    pieces += ["fal", "se", "\\", "u00", "n", "é", '"a"', '": ', "},", "]}", '":[']
    tokens = {bytes([byte]) for byte in range(256)}
    tokens |= {
        "".join(rng.choice(pieces) for _ in range(rng.randint(1, 4))).encode() for _ in range(size)
    }
    return [b"<eos>", *sorted(tokens)]
