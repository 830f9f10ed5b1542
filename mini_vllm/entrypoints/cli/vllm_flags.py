"""The flags of `vllm serve` that `mini-vllm serve` has not: taken where they change nothing, refused by name.

They come from `surface.json` and stand in no help. As upstream, a flag of an on-off argument has a twin,
`--no-…`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from mini_vllm.utils.surface import entries, groups, is_harmless, refusal


class _VllmFlag(argparse.Action):
    """A flag on the list: nothing happens, or the command ends with the sentence that refuses it."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        self._kind, self._name = kwargs.pop("kind"), kwargs.pop("name")
        super().__init__(option_strings, dest, help=argparse.SUPPRESS, **kwargs)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        flag = str(option_string)
        value = _read(values) if isinstance(values, str) else not flag.startswith("--no-")
        if not is_harmless(self._kind, self._name, value):
            shown = f"{flag} {values}" if isinstance(values, str) else flag
            parser.error(str(refusal(self._kind, self._name, shown)))


def _read(text: str) -> Any:
    """A value as it stands on the command line: JSON where it is some, else text."""
    try:
        return json.loads(text)
    except ValueError:
        return None if text == "None" else text


def flag_of(argument: str) -> str:
    """The flag of an engine's argument."""
    return "--" + argument.replace("_", "-")


def add_vllm_flags(parser: argparse.ArgumentParser) -> None:
    """Let a parser know every flag of `vllm serve` that it has not got."""
    ours = set(parser._option_string_actions)
    short = {name: alias for group in groups().values() for alias, name in _aliases(group)}
    for kind in ("arguments", "flags"):
        for name, (_, values) in entries(kind).items():
            flag = name if kind == "flags" else flag_of(name)
            if flag in ours:
                continue
            on_off = values is None or any(isinstance(value, bool) for value in values)
            strings = [flag, *([short[name]] if name in short else [])]
            strings += ["--no-" + flag[2:]] if on_off else []
            parser.add_argument(
                *strings, action=_VllmFlag, dest=argparse.SUPPRESS, kind=kind, name=name,
                nargs=0 if on_off else None,
            )  # fmt: skip


def _aliases(group: dict[str, Any]) -> list[tuple[str, str]]:
    return list(group.get("aliases", {}).items())
