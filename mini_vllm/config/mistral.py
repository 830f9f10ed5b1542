"""The settings of a Mistral: a Llama's, and a window that all layers have.

Mirrors what vLLM takes from transformers' `MistralConfig`. Left out: `layer_types` (transformers reads such a
file as another architecture), Llama 4's scaling of queries, quantised checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mini_vllm.config.checks import check_no
from mini_vllm.config.model import LlamaConfig


@dataclass(frozen=True)
class MistralConfig(LlamaConfig):
    """The fields of a Mistral's `config.json`; defaults are those of Hugging Face's `MistralConfig`.

    Every layer has a window unless the file says null.
    """

    architecture: ClassVar[str] = "MistralForCausalLM"

    intermediate_size: int = 14336
    num_key_value_heads: int = 8
    max_position_embeddings: int = 131072
    sliding_window: int | None = 4096

    @classmethod
    def _check_kind(cls, raw: Mapping[str, Any]) -> None:
        super()._check_kind(raw)
        unsupported = (
            "layer_types",
            "llama_4_scaling",
            "ada_rms_norm_t_cond",
            "quantization_config",
        )
        check_no(raw, unsupported, cls.architecture)

    @classmethod
    def _values(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        values = super()._values(raw)
        if "num_key_value_heads" not in raw:
            values["num_key_value_heads"] = cls.num_key_value_heads
        return values
