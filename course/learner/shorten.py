"""Messages of tests, made short enough to be read: where two long values differ, not the values."""

from __future__ import annotations

import re
from collections.abc import Iterator

LONG = 90  # characters of a value that is printed whole
AROUND = 34  # characters that are kept before and after the first difference
MOST_LINES = 8
MOST_CHARACTERS = 560
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def shorten(message: str) -> str:
    """`message` with its long values cut down, and not more than `MOST_LINES` lines of it.

    Of two long values, as in "got [...], should be [...]", only the neighbourhood of their first
    difference is kept, and the item of the value that it is in is named.
    """
    text = _values(_fold_numpy(message.strip()))
    lines = text.splitlines()
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], f"… and {len(lines) - MOST_LINES + 1} lines more"]
    text = "\n".join(lines)
    if len(text) > MOST_CHARACTERS:
        text = text[:MOST_CHARACTERS].rsplit(" ", 1)[0] + " …"
    return text


def _fold_numpy(text: str) -> str:
    """What numpy.testing prints below its message (counts, indices, two arrays) in one line."""
    head, found, rest = text.partition("Mismatched elements:")
    if not found:
        return text
    count, *others = rest.splitlines() or [""]
    first = next((line.strip() for line in others if "(ACTUAL)" in line), "")
    if not first:
        first = "; ".join(line.strip() for line in others if re.match(r"\s*\w+: ", line))
    return f"{head}{found}{count}" + (f", the first at {first}" if first.startswith("[") else "")


# -- values ---------------------------------------------------------------------------------------


def _values(text: str) -> str:
    spans = list(_spans(text))
    pieces = [text[start:end] for start, end in spans]
    short = [piece if len(piece) <= LONG else _cut(piece) for piece in pieces]
    told = ""
    for index in range(len(pieces) - 1):
        one, other = pieces[index : index + 2]
        near = spans[index + 1][0] - spans[index][1] < 2 * AROUND
        alike = near and one != other and _opening(one) == _opening(other)
        if alike and max(len(one), len(other)) > LONG:
            short[index : index + 2], item = _difference(one, other)
            told = f"\nThey differ first in item {item}, counted from 0."
            break
    parts, end = [], 0
    for (start, stop), piece in zip(spans, short, strict=True):
        parts += [text[end:start], piece]
        end = stop
    return "".join(parts) + text[end:].rstrip() + told


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Where the outermost bracketed values of `text` stand, the name of a class before them included."""
    index = 0
    while index < len(text):
        end = _end(text, index) if text[index] in _CLOSING else None
        if end is None:
            index += 1
            continue
        start = index - len((re.search(r"[\w.]*$", text[:index]) or [""])[0])
        yield start, end
        index = end


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


def _cut(value: str) -> str:
    """The beginning of a long value."""
    value = " ".join(value.split())
    return value if len(value) <= LONG else f"{value[: LONG - 10]} …{value[-1]}"


def _difference(one: str, other: str) -> tuple[list[str], int]:
    """Both values around their first difference, and the number of the item that holds it."""
    one, other = " ".join(one.split()), " ".join(other.split())
    at = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    begin = max(at - AROUND, 0)
    if begin:  # at the beginning of a word
        begin = one.rfind(" ", 0, begin) + 1
    return [_window(value, begin, at) for value in (one, other)], max(
        _item(one, at), _item(other, at)
    )


def _window(value: str, begin: int, at: int) -> str:
    end = at + AROUND
    before = f"{_opening(value)}… " if begin else ""
    after = f" …{value[-1]}" if end < len(value) - 1 else value[end:]
    return before + value[begin:end] + after


def _opening(value: str) -> str:
    """The first bracket, and the name before it."""
    return next(value[: i + 1] for i, char in enumerate(value) if char in _CLOSING)


def _item(value: str, at: int) -> int:
    """How many items of `value` end before `at`, where it begins to differ from another."""
    depth = count = 0
    quote = ""
    for before, char in zip(" " + value, value[:at], strict=False):
        if quote:
            quote = "" if char == quote and before != "\\" else quote
        elif char in "'\"":
            quote = char
        elif char in _CLOSING:
            depth += 1
        elif char in _CLOSING.values():
            depth -= 1
        elif char == "," and depth == 1:
            count += 1
    ends = at < len(value) and depth == 1 and value[at] in _CLOSING.values()
    return count + (ends and value[at - 1] not in _CLOSING)  # the other value has one more
