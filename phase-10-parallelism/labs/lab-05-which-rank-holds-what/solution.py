"""Lab 10-05: which rank belongs to which groups, and holds what. A solution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer[Any]]
Box = tuple[range, range] | tuple[range]


@dataclass(frozen=True)
class Sizes:
    """Given: how many ranks there are, and how they are split. The sizes fit.

    Attributes:
        world: ranks in all, a multiple of dp * pp * pcp * tp.
        tp, pp, pcp, dcp, dp: the sizes of tensor, pipeline, prefill context, decode context and data
            parallelism. dcp divides tp.
        is_moe: the model is a mixture of experts. If not, dp is 1: each copy has a world of its own.
    """

    world: int
    tp: int = 1
    pp: int = 1
    pcp: int = 1
    dcp: int = 1
    dp: int = 1
    is_moe: bool = False

    def __post_init__(self) -> None:
        if self.dp > 1 and not self.is_moe:
            raise ValueError("each copy of a dense model has a world of its own, in which dp is 1")


@dataclass(frozen=True)
class Model:
    """Given: what of a model decides where its tensors are. `tied`: the embedding is the head, too."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied: bool = False


def share(name: str, shape: tuple[int, ...], model: Model, tp_rank: int, tp: int) -> Box:
    """Given, as in lab 10-01: the rows, and for a matrix the columns, that one of the `tp` ranks of a stage
    keeps of a tensor. What pads the vocabulary is left out."""
    layer, kind = name.split(".")[-2:]
    rows, *columns = (range(length) for length in shape)
    if layer in ("embed_tokens", "lm_head"):
        part = -(-shape[0] // 64) * 64 // tp
        rows = range(min(shape[0], tp_rank * part), min(shape[0], (tp_rank + 1) * part))
    elif layer in ("k_proj", "v_proj"):
        part = max(1, model.num_kv_heads // tp) * model.head_dim
        first = tp_rank * model.num_kv_heads // tp * model.head_dim
        rows = range(first, first + part)
    elif layer in ("q_proj", "gate_proj", "up_proj"):
        part = shape[0] // tp
        rows = range(tp_rank * part, (tp_rank + 1) * part)
    elif layer in ("o_proj", "down_proj") and kind == "weight":
        part = shape[1] // tp
        columns = [range(tp_rank * part, (tp_rank + 1) * part)]
    return (rows, columns[0]) if columns else (rows,)


def predictions() -> dict[str, Any]:
    """Your answers to the README's questions, under the names given there."""
    return {
        "rank 5": [2, 1],
        "its layers": [40, 60],
        "its kv heads": [4, 8],
        "its groups": [[4, 5], [1, 3, 5, 7]],
        "six stages": [13, 13, 13, 14, 14, 13],
        "gpus": 32,
        "experts": 32,
        "rank 0": [2, 1],
    }


# ---- who sits with whom ----------------------------------------------------------------------------


def layout(sizes: Sizes) -> Ints:
    """All ranks, from 0, in one array of five axes: external copies, dp, pp, pcp, tp."""
    return np.arange(sizes.world).reshape(-1, sizes.dp, sizes.pp, sizes.pcp, sizes.tp)


def groups(sizes: Sizes) -> dict[str, list[list[int]]]:
    """Every group of every kind."""
    ranks = layout(sizes)
    found = {
        "tp": ranks.reshape(-1, sizes.tp),
        "dcp": ranks.reshape(-1, sizes.dcp),
        "pcp": np.moveaxis(ranks, 3, -1).reshape(-1, sizes.pcp),
        "pp": np.moveaxis(ranks, 2, -1).reshape(-1, sizes.pp),
        "dp": np.moveaxis(ranks, 1, -1).reshape(-1, sizes.dp),
    }
    if sizes.is_moe:
        found["ep"] = ranks.swapaxes(1, 2).reshape(-1, sizes.dp * sizes.pcp * sizes.tp)
    return {kind: of_kind.tolist() for kind, of_kind in found.items()}


def place(sizes: Sizes, rank: int) -> dict[str, int]:
    """The rank's number in its group of each kind."""
    return {
        kind: next(group.index(rank) for group in of_kind if rank in group)
        for kind, of_kind in groups(sizes).items()
    }


def worker_name(sizes: Sizes, rank: int, enable_expert_parallel: bool) -> str:
    """How the rank's lines begin in the log."""
    mine = place(sizes, rank)
    kinds = [kind for kind in ("dp", "pp", "pcp", "tp", "dcp") if getattr(sizes, kind) > 1]
    if enable_expert_parallel:
        kinds.append("ep")
    return "_".join(["Worker", *(f"{kind.upper()}{mine[kind]}" for kind in kinds)])


# ---- who holds what --------------------------------------------------------------------------------


def stages(num_layers: int, pp: int, partition: str | None = None) -> list[range]:
    """The layers of each stage."""
    counts = [num_layers // pp] * pp
    for i in range(num_layers % pp):
        counts[-2 - i] += 1
    if partition is not None:
        counts = [int(count) for count in partition.split(",")]
        if len(counts) != pp or sum(counts) != num_layers:
            raise ValueError(f"{partition!r} is not {num_layers} layers on {pp} stages")
    starts = np.cumsum([0, *counts]).tolist()
    return [range(start, start + count) for start, count in zip(starts, counts, strict=False)]


def holds(
    name: str,
    shape: tuple[int, ...],
    model: Model,
    sizes: Sizes,
    rank: int,
    partition: str | None = None,
) -> Box | None:
    """What a rank keeps of a tensor of the checkpoint; None if its stage does not have it."""
    mine = place(sizes, rank)
    first, last = mine["pp"] == 0, mine["pp"] == sizes.pp - 1
    if name.startswith("model.layers."):
        layers = stages(model.num_layers, sizes.pp, partition)[mine["pp"]]
        here = int(name.split(".")[2]) in layers
    elif name == "model.embed_tokens.weight":
        here = first or (last and model.tied)
    else:
        here = last
    return share(name, shape, model, mine["tp"], sizes.tp) if here else None


def experts(num_experts: int, sizes: Sizes, rank: int) -> range:
    """The experts that a rank holds of each layer of its stage."""
    number, size = place(sizes, rank)["ep"], sizes.dp * sizes.pcp * sizes.tp
    each, more = divmod(num_experts, size)
    start = number * each + min(number, more)
    return range(start, start + each + (number < more))
