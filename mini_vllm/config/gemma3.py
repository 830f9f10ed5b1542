"""The settings of a Gemma 3 that reads text: layers with a window, and among them some without.

Mirrors what vLLM takes from transformers' `Gemma3TextConfig`. Left out: images, soft caps, attention in both
directions, quantised checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mini_vllm.config.checks import CheckpointError, check_no, read_object
from mini_vllm.config.gemma2 import FULL, SLIDING, Gemma2Config
from mini_vllm.config.rope import read_rope
from mini_vllm.utils.untrusted import shorten_repr


@dataclass(frozen=True)
class Gemma3Config(Gemma2Config):
    """The fields of a Gemma 3's `config.json`; defaults are those of Hugging Face's `Gemma3TextConfig`.

    `rope_theta`, `rope_type` and `rope_scaling` are those of layers without a window.

    Attributes:
        rope_local_base_freq: the base of layers with a window; they have plain RoPE.
    """

    architecture: ClassVar[str] = "Gemma3ForCausalLM"
    pattern: ClassVar[int] = 6

    vocab_size: int = 262208
    max_position_embeddings: int = 131072
    rope_theta: float = 1_000_000.0
    rope_local_base_freq: float = 10_000.0
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None

    @property
    def max_model_len(self) -> int:
        """Positions are counted with the scaling already
        (`vllm/config/model.py:2178 in _get_and_verify_max_len`)."""
        return self.longest or self.max_position_embeddings

    @property
    def norm_sizes(self) -> Mapping[str, int]:
        of_heads = {f"self_attn.{name}.weight": self.head_dim for name in ("q_norm", "k_norm")}
        return {**super().norm_sizes, **of_heads}

    @classmethod
    def _check_kind(cls, raw: Mapping[str, Any]) -> None:
        super()._check_kind(raw)
        soft_caps = ("final_logit_softcapping", "attn_logit_softcapping")
        check_no(raw, soft_caps, cls.architecture)

    @classmethod
    def _values(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        rope = read_object(raw, "rope_parameters")
        if unknown := rope.keys() - {FULL, SLIDING}:
            raise CheckpointError(
                f"rope_parameters {shorten_repr(min(unknown))} is not supported for {cls.architecture}: "
                "it has "
                f"{FULL} and {SLIDING}, an object each"
            )
        # transformers 4 writes only `rope_scaling`, and where both are there, it goes over the other.
        full = {"rope_theta": raw.get("rope_theta"), **read_object(rope, FULL)}
        full |= read_object(raw, "rope_scaling")
        local = {"rope_theta": raw.get("rope_local_base_freq"), **read_object(rope, SLIDING)}
        without = {"rope_parameters": None, "rope_scaling": None, "rope_theta": None}
        values = super()._values({**raw, **without})
        length = {
            key: raw.get(key)
            for key in ("max_position_embeddings", "original_max_position_embeddings")
        }
        values |= read_rope({"rope_parameters": full, **length}, cls.rope_theta)
        of_local = read_rope({"rope_parameters": local}, cls.rope_local_base_freq)
        if of_local["rope_type"] != "default" or of_local["partial_rotary_factor"] != 1:
            raise CheckpointError(
                f"rope type {shorten_repr(of_local['rope_type'])} is not supported for {SLIDING}, nor is "
                "a part of "
                "a head; supported: default, for whole heads"
            )
        values["rope_local_base_freq"] = of_local["rope_theta"]
        values.update(mlp_bias=False)
        return values
