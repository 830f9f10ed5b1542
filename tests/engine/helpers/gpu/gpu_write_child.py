"""Runs `mini_vllm/gpu/kernels/reshape_and_cache.py` in a process of its own.

    gpu_write_child.py cpu|cuda      what it writes, and what it refuses
    gpu_write_child.py log           what its programs load and store, under the interpreter
    gpu_write_child.py compiled      what the compiler makes of it

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


def inputs(tokens: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> dict[str, Any]:
    """Arguments by name, each in memory of its own; the last token is padding."""
    key, value = torch.zeros(2, tokens, kv_heads, head_size, dtype=dtype).unbind(0)
    caches = torch.zeros(2, tokens, 16, kv_heads, head_size, dtype=dtype).unbind(0)
    slots = torch.arange(tokens) * 7 + 16
    slots[-1] = -1
    return {
        "key": key.clone(), "value": value.clone(),
        "key_cache": caches[0].clone(), "value_cache": caches[1].clone(), "slot_mapping": slots,
    }  # fmt: skip


def log() -> dict[str, Any]:
    """Races, accesses outside of every tensor, and bytes, by the kernel bench's recorder."""
    from course.kernels.races import judge_races
    from course.kernels.record import Recorder
    from course.kernels.traffic import count
    from mini_vllm.gpu.kernels.reshape_and_cache import reshape_and_cache

    given = inputs(37, 3, 24, torch.float32)
    with Recorder(given).watching() as recorder:
        reshape_and_cache(**given)
    (launch,) = recorder.launches
    row = 4 * 3 * 24
    return {
        "programs": launch.grid[0],
        "races": [finding.text for finding in judge_races(recorder.launches, "37 tokens")],
        "outside": len(launch.outside),
        "bytes": count(recorder.accesses).total,
        "least": 36 * 4 * row + 37 * 8,
    }


def compiled() -> list[dict[str, Any]]:
    """A row of the kernel bench's table for each architecture, for 64 tokens of Llama-3-8B."""
    from types import SimpleNamespace

    from course.kernels.compiled import Compiled
    from mini_vllm.gpu.kernels.reshape_and_cache import reshape_and_cache

    given = inputs(64, 8, 128, torch.float16)
    case = SimpleNamespace(inputs=given, about={}, label="64 tokens")
    problem = SimpleNamespace(shape=lambda: case, NEEDED=("key", "value"))
    built = Compiled(problem, vllm=False).build("ours", lambda: reshape_and_cache(**given))
    return [one.row() | {"wide": one.wide} for one in built]


if __name__ == "__main__":
    what = sys.argv[1]
    if what in ("log", "compiled"):
        print(json.dumps(log() if what == "log" else compiled()))
    else:
        answers = [run(case, what) for case in json.load(sys.stdin)]
        print(json.dumps({"found": answers, "said": refusals()}))
