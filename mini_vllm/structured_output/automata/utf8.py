"""A range of characters as ranges of UTF-8 bytes."""

from __future__ import annotations

from collections.abc import Iterator

ByteRange = tuple[int, int]

# The last character that is written with one, two, three and four bytes.
_LAST_OF_LENGTH = (0x7F, 0x7FF, 0xFFFF, 0x10FFFF)


def byte_sequences(first: int, last: int) -> Iterator[tuple[ByteRange, ...]]:
    """Sequences of byte ranges that together spell exactly the characters `first` to `last`.

    `U+00E0` to `U+20AC` gives `[c3][a0-bf]`, `[c4-df][80-bf]`, and five more of three bytes.

    Surrogates are spelled like their neighbours, though no UTF-8 text has them: xgrammar's masks
    allow their bytes, `ed` before `a0`, wherever a set of characters spans them.
    """
    start = 0
    for length_minus_1, end in enumerate(_LAST_OF_LENGTH):
        if first <= end and last >= start:
            yield from _same_length(max(first, start), min(last, end), length_minus_1)
        start = end + 1


def _encode(character: int) -> bytes:
    return chr(character).encode("utf-8", errors="surrogatepass")


def _same_length(first: int, last: int, following: int) -> Iterator[tuple[ByteRange, ...]]:
    """The same, for characters that all have `following` bytes after the first one."""
    # Where the two ends differ above the low 6, 12, ... bits, those bits must run through all their
    # values: cut off the ragged beginning and the ragged end.
    for k in range(1, following + 1):
        low = (1 << 6 * k) - 1
        if first >> 6 * k != last >> 6 * k:
            if first & low:
                yield from _same_length(first, first | low, following)
                yield from _same_length((first | low) + 1, last, following)
                return
            if last & low != low:
                yield from _same_length(first, (last & ~low) - 1, following)
                yield from _same_length(last & ~low, last, following)
                return
    yield tuple(zip(_encode(first), _encode(last), strict=True))
