"""The settings of a Gemma 3 that reads text: layers with a window, and among them some without.

Mirrors what vLLM takes from transformers' `Gemma3TextConfig`. Left out: images, soft caps, attention in both
directions, quantised checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mini_vllm.config.model import (
    CheckpointError,
    LlamaConfig,
    check_activation,
    check_no,
    read_object,
    read_rope,
    read_window,
)
from mini_vllm.utils.outside import short

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Gemma3Config(LlamaConfig):
    """The fields of a Gemma 3's `config.json`; defaults are those of Hugging Face's `Gemma3TextConfig`.

    `rope_theta`, `rope_type` and `rope_scaling` are those of layers without a window.

    Attributes:
        rope_local_base_freq: the base of layers with a window; they have plain RoPE.
        query_pre_attn_scalar: scores are divided by its square root.
        sliding_window: what a token of a layer with a window attends to at most, itself among them.
        layer_types: for each layer `sliding_attention` or `full_attention`.
    """

    architecture: ClassVar[str] = "Gemma3ForCausalLM"

    vocab_size: int = 262208
    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_hidden_layers: int = 26
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 256
    max_position_embeddings: int = 131072
    rope_theta: float = 1_000_000.0
    tie_word_embeddings: bool = True
    rope_local_base_freq: float = 10_000.0
    query_pre_attn_scalar: float = 256.0
    sliding_window: int | None = 4096
    layer_types: tuple[str, ...] = ()

    @property
    def max_model_len(self) -> int:
        """Positions are counted with the scaling already
        (`vllm/config/model.py:2178 in _get_and_verify_max_len`)."""
        return self.max_position_embeddings

    @property
    def sliding_windows(self) -> tuple[int | None, ...]:
        return tuple(self.sliding_window if t == SLIDING else None for t in self.layer_types)

    @property
    def norm_sizes(self) -> Mapping[str, int]:
        names = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
        of_heads = {f"self_attn.{name}.weight": self.head_dim for name in ("q_norm", "k_norm")}
        more = {f"{name}.weight": self.hidden_size for name in names}
        return {**super().norm_sizes, **more, **of_heads}

    @classmethod
    def _check_kind(cls, raw: Mapping[str, Any]) -> None:
        check_activation(raw, "hidden_activation", ("gelu_pytorch_tanh",))
        unsupported = (
            "final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention",
            "quantization_config",
        )  # fmt: skip
        check_no(raw, unsupported, cls.architecture)

    @classmethod
    def _values(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        rope = read_object(raw, "rope_parameters")
        if FULL in rope or SLIDING in rope:
            full, local = read_object(rope, FULL), read_object(rope, SLIDING)
        else:  # as transformers 4 writes it
            scaling = rope or read_object(raw, "rope_scaling")
            full = {"rope_theta": raw.get("rope_theta"), **scaling}
            local = {"rope_theta": raw.get("rope_local_base_freq")}
        without = {"rope_parameters": None, "rope_scaling": None, "rope_theta": None}
        defaults = {"num_key_value_heads": 4, "head_dim": 256}
        values = super()._values({**defaults, **raw, **without})
        for name, of_layers, default in (
            ("rope_theta", full, cls.rope_theta), ("rope_local_base_freq", local, cls.rope_local_base_freq)
        ):  # fmt: skip
            _, rope_type, rope_scaling = read_rope({"rope_parameters": of_layers})
            theta = of_layers.get("rope_theta")
            values[name] = default if theta is None else theta
            if name == "rope_theta":
                values.update(rope_type=rope_type, rope_scaling=rope_scaling)
            elif rope_type != "default":
                raise CheckpointError(
                    f"rope type {short(rope_type)} is not supported for {SLIDING}; supported: default"
                )
        values.update(mlp_bias=False, sliding_window=read_window(raw, 4096))
        values["layer_types"] = _layer_types(raw, values.get("num_hidden_layers", 26))
        return values


def _layer_types(raw: Mapping[str, Any], num_layers: Any) -> tuple[str, ...]:
    """One type a layer; where the file has none, every sixth layer, or as often as it says, has no window."""
    types = raw.get("layer_types")
    if type(num_layers) is not int or not 1 <= num_layers <= 10_000:
        raise CheckpointError(
            f"num_hidden_layers must be an integer of at least 1 and at most 10000 for Gemma 3, got "
            f"{short(num_layers)}"
        )
    if types is None:
        pattern = raw.get("sliding_window_pattern", 6)
        if type(pattern) is not int or pattern < 1:
            raise CheckpointError(
                f"sliding_window_pattern must be an integer of at least 1, got {short(pattern)}"
            )
        return tuple(SLIDING if (i + 1) % pattern else FULL for i in range(num_layers))
    if (
        not isinstance(types, list)
        or len(types) != num_layers
        or set(map(str, types)) - {SLIDING, FULL}
    ):
        raise CheckpointError(
            f"layer_types must name {SLIDING} or {FULL} for each of the {num_layers} layers, got "
            f"{short(types)}"
        )
    return tuple(types)
