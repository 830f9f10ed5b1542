"""Lab 09-05: a V0 logits processor, ported to a batch. One file for `mini_vllm` and for vLLM. Your work:
every NotImplementedError.

Keep to indexing, as in `logits[row, token] = value`: then it works on numpy's arrays and on torch's.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass  # noqa: F401
from typing import Any

# Given: the interface of the engine that runs this file. Both have the same names.
_engine = "vllm.v1" if "vllm" in sys.modules else "mini_vllm"
_interface: Any = importlib.import_module(f"{_engine}.sample.logits_processor")
LogitsProcessor: Any = _interface.LogitsProcessor
MoveDirectionality: Any = _interface.MoveDirectionality


def predictions() -> dict[str, Any]:
    """Your answers to the README's five questions, under the names given there."""
    raise NotImplementedError


def parse_rule(sampling_params: Any) -> tuple[int, list[int]] | None:
    """What a request asks for: its trigger and its phrase.

    They are in `sampling_params.extra_args`, as {"after": 46, "say": [72, 101]}. Other processors' keys
    may be there too, and `extra_args` may be None.

    Returns:
        (after, say), or None for a request with neither key.

    Raises:
        ValueError: one of the two without the other, an `after` that is no token id, a `say` that is not a
            list of at least one token id. The message names the wrong one: after or say.
    """
    raise NotImplementedError


def is_token(value: object) -> bool:
    """Given: whether this may be a token id."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# What you keep for one request: a class of your own is a good place for it.


class SayAfter(LogitsProcessor):  # type: ignore[misc]
    """After its trigger a request says its phrase, whatever the model would say.

    Each time it says its trigger, its next tokens are the phrase. A trigger inside the phrase or in the
    prompt starts nothing.
    """

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise ValueError for a rule that cannot be followed. Asked before a request enters the engine."""
        raise NotImplementedError

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        """One object serves all requests, for as long as the engine runs. The arguments are the engine's
        settings and where its tensors are; you need none of them."""
        raise NotImplementedError

    def is_argmax_invariant(self) -> bool:
        """Whether the likeliest token of a row always stays the likeliest."""
        raise NotImplementedError

    def update_state(self, batch_update: Any) -> None:
        """Hear how the batch has changed. Called before each step.

        Args:
            batch_update: None: the same requests in the same rows. Else three lists, in the order in which
                they are to be read:
                `removed`: rows whose owners have left, and that no request takes in this update.
                `added`: (row, sampling_params, prompt_token_ids, output_token_ids) for each request that
                    comes, with a rule or without. The last is the engine's own list, and grows.
                `moved`: (source, target, direction). Either the two rows change places
                    (`direction == MoveDirectionality.SWAP`), or the owner of source goes to target, and
                    source is empty.
                A request that is added to a row, or moved into it one way, replaces the one that was there,
                if any. That row is then not in `removed`.

        Under asynchronous scheduling a request's newest token is not known yet, and is -1 in its list.
        """
        raise NotImplementedError

    def apply(self, logits: Any) -> Any:
        """Force the rows whose next token is one of a phrase.

        Called in each step, also for rows that get no token in it: their prompt is being computed in chunks.
        Output lists are complete now.

        Args:
            logits: [n, V], with rows as the updates gave them. You may write to it.

        Returns:
            the logits. In a forced row the token's logit is 0, and all others are -inf. Other rows stay as
                they are.
        """
        raise NotImplementedError
