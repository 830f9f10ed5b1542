"""The pairs of phase 04: what attention is told, the choice of a backend, the loop over tiles, the kernels.

`course.cite.correspondence` says how a pair is written.
"""

from __future__ import annotations

from course.cite.pair import Pair

_ONLINE, _TILED = "mini_vllm/attention/online.py", "mini_vllm/attention/tiled.py"
_METADATA, _RUNNER = "mini_vllm/attention/metadata.py", "mini_vllm/worker/model_runner.py"
_REGISTRY, _BACKEND = "mini_vllm/attention/registry.py", "mini_vllm/gpu/backend.py"
_DECODE = "mini_vllm/gpu/kernels/paged_decode.py"
_PREFILL = "mini_vllm/gpu/kernels/paged_prefill.py"
_ENTRY = "mini_vllm/gpu/kernels/entry.py"
_THEIR_REGISTRY = "vllm/v1/attention/backends/registry.py"
_KERNEL = "vllm/v1/attention/ops/triton_unified_attention.py"
_HELPERS = "vllm/v1/attention/ops/triton_attention_helpers.py"

# fmt: off
ATTENTION: dict[str, tuple[Pair, ...]] = {
    "told": (
        Pair("what attention is told", f"{_METADATA} AttentionMetadata"),
        Pair("made once a step", f"{_RUNNER} ModelRunner._prepare_inputs",
             "`vllm/v1/worker/gpu_model_runner.py:2280 in GPUModelRunner._build_attention_metadata`",
             "AttentionMetadata(", "CommonAttentionMetadata"),
        Pair("what a backend makes of it", f"{_TILED} make_plan"),
        Pair("decodes in front", f"{_BACKEND} count_decodes"),
    ),
    "choice": (
        Pair("names for import paths", f"{_REGISTRY} Backend"),
        Pair("the class, when it is asked for", f"{_REGISTRY} Backend.get_attention_cls",
             f"{_THEIR_REGISTRY} AttentionBackendEnum.get_class"),
        Pair("an unknown name", f"{_REGISTRY} get_backend"),
    ),
    "online": (
        Pair("before the first key", f"{_ONLINE} empty"),
        Pair("heads that share keys are rows", f"{_ONLINE} OnlineAttention._attend",
             f"`{_KERNEL}:317 in kernel_unified_attention`",
             "packed = query.reshape(n, num_kv_heads, group", "num_queries_per_kv"),
        Pair("tile after tile", f"{_ONLINE} OnlineAttention._attend",
             f"`{_KERNEL}:397 in kernel_unified_attention`",
             "for first in range(0, seq_len, self.tile)", "loop_lo"),
        Pair("keys behind a row", f"{_ONLINE} OnlineAttention._attend",
             f"`{_KERNEL}:516 in kernel_unified_attention`",
             "scores[:, position > row_position", "where"),
        Pair("a step of the softmax", f"{_ONLINE} update"),
        Pair("the largest score so far", f"{_ONLINE} update",
             f"`{_HELPERS}:371 in softmax_step`", "m = np.maximum(state.m", "maximum"),
        Pair("what the old is worth now", f"{_ONLINE} update",
             f"`{_HELPERS}:380 in softmax_step`", "rescale = np.exp(", "alpha"),
        Pair("merge", f"{_ONLINE} merge"),
        Pair("scaled to the larger maximum", f"{_ONLINE} merge",
             f"`{_KERNEL}:717 in reduce_segments`", "acc = a.acc * of_a", "overall_max"),
    ),
    "kernels": (
        Pair("a layer's cache", f"{_BACKEND} get_kv_cache_shape"),
        Pair("write, then attend", f"{_BACKEND} TritonAttention.forward"),
        Pair("write", f"{_BACKEND} reshape_and_cache"),
        Pair("one entry", f"{_ENTRY} attention"),
        Pair("segments or not", f"{_ENTRY} segmented",
             f"`{_KERNEL}:923 in unified_attention`", None, "use_3d"),
        Pair("rows of chunks", f"{_PREFILL} prefill"),
        Pair("which sequence is mine?", f"{_PREFILL} find_sequence"),
        Pair("a part of one row's keys", f"{_DECODE} decode_split"),
        Pair("parts put together", f"{_DECODE} merge_splits"),
    ),
}
# fmt: on
