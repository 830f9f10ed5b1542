"""Lab 10-05: which rank belongs to which groups, and holds what. Your work: every NotImplementedError."""

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
    raise NotImplementedError


# ---- who sits with whom ----------------------------------------------------------------------------


def layout(sizes: Sizes) -> Ints:
    """All ranks, from 0, in one array of five axes: external copies, dp, pp, pcp, tp."""
    raise NotImplementedError


def groups(sizes: Sizes) -> dict[str, list[list[int]]]:
    """Every group of every kind: `tp`, `dcp`, `pcp`, `pp`, `dp`, and for a mixture of experts `ep`.

    Each rank is in one group of each kind, alone if the size is 1. A group's ranks are in rising order. In
    which order the groups are listed does not matter.
    """
    raise NotImplementedError


def place(sizes: Sizes, rank: int) -> dict[str, int]:
    """The rank's number in its group of each kind, from 0, by the names of `groups`."""
    raise NotImplementedError


def worker_name(sizes: Sizes, rank: int, enable_expert_parallel: bool) -> str:
    """How the rank's lines begin in the log, such as `Worker_PP1_TP0`.

    `Worker`, then in this order DP, PP, PCP, TP and DCP with the rank's number in that group, unless the
    group's size is 1; and with `enable_expert_parallel` (a mixture of experts only) EP, whatever its size.
    """
    raise NotImplementedError


# ---- who holds what --------------------------------------------------------------------------------


def stages(num_layers: int, pp: int, partition: str | None = None) -> list[range]:
    """The layers of each stage.

    Every stage gets `num_layers // pp`. What is left, fewer than pp, is given out one layer each: first to
    the second-to-last stage, then to the one before it, and so on.

    Args:
        partition: `VLLM_PP_LAYER_PARTITION`, such as `"19,20,20,21"`: the counts themselves.

    Raises ValueError if `partition` is not `pp` whole numbers that add up to `num_layers`. Like vLLM, do
    not check more than that: a stage may be given 0 layers, and even a negative number is let through.
    """
    raise NotImplementedError


def holds(
    name: str,
    shape: tuple[int, ...],
    model: Model,
    sizes: Sizes,
    rank: int,
    partition: str | None = None,
) -> Box | None:
    """What a rank keeps of a tensor of the checkpoint; None if its stage does not have it.

    Args:
        name: `model.embed_tokens.weight`, `model.norm.weight` (the last norm), `lm_head.weight` (unless the
            model is tied), or `model.layers.N.` with anything behind it.
        partition: as in `stages`.
    """
    raise NotImplementedError


def experts(num_experts: int, sizes: Sizes, rank: int) -> range:
    """The experts that a rank holds of each layer of its stage, with `enable_expert_parallel`.

    They are shared out over the rank's `ep` group, in order. If they do not come out even, the first ranks of
    the group have one more.
    """
    raise NotImplementedError
