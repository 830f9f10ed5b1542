"""vLLM's attention code on CUDA cards that are only claimed, for the deep dive. No GPU is needed.

    python phase-04-attention-backends/vllm_on_paper.py            all topics
    python phase-04-attention-backends/vllm_on_paper.py chosen     one

The choosing, the builders and the calls are vLLM's. What stands in for the driver and for the compiled
kernels is lab 04-04's `cuda_stand_in.py`. Needs vLLM 0.22.1; its CPU build will do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from long_chat import BLOCK_SIZE, together
from vllm_attention import SETTINGS, _common
from vllm_kernels import HEAD_SIZE, HEADS, KV_HEADS, Say

from course.learner.labs import load_module
from mini_vllm.config.engine import DEFAULT_MODEL

STAND_IN = Path(__file__).parent / "labs" / "lab-04-backend-selection" / "cuda_stand_in.py"


def chosen(say: Say, gpu: Any) -> None:
    """Who is asked, who says no and why, and what an override says."""
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import AttentionSelectorConfig

    plain = VllmConfig()
    llama = AttentionSelectorConfig(128, torch.bfloat16, "auto", None)
    latent = llama._replace(head_size=576, use_mla=True)
    cases = {
        "A100, Llama-3-8B": ((8, 0), llama),
        "A100, an fp8 cache": ((8, 0), llama._replace(kv_cache_dtype="fp8")),
        "A100, 32 bits": ((8, 0), llama._replace(dtype=torch.float32)),
        "B200, Llama-3-8B": ((10, 0), llama),
        "H100, DeepSeek-V3": ((9, 0), latent),
        "  with an fp8 cache": ((9, 0), latent._replace(kv_cache_dtype="fp8")),
    }
    with set_current_vllm_config(plain):
        for name, (capability, config) in cases.items():
            gpu.become(capability)
            valid, refused = gpu.platform.get_valid_backends(gpu.platform.capability, config, 32)
            first = min(place for _, place in valid)
            say(f"{name:21} {next(kind.name for kind, place in valid if place == first)}")
            for kind, (place, reasons) in refused.items():
                if place < first:
                    say(f"    before it {kind.name}: {', '.join(reasons)}")
        gpu.become((8, 0))
        sinks = llama._replace(has_sink=True)
        try:
            gpu.platform.get_attn_backend_cls(AttentionBackendEnum.FLASH_ATTN, sinks, 32)
        except ValueError as error:
            say(f"named by hand: {error}")


SHOWN = (
    "q", "k", "cu_seqlens_q", "max_seqlen_q", "seqused_k", "max_seqlen_k", "causal", "block_table",
    "scheduler_metadata", "fa_version", "num_splits",
)  # fmt: skip


def one_call(say: Say, gpu: Any) -> None:
    """FLASH_ATTN's builder and layer code for Ida and Jon, the kernel's library replaced by a notebook."""
    import torch
    from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config

    gpu.become((8, 0))
    from vllm.v1.attention.backends import flash_attn
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    calls: list[dict[str, Any]] = []
    flash_attn.flash_attn_varlen_func = lambda **given: calls.append(given)
    config = VllmConfig(model_config=ModelConfig(model=str(DEFAULT_MODEL), dtype="bfloat16"))
    backend = flash_attn.FlashAttentionBackend
    with set_current_vllm_config(config):
        impl = backend.get_impl_cls()(
            HEADS, HEAD_SIZE, HEAD_SIZE**-0.5, KV_HEADS, None, None, "auto"
        )
        spec = FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=KV_HEADS, head_size=HEAD_SIZE, dtype=torch.bfloat16
        )
        builder = backend.get_builder_cls()(spec, ["layers.0"], config, torch.device("cpu"))
    ours = together()[1]
    metadata = builder.build(0, _common(ours))
    rows = len(ours.slot_mapping)
    query, out = (torch.zeros(rows, HEADS, HEAD_SIZE, dtype=torch.bfloat16) for _ in range(2))
    cache = torch.zeros(
        backend.get_kv_cache_shape(64, BLOCK_SIZE, KV_HEADS, HEAD_SIZE), dtype=torch.bfloat16
    )
    layer = torch.nn.Module()
    layer._k_scale = layer._v_scale = layer._q_scale = torch.ones(1)
    impl.forward(layer, query, query, query, cache, metadata, out)
    [given] = calls
    say(f"calls for {np.diff(ours.query_start_loc).tolist()} rows: {len(calls)}")
    for name, value in given.items():
        if name not in SHOWN:
            continue
        if hasattr(value, "shape"):
            small = value.numel() <= 4
            value = value.tolist() if small else f"a tensor {list(value.shape)}"
        say(f"{name:18} {value}")


def layouts(say: Say, gpu: Any) -> None:
    """How the backends' caches lie in memory, with Llama-3-8B's heads, and who asks for what."""
    gpu.become((10, 0))
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.backends.utils import set_kv_cache_layout

    blocks, slots, heads, size = 1_000_000, 16, 8, 128
    with set_current_vllm_config(VllmConfig()):
        for name in ("FLASH_ATTN", "TRITON_ATTN", "FLASHINFER"):
            backend = AttentionBackendEnum[name].get_class()
            shape = backend.get_kv_cache_shape(blocks, slots, heads, size)
            say(f"{name:11} {_shown(shape, blocks)}")
            set_kv_cache_layout("NHD")
            assert backend.get_kv_cache_stride_order() == tuple(range(5))
            set_kv_cache_layout("HND")
            stride_order = backend.get_kv_cache_stride_order()
            in_memory = [shape[axis] for axis in stride_order]
            say(f"  HND: {stride_order}, so {_shown(in_memory, blocks)}")
        required = AttentionBackendEnum.FLASHINFER.get_class().get_required_kv_cache_layout
        asks = required()
        gpu.become((9, 0))
        say(f"FLASHINFER requires: on a B200 {asks}, on an H100 {required()}")


def _shown(shape: Any, blocks: int) -> str:
    return f"[{', '.join('blocks' if size == blocks else str(size) for size in shape)}]"


class _Wrapper:
    """In the place of a FlashInfer wrapper: notes what it is told to plan, and that it is run."""

    calls: ClassVar[list[str]] = []

    def __init__(self, *args: Any, **more: Any) -> None:
        self.is_cuda_graph_enabled = False

    def plan(self, **given: Any) -> None:
        for name in ("window_left", "logits_soft_cap", "sm_scale", "causal"):
            setattr(self, f"_{name}", given.get(name))
        self._logits_soft_cap = given["logits_soft_cap"] or 0.0
        told = (
            ("rows", "qo_indptr"),
            ("blocks", "indptr" if "indptr" in given else "paged_kv_indptr"),
            ("in the last", "last_page_len" if "indptr" in given else "paged_kv_last_page_len"),
        )
        numbers = [f"{name} {given[key].tolist()}" for name, key in told if key in given]
        self.calls.append(f"{type(self).__name__}.plan: {', '.join(numbers)}")

    def run(self, query: Any, *args: Any, **more: Any) -> None:
        self.calls.append(f"{type(self).__name__}.run")


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    """FlashInfer's name for the one that decodes."""


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    """FlashInfer's name for the one for chunks."""


def planned(say: Say, gpu: Any) -> None:
    """FLASHINFER's builder and layer code for Ida and Jon: what is planned when, and what is run."""
    import torch
    from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.attention import Attention
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    gpu.become((8, 0))
    from vllm.v1.attention.backends import flashinfer

    flashinfer.is_pin_memory_available = lambda: False
    flashinfer.BatchDecodeWithPagedKVCacheWrapper = BatchDecodeWithPagedKVCacheWrapper
    flashinfer.BatchPrefillWithPagedKVCacheWrapper = BatchPrefillWithPagedKVCacheWrapper
    backend = flashinfer.FlashInferBackend
    config = VllmConfig(model_config=ModelConfig(model=str(DEFAULT_MODEL), dtype="bfloat16"))
    names = [f"layers.{number}.attn" for number in range(4)]
    with set_current_vllm_config(config):
        layers = [
            Attention(
                HEADS, HEAD_SIZE, HEAD_SIZE**-0.5, KV_HEADS, prefix=name, attn_backend=backend
            )
            for name in names
        ]
        spec = FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=KV_HEADS, head_size=HEAD_SIZE, dtype=torch.bfloat16
        )
        builder = backend.get_builder_cls()(spec, names, config, torch.device("cpu"))
        ours = together()[1]
        metadata = builder.build(0, _common(ours))
        rows = len(ours.slot_mapping)
        query, out = (torch.zeros(rows, HEADS, HEAD_SIZE, dtype=torch.bfloat16) for _ in range(2))
        cache = torch.zeros(
            backend.get_kv_cache_shape(64, BLOCK_SIZE, KV_HEADS, HEAD_SIZE), dtype=torch.bfloat16
        )
        for layer in layers:
            layer.impl.forward(layer, query, query, query, cache, metadata, out)
    calls = _Wrapper.calls
    for line in [call for call in calls if ".plan" in call]:
        say(line)
    runs = [call for call in calls if ".run" in call]
    for line in dict.fromkeys(runs):
        say(f"{line}: {runs.count(line)} times")
    assert calls[2:] == runs


TOPICS: dict[str, Callable[[Say, Any], None]] = {
    "chosen": chosen,
    "layouts": layouts,
    "one_call": one_call,
    "planned": planned,
}


def main() -> None:
    os.environ |= SETTINGS
    wanted = sys.argv[1:] or list(TOPICS)
    if unknown := set(wanted) - set(TOPICS):
        sys.exit(f"no topic {', '.join(sorted(unknown))}; there are {', '.join(TOPICS)}")
    if len(wanted) > 1:  # a module of vLLM's looks at the card when it is imported
        for name in wanted:
            subprocess.run([sys.executable, __file__, name], check=True)
        return
    gpu = load_module(STAND_IN, "phase_04_stand_in").stand_in()
    [name] = wanted
    print(f"{name}, vLLM", flush=True)
    TOPICS[name](lambda line: print(f"  {line}", flush=True), gpu)


if __name__ == "__main__":
    main()
