"""How a test tells that it asks for something that the engine does not have."""

from __future__ import annotations

import re

asked: list[str] = []
"""The features that the running test has asked for in vain, even if it caught the error."""


class Missing(Exception):
    """The test wants `feature`, which `mini_vllm` has not."""

    def __init__(self, feature: str) -> None:
        super().__init__(feature)
        self.feature = feature
        asked.append(feature)


def refuse(**wanted: object) -> None:
    """Raise `Missing` for the first feature whose value asks for something.

    A name's underscores are read as spaces, two as a hyphen: `refuse(multi__modal_inputs=features)`.
    """
    for name, value in wanted.items():
        if value:
            raise Missing(name.replace("__", "-").replace("_", " "))


# What an error of Python's, or of an engine that refuses by name, says of the feature that a test asked for.
_SIGNS = (
    (r"llava|image|multi.?modal|encoder_cache|mm_features", "multi-modal inputs"),
    (r"WAITING_FOR_REMOTE_KVS|kv_transfer|extra_args", "KV connector"),
    (r"WAITING_FOR_STREAMING", "streaming input"),
    (r"lora", "LoRA"),
    (r"flat_logprobs=True", "flat logprobs"),
)


def feature_named_in(message: str) -> str | None:
    """The feature that an error message speaks of; None if of none."""
    found = (feature for sign, feature in _SIGNS if re.search(sign, message, re.IGNORECASE))
    return next(found, None)
