"""Lab 11-03: what a slot costs. Your work: every NotImplementedError."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Given: what vLLM takes for `max_lora_rank`."""

PACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Given: the modules in which vLLM puts several linears side by side."""

Matrix = tuple[int, int]
"""Rows and columns."""


@dataclass(frozen=True)
class Model:
    """Given: a model's shape.

    Attributes:
        tied: the embedding's weights are the head's, too.
        adapts_embeddings: vLLM's class for the model lets adapters change embedding and head.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied: bool = False
    adapts_embeddings: bool = True


@dataclass(frozen=True)
class LoRAConfig:
    """Given: how the server was started.

    Attributes:
        max_loras: slots.
        max_lora_rank: one of MAX_LORA_RANKS.
        target_modules: `--lora-target-modules`, names of linears or of modules; None if it was not given.
        fully_sharded_loras: see the README.
        bytes_per_number: of the buffers' dtype, usually the model's.
    """

    max_loras: int = 1
    max_lora_rank: int = 16
    target_modules: tuple[str, ...] | None = None
    fully_sharded_loras: bool = False
    bytes_per_number: int = 2


def linears(model: Model) -> dict[str, Matrix]:
    """Given: how many numbers each linear of a layer takes in and gives, on all ranks together."""
    hidden, inner = model.hidden_size, model.intermediate_size
    heads, kv_heads = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    return {
        "q_proj": (hidden, heads),
        "k_proj": (hidden, kv_heads),
        "v_proj": (hidden, kv_heads),
        "o_proj": (heads, hidden),
        "gate_proj": (hidden, inner),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }


def block_bytes(model: Model, tp: int, block_size: int = 16) -> int:
    """Given: bytes of a KV block on one rank, all layers together, in bf16."""
    kv_heads = max(1, model.num_kv_heads // tp)
    return model.num_layers * 2 * block_size * kv_heads * model.head_dim * 2


def predictions() -> dict[str, Any]:
    """Your answers to the README's questions, under the names given there."""
    raise NotImplementedError


# ---- an adapter ------------------------------------------------------------------------------------


def smallest_max_lora_rank(rank: int) -> int:
    """The smallest `max_lora_rank` with which vLLM serves an adapter of this rank.

    Raises ValueError if there is none.
    """
    raise NotImplementedError


def file_bytes(model: Model, rank: int, names: tuple[str, ...], bytes_per_number: int) -> int:
    """Bytes of the numbers in an adapter's file, without the file's header.

    Args:
        rank: the adapter's.
        names: of the linears that it changes in every layer, such as `("q_proj", "v_proj")`. For each of them
            the file has an A, of `rank` rows and as many columns as the linear takes in, and a B, of as many
            rows as the linear gives and `rank` columns.
    """
    raise NotImplementedError


# ---- a slot ----------------------------------------------------------------------------------------


def wrapped(model: Model, lora: LoRAConfig) -> dict[str, int]:
    """The modules that get buffers, by name, and how many of that name the model has.

    In every layer `qkv_proj`, `o_proj`, `gate_up_proj` and `down_proj`; once each `embed_tokens` and
    `lm_head`, if the model's class adapts them. With `target_modules`, only those that the README says. A
    name that gets no buffers is left out.
    """
    raise NotImplementedError


def buffers(name: str, model: Model, lora: LoRAConfig, tp: int) -> list[tuple[Matrix, Matrix]]:
    """The shapes of one slot's A and B of one module, on one rank.

    Args:
        name: one of those in `wrapped`.
        tp: ranks of the tensor-parallel group; whatever the README says is cut, it divides, but for two:
            `num_kv_heads` may be smaller than tp, and then tp is a multiple of it; `max_lora_rank` may be
            anything.

    Returns:
        A pair (A, B) for each linear of the module: three for `qkv_proj`, in the order of PACKED, two for
        `gate_up_proj`, else one. A as (rank, in), B as (out, rank).

    Raises ValueError if tp must divide `max_lora_rank` for this module, and does not.
    """
    raise NotImplementedError


def slot_bytes(model: Model, lora: LoRAConfig, tp: int = 1) -> int:
    """Bytes of one slot on one rank: all modules, not multiplied with `max_loras`."""
    raise NotImplementedError


# ---- a card ----------------------------------------------------------------------------------------


def kv_blocks(model: Model, lora: LoRAConfig, tp: int, room: int) -> int:
    """How many KV blocks a rank has beside its slots; 0 if the slots take all.

    Args:
        room: bytes on this rank's card for slots and KV blocks together.
    """
    raise NotImplementedError


def most_slots(model: Model, lora: LoRAConfig, tp: int, room: int, blocks: int) -> int:
    """The largest `max_loras` that leaves at least so many KV blocks; 0 if none does.

    `lora.max_loras` plays no part. `lora` wraps at least one module.
    """
    raise NotImplementedError
