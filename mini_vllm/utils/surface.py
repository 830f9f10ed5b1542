"""What vLLM 0.22.1 offers and the miniature does not: one list, and one voice to say so.

`surface.json` groups names by the reason why they are missing. A group's keys:

    because         the end of the sentence "vLLM 0.22.1 has this; mini_vllm has not, because ..."
    arguments       of `LLM` and `EngineArgs`, and flags of `vllm serve`: name to the values that ask
                    for what the miniature does anyway; "any": it makes no difference here
    flags           of `vllm serve`, those that are no argument of the engine
    aliases         short flags, and the argument or flag that they mean
    SamplingParams, fields      of sampling parameters and of a request's body, with such values
    former          a body's fields that vLLM has dropped, and would pass over in silence
    speculative, methods        keys of `speculative_config`, with such values; its methods
    generate, prompt            arguments of `generate`, `chat`, `add_request`, with such values; keys
                    of a prompt
    LLM, LLMEngine, AsyncLLM    methods
    endpoints, exports          of the server; of the package

`tests/test_surface.py` holds the list against the installed vLLM, name by name.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ANY = "any"
_FILE = Path(__file__).parent / "surface.json"


@functools.cache
def groups() -> dict[str, dict[str, Any]]:
    """The list as it stands in the file. Read when something is first asked for, not on import."""
    loaded: dict[str, dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return loaded


@functools.cache
def entries(kind: str) -> dict[str, tuple[str, Any]]:
    """Every name of a kind: its reason, and the values at which it is taken (None: at none)."""
    found: dict[str, tuple[str, Any]] = {}
    for group in groups().values():
        names = group.get(kind, {})
        for name in names:
            found[name] = (group["because"], names[name] if isinstance(names, dict) else None)
    return found


def refusal(kind: str, name: str, shown: str | None = None) -> str | None:
    """The sentence that refuses a name; None where it is not on the list.

    Args:
        shown: how to call it, such as `tensor_parallel_size=2`; default: the name.
    """
    entry = entries(kind).get(name)
    if entry is None:
        return None
    because, values = entry
    has = "earlier releases of vLLM had this" if kind == "former" else "vLLM 0.22.1 has this"
    sentence = f"{shown or name}: {has}; mini_vllm has not, because {because}."
    taken = [repr(value) for value in values or () if value is not None]
    if taken:
        sentence += f" It takes {' or '.join(taken)}."
    return sentence


def is_harmless(kind: str, name: str, value: object) -> bool:
    """Whether the name is on the list and this value asks for nothing that is missing."""
    if name not in entries(kind):
        return False
    values = entries(kind)[name][1]
    # 1 == True in Python, yet enable_lora=1 or nnodes=True are slips.
    return values == ANY or any(
        value == v and isinstance(value, bool) == isinstance(v, bool) for v in values or ()
    )


def reject_unsupported(
    kind: str, given: Mapping[str, Any], owner: str, known: Iterable[str]
) -> None:
    """Let harmless arguments pass and refuse the others.

    Args:
        given: arguments that `owner` has no parameter for.
        known: the parameters that it has, for the message.

    Raises:
        ValueError: the first one that vLLM has, at a value that asks for what is not here.
        TypeError: the first one that vLLM has not either.
    """
    for name, value in given.items():
        if is_harmless(kind, name, value):
            continue
        message = refusal(kind, name, f"{name}={value!r:.100}")
        if message is not None:
            raise ValueError(message)
        raise TypeError(
            f"{owner} has no argument {name!r}; it has {', '.join(sorted(known))}, and takes "
            "those of vLLM's that change nothing here"
        )


def missing_attribute(owner: str, name: str) -> AttributeError:
    """What `__getattr__` of a class of vLLM's raises for a name that it does not have."""
    message = refusal(owner, name, f"{owner}.{name}")
    return AttributeError(message or f"{owner!r} object has no attribute {name!r}")


def find_endpoint(path: str) -> str | None:
    """The sentence that refuses a path of vLLM's server; None where it has no such path."""
    for endpoint in entries("endpoints"):
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(endpoint.split(" ")[1]))
        if re.fullmatch(pattern, path):
            return refusal("endpoints", endpoint)
    return None
