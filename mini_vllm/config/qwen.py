"""The settings of Qwen 2, Qwen 3, and the two with experts.

Mirrors what vLLM takes from transformers' configurations. Left out: windows, which these files name and do
not use unless `use_sliding_window` says so; dual chunk attention; quantised checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mini_vllm.config.checks import CheckpointError, check_activation, check_no
from mini_vllm.config.model import LlamaConfig
from mini_vllm.config.moe import MoeConfig
from mini_vllm.utils.untrusted import shorten_repr


@dataclass(frozen=True)
class Qwen2Config(LlamaConfig):
    """The fields of a Qwen 2's `config.json`; defaults are those of Hugging Face's `Qwen2Config`.

    q, k and v have a bias, always; nothing else has one.
    """

    architecture: ClassVar[str] = "Qwen2ForCausalLM"
    always_bias: ClassVar[bool] = True

    vocab_size: int = 151936
    intermediate_size: int = 22016
    max_position_embeddings: int = 32768
    attention_bias: bool = True

    @property
    def o_proj_bias(self) -> bool:
        return False

    @classmethod
    def _check_kind(cls, raw: Mapping[str, Any]) -> None:
        check_activation(raw, "hidden_act", ("silu",))
        unsupported = (
            "use_sliding_window", "mlp_bias", "attention_bias", "bias", "qk_norm",
            "dual_chunk_attention_config", "attention_chunk_size", "quantization_config",
        )  # fmt: skip
        check_no(raw, unsupported, cls.architecture)
        types = raw.get("layer_types") or []
        if not isinstance(types, list) or set(map(str, types)) - {"full_attention"}:
            raise CheckpointError(
                f"layer_types {shorten_repr(types)} are not supported for {cls.architecture}: all layers "
                "have "
                "full_attention"
            )
        for key in ("is_causal", *(["qkv_bias"] if cls.always_bias else [])):
            if not raw.get(key, True):
                raise CheckpointError(
                    f"{key} {shorten_repr(raw[key])} is not supported for {cls.architecture}; supported: true"
                )

    @classmethod
    def _values(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        values = super()._values(raw)
        values |= {"attention_bias": cls.always_bias, "sliding_window": None}
        if "num_key_value_heads" not in raw:
            values["num_key_value_heads"] = cls.num_key_value_heads
        cls._check_head_dim(values)
        return values

    @classmethod
    def _check_head_dim(cls, values: Mapping[str, Any]) -> None:
        """vLLM does not ask the file
        (`vllm/model_executor/models/qwen2.py:152 in Qwen2Attention.__init__`)."""
        heads = values.get("num_attention_heads", cls.num_attention_heads)
        hidden = values.get("hidden_size", cls.hidden_size)
        if values["head_dim"] * heads != hidden:
            raise CheckpointError(
                f"head_dim {shorten_repr(values['head_dim'])} is not supported for {cls.architecture}: "
                "it must be "
                f"hidden_size ({shorten_repr(hidden)}) divided by num_attention_heads ({shorten_repr(heads)})"
            )


@dataclass(frozen=True)
class Qwen3Config(Qwen2Config):
    """The fields of a Qwen 3's `config.json`; defaults are those of Hugging Face's `Qwen3Config`.

    No bias, and a norm for each head of q and k. `attention_bias: true` is refused: transformers gives
    `o_proj` a bias too then, which vLLM skips without a word
    (`vllm/model_executor/models/qwen3.py:110 in Qwen3Attention.__init__`,
    `vllm/model_executor/models/qwen2.py:477 in Qwen2Model.load_weights`).
    """

    architecture: ClassVar[str] = "Qwen3ForCausalLM"
    always_bias: ClassVar[bool] = False

    attention_bias: bool = False

    @property
    def norm_sizes(self) -> Mapping[str, int]:
        of_heads = {f"self_attn.{name}.weight": self.head_dim for name in ("q_norm", "k_norm")}
        return {**super().norm_sizes, **of_heads}

    @classmethod
    def _values(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        head_dim = raw.get("head_dim", 128)
        return super()._values({**raw, "head_dim": head_dim})

    @classmethod
    def _check_head_dim(cls, values: Mapping[str, Any]) -> None:
        """Any will do."""


@dataclass(frozen=True)
class Qwen2MoeConfig(Qwen2Config, MoeConfig):
    """The fields of a Qwen 2 MoE's `config.json`; defaults are those of Hugging Face's `Qwen2MoeConfig`.

    Attributes:
        shared_expert_intermediate_size: inner numbers of the expert that every token goes through.
    """

    architecture: ClassVar[str] = "Qwen2MoeForCausalLM"

    hidden_size: int = 2048
    intermediate_size: int = 5632
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    attention_bias: bool = True
    num_experts: int = 60
    num_experts_per_tok: int = 4
    shared_expert_intermediate_size: int = 5632

    def mlp_linears(self, layer: int) -> Iterator[tuple[str, int, int, bool]]:
        yield from super().mlp_linears(layer)
        if self.has_experts(layer):
            hidden, inner = self.hidden_size, self.shared_expert_intermediate_size
            yield "mlp.shared_expert.gate_proj", inner, hidden, False
            yield "mlp.shared_expert.up_proj", inner, hidden, False
            yield "mlp.shared_expert.down_proj", hidden, inner, False
            yield "mlp.shared_expert_gate", 1, hidden, False


@dataclass(frozen=True)
class Qwen3MoeConfig(Qwen3Config, MoeConfig):
    """The fields of a Qwen 3 MoE's `config.json`; defaults are those of Hugging Face's `Qwen3MoeConfig`."""

    architecture: ClassVar[str] = "Qwen3MoeForCausalLM"

    hidden_size: int = 2048
    intermediate_size: int = 6144
    num_hidden_layers: int = 24
    num_key_value_heads: int = 4
    attention_bias: bool = False
    num_experts: int = 128
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 768

    @classmethod
    def _check_kind(cls, raw: Mapping[str, Any]) -> None:
        super()._check_kind(raw)
        check_no(raw, ("shared_expert_intermediate_size",), cls.architecture)
