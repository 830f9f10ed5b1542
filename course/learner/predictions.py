"""What is wrong with a predicted value, said without the right one.

    wrong = wrong_in(said["rows read"], [23, 8])
    assert not wrong, f"rows read: {wrong}. Whose rows are read twice?"

A lab asks for predictions before it shows a run. Whoever reads the answer in a failing test has predicted
nothing, so a message says which item is wrong and asks what leads to the right one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Numbers = int | float


def wrong_in(said: Any, answer: Any, near: float = 0.0) -> str:
    """What is wrong with `said`, for a sentence; "" where it is right.

    A number may be off by `near`. Of a list, a tuple or a dict the first wrong item is named.
    """
    if isinstance(answer, Mapping):
        return _wrong_in_mapping(said, answer, near)
    if isinstance(answer, list | tuple):
        return _wrong_in_list(said, answer, near)
    return "" if _same(said, answer, near) else f"{_plain(said)!r} is wrong"


def _same(said: Any, answer: Any, near: float) -> bool:
    if isinstance(answer, Numbers) and not isinstance(answer, bool):
        try:
            return bool(abs(said - answer) <= near)
        except TypeError:
            return False
    return bool(said == answer)


def _plain(value: Any) -> Any:
    """A value as the learner has written it: of numpy's numbers the number alone."""
    return value.item() if getattr(value, "shape", None) == () else value


def _wrong_in_list(said: Any, answer: Sequence[Any], near: float) -> str:
    try:
        values = [_plain(one) for one in said]
    except TypeError:
        return f"a list is asked for, not {_plain(said)!r}"
    if len(values) != len(answer):
        items = "one item is" if len(answer) == 1 else f"{len(answer)} items are"
        return f"{items} asked for, and {values} has {len(values)}"
    for place, (mine, right) in enumerate(zip(values, answer, strict=True)):
        if not _same(mine, right, near):
            which = f"item {place} of " if len(values) > 1 else ""
            counted = ", counted from 0," if len(values) > 1 else ""
            return f"{which}{values}{counted} is wrong"
    return ""


def _wrong_in_mapping(said: Any, answer: Mapping[Any, Any], near: float) -> str:
    if not isinstance(said, Mapping):
        return f"a dict is asked for, not {_plain(said)!r}"
    for name, value in said.items():
        if name not in answer:
            return f"{name!r} does not belong into {dict(said)}"
        if not _same(value, answer[name], near):
            return f"{name!r} of {dict(said)} is wrong"
    return f"{dict(said)} lacks an entry" if len(said) < len(answer) else ""
