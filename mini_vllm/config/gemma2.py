"""The settings of a Gemma, of a Gemma 2, and what a Gemma 3 has of them.

Mirrors what vLLM takes from transformers' configurations. Left out: attention in both directions, an exact
GELU, quantised checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mini_vllm.config.checks import CheckpointError, check_activation, check_no, is_size
from mini_vllm.config.model import LlamaConfig
from mini_vllm.utils.untrusted import shorten_repr

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class GemmaConfig(LlamaConfig):
    """The fields of a Gemma's `config.json`; defaults are those of Hugging Face's `GemmaConfig`.

    The first files name the exact GELU as `hidden_act`, which was a mistake: only `hidden_activation` counts
    (`vllm/model_executor/models/gemma.py:61 _get_gemma_act_fn`).
    """

    architecture: ClassVar[str] = "GemmaForCausalLM"
    never_bias: ClassVar[bool] = True

    vocab_size: int = 256000
    hidden_size: int = 3072
    intermediate_size: int = 24576
    num_hidden_layers: int = 28
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    head_dim: int = 256
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True

    @classmethod
    def _check_kind(cls, raw: Mapping[str, Any]) -> None:
        if raw.get("hidden_activation") is not None:
            check_activation(raw, "hidden_activation", ("gelu_pytorch_tanh",))
        unsupported = (
            "use_bidirectional_attention", "bias", "mlp_bias", "attention_chunk_size", "quantization_config",
        )  # fmt: skip
        check_no(raw, unsupported, cls.architecture)
        if cls.never_bias:
            check_no(raw, ("attention_bias",), cls.architecture)
        for key in ("tie_word_embeddings", "is_causal"):
            if not raw.get(key, True):
                raise CheckpointError(
                    f"{key} {shorten_repr(raw[key])} is not supported for {cls.architecture}; supported: true"
                )

    @classmethod
    def _values(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        values = super()._values({"head_dim": cls.head_dim, **raw})
        if "num_key_value_heads" not in raw:
            values["num_key_value_heads"] = cls.num_key_value_heads
        return values


@dataclass(frozen=True)
class Gemma2Config(GemmaConfig):
    """The fields of a Gemma 2's `config.json`; defaults are those of Hugging Face's `Gemma2Config`.

    Attributes:
        query_pre_attn_scalar: scores are divided by its square root.
        attn_logit_softcapping: scores stay between minus this and this; None: they are not capped.
        final_logit_softcapping: the same of the logits.
        sliding_window: what a token of a layer with a window attends to at most, itself among them.
        layer_types: for each layer `sliding_attention` or `full_attention`; every second has a window where
            the file does not say.
    """

    architecture: ClassVar[str] = "Gemma2ForCausalLM"
    never_bias: ClassVar[bool] = False
    pattern: ClassVar[int] = 2

    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_hidden_layers: int = 26
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    query_pre_attn_scalar: float = 256.0
    attn_logit_softcapping: float | None = 50.0
    final_logit_softcapping: float | None = 30.0
    sliding_window: int | None = 4096
    layer_types: tuple[str, ...] = ()

    @property
    def sliding_windows(self) -> tuple[int | None, ...]:
        return tuple(self.sliding_window if t == SLIDING else None for t in self.layer_types)

    @property
    def norm_sizes(self) -> Mapping[str, int]:
        names = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
        return {**super().norm_sizes, **{f"{name}.weight": self.hidden_size for name in names}}

    @classmethod
    def _values(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        values = super()._values(raw)
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            values[key] = raw.get(key, getattr(cls, key))
            if values[key] is not None and not is_size(values[key]):
                raise CheckpointError(
                    f"{key} must be null or a number above 0 that float32 holds, got "
                    f"{shorten_repr(values[key])}"
                )
        num_layers = values.get("num_hidden_layers", cls.num_hidden_layers)
        values["layer_types"] = _layer_types(raw, num_layers, cls.pattern)
        return values


def _layer_types(raw: Mapping[str, Any], num_layers: Any, pattern: Any) -> tuple[str, ...]:
    """One type a layer; where the file has none, every `pattern`th layer has no window."""
    types = raw.get("layer_types")
    if type(num_layers) is not int or not 1 <= num_layers <= 10_000:
        raise CheckpointError(
            f"num_hidden_layers must be an integer of at least 1 and at most 10000 for a Gemma, got "
            f"{shorten_repr(num_layers)}"
        )
    if types is None:
        pattern = raw.get("sliding_window_pattern", pattern)
        if type(pattern) is not int or pattern < 1:
            raise CheckpointError(
                f"sliding_window_pattern must be an integer of at least 1, got {shorten_repr(pattern)}"
            )
        return tuple(SLIDING if (i + 1) % pattern else FULL for i in range(num_layers))
    if (
        not isinstance(types, list)
        or len(types) != num_layers
        or set(map(str, types)) - {SLIDING, FULL}
    ):
        raise CheckpointError(
            f"layer_types must name {SLIDING} or {FULL} for each of the {num_layers} layers, got "
            f"{shorten_repr(types)}"
        )
    return tuple(types)
