"""The rule that a request's output must obey. `structured_output/` compiles it."""

from __future__ import annotations

import json as json_module
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.utils.untrusted import is_text, parse_json, shorten_repr
from mini_vllm.utils.values import flag, wrong_type

RULES = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""Exactly one of these is set."""
_IGNORED = {
    "disable_any_whitespace": False,
    "disable_additional_properties": False,
    "whitespace_pattern": None,
}


@dataclass
class StructuredOutputsParams:
    """One rule (`vllm/sampling_params.py:41 StructuredOutputsParams`).

    Attributes:
        json: a JSON schema, as a dict or as text.
        regex: a regular expression, for the whole output.
        choice: texts, of which the output is one.
        grammar: EBNF or Lark, as the backend reads it.
        json_object: True: any JSON object.
        structural_tag: JSON that says where in the output a schema begins and ends.
        disable_any_whitespace, disable_additional_properties, whitespace_pattern: vLLM takes them here and
            reads them nowhere (its V1 backends look at the engine's settings), so only the defaults pass.

    Raises TypeError or ValueError naming the field and its value. Stricter than upstream, on purpose: what
    vLLM only finds out about when the rule is compiled (`json=""`, `json_object=False`) is refused at once.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    _backend: str | None = field(default=None, init=False)
    """What compiles it; the front end's check writes it."""
    _backend_was_auto: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in RULES if getattr(self, name) is not None}
        if len(given) != 1:
            told = ", ".join(f"{name}={shorten_repr(value)}" for name, value in given.items())
            raise ValueError(
                f"structured_outputs needs exactly one of {', '.join(RULES)}, got {told or 'none'}."
            )
        for name, usual in _IGNORED.items():
            if (value := getattr(self, name)) != usual:
                raise ValueError(
                    f"structured_outputs.{name}={shorten_repr(value)}: no backend reads it from a request. "
                    f"Only {usual} is supported."
                )
        [(name, value)] = given.items()
        _CHECKS[name](f"structured_outputs.{name}", value)

    def all_constraints_none(self) -> bool:
        """Whether no rule is set, which can only be so when a field was set later."""
        return all(getattr(self, name) is None for name in RULES)

    def all_non_structural_tag_constraints_none(self) -> bool:
        """Whether no rule but a structural tag is set."""
        return all(getattr(self, name) is None for name in RULES if name != "structural_tag")


def _check_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise wrong_type(name, "a string", value)
    if not is_text(value):
        raise ValueError(
            f"{name} must be text that UTF-8 can hold, got {shorten_repr(value)}: a lone surrogate."
        )
    return value


def _check_json(name: str, value: object) -> None:
    if isinstance(value, dict):
        try:
            text = json_module.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{name} must be a JSON schema, got {shorten_repr(value)}: {error}."
            ) from error
    elif isinstance(value, str):
        text = _check_text(name, value)
    else:
        raise wrong_type(name, "a JSON schema, as a dict or a string", value)
    try:
        schema = parse_json(text)
    except ValueError as error:
        raise ValueError(
            f"{name} must be a JSON schema, got {shorten_repr(value)}: {error}."
        ) from error
    if not isinstance(schema, dict | bool):
        raise ValueError(
            f"{name} must be a JSON schema, an object, true or false, got {shorten_repr(value)}."
        )


def _check_filled(name: str, value: object) -> None:
    if not _check_text(name, value).strip():
        raise ValueError(f"{name} cannot be an empty string, got {shorten_repr(value)}.")


def _check_choice(name: str, value: object) -> None:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise wrong_type(name, "a list of strings", value)
    if not value:
        raise ValueError(f"{name} cannot be an empty list, got [].")
    for text in value:
        _check_text(name, text)


def _check_object(name: str, value: object) -> None:
    if not flag(name, value):
        raise ValueError(f"{name} must be True or left out, got False: that asks for nothing.")


def _check_tag(name: str, value: object) -> None:
    _check_filled(name, value)
    assert isinstance(value, str)
    try:
        tag = parse_json(value)
    except ValueError as error:
        raise ValueError(f"{name} must be JSON, got {shorten_repr(value)}: {error}.") from error
    if not isinstance(tag, dict):
        raise ValueError(f"{name} must be a JSON object, got {shorten_repr(value)}.")


_CHECKS = {
    "json": _check_json,
    "regex": _check_text,
    "choice": _check_choice,
    "grammar": _check_filled,
    "json_object": _check_object,
    "structural_tag": _check_tag,
}
