"""Lab 11-07: what a server with tenants says, and what to keep in memory. Your work: every
NotImplementedError."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def predictions() -> dict[str, Any]:
    """Your answers to the README's six questions, under the names given there."""
    raise NotImplementedError


# ---- what the server says ------------------------------------------------------------------------


def tenants(models: dict[str, Any]) -> dict[str, str]:
    """The adapters that the server lists, each with its folder.

    Args:
        models: the answer to `GET /v1/models`. Its `data` is a list of cards, each with `id`, `root` and
            `parent`: for an adapter its name, its folder and the base model's name. A base model has no
            parent, but None.

    Returns:
        Folder by name, in the order of the list.
    """
    raise NotImplementedError


def cached_tokens(answer: dict[str, Any]) -> int:
    """How many of the prompt's tokens came from the prefix cache.

    Args:
        answer: of `POST /v1/completions`, whose `usage` has `prompt_tokens_details`: an object with
            `cached_tokens`, or None where that would be 0.
    """
    raise NotImplementedError


def adapters_with_requests(metrics: str) -> list[str]:
    """The adapters that had a request when the server looked last, sorted.

    Args:
        metrics: the text of `GET /metrics`. Lines such as

              vllm:lora_requests_info{max_lora="2",running_lora_adapters="cy",waiting_lora_adapters="cy"} 1e9

            are samples: the names in `running_lora_adapters` are joined by commas, none is "". The value is
            the time, in seconds, at which this set of labels was seen last. A sample is never taken away, the
            samples have no order, and neither have the labels.

    Returns:
        The names in `running_lora_adapters` of the sample that was seen last; an empty list if there is no
        sample.
    """
    raise NotImplementedError


# ---- what to keep in memory ----------------------------------------------------------------------


def plan_touches(forecast: Sequence[Sequence[str]], capacity: int) -> list[list[str]]:
    """What to touch before each burst, so that no burst reads a file. The README has the rules.

    Args:
        forecast: of each burst the tenants of its requests, with repetitions. It may be empty. It never has
            more different tenants than `capacity`.
        capacity: adapters that memory holds (`--max-cpu-loras`). It is empty at first.

    Returns:
        For each burst the tenants to touch before it, in order; [] where all of its adapters are in memory.
    """
    raise NotImplementedError
