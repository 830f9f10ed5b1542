"""What a mixture of experts adds to a model's settings, and the settings of a Mixtral.

Mirrors what vLLM takes from transformers' configurations. Left out: quantised experts, biases in
the router.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mini_vllm.config.checks import MOST, CheckpointError, check_no
from mini_vllm.config.model import LlamaConfig
from mini_vllm.utils.untrusted import shorten_repr


@dataclass(frozen=True)
class MoeConfig(LlamaConfig):
    """Settings of models whose layers have experts.

    Attributes:
        num_experts: experts per layer.
        num_experts_per_tok: how many of them a token goes to.
        moe_intermediate_size: an expert's `intermediate_size`.
        norm_topk_prob: whether the weights of a token's experts are made to sum to 1.
        decoder_sparse_step: layer i, from 0, has experts if i + 1 is a multiple of it.
        mlp_only_layers: layers that have none, whatever the step says.
        experts_of_rank: those that this rank has; None: all. No file says it.
    """

    # How the checkpoint names the mixture in a layer, and gate, up and down in an expert.
    moe_name: ClassVar[str] = "mlp"
    expert_projections: ClassVar[tuple[str, str, str]] = ("gate_proj", "up_proj", "down_proj")

    num_experts: int = 8
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 1408
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()
    experts_of_rank: range | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_experts_per_tok > self.num_experts:
            raise CheckpointError(
                f"num_experts_per_tok ({self.num_experts_per_tok}) must be at most the number of experts "
                f"({self.num_experts}; num_local_experts or num_experts): no expert is taken twice"
            )

    def has_experts(self, layer: int) -> bool:
        """Source: `vllm/model_executor/models/qwen2_moe.py:317 in Qwen2MoeDecoderLayer.__init__`."""
        return layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0

    def mlp_linears(self, layer: int) -> Iterator[tuple[str, int, int, bool]]:
        if not self.has_experts(layer):
            yield from super().mlp_linears(layer)
            return
        hidden, inner = self.hidden_size, self.moe_intermediate_size
        gate, up, down = self.expert_projections
        yield f"{self.moe_name}.gate", self.num_experts, hidden, False
        for i in range(self.num_experts):
            yield f"{self.moe_name}.experts.{i}.{gate}", inner, hidden, False
            yield f"{self.moe_name}.experts.{i}.{up}", inner, hidden, False
            yield f"{self.moe_name}.experts.{i}.{down}", hidden, inner, False

    @classmethod
    def _values(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        values = super()._values(raw)
        if (experts := read_num_experts(raw)) is not None:
            values["num_experts"] = experts
        layers = raw.get("mlp_only_layers") or []
        if not isinstance(layers, list) or not all(type(i) is int for i in layers):
            raise CheckpointError(
                f"mlp_only_layers must be a list of layers' numbers or null, got {shorten_repr(layers)}"
            )
        values["mlp_only_layers"] = tuple(layers)
        values.pop("experts_of_rank", None)
        return values


def read_num_experts(raw: Mapping[str, Any]) -> int | None:
    """`num_local_experts` or `num_experts`: transformers takes either, and renames a Qwen 3 MoE's."""
    found = {k: raw[k] for k in ("num_local_experts", "num_experts") if raw.get(k) is not None}
    for key, value in found.items():
        if type(value) is not int or not 1 <= value <= MOST:
            raise CheckpointError(
                f"{key} must be an integer of at least 1 and at most {MOST}, got {shorten_repr(value)}"
            )
    if len(set(found.values())) > 1:
        raise CheckpointError(f"num_local_experts and num_experts must be equal, got {found}")
    return next(iter(found.values()), None)


@dataclass(frozen=True)
class MixtralConfig(MoeConfig):
    """The fields of a Mixtral's `config.json`; defaults are those of Hugging Face's `MixtralConfig`."""

    architecture: ClassVar[str] = "MixtralForCausalLM"
    moe_name: ClassVar[str] = "block_sparse_moe"
    expert_projections: ClassVar[tuple[str, str, str]] = ("w1", "w3", "w2")

    intermediate_size: int = 14336
    num_key_value_heads: int = 8
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    rope_theta: float = 1_000_000.0
    norm_topk_prob: bool = True

    @classmethod
    def _check_kind(cls, raw: Mapping[str, Any]) -> None:
        super()._check_kind(raw)
        check_no(raw, ("attention_bias", "mlp_bias", "quantization_config"), cls.architecture)

    @classmethod
    def _values(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        # Every layer has experts, of the size that a dense model's MLP has, and renormalises.
        inner = raw.get("intermediate_size") or cls.intermediate_size
        same = {"moe_intermediate_size": inner, "norm_topk_prob": True, "decoder_sparse_step": 1}
        values = super()._values({**raw, **same, "mlp_only_layers": None})
        if "num_key_value_heads" not in raw:
            values["num_key_value_heads"] = cls.num_key_value_heads
        return values
