"""Ida's long conversation and Jon's prompt: what the pages of this phase compute, to show results only.

Ida gets one token a step, over a context of 4,096 tokens. Jon sends a prompt of 4,096. On paper the model is
Llama-3-8B in 16 bits and the card an A100 80GB SXM; its figures are those of phase 00, lab 04.

The pages import this module by its name: start Python in this folder.

    python phase-04-attention-backends/long_chat.py          the two on the shipped model, alone and together
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.attention import AttentionMetadata, PagedAttention
from mini_vllm.attention.online import State, empty, finish, update
from mini_vllm.engine.parts import EngineParts

ROOT = Path(__file__).resolve().parents[1]
SHEETS: dict[str, dict[str, Any]] = {
    sheet["name"]: sheet
    for folder in ROOT.glob("phase-00-*/labs/lab-04-*")
    for sheet in json.loads((folder / "gpus.json").read_text("utf-8"))
}
MIB, GIB = 1024**2, 1024**3
SMS = 108
"""Multiprocessors of an A100 (NVIDIA A100 Tensor Core GPU Architecture, 2020)."""


@dataclass(frozen=True)
class Card:
    """A GPU at its best: `flops` operations a second in 16 bits, dense, and `bandwidth` bytes a second."""

    name: str
    flops: float
    bandwidth: float

    @property
    def ridge(self) -> float:
        """Operations a byte at which arithmetic and memory take equally long."""
        return self.flops / self.bandwidth


def card(name: str) -> Card:
    """A card from the data sheets of phase 00, where a figure "with sparsity" is halved."""
    sheet = SHEETS[name]
    dense = sheet["printed_tflops"] / (2 if sheet["with_sparsity"] else 1)
    return Card(name, dense * 1e12, sheet["bandwidth_gb_s"] * 1e9)


A100 = card("A100 80GB SXM")


@dataclass(frozen=True)
class Shape:
    """Attention of one layer, in 16 bits.

    Attributes:
        heads: query heads.
        token: numbers that the cache keeps of a token.
        qk: numbers that a query and a key have in common.
        v: numbers of a value.
        layers: how many such layers the model has.
    """

    heads: int
    token: int
    qk: int
    v: int
    layers: int

    @property
    def token_bytes(self) -> int:
        return 2 * self.token


LLAMA = Shape(heads=32, token=2 * 8 * 128, qk=128, v=128, layers=32)
"""Llama-3-8B: 8 KV heads of 128, a key and a value each."""
NO_GROUPS = Shape(heads=32, token=2 * 32 * 128, qk=128, v=128, layers=32)
"""The same with a KV head for every query head, as Llama-2-7B has."""
DEEPSEEK = Shape(heads=128, token=512 + 64, qk=512 + 64, v=512, layers=61)
"""DeepSeek-V3 while it decodes: all 128 heads read the latent itself."""


def pairs(rows: int, context: int) -> float:
    """Pairs of a query and a key that it sees: the newest `rows` of `context` tokens, causally."""
    return rows * (context - (rows - 1) / 2)


def flops(rows: int, context: int, shape: Shape = LLAMA) -> float:
    """Operations of one layer's attention: a product and a sum for each number of key and value."""
    return 2 * (shape.qk + shape.v) * shape.heads * pairs(rows, context)


def least_bytes(rows: int, context: int, shape: Shape = LLAMA) -> float:
    """Bytes that must move: what the cache keeps of the context, the queries and the result, once each."""
    return context * shape.token_bytes + 2 * rows * shape.heads * (shape.qk + shape.v)


def score_bytes(rows: int, context: int, shape: Shape = LLAMA) -> float:
    """Bytes that the scores add if they are kept: written, read for the softmax, written, read again."""
    return 4 * 2 * shape.heads * rows * context


def intensity(rows: int, context: int, shape: Shape = LLAMA) -> float:
    """Operations for each byte that must move."""
    return flops(rows, context, shape) / least_bytes(rows, context, shape)


def rows_to_the_ridge(context: int, ridge: float = A100.ridge, shape: Shape = LLAMA) -> int:
    """The fewest rows with which arithmetic takes as long as memory."""
    return next(rows for rows in range(1, context) if intensity(rows, context, shape) >= ridge)


# --- by hand ---

SCORES = [2.0, 0.0, 3.0, 1.0]
VALUES = [1.0, 2.0, 3.0, 4.0]
"""Four keys that one query has compared itself with, and their values, one number each."""


def state(scores: Sequence[float], values: Sequence[float], before: State | None = None) -> State:
    """What one row knows after a tile of keys, which may be the first."""
    if before is None:
        before = empty((1,), 1, np.float64)
    given = np.array([scores], np.float64), np.array(values, np.float64)[:, None]
    return update(before, *given)


def result(of: State) -> float:
    """The one number that a state of one row amounts to, to three places."""
    return round(finish(of).item(), 3)


def by_tiles(tile: int) -> float:
    """The four keys, so many at a time."""
    now = None
    for first in range(0, len(SCORES), tile):
        part = slice(first, first + tile)
        now = state(SCORES[part], VALUES[part], now)
    assert now is not None
    return result(now)


# --- a latent, by hand ---

LATENTS = np.array([[1, 2], [0, 3], [4, -1]])
"""What the cache keeps of three tokens, two numbers each."""
W_UK = np.array([[1, 0, 2], [3, 1, 0]])
"""[2, 3]: from a latent to a key of three numbers."""
QUERY = np.array([2, 1, -1])


# --- how a kernel is launched ---


def block_q(heads: int = 32, kv_heads: int = 8) -> tuple[int, int]:
    """Rows of a program's tile, and query tokens in them: vLLM's rule for its Triton kernel."""
    group = heads // kv_heads
    rows = 16 if group <= 16 else 1 << (group - 1).bit_length()
    return rows, rows // group


def programs(
    query_lens: Sequence[int], heads: int = 32, kv_heads: int = 8, segments: int = 16
) -> tuple[int, ...]:
    """The grid that vLLM's Triton backend launches for a step; three numbers where keys are split.

    Without CUDA graphs, which move the limit of `128 // kv_heads` requests to a captured size.
    """
    _, tokens = block_q(heads, kv_heads)
    grid = (sum(query_lens) // tokens + len(query_lens), kv_heads)
    split = max(query_lens) == 1 and len(query_lens) <= 128 // kv_heads
    return (*grid, segments) if split else grid


def flash_splits(requests: int, context: int = 4096, sms: int = SMS, kv_heads: int = 8) -> int:
    """Parts that FlashAttention 2 cuts each sequence into where everybody decodes with heads of 128.

    The library's rule (`num_splits_heuristic` in csrc/flash_attn/flash_api.cpp), read at the commit that
    vLLM's `use_cascade_attention` links. It reckons with two programs per multiprocessor and
    tiles of 128 keys, and takes the fewest parts with which the programs fill their rounds at least 85 % as
    well as with any other number.
    """
    tiles, places, alone = -(-context // 128), 2 * sms, requests * kv_heads
    if alone >= 0.8 * places:
        return 1

    def filled(parts: int) -> float:
        rounds = parts * alone / places
        return rounds / math.ceil(rounds)

    # A part is whole tiles, so a number of parts that leaves the last one empty is not one of its own.
    longest = {parts: -(-tiles // parts) for parts in range(min(128, places, tiles) + 1) if parts}
    real = [parts for parts in longest if longest.get(parts - 1) != longest[parts]]
    best = max(map(filled, real))
    return next(parts for parts in real if filled(parts) >= 0.85 * best)


def tiles(rows: int, context: int, tile_rows: int, tile_keys: int) -> list[list[str]]:
    """For each tile of scores of a chunk: "all" seen, "some" (the causal edge), or "" for none."""
    kinds = []
    for first in range(0, rows, tile_rows):
        last = min(first + tile_rows, rows) - 1
        sees_first, sees_last = context - rows + first, context - rows + last
        kinds.append(
            [
                "all" if min(key + tile_keys, context) - 1 <= sees_first
                else "some" if key <= sees_last else ""
                for key in range(0, context, tile_keys)
            ]
        )  # fmt: skip
    return kinds


# --- a prefix that many share ---


def prefix_bytes(people: int, shared: int, own: int, shape: Shape = LLAMA) -> tuple[int, int]:
    """Bytes of one layer's cache that a decode step reads: everybody by themselves, and shared once."""
    alone = people * (shared + own) * shape.token_bytes
    once = (shared + people * own) * shape.token_bytes
    return alone, once


# --- the order of a sum ---


def in_order(tile: int, segments: int = 1, keys: int = 256, seed: int = 4) -> str:
    """One number of one head's result, each step rounded to 32 bits, in the order that the loop takes.

    Plain sums, one key after the other, so that each machine prints the same.

    Args:
        tile: keys a trip of the loop.
        segments: parts that the keys are cut into, each with a state of its own, merged at the end.
    """
    draw = random.Random(seed)
    scores = [draw.gauss(0, 2) for _ in range(keys)]
    values = [np.float32(draw.gauss(0, 1)) for _ in range(keys)]
    parts = []
    for begin, end in itertools.pairwise(range(0, keys + 1, keys // segments)):
        m, total, acc = -math.inf, np.float32(0), np.float32(0)
        for first in range(begin, end, tile):
            some = range(first, min(first + tile, end))
            larger = max(m, *(scores[key] for key in some))
            rescale = np.float32(math.exp(m - larger))
            weights = [np.float32(math.exp(scores[key] - larger)) for key in some]
            total = total * rescale + _sum(weights)
            acc = acc * rescale + _sum([w * values[k] for w, k in zip(weights, some, strict=True)])
            m = larger
        parts.append((m, total, acc))
    largest = max(m for m, _, _ in parts)
    shares = [np.float32(math.exp(m - largest)) for m, _, _ in parts]
    total = _sum([share * part[1] for share, part in zip(shares, parts, strict=True)])
    acc = _sum([share * part[2] for share, part in zip(shares, parts, strict=True)])
    return f"{acc / total:.9f}"


def _sum(numbers: Sequence[np.float32]) -> np.float32:
    total = np.float32(0)
    for number in numbers:
        total += number
    return total


def lab_07(name: str) -> dict[str, Any]:
    """A committed result of lab 04-07."""
    [path] = Path(__file__).resolve().parent.glob(f"labs/lab-07-*/{name}.json")
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def near(*limits: str) -> list[int]:
    """At how many of a million positions the best two logits of the shipped model were that near."""
    below = lab_07("ties")["below"]
    return [below[limit] for limit in limits]


def moved_by_a_neighbour() -> str:
    """How far a row of a decode step moved a row beside it, at the logits: real vLLM, CPU, 32 bits."""
    run = lab_07("vllm")["runs"]["as it comes, float32"]["decode, 1 beside her"]
    return f"{run['logits_by']:.0e}"


# --- on the shipped model ---

CONVERSATION = (
    "A block table leads from a request's tokens to the blocks of the KV cache. "
    "The scheduler decides who runs in each step. The KV cache stores the keys and values of all "
    "tokens read so far. A kernel reads them through the table, a tile at a time."
)
PROMPT = "Attention reads the keys and values"
BLOCK_SIZE = 16


def together(alone: bool = False, num_steps: int = 4, comes: int = 2) -> list[AttentionMetadata]:
    """What attention is told in each step: Ida from step 1, Jon from step `comes` on."""
    engine = LLMEngine(config=EngineConfig(block_size=BLOCK_SIZE, num_gpu_blocks=64))
    seen: list[AttentionMetadata] = []
    forward = engine.model.forward

    def watched(*args: Any) -> Any:
        seen.append(args[3])
        return forward(*args)

    engine.model.forward = watched  # type: ignore[method-assign]
    wanted = SamplingParams(temperature=0, max_tokens=num_steps + 1, ignore_eos=True)
    engine.add_request("ida", CONVERSATION, wanted)
    for step in range(1, num_steps + 1):
        if step == comes and not alone:
            engine.add_request("jon", PROMPT, wanted)
        engine.step()
    return seen


def says(attention: type[PagedAttention], max_tokens: int = 52) -> str:
    """What the shipped model answers Ida with an attention backend."""
    engine = LLMEngine(parts=EngineParts(attention=attention))
    wanted = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    *_, last = engine.stream(CONVERSATION, wanted)
    return last.outputs[0].text


def shortened(values: Sequence[int]) -> str:
    """A list of numbers; of a long one the first three and the last."""
    if len(values) <= 6:
        return str(list(values))
    return f"[{', '.join(map(str, values[:3]))}, … {values[-1]}]"


def told(metadata: AttentionMetadata) -> None:
    """Print what attention is told, one array a line."""
    for name in ("query_start_loc", "seq_lens", "slot_mapping"):
        print(f"{name:15} {shortened(getattr(metadata, name).tolist())}")
    for name, row, seq_len in zip(
        ("ida", "jon"), metadata.block_table.tolist(), metadata.seq_lens.tolist(), strict=False
    ):
        used = -(-seq_len // metadata.block_size)
        print(f"{name + chr(39) + 's blocks':15} {shortened(row[:used])}")
    print(f"{'max_query_len':15} {metadata.max_query_len}")


if __name__ == "__main__":
    for number, metadata in enumerate(together(), 1):
        rows = np.diff(metadata.query_start_loc).tolist()
        print(f"step {number}: rows {rows}, contexts {metadata.seq_lens.tolist()}")
