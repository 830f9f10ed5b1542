"""The flags and lines of `mini-vllm simulate` that are a fleet's: `--replicas`, `--router`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from mini_vllm.config.engine import EngineConfig
from mini_vllm.entrypoints.cli.flags import positive
from mini_vllm.utils.untrusted import shorten_repr

if TYPE_CHECKING:
    from mini_vllm.sim import Router

DEFAULT_ROUTER = "round-robin"


def add_fleet_flags(parser: argparse.ArgumentParser) -> None:
    """Register the group."""
    fleet = parser.add_argument_group("fleet")
    fleet.add_argument(
        "--replicas", type=positive, metavar="N",
        help="so many engines, each with a scheduler and a KV cache of its own, behind a router",
    )  # fmt: skip
    fleet.add_argument(
        "--router", metavar="ROUTER",
        help="round-robin, least-loaded (as vLLM balances data-parallel engines) or prefix (to where the "
        "longest part of the prompt was sent before); needs --replicas (round-robin)",
    )  # fmt: skip


def router_of(args: argparse.Namespace, config: EngineConfig, most_blocks: int) -> Router | None:
    """What chooses among the replicas; None for one engine without a router.

    Raises ValueError for flags that do not go together, and for a fleet that would not fit.
    """
    from mini_vllm.sim import make_router
    from mini_vllm.sim.fleet import MOST_REPLICAS

    if args.replicas is None:
        if args.router is not None:
            raise ValueError(f"--router {shorten_repr(args.router)} needs --replicas")
        return None
    if args.replicas > MOST_REPLICAS:
        raise ValueError(f"--replicas {shorten_repr(args.replicas)}: at most {MOST_REPLICAS}")
    if args.plot is not None:
        raise ValueError("--plot draws one engine: leave --replicas out")
    if args.router == "prefix" and not config.enable_prefix_caching:
        raise ValueError("--router prefix needs engines with prefix caching")
    blocks = config.num_gpu_blocks
    if blocks is not None and args.replicas * blocks > most_blocks:
        raise ValueError(
            f"--replicas {args.replicas} with num_gpu_blocks {blocks} each: the simulator keeps a record of "
            f"each block, and takes at most {most_blocks} together; give fewer with --num-gpu-blocks"
        )
    return make_router(args.router or DEFAULT_ROUTER, args.replicas, config.block_size)


def replica_lines(result: dict[str, Any]) -> list[str]:
    """How the replicas differ, for the table."""
    requests, tokens, rates = (
        "{min:,.{d}f} / {median:,.{d}f} / {max:,.{d}f}".format(**result[f"replica_{name}"], d=d)
        for name, d in (("requests", 0), ("output_tokens", 0), ("prefix_hit_rate", 1))
    )
    return [
        f"{'Replicas: min / median / max':-^50}",
        f"Requests of {result['replicas']}: {requests}; prefix hit rate (%): {rates}",
        f"Output tokens: {tokens}",
    ]
