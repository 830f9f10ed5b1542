"""Given: your router and your layer beside vLLM's own, on a CPU. Needs vLLM 0.22.1; `course grade` does not.

    python in_vllm.py [solution | starter]   10,000 rows for each router, 500 layers: the largest differences
    python in_vllm.py --record               write answers.json, which the tests read

vLLM routes in three places: `select_experts` for its CPU build, `grouped_topk` for any, and `fused_topk`,
whose kernel is in the CUDA build alone.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from course.learner.labs import load_module, need_vllm

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_07_02_support")
KINDS = [(8, 2, None), (60, 4, None), (16, 4, (4, 2)), (64, 6, (8, 3))]  # experts, top_k, groups
LAYERS = [(7, 4, 2), (6, 8, 2), (1, 8, 3), (3, 16, 2)]  # tokens, experts, top_k


def vllm_routers(groups: tuple[int, int] | None) -> dict[str, Any]:
    """Functions of logits, top_k and renormalize, by the name of vLLM's that each asks."""
    import torch
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe
    from vllm.model_executor.layers.fused_moe.router.fused_topk_router import fused_topk
    from vllm.model_executor.layers.fused_moe.router.grouped_topk_router import grouped_topk

    def numbers(found: Any) -> tuple[np.ndarray, np.ndarray]:
        return found[0].cpu().numpy(), found[1].cpu().numpy()

    def select(logits: Any, top_k: int, renormalize: bool) -> Any:
        given = torch.from_numpy(logits)
        of_groups = {}
        if groups:
            of_groups = {"num_expert_group": groups[0], "topk_group": groups[1]}
        return numbers(
            cpu_fused_moe.select_experts(
                given, given, top_k, bool(groups), renormalize, **of_groups
            )
        )

    def in_groups(logits: Any, top_k: int, renormalize: bool) -> Any:
        given = torch.from_numpy(logits)
        with torch.compiler.set_stance("force_eager"):
            return numbers(grouped_topk(given, given, top_k, renormalize, *groups))

    def fused(logits: Any, top_k: int, renormalize: bool) -> Any:
        given = torch.from_numpy(logits).cuda()
        return numbers(fused_topk(given, given, top_k, renormalize))

    found = {"select_experts": select}
    if groups:
        found["grouped_topk"] = in_groups
    elif torch.cuda.is_available() and hasattr(torch.ops._moe_C, "topk_softmax"):
        found["fused_topk"] = fused
    return found


def vllm_layer(
    x: np.ndarray,
    w13: np.ndarray,
    w2: np.ndarray,
    logits: np.ndarray,
    top_k: int,
    renormalize: bool,
) -> np.ndarray:
    """`CPUFusedMOE` on a layer. Without AVX-512 it has no grouped kernel and takes its torch form, whose SiLU
    cannot be built outside of an engine; it then gets one that can."""
    import torch
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe as moe
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    def silu_and_mul(gate_up: Any) -> Any:
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    moe._CPU_MOE_ACT_FN[MoEActivation.SILU] = silu_and_mul
    layer = torch.nn.Module()
    layer.w13_weight = torch.nn.Parameter(torch.from_numpy(w13.copy()), requires_grad=False)
    layer.w2_weight = torch.nn.Parameter(torch.from_numpy(w2.copy()), requires_grad=False)
    out = moe.CPUFusedMOE(layer)(
        layer, torch.from_numpy(x.copy()), False, top_k, torch.from_numpy(logits), renormalize,
        global_num_experts=len(w13),
    )  # fmt: skip
    return np.asarray(out.numpy())


def differ(ours: Any, theirs: Any) -> float:
    """The largest difference of a weight; 9 where a token has another expert. The order does not count."""
    (a, ids), (b, others) = (
        (np.take_along_axis(weights, order, 1), np.take_along_axis(found, order, 1))
        for weights, found in (ours, theirs)
        for order in [np.argsort(found, 1)]
    )
    return float(np.abs(a - b).max()) if np.array_equal(ids, others) else 9.0


def compare_routers(lab: Any, rows: int = 10_000) -> dict[str, float]:
    """The largest difference of a weight from each router of vLLM's; 9 where an expert differs."""
    worst: dict[str, float] = {}
    for experts, top_k, groups in KINDS:
        logits = support.draw(rows, experts, top_k, 1, 1, experts)[3]
        for renormalize in (False, True):
            got = (
                lab.route_in_groups(logits, top_k, renormalize, *groups)
                if groups
                else lab.route(logits, top_k, renormalize)
            )
            for who, ask in vllm_routers(groups).items():
                apart = differ(got, ask(logits, top_k, renormalize))
                name = f"{who}, {experts} experts, top {top_k}" + (
                    f", groups {groups}" if groups else ""
                )
                worst[name] = max(worst.get(name, 0.0), apart)
    return worst


def compare_layers(lab: Any, layers: int = 500) -> float:
    """The largest difference from `CPUFusedMOE`, on layers of random sizes."""
    rng = np.random.RandomState(0)
    worst = 0.0
    for number in range(layers):
        tokens, experts = int(rng.randint(1, 40)), int(rng.choice([2, 4, 8, 16]))
        top_k, hidden, inter = (
            int(rng.randint(1, min(4, experts) + 1)),
            32,
            int(rng.choice([32, 64])),
        )
        x, w13, w2, logits = support.draw(tokens, experts, top_k, hidden, inter, number)
        renormalize = bool(number % 2)
        got = lab.moe_grouped(x, w13, w2, *lab.route(logits, top_k, renormalize))
        want = vllm_layer(x, w13, w2, logits, top_k, renormalize)
        worst = max(worst, float(np.abs(got - want).max()))
    return worst


def answers() -> dict[str, Any]:
    """What vLLM says to a few layers of each kind."""
    routers: list[dict[str, Any]] = []
    for experts, top_k, groups in KINDS:
        drawn = (8, experts, top_k, 1, 1, 7)
        for renormalize in (False, True):
            asked = {"drawn": drawn, "top_k": top_k, "renormalize": renormalize, "groups": groups}
            for who, ask in vllm_routers(groups).items():
                rows = support.by_expert(*ask(support.draw(*drawn)[3], top_k, renormalize))
                says = [{e: round(weight, 6) for e, weight in row.items()} for row in rows]
                routers.append({"who": who, **asked, "says": says})
    layers: list[dict[str, Any]] = []
    for number, (tokens, experts, top_k) in enumerate(LAYERS):
        drawn, renormalize = (tokens, experts, top_k, 32, 32, number), bool(number % 2)
        out = vllm_layer(*support.draw(*drawn), top_k, renormalize).astype(np.float64)
        layers.append({"drawn": drawn, "renormalize": renormalize, "says": out.round(6).tolist()})
    return {"routers": routers, "layers": layers}


def main(which: str = "starter") -> None:
    need_vllm()
    if which == "--record":
        support.ANSWERS.write_text(json.dumps(answers()) + "\n", encoding="utf-8")
        return
    lab = load_module(HERE / f"{which}.py", f"lab_07_02_{which}")
    for name, apart in compare_routers(lab).items():
        print(f"{name:48} {apart:.0e}")
    print(f"{'CPUFusedMOE, 500 layers':48} {compare_layers(lab):.0e}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
