"""The regular expressions that xgrammar takes, as a syntax tree.

A rule describes the whole output. The dialect is JavaScript's with a few limits:

* `.` is any character, line ends too; `\\d`, `\\w` and `\\s` are of ASCII, `\\s` with U+00A0.
* `^` and `$` are passed over wherever they stand: the whole output is matched anyway. xgrammar
  does the same, with a warning where they are not at the ends, so `a$b` matches `ab`.
* A lazy quantifier (`*?`) matches what the greedy one does.
* Look-around, back-references, `\\b`, `\\p`, flags and possessive quantifiers are refused, as in
  xgrammar.

What xgrammar misreads is refused here: letters that escape nothing (`\\A` is read as `A`), a class
that ends a range (`[\\w-z]`), a quantifier behind an anchor, POSIX classes, `[^]` (which Python and
JavaScript read differently), sets without a character, surrogates, code points above U+10FFFF.
"""

from __future__ import annotations

import string

from mini_vllm.structured_output.automata.limits import (
    DEFAULT_LIMITS,
    Limits,
    RuleTooLarge,
    UnsupportedRule,
    check_length,
)
from mini_vllm.structured_output.automata.syntax import (
    LAST_CHARACTER,
    Characters,
    Either,
    Joined,
    Node,
    Range,
    Repeated,
    complement,
    union,
)

_DIGITS: tuple[Range, ...] = ((0x30, 0x39),)
_WORD: tuple[Range, ...] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: tuple[Range, ...] = ((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0))
_CLASS_ESCAPES: dict[str, tuple[Range, ...]] = {
    "d": _DIGITS,
    "D": complement(_DIGITS),
    "w": _WORD,
    "W": complement(_WORD),
    "s": _SPACE,
    "S": complement(_SPACE),
}
_CONTROLS = {
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "f": "\f",
    "a": "\a",
    "e": "\x1b",
    "0": "\0",
}
_REFUSED_ESCAPES = {
    **dict.fromkeys("123456789k", "a back-reference"),
    **dict.fromkeys("pP", "a Unicode property"),
    **dict.fromkeys("bB", "a word boundary"),
}
_REFUSED_GROUPS = {
    "=": "look-ahead",
    "!": "look-ahead",
    "<=": "look-behind",
    "<!": "look-behind",
    "P": "a group in Python's notation (?P…)",
    ">": "an atomic group",
    "#": "a comment",
}
_MOST_COUNT_DIGITS = 9


def parse_regex(pattern: str, limits: Limits = DEFAULT_LIMITS, anchors_inside: bool = True) -> Node:
    """The tree of a regular expression.

    Args:
        pattern: for the whole text.
        limits: bounds on it.
        anchors_inside: `^` and `$` are passed over wherever they stand. Otherwise they are refused
            where the beginning and the end of the text may not be.

    Raises:
        UnsupportedRule: it is malformed, or has syntax that this module's docstring rules out.
        RuleTooLarge: its groups are nested too deep, or it or one of its counts is too long.
    """
    check_length("regex", pattern, limits)
    return _Parser(pattern, limits, anchors_inside).parse()


class _Parser:
    """Recursive descent, one method a rule of the grammar."""

    def __init__(self, pattern: str, limits: Limits, anchors_inside: bool) -> None:
        self._pattern = pattern
        self._anchors_inside = anchors_inside
        self._limits = limits
        self._at = 0
        self._depth = 0

    def parse(self) -> Node:
        tree = self._either()
        if self._at < len(self._pattern):
            raise self._refuse("')' closes no group")
        return tree

    def _refuse(self, what: str, at: int | None = None) -> UnsupportedRule:
        place = (self._at if at is None else at) + 1
        return UnsupportedRule(f"regex, character {place}: {what}")

    def _peek(self, length: int = 1) -> str:
        return self._pattern[self._at : self._at + length]

    def _take(self, what_is_missing: str) -> str:
        if self._at >= len(self._pattern):
            raise self._refuse(f"the pattern ends where {what_is_missing} is expected")
        self._at += 1
        return self._pattern[self._at - 1]

    def _either(self) -> Node:
        options = [self._joined()]
        while self._peek() == "|":
            self._at += 1
            options.append(self._joined())
        return options[0] if len(options) == 1 else Either(tuple(options))

    def _joined(self) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            if self._peek() in "^$":
                self._pass_anchor(bool(parts))
                if self._peek() and self._peek() in "*+?{":
                    raise self._refuse("a quantifier behind an anchor")
                continue
            parts.append(self._repeated())
        return parts[0] if len(parts) == 1 else Joined(tuple(parts))

    def _pass_anchor(self, is_behind_something: bool) -> None:
        begin = self._at
        inside = (
            is_behind_something if self._take("an anchor") == "^" else self._peek() not in ("", "|")
        )
        if not self._anchors_inside and (inside or self._depth):
            raise self._refuse("an anchor inside the pattern is not supported", begin)

    def _repeated(self) -> Node:
        part = self._atom()
        if not (counts := self._quantifier()):
            return part
        if self._peek() == "?":
            self._at += 1  # lazy: the same language
        if self._peek() and self._peek() in "*+?{":
            raise self._refuse("a quantifier behind a quantifier")
        return Repeated(part, *counts)

    def _quantifier(self) -> tuple[int, int | None] | None:
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        mark = self._peek()
        if mark in simple:
            self._at += 1
            return simple[mark]
        if mark != "{":
            return None
        begin = self._at
        self._at += 1
        least = self._count()
        most: int | None = least
        if self._peek() == ",":
            self._at += 1
            most = None if self._peek() == "}" else self._count()
        if self._take("'}'") != "}":
            raise self._refuse("a repetition is written {m}, {m,} or {m,n}", begin)
        if most is not None and most < least:
            raise self._refuse(f"{{{least},{most}}} counts down", begin)
        return least, most

    def _count(self) -> int:
        begin = self._at
        while self._peek() and self._peek() in string.digits:
            self._at += 1
        digits = self._pattern[begin : self._at]
        if not digits:
            raise self._refuse("a repetition is written {m}, {m,} or {m,n}; a literal '{' is \\{")
        if len(digits.lstrip("0")) > _MOST_COUNT_DIGITS:
            raise RuleTooLarge(f"regex, character {begin + 1}: a count of {len(digits)} digits")
        return int(digits)

    def _atom(self) -> Node:
        begin = self._at
        char = self._take("a character")
        if char == "(":
            return self._group(begin)
        if char == "[":
            return self._class(begin)
        if char == ".":
            return Characters(((0, LAST_CHARACTER),))
        if char == "\\":
            return Characters(self._escape(begin, in_class=False))
        if char in "*+?{":
            raise self._refuse(f"nothing stands before the quantifier {char!r}", begin)
        return Characters((self._one(char, begin),))

    def _one(self, char: str, begin: int) -> Range:
        if 0xD800 <= ord(char) <= 0xDFFF:
            raise self._refuse(f"U+{ord(char):04X} is a surrogate, no character", begin)
        return ord(char), ord(char)

    def _group(self, begin: int) -> Node:
        if self._depth >= self._limits.depth:
            raise RuleTooLarge(
                f"regex, character {begin + 1}: groups are nested more than {self._limits.depth} deep"
            )
        if self._peek() == "?":
            self._group_kind(begin)
        self._depth += 1
        inside = self._either()
        self._depth -= 1
        if self._peek() != ")":
            raise self._refuse("'(' is not closed", begin)
        self._at += 1
        return inside

    def _group_kind(self, begin: int) -> None:
        """Pass over `?:` or `?<name>`; the group's name means nothing here."""
        self._at += 1
        if self._peek() == ":":
            self._at += 1
            return
        for sign, what in _REFUSED_GROUPS.items():
            if self._peek(len(sign)) == sign:
                raise self._refuse(f"{what} is not supported", begin)
        if self._peek() != "<":
            raise self._refuse("flags in a group are not supported", begin)
        end = self._pattern.find(">", self._at)
        if end < 0 or not self._pattern[self._at + 1 : end].isidentifier():
            raise self._refuse("the name of a group is not an identifier", begin)
        self._at = end + 1

    def _class(self, begin: int) -> Node:
        """What stands in square brackets."""
        negated = self._peek() == "^"
        self._at += negated
        if self._peek() == "]":
            raise self._refuse("an empty class; a literal ']' in it is \\]", begin)
        ranges: list[Range] = []
        while self._peek() != "]":
            if not self._peek():
                raise self._refuse("'[' is not closed", begin)
            ranges.extend(self._class_item())
        self._at += 1
        merged = complement(ranges) if negated else union(ranges)
        if not merged:
            raise self._refuse("this class has no character", begin)
        return Characters(merged)

    def _class_item(self) -> tuple[Range, ...]:
        """A character, a range, or an escape such as `\\d`."""
        begin = self._at
        left = self._class_member()
        # A hyphen at the end of the class stands for itself.
        if self._peek() != "-" or self._peek(2) in ("-", "-]"):
            return left
        self._at += 1
        right = self._class_member()
        if not (_is_single(left) and _is_single(right)):
            raise self._refuse("a range begins or ends with a class; a literal '-' is \\-", begin)
        if right[0][0] < left[0][0]:
            raise self._refuse(f"the range {self._pattern[begin : self._at]} counts down", begin)
        return ((left[0][0], right[0][0]),)

    def _class_member(self) -> tuple[Range, ...]:
        begin = self._at
        if self._peek(2) in ("[:", "[.", "[="):
            raise self._refuse("a POSIX class is not supported; a literal '[' is \\[")
        char = self._take("a character of a class")
        return self._escape(begin, True) if char == "\\" else (self._one(char, begin),)

    def _escape(self, begin: int, in_class: bool) -> tuple[Range, ...]:
        """What stands behind a backslash."""
        char = self._take("the character that '\\' escapes")
        if char in _CLASS_ESCAPES:
            return _CLASS_ESCAPES[char]
        if in_class and char == "b":
            return ((8, 8),)
        if char == "0" and self._peek() and self._peek() in string.digits:
            raise self._refuse("an octal escape is not supported", begin)
        if char in _CONTROLS:
            return (self._one(_CONTROLS[char], begin),)
        if char == "x":
            return self._hex(begin, 2)
        if char == "u":
            return self._braced_hex(begin) if self._peek() == "{" else self._hex(begin, 4)
        if char == "c":
            letter = self._take("the letter of a control character")
            if letter not in string.ascii_letters:
                raise self._refuse(f"\\c{letter} is no control character", begin)
            return ((ord(letter) % 32, ord(letter) % 32),)
        if char in _REFUSED_ESCAPES:
            raise self._refuse(f"{_REFUSED_ESCAPES[char]}, \\{char}, is not supported", begin)
        if char.isascii() and char.isalnum():
            raise self._refuse(f"\\{char} escapes nothing", begin)
        return (self._one(char, begin),)

    def _hex(self, begin: int, length: int) -> tuple[Range, ...]:
        digits = self._peek(length)
        if len(digits) < length or any(digit not in string.hexdigits for digit in digits):
            raise self._refuse(f"{length} hexadecimal digits are expected", begin)
        self._at += length
        return (self._one(chr(int(digits, 16)), begin),)

    def _braced_hex(self, begin: int) -> tuple[Range, ...]:
        end = self._pattern.find("}", self._at)
        digits = self._pattern[self._at + 1 : end]
        hexadecimal = digits and all(digit in string.hexdigits for digit in digits)
        if end < 0 or not hexadecimal or len(digits) > 6 or int(digits, 16) > LAST_CHARACTER:
            raise self._refuse("\\u{…} takes a code point up to 10FFFF", begin)
        self._at = end + 1
        return (self._one(chr(int(digits, 16)), begin),)


def _is_single(ranges: tuple[Range, ...]) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]
