"""The Python of a later vLLM over the compiled kernels of the pin's CPU build.

    PYTHONPATH=a later release's vllm:. python -m course.faults.old_kernels MODULE [ARGUMENT ...]

runs a module so. What later releases ask of kernels in another way is translated, and what they ask for that
0.22.1 does not have yet stands here in plain torch. So what is seen is the release's Python: no fault of a
kernel. Attention, norms and products are those of 0.22.1's build.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch

from course.faults.cpu import SETTINGS

_LIBRARIES: list[Any] = []
"""A library's operators go with it, so it is kept."""


def use() -> None:
    """Load 0.22.1's kernels into this process, if the release has none of its own."""
    import vllm

    beside = Path(torch.__file__).parents[1] / "vllm"
    if Path(vllm.__file__).parent.samefile(beside):
        return
    name = "_C" if torch.cpu._is_avx512_supported() else "_C_AVX2"
    torch.ops.load_library(str(beside / f"{name}.abi3.so"))
    library = torch.library.Library("_C", "FRAGMENT")
    _LIBRARIES.append(library)
    for schema, function in _LATER.items():
        name = schema.partition("(")[0]
        if not hasattr(torch.ops._C, name):
            library.define(schema)
            library.impl(name, function, "CompositeExplicitAutograd")
    import vllm._custom_ops as ops

    ops.cpu_attn_get_scheduler_metadata = _scheduler_metadata
    ops.cpu_attention_with_kv_cache = _attention


def _gumbel(logits: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """A draw for each row, from a stream that its seed alone begins."""
    tokens = []
    for row, seed in zip(logits, seeds.tolist(), strict=True):
        noise = torch.empty_like(row).exponential_(generator=torch.Generator().manual_seed(seed))
        tokens.append((row - noise.log()).argmax())
    return torch.stack(tokens)


_LATER = {
    "init_cpu_memory_env(int[] nodes) -> ()": lambda nodes: None,
    "cpu_attn_has_isa(str isa) -> bool": lambda isa: False,
    "greedy_argmax(Tensor logits) -> Tensor": lambda logits: logits.argmax(dim=-1),
    "fused_gumbel_argmax(Tensor logits, Tensor seeds) -> Tensor": _gumbel,
}
"""Operators that came after 0.22.1."""


def _scheduler_metadata(
    *, dynamic_causal: Any = None, kv_cache_dtype: str = "", **asked: Any
) -> Any:
    if isinstance(asked["causal"], torch.Tensor):
        raise NotImplementedError("0.22.1's kernels know no mask by request")
    return torch.ops._C.get_scheduler_metadata(*(asked[name] for name in _METADATA))


_METADATA = (
    "num_reqs", "num_heads", "num_kv_heads", "head_dim", "seq_lens", "dtype", "query_start_loc", "causal",
    "sliding_window_size", "isa", "enable_kv_split",
)  # fmt: skip


def _attention(*, sliding_window: Any, dynamic_causal: Any = None, **asked: Any) -> None:
    if isinstance(
        sliding_window, int
    ):  # of so many tokens; before, how far to the left and to the right
        left = sliding_window - 1 if sliding_window > 0 else -1
        sliding_window = (left, 0 if asked["causal"] and left >= 0 else -1)
    given = {"k_scale": 1.0, "v_scale": 1.0, "kv_cache_dtype": "auto"} | asked
    given["left"], given["right"] = sliding_window
    torch.ops._C.cpu_attention_with_kv_cache(*(given[name] for name in _ATTENTION))


_ATTENTION = (
    "query", "key_cache", "value_cache", "output", "query_start_loc", "seq_lens", "scale", "causal",
    "alibi_slopes", "left", "right", "block_table", "softcap", "scheduler_metadata", "s_aux", "k_scale",
    "v_scale", "kv_cache_dtype",
)  # fmt: skip


if __name__ == "__main__":
    os.environ |= SETTINGS
    use()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
