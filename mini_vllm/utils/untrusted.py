"""What comes from outside: read up to a limit, and shown short when it is refused.

Files and arguments are somebody else's. A file may have no end, JSON may be nested until the parser
gives up, a value may be a megabyte long: an error about it is one line all the same.
"""

from __future__ import annotations

import json
import re
import reprlib
import unicodedata
import zlib
from pathlib import Path
from typing import Any

MOST_BYTES = 128 * 1024**2
"""No file of settings, prompts or steps is longer; the largest tokenizers take 40 MB."""
MOST_OF_POINTER = 1024
"""Bytes; a git-lfs pointer has no more."""
_CHUNK = 1024**2


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80
        self.maxlist = self.maxtuple = self.maxset = self.maxdict = 4
        self.maxlevel = 2

    def repr_int(self, x: int, level: int) -> str:
        if abs(x) >= 10**40:  # past 4300 digits even Python refuses to write it out
            return f"an integer of {x.bit_length()} bits"
        return repr(x)


_SHORT = _Short()


def shorten_repr(value: object, most: int = 80) -> str:
    """`repr(value)` for an error message, however long the value is: a text of up to `most`
    characters whole (a path wants more), anything else in under 300 characters."""
    if isinstance(value, str) and len(value) <= most:
        return repr(value)
    text = _SHORT.repr(value)
    return text if len(text) <= 250 else f"{text[:150]}...{text[-90:]}"


def one_line(text: str, most: int = 700) -> str:
    """`text` as a line for a terminal: controls escaped, the middle left out past `most` characters."""
    if len(text) > most:
        text = f"{text[: most * 2 // 3]} ... {text[-most // 4 :]}"
    return "".join(
        c.encode("unicode_escape").decode("ascii")
        if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
        else c
        for c in text
    )


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a file. Raises OSError, or ValueError for one of more than `most` bytes."""
    # What has a size is refused by it, unread; a pipe or a device has none.
    size = path.stat().st_size
    if size <= most:
        with path.open("rb") as file:
            data = file.read(most + 1)
        size = len(data)
    if size > most:
        raise ValueError(f"it holds more than {most} bytes")
    return data


def gunzip(data: bytes, most: int = MOST_BYTES) -> bytes:
    """The content of a gzip file's bytes, its members joined.

    Raises ValueError: no gzip, cut off, or more than `most` bytes when unpacked. No more than that
    is ever unpacked.
    """
    parts: list[bytes] = []
    size = 0
    while data:
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            try:
                part = member.decompress(data, _CHUNK)
            except zlib.error as error:
                raise ValueError(f"not gzip: {error}") from error
            data = member.unconsumed_tail
            if not part and not data and not member.eof:
                raise ValueError("the gzip data ends too early")
            parts.append(part)
            size += len(part)
            if size > most:
                raise ValueError(f"it holds more than {most} bytes when unpacked")
        data = member.unused_data
    return b"".join(parts)


def decode(data: bytes) -> str:
    """UTF-8. Raises ValueError that says where it is none."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise ValueError("not UTF-8 but UTF-16, by its first bytes") from None
        raise ValueError(f"not UTF-8: byte 0x{data[error.start]:02x} at {error.start}") from None


def describe_lfs_pointer(data: bytes) -> str:
    """What to say of a file that begins so, if it is the text that git leaves in a large file's place; else
    nothing."""
    if not data.startswith(b"version https://git-lfs"):
        return ""
    size = re.search(rb"\nsize (\d{1,18})\n", data[:MOST_OF_POINTER])
    told = f" ({int(size[1]):,} bytes)" if size else ""
    return f"a git-lfs pointer: the file itself{told} was not downloaded (git lfs pull)"


def parse_json(text: str | bytes) -> Any:
    """A JSON value. Raises ValueError for anything that is none, or is nested too deep."""
    if isinstance(text, bytes):
        if pointer := describe_lfs_pointer(text):
            raise ValueError(f"not JSON but {pointer}")
        text = decode(text)
    if text.startswith("\ufeff"):
        raise ValueError("not JSON: it begins with a byte order mark")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON nested too deep") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None


def is_text(text: str) -> bool:
    """Whether it can be written as UTF-8, which a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
