"""The settings of a Phi 3: a Llama's, with projections that the checkpoint holds side by side.

Mirrors what vLLM takes from transformers' `Phi3Config`. Left out: quantised checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mini_vllm.config.checks import CheckpointError, check_no, read_object
from mini_vllm.config.model import LlamaConfig
from mini_vllm.utils.untrusted import shorten_repr


@dataclass(frozen=True)
class Phi3Config(LlamaConfig):
    """The fields of a Phi 3's `config.json`; defaults are those of Hugging Face's `Phi3Config`.

    Its scaling is `longrope`, whatever the oldest files call it. The length before the scaling is 4,096
    unless the file says otherwise at its top: what `rope_scaling` says does not count.
    """

    architecture: ClassVar[str] = "Phi3ForCausalLM"

    vocab_size: int = 32064
    hidden_size: int = 3072
    intermediate_size: int = 8192
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5

    @property
    def qkv_sizes(self) -> Mapping[str, int]:
        return {"qkv_proj": sum(super().qkv_sizes.values())}

    def gate_up_sizes(self, inner: int) -> Mapping[str, int]:
        return {"gate_up_proj": 2 * inner}

    @classmethod
    def _check_kind(cls, raw: Mapping[str, Any]) -> None:
        super()._check_kind(raw)
        check_no(
            raw, ("attention_bias", "bias", "mlp_bias", "quantization_config"), cls.architecture
        )

    @classmethod
    def _values(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        rope = dict(read_object(raw, "rope_scaling") or read_object(raw, "rope_parameters"))
        for key in ("rope_type", "type"):
            if rope.get(key) == "yarn":  # as transformers does for this model
                rope[key] = "longrope"
        original = raw.get("original_max_position_embeddings", 4096)
        values = super()._values(
            {
                **raw,
                "rope_scaling": rope,
                "rope_parameters": None,
                "original_max_position_embeddings": original,
            }
        )
        if values["rope_type"] not in ("default", "longrope"):
            raise CheckpointError(
                f"rope type {shorten_repr(values['rope_type'])} is not supported for {cls.architecture}; "
                "supported: "
                "default, longrope"
            )
        return values
