"""The settings of a Mistral: a Llama's, and a window that all layers have.

Mirrors what vLLM takes from transformers' `MistralConfig`. Left out: `layer_types` (transformers reads such a
file as another architecture), Llama 4's scaling of queries, quantised checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mini_vllm.config.model import LlamaConfig, check_activation, check_no, read_window


@dataclass(frozen=True)
class MistralConfig(LlamaConfig):
    """The fields of a Mistral's `config.json`; defaults are those of Hugging Face's `MistralConfig`.

    Attributes:
        sliding_window: a token attends to so many tokens at most, itself among them; None: to all.
    """

    architecture: ClassVar[str] = "MistralForCausalLM"

    intermediate_size: int = 14336
    num_key_value_heads: int = 8
    max_position_embeddings: int = 131072
    sliding_window: int | None = 4096

    @property
    def sliding_windows(self) -> tuple[int | None, ...]:
        return (self.sliding_window,) * self.num_hidden_layers

    @classmethod
    def _check_kind(cls, raw: Mapping[str, Any]) -> None:
        check_activation(raw, "hidden_act", ("silu", "swish"))
        unsupported = ("layer_types", "llama_4_scaling", "quantization_config")
        check_no(raw, unsupported, cls.architecture)

    @classmethod
    def _values(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        values = super()._values(raw)
        if "num_key_value_heads" not in raw:
            values["num_key_value_heads"] = cls.num_key_value_heads
        values["sliding_window"] = read_window(raw, 4096)
        return values
