"""What becomes of a number that E4M3 cannot say, in torch and in three places of vLLM. No GPU needed.

    python phase-06-quantization/labs/lab-06-fp8-and-fp4-by-bits/in_vllm.py

The three: `QuantFP8`, which quantises activations, in the form that has no kernel of its own; the write into
the KV cache, as the CPU build on x86 does it; and the write as a GPU's Triton kernel does it, of which
there is only the instruction that converts, compiled for an H100.
"""

from __future__ import annotations

import os

os.environ |= {
    "CUDA_VISIBLE_DEVICES": "",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TRITON_ALWAYS_COMPILE": "1",
}

import re
from typing import Any

NUMBERS = [19.0, 27.9, 448.0, 464.0, 464.1, 500.0, 1e9, float("inf"), float("nan")]
HEADS, SIZE, BLOCK = 1, 32, 32


def cast(x: float) -> float:
    """torch's own conversion."""
    import torch

    return float(torch.tensor(x).to(torch.float8_e4m3fn).float())


def activation(x: float) -> float:
    """`QuantFP8.forward_native` with a fixed scale of 1."""
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8
    from vllm.model_executor.layers.quantization.utils.quant_utils import GroupShape

    with set_current_vllm_config(VllmConfig()):
        quant = QuantFP8(static=True, group_shape=GroupShape.PER_TENSOR)
    return float(quant.forward_native(torch.full((1, 1), x), torch.ones(1))[0].float())


def cpu_cache(x: float) -> float:
    """A key that is `x` in all places, written into the CPU build's cache and read as E4M3."""
    import torch
    from vllm import _custom_ops as ops
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    key = torch.full((1, HEADS, SIZE), x)
    key_cache, value_cache = torch.zeros(2, 1, HEADS, BLOCK, SIZE, dtype=torch.uint8)
    ops.cpu_attn_reshape_and_cache(
        key, key, key_cache, value_cache, torch.zeros(1, dtype=torch.int64), "vec",
        k_scale=1.0, v_scale=1.0, kv_cache_dtype="fp8",
    )  # fmt: skip
    codes = key_cache.flatten()
    written = codes[codes != 0]
    return float(written[:1].view(torch.float8_e4m3fn).float()) if len(written) else 0.0


def conversions() -> dict[str, str]:
    """The instructions that convert, in what Triton makes of vLLM's per-token-head write for sm_90."""
    import torch
    import triton
    from triton.runtime.jit import JITFunction
    from vllm.v1.attention.ops import triton_reshape_and_cache_flash as kernels

    from course.kernels.compiled import StandIn

    triton.runtime.driver.set_active(StandIn(90))
    run, found = JITFunction.run, {}

    def compile_only(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        binary = run(kernel, *args, **(kwargs | {"warmup": True}))
        found[name] = sorted(set(re.findall(r"cvt\.r[nz]\S*", binary.asm["ptx"])))
        return binary

    JITFunction.run = compile_only
    key, scales = torch.zeros(4, 2, 32), torch.zeros(8, 16, 2)
    for name, dtype in (("fp8", torch.float8_e4m3fn), ("int8", torch.int8)):  # noqa: B007, used above
        cache = torch.zeros(8, 16, 2, 32, dtype=dtype)
        kernels.triton_reshape_and_cache_flash_per_token_head_quant(
            key,
            key,
            cache,
            cache.clone(),
            scales,
            scales.clone(),
            torch.zeros(4, dtype=torch.int64),
        )
    return {name: ", ".join(lines) for name, lines in found.items()}


if __name__ == "__main__":
    print(f"{'x':>9}{'torch':>10}{'QuantFP8':>10}{'CPU cache':>11}")
    for number in NUMBERS:
        row = [cast(number), activation(number), cpu_cache(number)]
        print(f"{number:>9g}{row[0]:>10g}{row[1]:>10g}{row[2]:>11g}")
    print()
    for cache, instruction in conversions().items():
        print(f"{cache + '_per_token_head':>20}  {instruction}")
