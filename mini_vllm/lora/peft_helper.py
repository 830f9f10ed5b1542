"""`adapter_config.json`: what it says of an adapter, and what is refused.

Mirrors `vllm/lora/peft_helper.py`. Upstream passes over keys that it does not know, some of which change what
the adapter means (`rank_pattern`, `alpha_pattern`, `fan_in_fan_out`); here those are refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_vllm.config.checks import FLOAT32_MAX, CheckpointError
from mini_vllm.utils.untrusted import parse_json, read_bytes, shorten_repr

CONFIG_NAME = "adapter_config.json"
MOST_RANK = 2**20
"""A rank above this is a slip whatever `max_lora_rank` says: it would not fit into a float exactly."""
_REFUSED = (
    "use_dora", "modules_to_save", "lora_bias", "rank_pattern", "alpha_pattern", "fan_in_fan_out",
    "layer_replication", "trainable_token_indices", "target_parameters", "use_qalora", "megatron_config",
    "arrow_config", "alora_invocation_tokens",
)  # fmt: skip
"""Each would change what the two matrices mean, or adds weights beside them. PEFT writes null, false or an
empty object where an adapter does without."""


@dataclass(frozen=True)
class PEFTHelper:
    """What is read of the file (`vllm/lora/peft_helper.py:20 PEFTHelper`).

    Attributes:
        r: the rank.
        lora_alpha: the numerator of the scale.
        target_modules: suffixes of the modules that are adapted, or a pattern. Which modules have weights the
            tensors say; this is only checked for its kind, as upstream.
        use_rslora: divide by the root of the rank.
    """

    r: int
    lora_alpha: float
    target_modules: list[str] | str
    use_rslora: bool = False

    @property
    def scaling(self) -> float:
        """alpha / r, or alpha / sqrt(r) (`vllm/lora/peft_helper.py:53 PEFTHelper.__post_init__`)."""
        return self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r)

    @classmethod
    def from_local_dir(cls, lora_path: Path) -> PEFTHelper:
        """Read a folder's file. Raises CheckpointError naming the file and what is wrong."""
        file = lora_path / CONFIG_NAME
        try:
            raw = parse_json(read_bytes(file))
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise CheckpointError(f"{file}: {error}") from error
        if not isinstance(raw, dict):
            raise CheckpointError(f"{file} must hold an object, got {shorten_repr(raw)}")
        try:
            return cls.from_dict(raw)
        except CheckpointError as error:
            raise CheckpointError(f"{file}: {error}") from error

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> PEFTHelper:
        """Raises CheckpointError naming the key, its value and the rule."""
        for key in ("r", "lora_alpha", "target_modules"):
            if raw.get(key) is None:
                raise CheckpointError(f"{key} is missing")
        if raw.get("peft_type", "LORA") != "LORA":
            raise CheckpointError(
                f"peft_type {shorten_repr(raw['peft_type'])} is not supported; supported: 'LORA'"
            )
        if raw.get("bias", "none") != "none":
            raise CheckpointError(f"bias {shorten_repr(raw['bias'])} is not supported: only 'none'")
        for key in _REFUSED:
            if raw.get(key):
                raise CheckpointError(f"{key} {shorten_repr(raw[key])} is not supported")
        r, alpha, targets = raw["r"], raw["lora_alpha"], raw["target_modules"]
        if type(r) is not int or not 1 <= r <= MOST_RANK:
            raise CheckpointError(
                f"r must be an integer of at least 1 and at most {MOST_RANK}, got {shorten_repr(r)}"
            )
        if type(alpha) not in (int, float) or not abs(alpha) <= FLOAT32_MAX:  # NaN is not, either
            raise CheckpointError(f"lora_alpha must be a finite number, got {shorten_repr(alpha)}")
        if not isinstance(targets, str) and not (
            isinstance(targets, list) and all(isinstance(name, str) for name in targets)
        ):
            raise CheckpointError(
                f"target_modules must be a list of names or a pattern, got {shorten_repr(targets)}"
            )
        use_rslora = raw.get("use_rslora") or False
        if not isinstance(use_rslora, bool):
            raise CheckpointError(
                f"use_rslora must be true or false, got {shorten_repr(use_rslora)}"
            )
        return cls(r, float(alpha), targets, use_rslora)
