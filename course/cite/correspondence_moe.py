"""The pairs of phase 07: models with experts, the layer, its routers, its experts.

`course.cite.correspondence` says how a pair is written.
"""

from __future__ import annotations

from course.cite.pair import Pair

_MODELS, _CONFIG = "mini_vllm/models", "mini_vllm/config"
_OWN = "mini_vllm/layers/fused_moe"
_THEIRS, _THEIR_MODELS = "vllm/model_executor/layers/fused_moe", "vllm/model_executor/models"
_CPU = f"{_THEIRS}/cpu_fused_moe.py"
_GROUPED = f"{_THEIRS}/router/grouped_topk_router.py"

# fmt: off
MOE: dict[str, tuple[Pair, ...]] = {
    "moe_models": (
        Pair("a Mixtral's layer", f"{_MODELS}/mixtral.py MixtralDecoderLayer.make_mlp",
             f"{_THEIR_MODELS}/mixtral.py MixtralMoE"),
        Pair("a Qwen2-MoE's", f"{_MODELS}/qwen2_moe.py Qwen2MoeDecoderLayer.make_mlp",
             f"{_THEIR_MODELS}/qwen2_moe.py Qwen2MoeSparseMoeBlock"),
        Pair("its shared expert", f"{_MODELS}/qwen2_moe.py Qwen2MoeSharedExpert.forward",
             f"`{_THEIR_MODELS}/qwen2_moe.py:120 in Qwen2MoeMLP.forward`",
             "gated: Array = self.mlp.forward(x)", "expert_gate"),
        Pair("a Qwen3-MoE's", f"{_MODELS}/qwen3_moe.py Qwen3MoeDecoderLayer.make_mlp",
             f"{_THEIR_MODELS}/qwen3_moe.py Qwen3MoeSparseMoeBlock"),
        Pair("which layers have experts", f"{_CONFIG}/moe.py MoeConfig.has_experts",
             f"`{_THEIR_MODELS}/qwen2_moe.py:317 in Qwen2MoeDecoderLayer.__init__`",
             "return layer not in self.mlp_only_layers", "mlp_only_layers"),
        Pair("the names of gate, up and down", f"{_CONFIG}/moe.py MixtralConfig",
             f"{_THEIRS}/layer.py fused_moe_make_expert_params_mapping",
             'expert_projections: ClassVar[tuple[str, str, str]] = ("w1", "w3", "w2")'),
    ),
    "moe_layer": (
        Pair("the layer", f"{_OWN}/layer.py FusedMoE"),
        Pair("gate, then up", f"{_OWN}/layer.py FusedMoE.__init__", f"{_THEIRS}/layer.py FusedMoE._load_w13",
             "self.w13_weight[i, :, :inner]"),
        Pair("down", f"{_OWN}/layer.py FusedMoE.__init__", f"{_THEIRS}/layer.py FusedMoE._load_w2",
             "self.w2_weight[i] ="),
        Pair("route, compute, add", f"{_OWN}/layer.py FusedMoE.forward"),
        Pair("the router's linear", f"{_OWN}/layer.py FusedMoE.forward",
             f"`{_THEIR_MODELS}/mixtral.py:152 in MixtralMoE.forward`", "fused_topk(x @ self.gate", "gate"),
        Pair("the shared expert, added", f"{_OWN}/layer.py FusedMoE.forward",
             f"{_THEIRS}/runner/moe_runner.py MoERunner.forward", "out += self.shared_experts.forward(x)"),
    ),
    "moe_router": (
        Pair("softmax, then the largest", f"{_OWN}/router.py fused_topk"),
        Pair("the same on a CPU", f"{_OWN}/router.py fused_topk", f"{_CPU} select_experts",
             "scores = softmax(gating_output)"),
        Pair("groups first", f"{_OWN}/router.py grouped_topk"),
        Pair("the bias chooses", f"{_OWN}/router.py grouped_topk", f"`{_GROUPED}:125 in grouped_topk`",
             "choosing, best = scores + e_score", "e_score_correction_bias"),
        Pair("other groups are out", f"{_OWN}/router.py grouped_topk", f"`{_GROUPED}:146 in grouped_topk`",
             "masked = np.where(in_choice", "masked_fill"),
        Pair("and does not weigh", f"{_OWN}/router.py grouped_topk", f"`{_GROUPED}:151 in grouped_topk`",
             "topk_weights = np.take_along_axis(scores", "original_scores"),
        Pair("renormalise", f"{_OWN}/router.py grouped_topk", f"`{_GROUPED}:158 in grouped_topk`",
             "topk_weights = topk_weights / topk_weights.sum", "topk_weights"),
    ),
    "moe_experts": (
        Pair("grouped", f"{_OWN}/fused_moe.py fused_experts"),
        Pair("pairs by expert", f"{_OWN}/fused_moe.py fused_experts",
             f"`{_CPU}:447 in cpu_fused_moe_torch`", "order = flat.argsort(", "argsort"),
        Pair("their rows", f"{_OWN}/fused_moe.py fused_experts",
             f"`{_CPU}:449 in cpu_fused_moe_torch`", "gathered = x[order // k]", "sorted_tokens"),
        Pair("first product", f"{_OWN}/fused_moe.py fused_experts",
             f"`{_CPU}:461 in cpu_fused_moe_torch`", "np.matmul(gathered[start:end]", "gate_up_linear"),
        Pair("SwiGLU", f"{_OWN}/fused_moe.py fused_experts",
             f"`{_CPU}:462 in cpu_fused_moe_torch`", "hidden = silu_and_mul(gate_up)", "gate_up"),
        Pair("second product", f"{_OWN}/fused_moe.py fused_experts",
             f"`{_CPU}:463 in cpu_fused_moe_torch`", "np.matmul(hidden[start:end]", "down_linear"),
        Pair("back in the pairs' order", f"{_OWN}/fused_moe.py fused_experts",
             f"`{_CPU}:470 in cpu_fused_moe_torch`", "outputs[order] = down", "idxs"),
        Pair("times the weights, summed", f"{_OWN}/fused_moe.py fused_experts",
             f"`{_CPU}:477 in cpu_fused_moe_torch`", "of_tokens: Array =", "topk_weights"),
    ),
}
# fmt: on
