"""Strings as JSON writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable

from mini_vllm.structured_output.automata.limits import Limits, UnsupportedRule
from mini_vllm.structured_output.automata.regex import parse_regex
from mini_vllm.structured_output.automata.syntax import (
    NOTHING,
    Call,
    Characters,
    Either,
    Joined,
    Node,
    Range,
    Repeated,
    common,
    complement,
    literal,
    one_of,
)

REST_OF_STRING = r'([^\x00-\x1f"\\]|\\(["\\/bfnrt]|u[0-9A-Fa-f]{4}))*"'
_NEED_ESCAPE: tuple[Range, ...] = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
PLAIN = complement(_NEED_ESCAPE)
"""Characters that may stand as they are."""
_RARE_SPACES: tuple[Range, ...] = (
    (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F),
    (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
"""Spaces and line ends to JavaScript, though not to xgrammar: `.` and `\\S` must not match them."""
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_HEX = "0123456789abcdef"

_YEAR, _DAY = "[1-9][0-9]{3}", "0[1-9]|1[0-9]|2[0-8]"
_LEAP = "[1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00"
_DATE = (
    f"({_YEAR}-((0[1-9]|1[0-2])-({_DAY})|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
    f"|({_LEAP})-02-29)"
)
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+\-]{_CLOCK})"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_ATOM, _LABEL = r"[A-Za-z0-9_+\-]{1,20}", r"[A-Za-z0-9]([A-Za-z0-9\-]{0,20}[A-Za-z0-9])?"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "email": rf"{_ATOM}(\.{_ATOM}){{0,2}}@{_LABEL}(\.{_LABEL}){{1,3}}",
}
"""What of a format is written. Less than it allows where all of it is no regular expression, or long: no
leap seconds, years from 1000 on, no quoted or very long addresses."""


def quoted(node: Node) -> Node:
    """A node in quotes."""
    return Joined((literal('"'), node, literal('"')))


def pattern(regex: str, limits: Limits, least: int = 0, most: int | None = None) -> Node:
    """A string of which all is matched by a regular expression, of `least` to `most` characters.

    Raises:
        UnsupportedRule: the expression is more than one set of characters, repeated, and a length is given.
    """
    tree = parse_regex(regex, limits, anchors_inside=False)
    if least or most is not None:
        if not (isinstance(tree, Repeated) and isinstance(tree.part, Characters)):
            raise UnsupportedRule(
                "beside a length only one set of characters is supported: ^[a-z]*$"
            )
        least = max(least, tree.least)
        most = tree.most if most is None else most if tree.most is None else min(most, tree.most)
        tree = NOTHING if most is not None and most < least else Repeated(tree.part, least, most)
    return quoted(_write(tree))


def formatted(name: str) -> Node:
    """A string of a format."""
    return quoted(_write(parse_regex(FORMATS[name])))


def _write(node: Node) -> Node:
    """A tree of characters as JSON writes them: each as it is, and those that cannot stand so by escapes,
    unless there are others to choose from."""
    match node:
        case Characters():
            plain = common(node.ranges, PLAIN)
            if not plain:
                codes = (c for first, last in node.ranges for c in range(first, last + 1))
                return Either(tuple(json_text(chr(code), quotes=False) for code in codes))
            usual = common(plain, complement(_RARE_SPACES))
            return Characters(usual or plain)
        case Joined():
            return Joined(tuple(_write(part) for part in node.parts))
        case Either():
            return Either(tuple(_write(option) for option in node.options))
        case Repeated():
            return Repeated(_write(node.part), node.least, node.most)
        case _:
            raise TypeError(f"a regular expression has no {type(node).__name__}")


def json_text(value: object, quotes: bool = True) -> Node:
    """A value as `json.dumps` writes it, without blanks, characters as they are."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=float)
    return literal(text if quotes else text[1:-1])


def other_keys(names: Iterable[str], rest: Call, limits: Limits) -> Node:
    """A string that is none of these names, however it is escaped.

    Args:
        names: the names.
        rest: the rule for `REST_OF_STRING`.
        limits: `depth` is the longest name that is allowed.
    """
    trie: _Trie = {}
    for name in names:
        if len(name) > limits.depth:
            raise UnsupportedRule(
                f"a name of {len(name)} characters beside others that are free: at most {limits.depth}"
            )
        at = trie
        for char in name:
            at = at.setdefault(char, {})
        at[""] = {}
    return Joined((literal('"'), _but(trie, rest)))


_Trie = dict[str, "_Trie"]
"""What may follow; the empty string is the end of a name."""


def _but(trie: _Trie, rest: Call) -> Node:
    """The rest of a string, its quote included, that is no rest of a name."""
    letters = [char for char in trie if char]
    taken = [(ord(char), ord(char)) for char in letters]
    options: list[Node] = [] if "" in trie else [literal('"')]
    options.append(Joined((Characters(common(PLAIN, complement(taken))), rest)))
    short = "".join(mark for meaning, mark in _ESCAPES.items() if meaning not in letters)
    codes = {char.encode("utf-16-be")[:2].hex() for char in letters}
    by_code = Joined((literal("u"), _hex_but(codes, 4)))
    options.append(Joined((literal("\\"), Either((one_of(short), by_code)), rest)))
    for char in letters:
        options.append(Joined((json_text(char, quotes=False), _but(trie[char], rest))))
    return Either(tuple(options))


def _hex_but(codes: set[str], length: int) -> Node:
    """So many hexadecimal digits, which are none of the codes."""
    any_digit = one_of(_HEX + _HEX.upper())
    if not codes:
        return Repeated(any_digit, length, length)
    if length == 0:
        return NOTHING
    heads = {code[0] for code in codes}
    others = "".join(digit for digit in _HEX if digit not in heads)
    options: list[Node] = [
        Joined((one_of(others + others.upper()), Repeated(any_digit, length - 1, length - 1)))
    ]
    for head in sorted(heads):
        tails = {code[1:] for code in codes if code[0] == head}
        options.append(Joined((one_of(head + head.upper()), _hex_but(tails, length - 1))))
    return Either(tuple(options))
