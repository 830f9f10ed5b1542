"""Messages of tests, made short enough to be read: where two long values differ, not the values.

Only what is shown is made here. `TestResult.message` stays as the test has said it: fingerprints are of that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from course.learner.sides import Sides

LONG = 90  # characters of a value that is printed whole
AROUND = 34  # characters that are kept before and after the first difference
MOST_LINES = 8
MOST_CHARACTERS = 560
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?(?![\w.])")
_PROSE = re.compile(r"(?:[A-Za-z]{2,}[,.:;]? ){2}[A-Za-z]{2,}")  # three words in a row
_QUOTED = re.compile(r"(?<![A-Za-z0-9])(['\"]).*?\1", re.DOTALL)
_YOURS = re.compile(r"\b(?:yours?|you|got)\b", re.IGNORECASE)
# What stands right before a value, and says whose it is, that it is another one, or what was asked.
_BEFORE_YOURS = re.compile(r"\b(?:yours?|you|got)\b[^.;]{0,24}$", re.IGNORECASE)
_BEFORE_EXPECTED = re.compile(r"\b(?:must|should|wants?|wanted|expected|engine|vLLM)\b[^.;]{0,24}$")
_BEFORE_OTHER = re.compile(r"\bnot\b[^.;]{0,8}$")
_BEFORE_ASKED = re.compile(r"\b(?:for|with|of|on|from|after)\s*$")
_JOINED = re.compile(r"\s*(?:[,;:.]|(?:and|but|not|must|should)\b)")  # two values in one sentence
_NAMES = ("yours", "expected")
_IN_ROW = LONG - 12  # characters of a value that has such a name before it
Tolerance = Sequence[float] | None  # relative and absolute; None: what is not equal differs


def shorten(message: str, tolerance: Tolerance = None, sides: Sides | None = None) -> str:
    """`message` with its long values cut down, and not more than `MOST_LINES` lines of it.

    Of two long values, as in "got [...], should be [...]", only the neighbourhood of the first item in
    which they differ is kept, and the item named, with what either has there. Numbers that the test's own
    `tolerance` takes for equal do not differ. A value that the message sets against no other, such as what
    was asked, is compared with nothing. A message that has both `sides` and does not say whose they are is
    followed by these, `yours` before `expected`.
    """
    text, told = _values(_fold_numpy(message.strip()), tolerance, sides)
    if not told and sides is not None and not _YOURS.search(message):
        told = _label(_cut(sides.yours, _IN_ROW), _cut(sides.expected, _IN_ROW))
    lines, most = text.splitlines(), MOST_LINES - len(told.splitlines())
    if len(lines) > most:
        lines = [*lines[: most - 1], f"… and {len(lines) - most + 1} lines more"]
    text = "\n".join(lines)
    if len(text) > MOST_CHARACTERS:
        text = text[:MOST_CHARACTERS].rsplit(" ", 1)[0] + " …"
    return f"{text}\n{told}" if told else text


def _label(yours: str, expected: str, begin: str = "", names: Sequence[str] = _NAMES) -> str:
    """Two values in one line where they are short, else in two, one above the other."""
    line = f"{begin}{names[0]} {yours}, {names[1]} {expected}"
    if len(line) <= LONG:
        return line
    width = max(map(len, names))
    rows = [
        f"  {name:{width}}  {value}" for name, value in zip(names, (yours, expected), strict=True)
    ]
    return "\n".join([begin.strip(), *rows] if begin else rows)


def _fold_numpy(text: str) -> str:
    """What numpy.testing prints below its message (counts, indices, two arrays) in one line."""
    head, found, rest = text.partition("Mismatched elements:")
    if not found:
        return text
    count, *others = rest.splitlines() or [""]
    first = next((line.strip() for line in others if "(ACTUAL)" in line), "")
    if not first:
        first = "; ".join(line.strip() for line in others if re.match(r"\s*\w+: ", line))
    first = re.sub(r"(\S+) \(ACTUAL\), (\S+) \(DESIRED\)", r"yours \1, expected \2", first)
    return f"{head}{found}{count}" + (f", the first at {first}" if first.startswith("[") else "")


# -- values ---------------------------------------------------------------------------------------


def _values(text: str, tolerance: Tolerance, sides: Sides | None) -> tuple[str, str]:
    """`text` with its long values cut down, and a sentence on the first two that differ; "" if none do."""
    spans = list(_spans(text))
    pieces = [text[start:end] for start, end in spans]
    short = [piece if len(piece) <= LONG else _cut(piece) for piece in pieces]
    told = ""
    for index in range(len(pieces) - 1):
        one, other = (" ".join(piece.split()) for piece in pieces[index : index + 2])
        before = text[spans[index - 1][1] if index else 0 : spans[index][0]]
        between = text[spans[index][1] : spans[index + 1][0]]
        alike = one != other and _opening(one) == _opening(other)
        compared, second_is_yours = _whose(one, other, before, between, sides)
        if compared and alike and max(len(one), len(other)) > LONG:
            found = _first_difference(one, other, tolerance)
            if found is not None:
                short[index : index + 2] = [_around(one, found.one), _around(other, found.other)]
                told = found.tell(second_is_yours)
                break
    parts, end = [], 0
    for (start, stop), piece in zip(spans, short, strict=True):
        parts += [text[end:start], piece]
        end = stop
    return "".join(parts) + text[end:].rstrip(), told


def _whose(
    one: str, other: str, before: str, between: str, sides: Sides | None
) -> tuple[bool, bool | None]:
    """Whether a message compares two values, and whether the second is the learner's, if that is known."""
    if sides is not None and {one, other} == {sides.yours, sides.expected}:
        return True, other == sides.yours
    if not _JOINED.match(between) or _BEFORE_ASKED.search(before):
        return False, None
    if _BEFORE_YOURS.search(between):
        return True, True
    if _BEFORE_EXPECTED.search(between):
        return True, False
    first_is = (_BEFORE_EXPECTED.search(before), _BEFORE_YOURS.search(before))
    known = None if bool(first_is[0]) == bool(first_is[1]) else bool(first_is[0])
    return _BEFORE_OTHER.search(between) is not None, known


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Where the outermost bracketed values of `text` stand, the name of a class before them included.

    A parenthesis in a sentence is no value; the values in it are.
    """
    index = 0
    while index < len(text):
        end = _end(text, index) if text[index] in _CLOSING else None
        if end is None or _is_prose(text, index, end):
            index += 1
            continue
        start = index - len((re.search(r"[\w.]*$", text[:index]) or [""])[0])
        yield start, end
        index = end


def _is_prose(text: str, start: int, end: int) -> bool:
    """Whether the brackets hold words of the sentence around them and no value."""
    if text[start] != "(" or text[start - 1 : start].strip():
        return False
    return _PROSE.search(_QUOTED.sub("''", text[start:end])) is not None


def _end(text: str, start: int) -> int | None:
    """Behind the bracket that closes the one at `start`; None where none does."""
    open_: list[str] = []
    quote = ""
    index = start
    while index < len(text):
        char = text[index]
        if quote:
            if char == "\\":
                index += 1
            elif char == quote:
                quote = ""
        elif char in "'\"" and not text[index - 1].isalnum():
            quote = char
        elif char in _CLOSING:
            open_.append(_CLOSING[char])
        elif open_ and char == open_[-1]:
            open_.pop()
            if not open_:
                return index + 1
        index += 1
    return None


def _cut(value: str, most: int = LONG) -> str:
    """The beginning of a long value."""
    value = " ".join(value.split())
    return value if len(value) <= most else f"{value[: most - 10]} …{value[-1]}"


@dataclass(frozen=True)
class _Item:
    """One item of a value: where it begins in the value, and its text; `""` behind the value's end."""

    at: int
    text: str


@dataclass(frozen=True)
class _Difference:
    """The first item in which two values differ.

    `places` counts on within an item that is long itself; an entry of a dict goes by its key.
    """

    places: tuple[int | str, ...]
    one: _Item
    other: _Item

    def tell(self, second_is_yours: bool | None) -> str:
        """A sentence that names the item and what is there; the learner's first, if that is known."""
        a, b = self.one.text, self.other.text
        at = _first_apart(a, b)
        texts = [_window(text, max(at - AROUND, 0), at) if text else "nothing" for text in (a, b)]
        names = ("the first has", "the second") if second_is_yours is None else _NAMES
        inner = "".join(f", item {place} of it" for place in self.places[1:])
        counted = ", counted from 0" if any(isinstance(place, int) for place in self.places) else ""
        begin = f"They differ first in item {self.places[0]}{inner}{counted}: "
        one, other = texts[::-1] if second_is_yours else texts
        return _label(one, other, begin, names)


def _first_difference(one: str, other: str, tolerance: Tolerance) -> _Difference | None:
    """The first item in which the values differ by more than `tolerance`; None where none does."""
    pairs = _pairs(one, other)
    for place, a, b in pairs:
        if not _same(a.text, b.text, tolerance):
            opening = _opening(a.text)
            if max(len(a.text), len(b.text)) > 2 * AROUND and opening == _opening(b.text):
                inner = _first_difference(a.text, b.text, tolerance)
                if inner is not None:
                    one_item = _Item(a.at + inner.one.at, inner.one.text)
                    other_item = _Item(b.at + inner.other.at, inner.other.text)
                    return _Difference((place, *inner.places), one_item, other_item)
            return _Difference((place,), a, b)
    return None


def _pairs(one: str, other: str) -> Iterator[tuple[int | str, _Item, _Item]]:
    """The items of two values that belong together: those of dicts by their keys, others by their places."""
    mine, theirs = _items(one), _items(other)
    nothing = _Item(len(one) - 1, ""), _Item(len(other) - 1, "")
    if _opening(one) == "{" and all(": " in item.text for item in (*mine, *theirs)):
        by_key = [dict(map(_entry, items)) for items in (mine, theirs)]
        for key in dict.fromkeys([*by_key[0], *by_key[1]]):
            yield key, by_key[0].get(key, nothing[0]), by_key[1].get(key, nothing[1])
        return
    for place in range(max(len(mine), len(theirs))):
        a = mine[place] if place < len(mine) else nothing[0]
        b = theirs[place] if place < len(theirs) else nothing[1]
        yield place, a, b


def _entry(item: _Item) -> tuple[str, _Item]:
    """The key of a dict's item, and its value as an item."""
    key, colon, value = item.text.partition(": ")
    return key, _Item(item.at + len(key + colon), value)


def _same(one: str, other: str, tolerance: Tolerance) -> bool:
    """Whether two items are equal, but for numbers that `tolerance` takes for equal."""
    if one == other:
        return True
    # numpy puts blanks before its shorter numbers
    if "".join(_NUMBER.sub("#", one).split()) != "".join(_NUMBER.sub("#", other).split()):
        return False
    rel, most = tolerance or (0.0, 0.0)
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(
        abs(a - b) <= max(rel * max(abs(a), abs(b)), most)
        for a, b in ((float(a), float(b)) for a, b in pairs)
    )


def _items(value: str) -> list[_Item]:
    """The items of a list, a dict or a call's arguments: between commas, or, as numpy has it, blanks."""
    begin = len(_opening(value))
    inner = value[begin:-1]
    commas = [*_outer(inner, ",")]
    cuts = commas or [*_outer(inner, " ")]
    found = []
    for start, end in zip([0, *(cut + 1 for cut in cuts)], [*cuts, len(inner)], strict=True):
        text = inner[start:end].strip()
        if text:
            found.append(_Item(begin + inner.index(text, start), text))
    return found


def _outer(text: str, mark: str) -> Iterator[int]:
    """Where `mark` stands in `text` outside of brackets and quotes."""
    index = 0
    while index < len(text):
        char = text[index]
        if char in _CLOSING:
            index = _end(text, index) or index + 1
            continue
        if char in "'\"" and not text[index - 1 : index].isalnum():
            end = text.find(char, index + 1)
            index = end if end > 0 else index
        elif char == mark:
            yield index
        index += 1


def _first_apart(one: str, other: str) -> int:
    """The first place in which two texts differ."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _around(value: str, item: _Item) -> str:
    """A long value as far as it is about `item`."""
    begin = max(item.at - AROUND, 0)
    if begin:  # at the beginning of a word
        begin = value.rfind(" ", 0, begin) + 1
    return _window(value, begin, item.at)


def _window(value: str, begin: int, at: int) -> str:
    end = at + AROUND
    opening = _opening(value)
    before = f"{opening}… " if begin else ""
    after = f" …{value[-1]}" if end < len(value) - 1 else value[end:]
    return before + value[begin:end] + after


def _opening(value: str) -> str:
    """The first bracket, and the name before it; nothing where there is none."""
    return next((value[: i + 1] for i, char in enumerate(value) if char in _CLOSING), "")
