"""The values of sampling parameters: of the right type, or an error that names parameter and value."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import TypeGuard

from mini_vllm.utils.untrusted import shorten_repr


def wrong_type(name: str, rule: str, value: object) -> TypeError:
    return TypeError(
        f"{name} must be {rule}, got {shorten_repr(value)} of type {type(value).__name__}."
    )


def is_int(value: object) -> TypeGuard[int]:
    # A bool passes for an int in Python, yet n=True is a slip. vLLM lets it through.
    return isinstance(value, int) and not isinstance(value, bool)


def integer(name: str, value: object) -> int:
    if not is_int(value):
        raise wrong_type(name, "an integer", value)
    return value


def count(name: str, value: object) -> int | None:
    """A number of logprobs: True is 1
    (`vllm/sampling_params.py:423 in SamplingParams.__post_init__`), and so False is 0."""
    if isinstance(value, bool):
        return int(value)
    return None if value is None else integer(name, value)


def number(name: str, value: object) -> float:
    if not isinstance(value, float):
        if isinstance(value, bool) or not isinstance(value, Real):
            raise wrong_type(name, "a number", value)
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value}.")
    return value


def flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(name, "True or False", value)
    return value


def strings(name: str, value: object) -> list[str]:
    given = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not all(isinstance(s, str) for s in given):
        raise wrong_type(name, "a string or a list of strings", value)
    if "" in given:
        raise ValueError(f"{name} must not hold an empty string, got {shorten_repr(value)}.")
    return given.copy()


def token_ids(name: str, value: object) -> list[int] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise wrong_type(name, "a list of integers", value)
    if not all(map(is_int, value)):
        raise ValueError(f"{name} must hold integers only, got {shorten_repr(value)}.")
    return value.copy()


def biases(value: object) -> dict[int, float]:
    if not isinstance(value, dict):
        raise wrong_type("logit_bias", "a dict of token id to number", value)
    checked = {}
    for token_id, bias in value.items():
        key = integer("each key of logit_bias", token_id)
        # -inf bars the token, which is sound. Any other non-finite number spoils the row.
        checked[key] = bias if bias == -math.inf else number(f"logit_bias[{key}]", bias)
    return checked


def check_vocabulary(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    outside = [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]
    if outside:
        raise ValueError(
            f"{name} holds token ids outside the vocabulary, {shorten_repr(outside)}: valid ids are 0 to "
            f"{vocab_size - 1}."
        )
