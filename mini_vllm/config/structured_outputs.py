"""The rules for the settings of structured outputs.

Mirrors `vllm/config/structured_outputs.py:18 StructuredOutputsConfig`. Left out: reasoning, and two of its
backends; `native` is ours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mini_vllm.config.checks import check_flag, check_one_of
from mini_vllm.utils.untrusted import shorten_repr

BACKENDS = ("auto", "native", "xgrammar", "guidance")
_LEFT_OUT = {"reasoning_parser": "", "reasoning_parser_plugin": "", "enable_in_reasoning": False}


@dataclass(frozen=True)
class StructuredOutputsConfig:
    """How rules are compiled.

    Attributes:
        backend: `xgrammar`, `guidance` or `native`, which needs no library; `auto`: by the rule, and by what
            is installed (`structured_output/manager.py choose_backend`).
        disable_any_whitespace: JSON without blanks between its parts.
        disable_additional_properties: an object whose schema lists properties has no others.

    Raises ValueError naming the field, its value and the rule.
    """

    backend: str = "auto"
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False

    def __post_init__(self) -> None:
        check_one_of("structured_outputs_config.backend", self.backend, BACKENDS)
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            check_flag(f"structured_outputs_config.{name}", getattr(self, name))
        for name, backends in (
            ("disable_any_whitespace", BACKENDS[1:]),
            ("disable_additional_properties", ("guidance",)),
        ):
            if getattr(self, name) and self.backend not in backends:
                raise ValueError(
                    f"structured_outputs_config.{name} is for the backend {' or '.join(backends)}, and "
                    f"structured_outputs_config.backend is {self.backend!r}"
                )

    @classmethod
    def of(cls, given: object) -> StructuredOutputsConfig:
        """From one, or from a mapping with its fields. vLLM's fields that are left out may be there at the
        values that ask for nothing."""
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise ValueError(
                f"structured_outputs_config must be a dictionary, got {shorten_repr(given)}"
            )
        known = {field.name for field in dataclasses.fields(cls)}
        settings: dict[str, Any] = {}
        for name, value in given.items():
            if name in known:
                settings[name] = value
            elif name not in _LEFT_OUT or value != _LEFT_OUT[name]:
                raise ValueError(
                    f"structured_outputs_config has no {shorten_repr(name)} (got {shorten_repr(value)}); it "
                    f"has {', '.join(sorted(known))}"
                )
        return cls(**settings)
