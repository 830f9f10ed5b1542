"""The flags of `mini-vllm simulate` that spread the model over cards: `--tensor-parallel-size`, `--link`."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from mini_vllm.entrypoints.cli.flags import positive
from mini_vllm.utils.untrusted import shorten_repr

if TYPE_CHECKING:
    from mini_vllm.sim import StepCost

_FLAGS = ("tensor_parallel_size", "pipeline_parallel_size")


def add_rank_flags(parser: argparse.ArgumentParser) -> None:
    """Register the group."""
    ranks = parser.add_argument_group("cards")
    ranks.add_argument(
        "--tensor-parallel-size", "-tp", type=positive, default=1, metavar="N",
        help="cards that share each layer; --cost is a card and a model then, as h100-llama-3-70b (1)",
    )  # fmt: skip
    ranks.add_argument(
        "--pipeline-parallel-size", "-pp", type=positive, default=1, metavar="N",
        help="stages, each with some of the layers, and a step in flight for each (1)",
    )  # fmt: skip
    ranks.add_argument(
        "--link", metavar="LINK",
        help="what joins the cards: nvlink, pcie, ndr400, 100gbe; of your own: nvlink,latency_us=2,gb_s=400 "
        "(the card's best)",
    )  # fmt: skip
    ranks.add_argument(
        "--pipeline-link", metavar="LINK",
        help="what joins a stage to the next; needs --pipeline-parallel-size (as --link)",
    )  # fmt: skip


def cost_of(args: argparse.Namespace) -> StepCost:
    """What `--cost` names: as `load_cost` for one card, else a model on as many as the flags say.

    Raises ValueError for flags that do not go together, and for a model that does not fit; OSError.
    """
    from mini_vllm.sim import cards, load_cost, make_ranked_cost, models
    from mini_vllm.sim.cost import presets

    several = [f"--{name.replace('_', '-')}" for name in _FLAGS if getattr(args, name) > 1]
    for flag in ("link", "pipeline_link"):
        needs = _FLAGS if flag == "link" else _FLAGS[1:]
        if getattr(args, flag) is not None and not any(getattr(args, name) > 1 for name in needs):
            raise ValueError(
                f"--{flag.replace('_', '-')} {shorten_repr(getattr(args, flag))} needs "
                + " or ".join(f"--{name.replace('_', '-')}" for name in needs)
            )
    card, _, model = args.cost.partition("-")
    named = card in cards() and model in models()
    if not several and (args.cost in presets() or not named):
        return load_cost(args.cost)
    if not named:
        raise ValueError(
            f"{several[0]} needs a --cost of a card and a model, CARD-MODEL, got {shorten_repr(args.cost)}: "
            f"cards {', '.join(cards())}; models {', '.join(models())}"
        )
    if args.counted_mode is not None and several:
        raise ValueError(f"--cudagraph-mode does not go with {several[0]}")
    if args.draft_cost is not None and several:
        raise ValueError(f"--draft-cost does not go with {several[0]}")
    if args.async_scheduling and args.pipeline_parallel_size > 1:
        raise ValueError("--async-scheduling does not go with --pipeline-parallel-size")
    cost = make_ranked_cost(
        model, card, args.link, args.tensor_parallel_size, args.pipeline_parallel_size,
        pipeline_link=args.pipeline_link,
    )  # fmt: skip
    if several:
        return cost
    return dataclasses.replace(cost.stages[0], name=cost.name, source=cost.source)
