"""Lab 10-03: what each worker holds, and what it sends in a step. A solution.

T is the number of tokens that a step computes, R the rows of logits that it makes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from mini_vllm.distributed.parallel_state import get_pp_indices

Shape = tuple[int, ...]
Calls = Counter[tuple[str, Shape, int]]
"""How often each call was made: by kind, shape and bytes of the rank's own array."""

AS_PREDICTED = "as predicted"
EMBEDDING = "the embedding is not summed"
HALF_LAYERS = "each layer has one sum, not two"
MORE_LOGITS = "more logits are gathered"
WHOLE = "the stages hand over whole arrays"


@dataclass(frozen=True)
class Model:
    """Given: a decoder's sizes."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    num_experts: int = 0
    bytes_per_number: int = 4


@dataclass(frozen=True)
class Split:
    """Given: how ranks share the model."""

    tp: int = 1
    pp: int = 1
    ep: bool = False

    @property
    def world_size(self) -> int:
        return self.tp * self.pp

    def stage(self, rank: int) -> int:
        return rank // self.tp


@dataclass(frozen=True)
class Step:
    """Given: what a step computes."""

    num_tokens: int
    num_logits: int


def layers_of(model: Model, split: Split, rank: int) -> range:
    """Given: the layers that a rank has."""
    return get_pp_indices(model.num_layers, split.stage(rank), split.pp)


def vocabulary_rows(model: Model, split: Split) -> int:
    """Given: the rows of the vocabulary that a rank of the first or the last stage has."""
    return -(-model.vocab_size // 64) * 64 // split.tp


def predictions() -> dict[str, Any]:
    """Your answers to the README's six questions, under the names given there."""
    return {
        "sums": [5, 4],
        "a chunk": [9, 9 * 200 * 128 * 4],
        "experts": [9, 9],
        "capacity": 1280 * 32,
        "answers": 2,
        "no power": "about a minute",
    }


# ---- what a worker holds -------------------------------------------------------------------------


def kv_heads(model: Model, split: Split) -> int:
    """The KV heads that a rank has."""
    return max(1, model.num_kv_heads // split.tp)


def weight_shapes(model: Model, split: Split, rank: int) -> dict[str, Shape]:
    """The shapes of a rank's weights."""
    hidden, tp = model.hidden_size, split.tp
    heads = model.num_heads // tp
    shapes: dict[str, Shape] = {
        "qkv_proj": ((heads + 2 * kv_heads(model, split)) * model.head_dim, hidden),
        "o_proj": (hidden, heads * model.head_dim),
    }
    if split.stage(rank) in (0, split.pp - 1):
        shapes["vocabulary"] = (vocabulary_rows(model, split), hidden)
    width = model.intermediate_size // (1 if split.ep else tp)
    experts = model.num_experts // (tp if split.ep else 1)
    if experts:
        shapes["w13"] = (experts, 2 * width, hidden)
        shapes["w2"] = (experts, hidden, width)
    else:
        shapes["gate_up_proj"] = (2 * width, hidden)
        shapes["down_proj"] = (hidden, width)
    return shapes


def kv_cache_shape(model: Model, split: Split, num_blocks: int, block_size: int) -> Shape:
    """The shape of a layer's cache on a rank."""
    return 2, num_blocks, kv_heads(model, split), block_size, model.head_dim


def num_blocks(model: Model, split: Split, memory: Sequence[int], block_size: int) -> int:
    """The blocks that the scheduler may give out."""
    one = prod(kv_cache_shape(model, split, 1, block_size)) * model.bytes_per_number
    ranks = range(split.world_size)
    return min(memory[rank] // (one * len(layers_of(model, split, rank))) for rank in ranks)


def output_rank(split: Split) -> int:
    """The rank that answers with the step's tokens."""
    return split.tp * (split.pp - 1)


# ---- what it sends -------------------------------------------------------------------------------


def step_calls(model: Model, split: Split, rank: int, step: Step) -> Calls:
    """What one rank puts on the wire in one step."""
    calls: Calls = Counter()

    def add(kind: str, shape: Shape, times: int) -> None:
        calls[kind, shape, prod(shape) * model.bytes_per_number] += times

    first, last = split.stage(rank) == 0, split.stage(rank) == split.pp - 1
    states = (step.num_tokens, model.hidden_size)
    share = (prod(states) // split.tp,)
    if split.tp > 1:
        add("all_reduce", states, 2 * len(layers_of(model, split, rank)) + first)
        if not first:
            add("all_gather", share, 2)
        if last and step.num_logits:
            add("all_gather", (step.num_logits, vocabulary_rows(model, split)), 1)
    if not last:
        add("send", share, 2)
    return calls


def read_split(model: Model, step: Step, calls: Sequence[Calls]) -> Split:
    """The split whose ranks make these calls."""
    for tp in range(1, len(calls) + 1):
        split = Split(tp, len(calls) // tp)
        if split.world_size == len(calls) and list(calls) == [
            step_calls(model, split, rank, step) for rank in range(len(calls))
        ]:
            return split
    raise ValueError(f"no split over {len(calls)} ranks makes these calls")


def diagnose(model: Model, split: Split, step: Step, calls: Sequence[Calls]) -> str:
    """What differs from the prediction."""
    missing: Counter[str] = Counter()
    extra: Counter[str] = Counter()
    for rank, seen in enumerate(calls):
        predicted = step_calls(model, split, rank, step)
        for found, difference in ((missing, predicted - seen), (extra, seen - predicted)):
            for (kind, _, _), times in difference.items():
                found[kind] += times
    if "send" in extra:
        return WHOLE
    if "all_gather" in extra:
        return MORE_LOGITS
    if missing["all_reduce"] == split.tp:
        return EMBEDDING
    return HALF_LAYERS if missing else AS_PREDICTED
