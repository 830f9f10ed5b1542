"""The front matter of a lab's README, by a parser for the small part of YAML that labs use.

Whatever it takes, a YAML parser reads the same way (a test holds the two together).
"""

from __future__ import annotations

import re
from typing import Any


def front_matter(text: str) -> dict[str, Any]:
    """The front matter at the beginning of a Markdown page, as a dict.

    One `key: value` a line; values are whole numbers, text, or `[a, "b"]`. A `#` after a blank
    begins a comment. Raises ValueError naming the line that is none of these.
    """
    lines = text.splitlines()
    if not lines or lines[0].rstrip() != "---":
        raise ValueError("does not begin with front matter (a line ---)")
    values: dict[str, Any] = {}
    for number, line in enumerate(lines[1:], 2):
        if line.rstrip() == "---":
            return values
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = re.fullmatch(r"([a-z_]+):(?:\s+(.*))?", line)
        if match is None or not match[2]:
            raise ValueError(f"line {number}: expected 'key: value', got {line!r}")
        if match[1] in values:
            raise ValueError(f"line {number}: {match[1]} stands there twice")
        values[match[1]] = _value(match[2], number)
    raise ValueError("the front matter has no end (a second line ---)")


_SCALAR = re.compile(r'"(?:[^"\\]*)"|\'(?:[^\'\\]*)\'|[^,\[\]]+')


def _value(text: str, number: int) -> Any:
    if quoted := re.match(r'("[^"\\]*"|\'[^\'\\]*\')\s*(?:\s#.*)?$', text):
        return quoted[1][1:-1]
    text = re.sub(r"(?:^|\s+)#.*$", "", text).strip()
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1].strip()
        items = [item.strip() for item in _SCALAR.findall(inner)] if inner else []
        if re.sub(r"\s", "", ",".join(items)) != re.sub(r"\s", "", inner):
            raise ValueError(f"line {number}: not a list of plain values: {text}")
        return [_value(item, number) for item in items]
    if re.fullmatch(r"0|[1-9]\d*", text):
        return int(text)
    if not text or text[0] in "[]{}\"'&*!|>%@`,?-" or ": " in text or text.endswith(":"):
        raise ValueError(f"line {number}: put quotes around {text!r}")
    if re.fullmatch(r"(?i)true|false|yes|no|on|off|null|~|[-+.\d_:]+", text):
        raise ValueError(f"line {number}: YAML does not read {text} as text; put quotes around it")
    return text
