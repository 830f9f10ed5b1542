"""How vLLM serves a layer with experts: the kernel by card, the launches, the places on several GPUs, EPLB.

    python phase-07-gemm-and-moe/vllm_moe.py            all topics
    python phase-07-gemm-and-moe/vllm_moe.py chosen     one

Needs vLLM 0.22.1; its CPU build will do, and no GPU is asked. What is vLLM's own: the choice of a kernel
(`chosen`, on phase 06's stand-in for cards), `fused_experts_impl` with its Triton kernel interpreted
(`launches`; what is compiled in the CUDA build is played by torch), the parallel configuration and the maps
of experts (`parallel`), the placement of EPLB (`balance`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from course.learner.labs import load_module

PHASES = Path(__file__).resolve().parents[1]
topics = load_module(PHASES / "phase-05-cuda-graphs/vllm_topics.py", "vllm_topics_for_phase_07")
Say = Callable[[str], None]

FUSED_MOE = "vllm.model_executor.layers.fused_moe"
CARDS = {"A100": (8, 0), "L4": (8, 9), "H200": (9, 0), "B200": (10, 0), "RTX 5090": (12, 0)}
"""Name and compute capability. Ilse's is the H200."""


# --- chosen ---


def mixtral(parallel: dict[str, Any], **more: Any) -> Any:
    """Mixtral's layer as vLLM describes it to whoever chooses a kernel."""
    import torch
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.config import (
        FusedMoEConfig,
        FusedMoEParallelConfig,
        RoutingMethodType,
    )

    places = replace(FusedMoEParallelConfig.make_no_parallel(), **parallel)
    return FusedMoEConfig(
        num_experts=8,
        experts_per_token=2,
        hidden_dim=4096,
        intermediate_size_per_partition=14336 // places.tp_size,
        num_local_experts=8 // places.ep_size,
        num_logical_experts=8,
        activation=MoEActivation.SILU,
        device="cuda",
        routing_method=RoutingMethodType.Renormalize,
        moe_parallel_config=places,
        in_dtype=torch.bfloat16,
        **more,
    )


EP = {"ep_size": 2, "use_ep": True}
DP_EP = {**EP, "dp_size": 2}
SITUATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one GPU": ({}, {}),
    "one GPU, --moe-backend triton": ({}, {"moe_backend": "triton"}),
    "one GPU, with LoRA": ({}, {"is_lora_enabled": True}),
    "two, EP without DP": (EP, {}),
    "two, EP with DP": (DP_EP, {}),
    "two, EP with DP, deepep_low_latency": (
        {**DP_EP, "all2all_backend": "deepep_low_latency"},
        {},
    ),
}


def chosen(say: Say) -> None:
    """The experts' kernel for a Mixtral in bfloat16, by card and situation; FlashInfer is installed."""
    kernels = load_module(PHASES / "phase-06-quantization/vllm_kernels.py", "kernels_for_phase_07")
    kernels.CARDS.update(CARDS)
    found: dict[str, dict[str, list[str]]] = {}
    for card in CARDS:
        with kernels.serving(card):
            from vllm.model_executor.layers.fused_moe.oracle.unquantized import (
                select_unquantized_moe_backend,
            )

            for name, (parallel, more) in SITUATIONS.items():
                _, experts = select_unquantized_moe_backend(mixtral(parallel, **more))
                found.setdefault(name, {}).setdefault(experts.__name__, []).append(card)
    for name, answers in found.items():
        say(name)
        for kernel, cards in answers.items():
            say(f"    {', '.join(cards)}: {kernel}")


# --- launches ---


def play_topk_softmax(weights: Any, ids: Any, source: Any, logits: Any, renormalize: bool) -> None:
    import torch

    top, where = torch.softmax(logits, -1).topk(weights.shape[1], dim=-1)
    weights.copy_(top / top.sum(-1, keepdim=True) if renormalize else top)
    ids.copy_(where)


def play_align(
    ids: Any, experts: int, block: int, pairs: Any, owners: Any, padded: Any, expert_map: Any = None
) -> None:
    import torch

    flat, at = ids.flatten(), 0
    pairs.fill_(flat.numel())
    for expert in range(experts):
        rows = torch.nonzero(flat == expert).flatten()
        pairs[at : at + len(rows)] = rows.to(pairs.dtype)
        blocks = -(-len(rows) // block)
        owners[at // block : at // block + blocks] = expert
        at += blocks * block
    padded[0] = at


def play_silu(activation: Any, out: Any, x: Any) -> None:
    import torch

    half = x.shape[-1] // 2
    out.copy_(torch.nn.functional.silu(x[:, :half]) * x[:, half:])


def play_sum(parts: Any, out: Any) -> None:
    out.copy_(parts.sum(dim=1))


def launches(say: Say) -> None:
    """The router and `fused_experts_impl` on 64 tokens and on one, each launch with what it writes."""
    import torch
    import vllm.model_executor.layers.fused_moe.fused_moe as fused_moe
    from vllm.model_executor.layers.fused_moe.router import fused_topk_router

    from mini_vllm.layers.fused_moe.fused_moe import fused_experts

    experts, active, hidden, inner = 8, 2, 64, 48
    rng = np.random.default_rng(0)
    w13 = rng.standard_normal((experts, hidden, 2 * inner)).astype(np.float32) / 8
    w2 = rng.standard_normal((experts, inner, hidden)).astype(np.float32) / 7
    seen: list[str] = []

    def shape(tensor: Any) -> str:
        return " x ".join(map(str, tensor.shape))

    def play(name: str, function: Any, told: Callable[..., str]) -> Any:
        def launched(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            seen.append(f"{name}: {told(*args)}")
            return result

        return launched

    def tell_product(a: Any, w: Any, out: Any, *rest: Any) -> str:
        _, _, _, listed, _, _, multiply = rest[:7]
        how = "through the list" if listed is not None else "a block per pair"
        weighted = ", times the routing weight" if multiply else ""
        return f"{shape(a)}, {how}, to {shape(out)}{weighted}"

    kernel = fused_moe.invoke_fused_moe_triton_kernel
    plays = (
        (fused_topk_router.ops, "topk_softmax", play("topk_softmax", play_topk_softmax,
         lambda w, *_: f"weights and experts, {shape(w)}")),
        (fused_moe, "invoke_fused_moe_triton_kernel", play("fused_moe_kernel", kernel, tell_product)),
        (fused_moe, "apply_moe_activation", play("silu_and_mul", play_silu,
         lambda _, out, x: f"{shape(x)} to {shape(out)}")),
    )  # fmt: skip
    align = play(
        "moe_align_block_size",
        play_align,
        lambda ids, e, block, *rest: f"a list of {int(rest[2])} rows, blocks of {block}",
    )
    add = play("moe_sum", play_sum, lambda parts, out: f"{shape(parts)} to {shape(out)}")
    for tokens in (64, 1):
        x = rng.standard_normal((tokens, hidden)).astype(np.float32)
        logits = rng.standard_normal((tokens, experts)).astype(np.float32)
        seen.clear()
        with ExitStack() as stack:
            for where, name, function in plays:
                stack.enter_context(patch.object(where, name, function))
            for name, function in (("moe_align_block_size", align), ("moe_sum", add)):
                stack.enter_context(patch.object(fused_moe.ops, name, function))
            rows = torch.from_numpy(x)
            weights, ids, _ = fused_topk_router.fused_topk(
                rows, torch.from_numpy(logits), active, True
            )
            out = fused_moe.fused_experts_impl(
                rows,
                torch.from_numpy(w13.transpose(0, 2, 1).copy()),
                torch.from_numpy(w2.transpose(0, 2, 1).copy()),
                weights,
                ids,
                inplace=False,
            )
        own = fused_experts(x, w13, w2, weights.numpy(), ids.numpy())
        say(f"{tokens} tokens, {tokens * active} pairs" if tokens > 1 else "1 token, 2 pairs")
        for line in seen:
            say(f"    {line}")
        off = float(np.abs(out.numpy() - own).max())
        assert off < 1e-5, off
        say("    off from mini_vllm's by less than 0.00001")


# --- parallel ---


def parallel(say: Say) -> None:
    """What becomes of tensor, data and expert parallelism in a layer of Mixtral, on its second GPU."""
    import vllm.model_executor.layers.fused_moe.all2all_utils as all2all
    import vllm.model_executor.layers.fused_moe.config as config
    from vllm.model_executor.layers.fused_moe.expert_map_manager import determine_expert_map

    cases = ((2, 1, False), (2, 1, True), (1, 2, False), (1, 2, True), (2, 2, True))
    for tp, dp, ep in cases:
        rank = SimpleNamespace(rank_in_group=int(dp > 1 and tp == 1))
        asked = SimpleNamespace(
            enable_expert_parallel=ep, all2all_backend="allgather_reducescatter", enable_eplb=False
        )
        manager = SimpleNamespace(world_size=tp * dp)
        with (
            patch.object(config, "get_tensor_model_parallel_rank", lambda tp=tp: int(tp > 1)),
            patch.object(config, "get_dp_group", lambda rank=rank: rank),
            patch.object(all2all, "_get_ep_all2all_manager", lambda stage, m=manager: m),
        ):
            places = config.FusedMoEParallelConfig.make(tp, 1, dp, 1, asked)
            moe = replace(mixtral({}), moe_parallel_config=places)
            prepare = all2all.maybe_make_prepare_finalize(moe, None, allow_new_interface=True)
        local, expert_map, _ = determine_expert_map(places.ep_size, places.ep_rank, 8)
        say(f"TP {tp}, DP {dp}, {'with EP' if ep else 'without EP'}")
        say(f"    holds {local} experts, {14336 // places.tp_size:,} inner numbers of each")
        if expert_map is not None:
            say(f"    expert map {expert_map.tolist()}")
        say(f"    use_all2all_kernels {places.use_all2all_kernels}, {type(prepare).__name__}")


# --- balance ---


def balance(say: Say) -> None:
    """EPLB on a layer whose expert 0 had 90 tokens and the others 10 each, on two GPUs."""
    import torch
    from vllm.distributed.eplb.policy.default import DefaultEplbPolicy

    loads = torch.tensor([[90.0] + [10.0] * 7])
    linear = loads[0].reshape(2, 4).sum(dim=1)
    say(f"linear: {linear.int().tolist()} tokens")
    for slots in (8, 10, 12):
        placed = DefaultEplbPolicy.rebalance_experts(loads, slots, 1, 1, 2)[0]
        copies = torch.bincount(placed, minlength=8)
        tokens = (loads[0] / copies)[placed].reshape(2, -1).sum(dim=1)
        say(f"{slots} slots: {[round(float(t)) for t in tokens]} tokens")
        for gpu, held in enumerate(placed.reshape(2, -1).tolist()):
            say(f"    GPU {gpu} holds {held}")


TOPICS = {"chosen": chosen, "launches": launches, "parallel": parallel, "balance": balance}


def main() -> None:
    os.environ |= topics.ON_PAPER
    names = topics.wanted(TOPICS)
    if len(names) > 1:  # the first topic puts other cards in the place of this machine
        topics.each_apart(__file__, names)
        return
    topics.tell(names[0], TOPICS[names[0]])


if __name__ == "__main__":
    main()
