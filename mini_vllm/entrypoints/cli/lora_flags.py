"""The flags for adapters: their sizes, and for the server which are there from the start.

Names and forms are those of `vllm/entrypoints/openai/cli_args.py:35 LoRAParserAction` and
`vllm/config/lora.py:31 LoRAConfig`.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from mini_vllm.config.lora import MAX_LORA_RANKS
from mini_vllm.utils.untrusted import is_text, shorten_repr

_KEYS = {"name": str, "path": str, "base_model_name": str, "is_3d_lora_weight": bool}


def add_lora_size_flags(group: argparse._ArgumentGroup) -> None:
    """How many adapters there may be, and of which rank."""
    from mini_vllm.entrypoints.cli.flags import positive

    group.add_argument(
        "--max-loras", type=positive, default=1, metavar="N", help="most adapters in a step (1)"
    )
    group.add_argument(
        "--max-cpu-loras", type=positive, metavar="N",
        help="most adapters kept in memory without a request for them (--max-loras)",
    )  # fmt: skip
    group.add_argument(
        "--max-lora-rank", type=int, choices=MAX_LORA_RANKS, default=16,
        help="most that an adapter may have (16)",
    )  # fmt: skip


def add_serve_lora_flags(parser: argparse.ArgumentParser) -> None:
    """`mini-vllm serve`'s."""
    group = parser.add_argument_group("adapters")
    group.add_argument(
        "--enable-lora", action=argparse.BooleanOptionalAction, default=False,
        help="requests may name adapters",
    )  # fmt: skip
    group.add_argument(
        "--lora-modules", nargs="+", default=[], type=_read_module, metavar="NAME=DIR",
        help="adapters to load at the start, folders as PEFT writes them; or JSON with name, path and maybe "
        "base_model_name. Others are loaded later where VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 is set",
    )  # fmt: skip
    add_lora_size_flags(group)


def _read_module(text: str) -> dict[str, Any]:
    """What a `LoRAModulePath` is made of: `NAME=DIR`, or where there is a comma or no `=` a JSON object, as
    upstream."""
    if "=" in text and "," not in text:
        name, _, path = text.partition("=")
        raw: Any = {"name": name, "path": path}
    else:
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError):
            raise argparse.ArgumentTypeError(
                f"must be NAME=DIR or a JSON object, got {shorten_repr(text)}"
            ) from None
    if not isinstance(raw, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {shorten_repr(text)}")
    for key, value in raw.items():
        kind = _KEYS.get(key)
        if kind is None:
            raise argparse.ArgumentTypeError(
                f"has the unknown key {shorten_repr(key)}; known are {', '.join(_KEYS)}"
            )
        if not isinstance(value, kind) or (isinstance(value, str) and not is_text(value)):
            raise argparse.ArgumentTypeError(
                f"{key} must be {'text' if kind is str else 'true or false'}, got {shorten_repr(value)}"
            )
    for key in ("name", "path"):
        if not raw.get(key):
            raise argparse.ArgumentTypeError(f"{key} is missing in {shorten_repr(text)}")
    return raw
