"""Lab 11-03: what a slot costs, the reference solution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
PACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
Matrix = tuple[int, int]


@dataclass(frozen=True)
class Model:
    """Given: a model's shape."""

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
    """Given: how the server was started."""

    max_loras: int = 1
    max_lora_rank: int = 16
    target_modules: tuple[str, ...] | None = None
    fully_sharded_loras: bool = False
    bytes_per_number: int = 2


def linears(model: Model) -> dict[str, Matrix]:
    """Given: what a linear of a layer takes in, and what it gives, on all ranks together."""
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
    return {
        "slot and file": "more than six times",
        "rank 9": [16, 0.4375],
        "q and v": ["q_proj", "k_proj", "v_proj"],
        "tied": 2,
        "eight ranks": "nearly half",
        "before the first": 16,
        "KV": 700,
    }


# ---- an adapter ------------------------------------------------------------------------------------


def smallest_max_lora_rank(rank: int) -> int:
    """The smallest `max_lora_rank` with which vLLM serves an adapter of this rank."""
    for legal in MAX_LORA_RANKS:
        if rank <= legal:
            return legal
    raise ValueError(f"vLLM serves no adapter of rank {rank}: at most {MAX_LORA_RANKS[-1]}")


def file_bytes(model: Model, rank: int, names: tuple[str, ...], bytes_per_number: int) -> int:
    """Bytes of the numbers in an adapter's file."""
    sizes = linears(model)
    numbers = sum(rank * sum(sizes[name]) for name in names)
    return model.num_layers * numbers * bytes_per_number


# ---- a slot ----------------------------------------------------------------------------------------


def wrapped(model: Model, lora: LoRAConfig) -> dict[str, int]:
    """The modules that get buffers: by name, how many there are."""
    found = dict.fromkeys(("qkv_proj", "o_proj", "gate_up_proj", "down_proj"), model.num_layers)
    if model.adapts_embeddings:
        found |= {"embed_tokens": 1, "lm_head": 1}
    if lora.target_modules is None:
        return found
    targets = set(lora.target_modules)
    return {n: count for n, count in found.items() if targets & {n, *PACKED.get(n, ())}}


def buffers(name: str, model: Model, lora: LoRAConfig, tp: int) -> list[tuple[Matrix, Matrix]]:
    """The shapes of one slot's A and B of one module, on one rank: a pair for each linear in it."""
    rank, hidden, vocab = lora.max_lora_rank, model.hidden_size, model.vocab_size
    if name == "embed_tokens":
        return [((rank, vocab), (hidden, rank))]
    if name == "lm_head":
        return [((rank, hidden), (vocab, rank))]
    cut = tp if lora.fully_sharded_loras else 1
    sizes = linears(model)
    if name in ("o_proj", "down_proj"):
        size, out = sizes[name]
        return [((rank, size // tp), (out // cut, rank))]
    if rank % cut:
        raise ValueError(f"a rank of {rank} cannot be cut into {cut} parts")
    pairs = []
    for linear in PACKED[name]:
        size, out = sizes[linear]
        out //= tp
        if linear in ("k_proj", "v_proj"):
            out = max(out, model.head_dim)
        pairs.append(((rank // cut, size), (out, rank)))
    return pairs


def slot_bytes(model: Model, lora: LoRAConfig, tp: int = 1) -> int:
    """Bytes of one slot on one rank."""
    numbers = 0
    for name, count in wrapped(model, lora).items():
        for a, b in buffers(name, model, lora, tp):
            numbers += count * (a[0] * a[1] + b[0] * b[1])
    return numbers * lora.bytes_per_number


# ---- a card ----------------------------------------------------------------------------------------


def kv_blocks(model: Model, lora: LoRAConfig, tp: int, room: int) -> int:
    """How many KV blocks a rank has beside its slots."""
    left = room - lora.max_loras * slot_bytes(model, lora, tp)
    return max(0, left // block_bytes(model, tp))


def most_slots(model: Model, lora: LoRAConfig, tp: int, room: int, blocks: int) -> int:
    """The largest `max_loras` that leaves at least so many KV blocks."""
    left = room - blocks * block_bytes(model, tp)
    return max(0, left // slot_bytes(model, lora, tp))
