"""What settings of the engine and of a checkpoint have in common: how they are read, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mini_vllm.utils.untrusted import shorten_repr


class CheckpointError(ValueError):
    """A folder that cannot be served; the message names the file, the value and the rule."""


MOST = 2**31 - 1
"""No size is more: ids and positions are int32."""
FLOAT32_MAX = 3.4028234e38


def check_integer(name: str, value: object, least: int, most: int = MOST) -> None:
    """Raises ValueError unless it is an integer in these bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(
            f"{name} must be an integer of at least {least}, got {shorten_repr(value)}"
        )
    if value > most:
        raise ValueError(f"{name} must be an integer of at most {most}, got {shorten_repr(value)}")


def check_flag(name: str, value: object) -> None:
    """Raises ValueError unless it is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {shorten_repr(value)}")


def check_one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raises ValueError unless it is one of these."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {shorten_repr(value)}")


def check_activation(raw: Mapping[str, Any], key: str, supported: tuple[str, ...]) -> None:
    """Raises CheckpointError unless the file names one of these there, or nothing."""
    if raw.get(key, supported[0]) not in supported:
        raise CheckpointError(
            f"{key} {shorten_repr(raw[key])} is not supported; supported: {supported[0]}"
        )


def check_no(raw: Mapping[str, Any], keys: tuple[str, ...], architecture: str) -> None:
    """Raises CheckpointError if the file turns one of these on."""
    for key in keys:
        if raw.get(key):
            raise CheckpointError(
                f"{key} {shorten_repr(raw[key])} is not supported for {architecture}"
            )


def read_window(raw: Mapping[str, Any], default: int) -> int | None:
    """`sliding_window`: `default` where the file has none; null and 0 turn it off
    (`vllm/config/model.py:673 in ModelConfig.__post_init__`)."""
    window = raw.get("sliding_window", default)
    if window is None or (type(window) is int and window == 0):
        return None
    if type(window) is not int or not 1 <= window <= MOST:
        raise CheckpointError(
            f"sliding_window must be null or an integer of at least 1 and at most {MOST}, got "
            f"{shorten_repr(window)}"
        )
    return window


def read_object(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The JSON object under `key`; an empty one where there is none or null."""
    value = raw.get(key)
    if value is not None and not isinstance(value, dict):
        raise CheckpointError(f"{key} must be an object or null, got {shorten_repr(value)}")
    return value or {}


def is_size(value: object) -> bool:
    """Whether it is a number above 0 that float32 holds: no NaN, no infinity, not true."""
    return type(value) in (int, float) and 0 < value <= FLOAT32_MAX  # type: ignore[operator]


def as_ids(value: Any, source: str) -> tuple[int, ...]:
    """`eos_token_id` as every file spells it: absent, one id, or a list of them. Some may be no token's."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(i) is int for i in ids):
        raise CheckpointError(
            f"eos_token_id in {source} must be an id or a list of ids, got {shorten_repr(value)}"
        )
    return tuple(ids)
