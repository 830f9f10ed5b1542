"""Lab 09-05: a V0 logits processor, ported to a batch. One file for `mini_vllm` and for vLLM."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any

# Given: the interface of the engine that runs this file. Both have the same names.
_engine = "vllm.v1" if "vllm" in sys.modules else "mini_vllm"
_interface: Any = importlib.import_module(f"{_engine}.sample.logits_processor")
LogitsProcessor: Any = _interface.LogitsProcessor
MoveDirectionality: Any = _interface.MoveDirectionality


def predictions() -> dict[str, Any]:
    """Answers to the README's five questions."""
    return {
        "rows": ["Eve", "Noor", "Gil", "Ada"],
        "forgotten": ["Bo", "Cy"],
        "said": [5, 5, 9, 5, 5, 9],
        "back": (3, 8),
        "greedy": ["Noor"],
    }


def parse_rule(sampling_params: Any) -> tuple[int, list[int]] | None:
    """What a request asks for: the trigger and the phrase, or None for a request that asks for nothing."""
    extra = sampling_params.extra_args or {}
    if "after" not in extra and "say" not in extra:
        return None
    after, say = extra.get("after"), extra.get("say")
    if not is_token(after):
        raise ValueError(f"after must be a token id, got {after!r}")
    if not isinstance(say, list) or not say or not all(is_token(token) for token in say):
        raise ValueError(f"say must be a list of at least one token id, got {say!r}")
    return after, say


def is_token(value: object) -> bool:
    """Given: whether this may be a token id."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


@dataclass
class Speaker:
    """What is kept for one request.

    Attributes:
        after, say: its trigger and its phrase.
        output_ids: the engine's own list of its output, which grows.
        num_read: how many tokens of it have been looked at.
        left: how many tokens of the phrase are still to be said.
    """

    after: int
    say: list[int]
    output_ids: list[int]
    num_read: int = 0
    left: int = 0

    def next_token(self) -> int | None:
        """The token that has to come next; None: any may."""
        for token in self.output_ids[self.num_read :]:
            if self.left > 0:
                self.left -= 1
            elif token == self.after:
                self.left = len(self.say)
        self.num_read = len(self.output_ids)
        return self.say[-self.left] if self.left > 0 else None


class SayAfter(LogitsProcessor):  # type: ignore[misc]
    """After its trigger a request says its phrase, whatever the model would say."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        parse_rule(sampling_params)

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self.speakers: dict[int, Speaker] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        if batch_update is None:
            return
        for row in batch_update.removed:
            self.speakers.pop(row, None)
        for row, params, _, output_ids in batch_update.added:
            self.speakers.pop(row, None)
            rule = parse_rule(params)
            if rule is not None:
                self.speakers[row] = Speaker(*rule, output_ids)
        for source, target, direction in batch_update.moved:
            moving = self.speakers.pop(source, None)
            displaced = self.speakers.pop(target, None)
            if moving is not None:
                self.speakers[target] = moving
            if displaced is not None and direction == MoveDirectionality.SWAP:
                self.speakers[source] = displaced

    def apply(self, logits: Any) -> Any:
        for row, speaker in self.speakers.items():
            token = speaker.next_token()
            if token is not None:
                logits[row] = -float("inf")
                logits[row, token] = 0.0
        return logits
