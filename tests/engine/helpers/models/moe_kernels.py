"""Our routers and experts against those of vLLM's CPU build, on random cases.

vLLM's `fused_topk` is one CUDA kernel. What its CPU build runs in that place is `select_experts`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from mini_vllm.layers.fused_moe.fused_moe import fused_experts, reference_experts
from mini_vllm.layers.fused_moe.router import fused_topk, grouped_topk

ROWS = 10_000


def by_id(weights: Any, ids: Any) -> tuple[np.ndarray, np.ndarray]:
    """A row's experts in ascending order: torch hands them out in no order."""
    weights, ids = np.asarray(weights), np.asarray(ids)
    order = ids.argsort(axis=1)
    return np.take_along_axis(weights, order, 1), np.take_along_axis(ids, order, 1)


def without_ties(rng: np.random.Generator, rows: int, num_experts: int) -> np.ndarray:
    """Logits of which no two in a row are near each other, so that rounding decides nothing."""
    steps = np.tile(np.linspace(-3, 3, num_experts), (rows, 1))
    jitter = rng.uniform(-1, 1, (rows, num_experts)) / num_experts
    return (rng.permuted(steps, axis=1) + jitter).astype(np.float32)


def compare_routers(rows: int = ROWS) -> list[str]:
    """Each router on that many rows without ties; the largest difference of a weight. Ids must be equal."""
    from vllm.model_executor.layers.fused_moe.cpu_fused_moe import select_experts
    from vllm.model_executor.layers.fused_moe.router import grouped_topk_router

    rng = np.random.default_rng(0)
    said = []

    def hold(name: str, ours: Any, theirs: Any) -> None:
        (w, i), (other_w, other_i) = by_id(*ours), by_id(*theirs)
        assert (i == other_i).all(), name
        difference = np.abs(w - other_w).max()
        assert difference < 2e-6, (name, difference)
        said.append(f"{name}: {len(i)} rows equal, weights within {difference:.0e}")

    for renormalize in (True, False):
        for num_experts, k in ((8, 2), (60, 4), (128, 8)):
            logits = without_ties(rng, rows, num_experts)
            tensor = torch.from_numpy(logits)
            hold(
                f"fused_topk E={num_experts} k={k} renormalize={renormalize}",
                fused_topk(logits, k, renormalize),
                select_experts(tensor, tensor, k, False, renormalize),
            )
        for num_experts, k, groups, chosen, scoring, scale in (
            (64, 6, 8, 3, "softmax", 1.0), (256, 8, 8, 4, "sigmoid", 2.5), (32, 4, 4, 2, "sigmoid", 1.0),
        ):  # fmt: skip
            logits = without_ties(rng, rows, num_experts)
            tensor = torch.from_numpy(logits)
            bias = rng.normal(0, 0.1, num_experts).astype(np.float32) if scale > 1 else None
            tensor_bias = None if bias is None else torch.from_numpy(bias)
            settings = k, renormalize, groups, chosen, scoring, scale
            hold(
                f"grouped_topk E={num_experts} k={k} groups={groups} {scoring} bias={bias is not None} "
                f"renormalize={renormalize}",
                grouped_topk(logits, *settings, bias),
                grouped_topk_router.grouped_topk(tensor, tensor, *settings, tensor_bias),
            )
    return said


def compare_experts(cases: int = 500) -> str:
    """`fused_experts` and the plain form against `CPUFusedMOE`, float32, some experts without tokens."""
    from vllm.model_executor.layers.fused_moe.cpu_fused_moe import CPUFusedMOE

    rng = np.random.default_rng(1)
    worst, idle, kernels = 0.0, 0, {"forward_grouped_gemm": 0, "forward_torch": 0}
    for _ in range(cases):
        num_experts = int(rng.integers(1, 17))
        k = int(rng.integers(1, num_experts + 1))
        n = int(rng.choice([1, 2, 5, 16, 33, 64]))
        step = int(rng.choice([32, 32, 8]))  # no multiples of 32: vLLM's form in torch
        hidden, inner = (int(i) * step for i in rng.integers(1, 4, 2))
        x = rng.normal(size=(n, hidden)).astype(np.float32)
        logits = rng.normal(size=(n, num_experts)).astype(np.float32)
        logits[:, : num_experts // 3] -= 8  # these are rarely asked
        w13 = rng.normal(0, hidden**-0.5, (num_experts, 2 * inner, hidden)).astype(np.float32)
        w2 = rng.normal(0, inner**-0.5, (num_experts, hidden, inner)).astype(np.float32)
        renormalize = bool(rng.integers(2))
        weights, ids = fused_topk(logits, k, renormalize)
        w13_in_out, w2_in_out = (np.ascontiguousarray(w.swapaxes(1, 2)) for w in (w13, w2))
        ours = fused_experts(x, w13_in_out, w2_in_out, weights, ids)
        plain = reference_experts(x, w13_in_out, w2_in_out, weights, ids)

        layer: Any = torch.nn.Module()
        layer.w13_weight = torch.nn.Parameter(torch.from_numpy(w13), requires_grad=False)
        layer.w2_weight = torch.nn.Parameter(torch.from_numpy(w2), requires_grad=False)
        theirs = CPUFusedMOE(layer)
        kernels[theirs.forward_method.__name__] += 1
        out = theirs(
            layer, torch.from_numpy(x), False, k, torch.from_numpy(logits), renormalize,
            global_num_experts=num_experts,
        )  # fmt: skip
        idle += num_experts - len(np.unique(ids))
        worst = max(worst, *(float(np.abs(mine - out.numpy()).max()) for mine in (ours, plain)))
    assert worst < 2e-5, worst
    assert idle, "every expert had a token in every case"
    counts = SimpleNamespace(**kernels)
    return (
        f"experts: {cases} cases within {worst:.1e} ({counts.forward_grouped_gemm} by vLLM's grouped kernel, "
        f"{counts.forward_torch} by its form in torch), {idle} experts without tokens"
    )
