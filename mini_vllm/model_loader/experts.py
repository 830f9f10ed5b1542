"""Experts that are shared out among engines: tokens go to all of them, and what they say comes back.

Mirrors what `vllm/model_executor/layers/fused_moe/runner/moe_runner.py:688 MoERunner._maybe_dispatch` and
`_maybe_combine` do with the back end `allgather_reducescatter`
(`vllm/distributed/device_communicators/all2all.py:41 AgRsAll2AllManager`). Attention stays in its engine: it
needs the KV cache. Left out: the back ends that send a token only where it is asked for, and sharing the
tokens out among the ranks of an engine first
(`vllm/config/parallel.py:617 ParallelConfig.use_sequence_parallel_moe`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.distributed.parallel_state import DataParallel, RankGroups
from mini_vllm.layers.fused_moe.fused_moe import fused_experts
from mini_vllm.layers.fused_moe.layer import MOE_ROWS, FusedMoE
from mini_vllm.layers.fused_moe.router import fused_topk

Array = NDArray[Any]
Ints = NDArray[np.integer[Any]]


class DispatchedExperts:
    """A mixture whose experts see the tokens of all engines.

    Args:
        moe: has this rank's experts.
        data: the ranks that bring tokens.
    """

    def __init__(self, moe: FusedMoE, data: DataParallel) -> None:
        self.moe = moe
        self.data = data

    def forward(self, x: Array) -> Array:
        """float32 `[n, hidden_size]` to the same, for this engine's tokens. Of the ranks of an engine each
        gives a part of the sum."""
        moe, sizes, group = self.moe, self.data.sizes, self.data.communicator
        rows = group.all_gatherv(x, sizes)
        router_logits = group.all_gatherv(x @ moe.gate, sizes)
        pieces = [slice(i, i + MOE_ROWS) for i in range(0, len(rows), MOE_ROWS)]
        out = np.concatenate([self._run(rows[piece], router_logits[piece]) for piece in pieces])
        out = group.reduce_scatterv(out, sizes)
        if moe.shared_experts is not None:
            out += moe.shared_experts.forward(x)
        return out

    def _run(self, rows: Array, router_logits: Array) -> Array:
        moe = self.moe
        assert moe.expert_map is not None, "this rank would have all experts"
        topk_weights, topk_ids = fused_topk(router_logits, moe.top_k, moe.renormalize)
        here = moe.expert_map[topk_ids]
        return fused_experts(rows, moe.w13_weight, moe.w2_weight, topk_weights, here)


class CountedTokens:
    """In the place of the embedding: before a step's first layer the engines tell each other how many tokens
    they bring."""

    def __init__(self, embed_tokens: Any, data: DataParallel) -> None:
        self.embed_tokens = embed_tokens
        self.data = data

    def __getitem__(self, input_ids: Ints) -> Array:
        self.data.agree_on_sizes(len(input_ids))
        embedded: Array = self.embed_tokens[input_ids]
        return embedded


def get_expert_place(groups: RankGroups) -> tuple[int, int]:
    """Which of how many ranks this is, among those that share the experts out
    (`vllm/model_executor/layers/fused_moe/config.py:1097 FusedMoEParallelConfig.make`)."""
    rank, size = groups.tensor.rank, groups.tensor.world_size
    if groups.data is None:
        return rank, size
    engines = groups.data.communicator
    return engines.rank * size + rank, engines.world_size * size


def join_engines(model: Any, data: DataParallel) -> None:
    """Have a rank's model run with those of its place in other engines. Its experts are not yet added up with
    those of its own engine."""
    for layer in model.layers:
        if isinstance(layer.mlp, FusedMoE):
            layer.mlp = DispatchedExperts(layer.mlp, data)
    model.embed_tokens = CountedTokens(model.embed_tokens, data)
