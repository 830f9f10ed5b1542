"""The layer that stands where a dense model has its MLP: router, experts, and what all tokens share.

Mirrors `vllm/model_executor/layers/fused_moe/layer.py`. Left out: quantised experts, all-to-all between
ranks. Which tensors there are, `config.moe.MoeConfig` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention.backend import Array
from mini_vllm.config.moe import MoeConfig
from mini_vllm.layers.fused_moe.fused_moe import fused_experts
from mini_vllm.layers.fused_moe.router import fused_topk

MOE_ROWS = 512
"""Rows that go through the layer together; `MLP_ROWS` in `models/llama.py` says why."""


class SharedExperts(Protocol):
    """What every token goes through, whatever the router says."""

    def forward(self, x: Array) -> Array: ...


class FusedMoE:
    """A mixture of experts (`vllm/model_executor/layers/fused_moe/layer.py:73 FusedMoE`).

    Args:
        config: sizes, and the tensors' names.
        weights: tensors by Hugging Face name; there a matrix is `[out, in]`.
        prefix: of the whole layer; that of the mixture is `config.moe_name` behind it.
        shared_experts: its output is added to that of the experts.

    Attributes:
        gate: float32 `[H, E]`, the router.
        w13_weight: float32 `[E, H, 2 I]`, gate and up side by side; of the experts that this rank has.
        w2_weight: float32 `[E, I, H]`, likewise.
        expert_map: `[all experts]`, where each is among this rank's, and E (upstream -1) for those of other
            ranks; None: it has all
            (`vllm/model_executor/layers/fused_moe/expert_map_manager.py:22 determine_expert_map`).
    """

    def __init__(
        self,
        config: MoeConfig,
        weights: Mapping[str, Array],
        prefix: str,
        shared_experts: SharedExperts | None = None,
    ) -> None:
        self.top_k = config.num_experts_per_tok
        self.renormalize = config.norm_topk_prob
        self.shared_experts = shared_experts
        prefix = f"{prefix}.{config.moe_name}"
        self.gate = np.ascontiguousarray(weights[f"{prefix}.gate.weight"].T)
        hidden, inner = config.hidden_size, config.moe_intermediate_size
        experts = config.experts_of_rank
        self.expert_map: NDArray[np.integer] | None = None
        if experts is None:
            experts = range(config.num_experts)
        else:
            self.expert_map = np.full(config.num_experts, len(experts))
            self.expert_map[experts] = np.arange(len(experts))
        self.w13_weight = np.empty((len(experts), hidden, 2 * inner), np.float32)
        self.w2_weight = np.empty((len(experts), inner, hidden), np.float32)
        gate, up, down = config.expert_projections
        for i, number in enumerate(experts):
            expert = f"{prefix}.experts.{number}"
            self.w13_weight[i, :, :inner] = weights[f"{expert}.{gate}.weight"].T
            self.w13_weight[i, :, inner:] = weights[f"{expert}.{up}.weight"].T
            self.w2_weight[i] = weights[f"{expert}.{down}.weight"].T

    def forward(self, x: Array) -> Array:
        """float32 `[n, hidden_size]` to the same, row by row, so pieces of x will do
        (`vllm/model_executor/layers/fused_moe/runner/moe_runner.py:498 MoERunner._apply_quant_method`)."""
        if len(x) > MOE_ROWS:
            pieces = range(0, len(x), MOE_ROWS)
            return np.concatenate([self.forward(x[i : i + MOE_ROWS]) for i in pieces])
        topk_weights, topk_ids = fused_topk(x @ self.gate, self.top_k, self.renormalize)
        here = topk_ids if self.expert_map is None else self.expert_map[topk_ids]
        out = fused_experts(x, self.w13_weight, self.w2_weight, topk_weights, here)
        if self.shared_experts is not None:
            out += self.shared_experts.forward(x)
        return out
