"""Lab 10-03: what each worker holds, and what it sends in a step. Your work: every NotImplementedError.

T is the number of tokens that a step computes, R the rows of logits that it makes. Bytes are those of a
rank's own array, whatever the others have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod  # noqa: F401
from typing import Any

from mini_vllm.distributed.parallel_state import get_pp_indices

Shape = tuple[int, ...]
Calls = Counter[tuple[str, Shape, int]]
"""How often each call was made: by kind, shape and bytes of the rank's own array. The kinds are `all_reduce`,
`all_gather` and `send`."""

AS_PREDICTED = "as predicted"
EMBEDDING = "the embedding is not summed"
HALF_LAYERS = "each layer has one sum, not two"
MORE_LOGITS = "more logits are gathered"
WHOLE = "the stages hand over whole arrays"


@dataclass(frozen=True)
class Model:
    """Given: a decoder's sizes.

    Attributes:
        intermediate_size: of the MLP, or of one expert.
        num_heads, num_kv_heads: of the attention; a head has `head_dim` numbers.
        num_experts: per layer; 0 for a dense model.
        bytes_per_number: of weights, hidden states, logits and cache alike.
    """

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
    """Given: how ranks share the model.

    Attributes:
        tp: ranks per stage. It divides the heads, the MLP's size, the hidden size and the experts.
        pp: stages.
        ep: whether experts are shared out whole, instead of each being cut.
    """

    tp: int = 1
    pp: int = 1
    ep: bool = False

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.tp * self.pp

    def stage(self, rank: int) -> int:
        """The ranks of a stage are neighbours."""
        return rank // self.tp


@dataclass(frozen=True)
class Step:
    """Given: what a step computes: T tokens, and R rows of logits. Where R is 0, no logits are gathered."""

    num_tokens: int
    num_logits: int


def layers_of(model: Model, split: Split, rank: int) -> range:
    """Given: the layers that a rank has."""
    return get_pp_indices(model.num_layers, split.stage(rank), split.pp)


def vocabulary_rows(model: Model, split: Split) -> int:
    """Given: the rows of the vocabulary, padded to a multiple of 64, that one rank of a stage has."""
    return -(-model.vocab_size // 64) * 64 // split.tp


def predictions() -> dict[str, Any]:
    """Your answers to the README's six questions, under the names given there."""
    raise NotImplementedError


# ---- what a worker holds -------------------------------------------------------------------------


def kv_heads(model: Model, split: Split) -> int:
    """The KV heads that a rank has in each of its layers. Where there are fewer KV heads than ranks in a
    stage, every rank has one, and some have the same."""
    raise NotImplementedError


def weight_shapes(model: Model, split: Split, rank: int) -> dict[str, Shape]:
    """The shapes of a rank's weights: of one of its layers, and of the vocabulary.

    A weight's shape is (outputs, inputs). Returns, by name:

    - `qkv_proj`: q, k and v concatenated, of the heads that the rank has;
    - `o_proj`;
    - `vocabulary`: the embedding, and in another stage the LM head. Stages in between have none: no entry;
    - a dense model's `gate_up_proj`, gate and up concatenated, and `down_proj`;
    - in their place, with experts, `w13` and `w2`: gate and up, and down, of all experts that the rank has,
      with the number of experts as first axis.
    """
    raise NotImplementedError


def kv_cache_shape(model: Model, split: Split, num_blocks: int, block_size: int) -> Shape:
    """The shape of one layer's cache on a rank, as vLLM's CPU attention has it.

    Its axes: keys and values, blocks, heads, tokens of a block, numbers of a head.
    """
    raise NotImplementedError


def num_blocks(model: Model, split: Split, memory: Sequence[int], block_size: int) -> int:
    """The blocks that the scheduler may give out: as many as every rank has room for, in all its layers.

    Args:
        memory: bytes for the cache, rank by rank.
    """
    raise NotImplementedError


def output_rank(split: Split) -> int:
    """The one rank that answers with the step's tokens."""
    raise NotImplementedError


# ---- what it sends -------------------------------------------------------------------------------


def step_calls(model: Model, split: Split, rank: int, step: Step) -> Calls:
    """What one rank puts on the wire in one step. Where tp is 1, nothing is reduced or gathered.

    Hidden states are (T, hidden size), a rank's logits (R, its rows of the vocabulary). What a stage hands
    over is flat: each of its ranks sends its share, of shape (T * hidden size / tp,), and the next stage's
    ranks gather shares of that shape. A call that is not made has no entry.
    """
    raise NotImplementedError


def read_split(model: Model, step: Step, calls: Sequence[Calls]) -> Split:
    """The split whose ranks make these calls in this step, with `ep` False, because calls do not tell.

    Args:
        calls: rank by rank, of two ranks at least.

    Raises ValueError where no split makes them.
    """
    raise NotImplementedError


def diagnose(model: Model, split: Split, step: Step, calls: Sequence[Calls]) -> str:
    """What is odd about a step: one of the five texts above.

    The calls are as predicted, or one thing about them differs:

    - EMBEDDING: the embedding layer's sum is missing on the ranks that make it;
    - HALF_LAYERS: of each layer's two sums one is missing;
    - MORE_LOGITS: logits of more rows are gathered, in calls of their own or in the same one;
    - WHOLE: a stage's ranks each send both arrays whole, (T, hidden size), so the stage behind gathers none.

    Args:
        calls: rank by rank. The model has two layers or more.
    """
    raise NotImplementedError
