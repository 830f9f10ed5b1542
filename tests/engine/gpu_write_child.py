"""Runs `mini_vllm/gpu/kernels/reshape_and_cache.py` in a process of its own: `gpu_write_child.py cpu|cuda`.

Triton reads TRITON_INTERPRET once, so the caller sets it. Cases come as JSON on standard input; what was
found for each is printed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch


def strided(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same numbers: close together, as every other head of a wider tensor, or heads first."""
    if layout == "wide":
        wide = torch.full((*tensor.shape[:-2], 2 * tensor.shape[-2] + 1, tensor.shape[-1]), 9.0)
        wide = wide.to(tensor)
        wide[..., 1::2, :] = tensor
        return wide[..., 1::2, :]
    if layout == "heads first":
        return tensor.transpose(-2, -3).contiguous().transpose(-2, -3)
    return tensor


def run(case: dict[str, Any], device: str) -> dict[str, Any]:
    """Both caches after the kernel, after torch's index operations, and after vLLM's kernel."""
    from mini_vllm.gpu import backend
    from mini_vllm.gpu.kernels.reshape_and_cache import reshape_and_cache

    rng = torch.Generator().manual_seed(case.get("seed", 0))
    dtype = getattr(torch, case["dtype"])
    blocks, size, heads, head_size, n = (
        case[k] for k in ("blocks", "block_size", "kv_heads", "head_size", "tokens")
    )

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng).to(device, dtype)

    key, value = (strided(draw(n, heads, head_size), case["rows"]) for _ in "kv")
    slots = torch.randperm((blocks - 1) * size, generator=rng)[:n] + size  # block 0 is nobody's
    slots[torch.randperm(n, generator=rng)[: case.get("padding", 0)]] = -1
    slots = slots.to(device)
    before = draw(blocks, 2, size, heads, head_size)
    caches = {}
    for name in ("kernel", "torch", "vllm"):
        cache = before.clone()
        if case["cache"] == "heads first":
            cache = cache.transpose(2, 3).contiguous().transpose(2, 3)
        pair = cache.unbind(1)
        if name == "kernel":
            reshape_and_cache(key, value, *pair, slots)
        elif name == "torch":
            backend.reshape_and_cache(key, value, *pair, slots)
        elif case.get("vllm"):
            from vllm.v1.attention.ops.triton_reshape_and_cache_flash import (
                triton_reshape_and_cache_flash,
            )

            if device == "cpu":  # it asks for the GPU's generation, to choose a number of warps
                torch.cuda.get_device_capability = lambda _: (9, 0)
            one = torch.ones(1, device=device)
            triton_reshape_and_cache_flash(
                key.contiguous(), value.contiguous(), *pair, slots, "auto", one, one
            )
        caches[name] = cache
    owned = slice(1, None)  # torch puts padding into block 0
    found = {
        "written": int((caches["kernel"] != before).any(-1).any(-1).sum()),
        "block 0 kept": torch.equal(caches["kernel"][0], before[0]),
        "as torch": torch.equal(caches["kernel"][owned], caches["torch"][owned]),
    }
    if case.get("vllm"):
        found["as vLLM"] = torch.equal(caches["kernel"], caches["vllm"])
    return found


def refusals() -> dict[str, str]:
    """What the function says to inputs that do not fit; nothing is launched."""
    from mini_vllm.gpu.kernels.reshape_and_cache import reshape_and_cache

    key, cache = torch.zeros(3, 2, 8), torch.zeros(4, 16, 2, 8)
    slots = torch.zeros(3, dtype=torch.int64)
    cases = {
        "shapes": (key, key[:2], cache, cache, slots),
        "heads": (key[:, :1], key[:, :1], cache, cache, slots),
        "dtype": (key, key, cache.half(), cache.half(), slots),
        "slots": (key, key, cache, cache, slots[:2]),
    }
    said = {}
    for name, arguments in cases.items():
        try:
            reshape_and_cache(*arguments)
        except ValueError as error:
            said[name] = str(error)
    return said


if __name__ == "__main__":
    answers = [run(case, sys.argv[1]) for case in json.load(sys.stdin)]
    print(json.dumps({"found": answers, "said": refusals()}))
