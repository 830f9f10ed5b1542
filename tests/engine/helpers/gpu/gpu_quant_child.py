"""Runs `mini_vllm/gpu/kernels/wna16.py` and quantised models on it in a process of its own.

    gpu_quant_child.py cpu|cuda       what comes out, and what is refused
    gpu_quant_child.py log            bytes that are loaded and stored, under the interpreter
    gpu_quant_child.py compiled       what the compiler makes of the kernel, for four architectures

Triton reads TRITON_INTERPRET once, so the caller sets it. Cases come as JSON on standard input; what was
found for each is printed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes `[out, in]` to int32 words, little end first."""
    per = 32 // bits
    words = (codes.unflatten(1, (-1, per)) << (bits * torch.arange(per))).sum(-1)
    return (words - (words >> 31 << 32)).to(torch.int32)


def gemm(case: dict[str, Any], device: str) -> dict[str, Any]:
    """The kernel's largest error against float64, as a share of the largest number."""
    from mini_vllm.gpu.kernels.wna16 import Plan, wna16_gemm

    rng = torch.Generator().manual_seed(case.get("seed", 0))
    rows, inputs, outputs = case["rows"], case["inputs"], case["outputs"]
    bits, groups = case["bits"], inputs // case["group"]
    codes = torch.randint(0, 1 << bits, (outputs, inputs), generator=rng)
    dtype = getattr(torch, case["dtype"])
    scale = (0.01 + 0.1 * torch.rand(groups, outputs, generator=rng)).to(dtype).T  # [out, groups]
    zero = torch.full((outputs, groups), 1 << (bits - 1))
    if case.get("zero"):
        zero = torch.randint(0, 1 << bits, (outputs, groups), generator=rng)
    x = torch.randn(rows, inputs + 16, generator=rng).to(dtype)[:, :inputs]
    spread = (codes - zero.repeat_interleave(case["group"], 1)).double()
    weight = spread * scale.double().repeat_interleave(case["group"], 1)
    expected = x.double() @ weight.T
    given = zero.to(torch.uint8) if case.get("zero") else None
    tensors = [t.to(device) for t in (x, pack(codes, bits), scale)]
    tensors[0] = tensors[0] if case.get("strided", True) else tensors[0].contiguous()
    plan = Plan(*case["plan"], 4, 2) if "plan" in case else None
    try:
        out = wna16_gemm(
            *tensors, bits, zero_point=None if given is None else given.to(device), plan=plan
        )
    except ValueError as error:
        return {"refused": str(error)}
    worst = (out.double().cpu() - expected).abs().nan_to_num(1e9).max() / expected.abs().max()
    return {"error": float(worst), "dtype": str(out.dtype).removeprefix("torch.")}


def generate(case: dict[str, Any], device: str) -> dict[str, Any]:
    """Greedy tokens of a checkpoint's model with the Triton backend."""
    from functools import partial

    from mini_vllm.gpu.backend import TritonAttention
    from mini_vllm.gpu.llama import LlamaForCausalLM
    from mini_vllm.model_loader import load_model
    from tests.engine.helpers.gpu.torch_helpers import TorchServer
    from tests.engine.helpers.models.model_helpers import greedy

    make: Any = partial(LlamaForCausalLM, device=device)
    attention: Any = TritonAttention()
    model: Any = load_model(case["folder"], attention, make)
    kernels = {type(layer.mlp.down_proj.apply).__name__ for layer in model.layers}
    packed = getattr(model.layers[0].mlp.down_proj.apply, "kernel", None) is not None
    tokens = greedy(model, case["prompt"], case["steps"], TorchServer)
    return {"tokens": tokens, "layers": sorted(kernels), "kernel": packed}


def compiled(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Machine code of both kernels, on four architectures."""
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    from course.kernels import sass
    from course.kernels.compiled import SHARED, TOOLS, StandIn
    from mini_vllm.gpu.kernels import wna16

    rows = []
    run = JITFunction.run
    inputs, outputs, bits = case["inputs"], case["outputs"], case["bits"]
    for capability in SHARED:
        driver.set_active(StandIn(capability))  # type: ignore[no-untyped-call]

        def compile_only(kernel: Any, *args: Any, cap: int = capability, **kwargs: Any) -> Any:
            binary = run(kernel, *args, **(kwargs | {"warmup": True}))
            code = sass.read(*sass.disassemble(binary.asm["cubin"], TOOLS))
            row = {"capability": cap, "kernel": kernel.__name__, "wide": code.wide()}
            row |= {"spills": code.spills + code.stack, "tensor core": code.tensor_core}
            rows.append(row | {name: code.loop.get(name, 0) for name in ("I2F", "STS")})
            return binary

        JITFunction.run = compile_only  # type: ignore[method-assign, assignment]
        try:
            x = torch.zeros(case["rows"], inputs, dtype=torch.float16)
            packed = torch.zeros(outputs, inputs * bits // 32, dtype=torch.int32)
            scale = torch.zeros(outputs, inputs // case["group"], dtype=torch.float16)
            zero = torch.zeros(scale.shape, dtype=torch.uint8) if case.get("zero") else None
            wna16.wna16_gemm(x, packed, scale, bits, zero_point=zero)
        finally:
            JITFunction.run = run  # type: ignore[method-assign]
    return rows


def log(case: dict[str, Any]) -> dict[str, Any]:
    """Bytes that the kernels load and store, and the least, by the kernel bench's recorder."""
    from course.kernels.record import Recorder, lighten
    from course.kernels.traffic import count
    from mini_vllm.gpu.kernels.wna16 import wna16_gemm

    lighten()
    inputs, outputs, bits = case["inputs"], case["outputs"], case["bits"]
    given = {
        "x": torch.ones(case["rows"], inputs, dtype=torch.float16),
        "weight_packed": torch.zeros(outputs, inputs * bits // 32, dtype=torch.int32),
        "weight_scale": torch.ones(outputs, inputs // case["group"], dtype=torch.float16),
    }
    with Recorder(given).watching() as recorder:
        out = wna16_gemm(*given.values(), bits)  # type: ignore[call-overload]
    least = sum(t.numel() * t.element_size() for t in (*given.values(), out))
    moved = count(recorder.accesses)
    return {"launches": len(recorder.launches), "bytes": moved.total, "least": least}


def main(what: str) -> None:
    found: list[Any] = []
    for case in json.load(sys.stdin):
        if what == "compiled":
            found.append(compiled(case))
        elif what == "log":
            found.append(log(case))
        else:
            found.append((generate if "folder" in case else gemm)(case, what))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
