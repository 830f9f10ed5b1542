"""Random regular expressions, and vocabularies whose tokens begin and end inside characters."""

from __future__ import annotations

import random

from mini_vllm.structured_output.automata.dfa import Dfa
from mini_vllm.structured_output.automata.limits import RuleError
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
        except RuleError as error:
            if "has no character" not in str(error) and "more than 20000 states" not in str(error):
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
