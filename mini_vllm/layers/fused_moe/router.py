"""Which experts a token goes to, and how much each of them counts.

Mirrors `vllm/model_executor/layers/fused_moe/router/`. Left out: sigmoid scores without groups, routers of
single models, the map from logical to physical experts.

Shapes below: n tokens, E experts, of which a token takes `topk`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention.backend import Array

Ids = NDArray[np.int64]


def softmax(logits: Array) -> Array:
    """Of each row."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    scores: Array = powers / powers.sum(axis=-1, keepdims=True)
    return scores


def top(scores: Array, k: int) -> Ids:
    """The indices of each row's k largest numbers, the largest first; of equal ones the lower index first."""
    return np.argsort(-scores, axis=-1, kind="stable")[:, :k]


def fused_topk(gating_output: Array, topk: int, renormalize: bool) -> tuple[Array, Ids]:
    """Softmax over all experts, then each token's `topk` best.

    Args:
        gating_output: float32 `[n, E]`, the router's logits.
        topk: experts per token.
        renormalize: divide by the sum of those taken, so that a row's weights sum to 1. Without it they sum
            to less, by what the experts not taken would have had.

    Returns:
        Weights, float32 `[n, topk]`, and experts, int `[n, topk]`, the largest weight first.

    Source: `vllm/model_executor/layers/fused_moe/router/fused_topk_router.py:69 fused_topk`.
    """
    scores = softmax(gating_output)
    topk_ids = top(scores, topk)
    topk_weights = np.take_along_axis(scores, topk_ids, axis=-1)
    if renormalize:
        topk_weights /= topk_weights.sum(axis=-1, keepdims=True)
    return topk_weights, topk_ids


def grouped_topk(
    gating_output: Array,
    topk: int,
    renormalize: bool,
    num_expert_group: int,
    topk_group: int,
    scoring_func: str = "softmax",
    routed_scaling_factor: float = 1.0,
    e_score_correction_bias: Array | None = None,
) -> tuple[Array, Ids]:
    """The best groups of neighbouring experts first, then the best experts in them: DeepSeek's router.

    A group is as good as its best expert; with a bias, as its best two together. The bias moves the choice
    and not the weights: a chosen expert counts by its score without it.

    Args:
        gating_output, topk, renormalize: as for `fused_topk`.
        num_expert_group: groups that the E experts form.
        topk_group: groups that a token may choose from.
        scoring_func: `softmax` or `sigmoid`.
        routed_scaling_factor: every weight is multiplied by it at last.
        e_score_correction_bias: float32 `[E]`.

    Raises ValueError for another scoring function, or groups that do not go with the experts.

    Source: `vllm/model_executor/layers/fused_moe/router/grouped_topk_router.py:81 grouped_topk`.
    """
    n, num_experts = gating_output.shape
    if num_experts % num_expert_group:
        raise ValueError(
            f"num_expert_group ({num_expert_group}) must divide the {num_experts} experts"
        )
    in_group = num_experts // num_expert_group
    if not (1 <= topk_group <= num_expert_group and 1 <= topk <= topk_group * in_group):
        raise ValueError(
            f"topk_group ({topk_group}) must be 1 to num_expert_group ({num_expert_group}), and topk "
            f"({topk}) 1 to the {topk_group * in_group} experts of these groups"
        )
    if scoring_func == "softmax":
        scores = softmax(gating_output)
    elif scoring_func == "sigmoid":
        scores = np.reciprocal(1 + np.exp(-gating_output))
    else:
        raise ValueError(f"scoring_func must be softmax or sigmoid, got {scoring_func!r}")

    choosing, best = scores, 1
    if e_score_correction_bias is not None:
        choosing, best = scores + e_score_correction_bias, 2
    of_groups = choosing.reshape(n, num_expert_group, in_group)
    group_scores = np.sort(of_groups, axis=-1)[..., -best:].sum(axis=-1)
    in_choice = np.zeros((n, num_expert_group), bool)
    np.put_along_axis(in_choice, top(group_scores, topk_group), True, axis=-1)
    masked = np.where(in_choice[..., None], of_groups, np.float32(-np.inf))
    topk_ids = top(masked.reshape(n, num_experts), topk)

    topk_weights = np.take_along_axis(scores, topk_ids, axis=-1)
    if renormalize:
        topk_weights = topk_weights / topk_weights.sum(axis=-1, keepdims=True)
    return topk_weights * np.float32(routed_scaling_factor), topk_ids
