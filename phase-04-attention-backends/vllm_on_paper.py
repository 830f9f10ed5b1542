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
from typing import Any

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
        "H100, an fp8 cache": ((9, 0), llama._replace(kv_cache_dtype="fp8")),
        "B200, Llama-3-8B": ((10, 0), llama),
        "H100, DeepSeek-V3": ((9, 0), latent),
        "  with an fp8 cache": ((9, 0), latent._replace(kv_cache_dtype="fp8")),
        "  and blocks of 16": ((9, 0), latent._replace(kv_cache_dtype="fp8", block_size=16)),
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
        if value is None or name.endswith("_descale") or name == "softmax_scale":
            continue
        if hasattr(value, "shape"):
            small = value.numel() <= 4
            value = value.tolist() if small else f"a tensor {list(value.shape)}"
        say(f"{name:13} {value}")


def graphs(say: Say, gpu: Any) -> None:
    """Who wants the decodes in front, and what a CUDA graph may capture, on an H100."""
    gpu.become((9, 0))
    import torch
    from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    names = (
        "FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION", "FLASHINFER", "FLASH_ATTN_MLA", "FLASHMLA",
        "TRITON_MLA", "CUTLASS_MLA",
    )  # fmt: skip
    config = VllmConfig(model_config=ModelConfig(model=str(DEFAULT_MODEL), dtype="bfloat16"))
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=KV_HEADS, head_size=HEAD_SIZE, dtype=torch.bfloat16
    )
    with set_current_vllm_config(config):
        for name in names:
            builder = AttentionBackendEnum[name].get_class().get_builder_cls()
            level = builder.get_cudagraph_support(config, spec).name
            say(f"{name:15} threshold {builder.reorder_batch_threshold!s:5} graphs: {level}")


TOPICS: dict[str, Callable[[Say, Any], None]] = {
    "chosen": chosen,
    "one_call": one_call,
    "graphs": graphs,
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
