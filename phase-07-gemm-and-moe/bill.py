"""Ilse's bill on paper: bytes of weights that a step reads, and what follows. Set-up for the pages.

The model is Mixtral-8x7B and the card an H200, whose figures are those of phase 00, lab 04. Weights take 16
bits. What attention reads of the KV cache is left out: it is the same with experts and without.

The pages import this module by its name: start Python in this folder.

    python phase-07-gemm-and-moe/bill.py            the bill by batch
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.layers.fused_moe.fused_moe import fused_experts
from mini_vllm.layers.fused_moe.router import fused_topk

HERE = Path(__file__).resolve().parent
SHEETS: dict[str, dict[str, Any]] = {
    sheet["name"]: sheet
    for folder in HERE.parent.glob("phase-00-*/labs/lab-04-*")
    for sheet in json.loads((folder / "gpus.json").read_text("utf-8"))
}
GB = 1e9
BYTES = 2
"""Of a weight, and of a number between two layers."""


@dataclass(frozen=True)
class Card:
    """A GPU at its best: dense `flops` in 16 bits and `bandwidth` bytes, a second; `memory` bytes."""

    flops: float
    bandwidth: float
    memory: float
    multiprocessors: int

    @property
    def ridge(self) -> float:
        """Operations that take as long as reading one byte."""
        return self.flops / self.bandwidth


_SHEET = SHEETS["H200 SXM"]
H200 = Card(
    flops=_SHEET["printed_tflops"] / (2 if _SHEET["with_sparsity"] else 1) * 1e12,
    bandwidth=_SHEET["bandwidth_gb_s"] * 1e9,
    memory=_SHEET["memory_gb"] * GB,
    multiprocessors=132,
)


@dataclass(frozen=True)
class Model:
    """A decoder whose every layer has experts.

    Attributes:
        experts, active: of a layer, and of these, how many a token goes to.
        inner: an expert's inner numbers; it has three matrices of hidden by inner.
        around: weights that every step reads besides: attention, routers, norms, the last matrix.
        embedding: of which a step looks up a row for each token.
    """

    name: str
    layers: int
    hidden: int
    inner: int
    experts: int
    active: int
    around: int
    embedding: int

    @property
    def expert(self) -> int:
        """Weights of one expert in all layers."""
        return 3 * self.hidden * self.inner * self.layers

    @property
    def parameters(self) -> int:
        return self.experts * self.expert + self.around + self.embedding

    @property
    def computing(self) -> int:
        """Weights that one token is multiplied with."""
        return self.active * self.expert + self.around


_ATTENTION = 4096 * (4096 + 1024 + 1024 + 4096)
MIXTRAL = Model(
    "Mixtral-8x7B", layers=32, hidden=4096, inner=14336, experts=8, active=2,
    around=32 * (_ATTENTION + 8 * 4096 + 2 * 4096) + 4096 + 32000 * 4096, embedding=32000 * 4096,
)  # fmt: skip
DENSE_13 = replace(MIXTRAL, name="dense, 13 billion", experts=2)
"""What a Mixtral is said to cost: two experts, and every token goes to both."""
DENSE_47 = replace(MIXTRAL, name="dense, 47 billion", active=8)
"""What it weighs: eight, and every token goes to all."""


# --- the bill ---


def touched(tokens: float, experts: int = 8, active: int = 2) -> float:
    """Experts of a layer that a batch uses on average, if a router has no favourites."""
    missed_by_one = 1 - active / experts
    return float(experts * (1 - missed_by_one**tokens))


def step_bytes(tokens: float, model: Model = MIXTRAL) -> float:
    """Bytes of weights that a step of so many tokens reads."""
    used = touched(tokens, model.experts, model.active)
    return BYTES * (used * model.expert + model.around)


def step_ms(tokens: float, model: Model = MIXTRAL, card: Card = H200) -> float:
    """Milliseconds of a step: reading or arithmetic, whichever takes longer."""
    arithmetic = 2 * model.computing * tokens / card.flops
    return 1e3 * max(step_bytes(tokens, model) / card.bandwidth, arithmetic)


def bill(*batches: int) -> None:
    """What steps of these sizes read and take, beside the two dense models."""
    print("tokens   experts   GB read   GB per token      ms   13 billion   47 billion")
    for tokens in batches:
        read = step_bytes(tokens) / GB
        ms = [step_ms(tokens, model) for model in (MIXTRAL, DENSE_13, DENSE_47)]
        print(
            f"{tokens:6,}   {touched(tokens):7.2f}   {read:7.1f}   {read / tokens:12.2f}"
            f"   {ms[0]:5.1f}   {ms[1]:10.1f}   {ms[2]:10.1f}"
        )


# --- a product in tiles ---


def loaded(m: int, n: int, k: int, tile_m: int, tile_n: int) -> int:
    """Bytes that the programs of a product load and store, each for its own tile.

    x of [m, k] comes once for each tile of columns, w of [k, n] once for each tile of rows.
    """
    rows, columns = math.ceil(m / tile_m), math.ceil(n / tile_n)
    return BYTES * (columns * m * k + rows * k * n + m * n)


def intensity(m: int, n: int = 14336, k: int = 4096) -> float:
    """Operations per byte, if each matrix is moved once."""
    return 2 * m * n * k / (BYTES * (m * k + k * n + m * n))


def waves(m: int, n: int, tile_m: int, tile_n: int, card: Card = H200) -> tuple[int, int, float]:
    """Tiles of the output, rounds of one tile per multiprocessor, and the share of these that has a tile."""
    tiles = math.ceil(m / tile_m) * math.ceil(n / tile_n)
    rounds = math.ceil(tiles / card.multiprocessors)
    return tiles, rounds, round(tiles / (rounds * card.multiprocessors), 2)


# --- the index list ---


def aligned(
    ids: NDArray[np.integer], experts: int, block: int
) -> tuple[list[list[int]], list[int]]:
    """Blocks of pairs, and each block's expert: every expert's pairs, filled up with the pair that is none.

    Pair p is token p // k with its (p % k)th expert; the pair that is none is the number of pairs.
    """
    flat = ids.ravel()
    blocks, owners = [], []
    for expert in range(experts):
        pairs = np.flatnonzero(flat == expert).tolist()
        for start in range(0, len(pairs), block):
            filled = pairs[start : start + block]
            blocks.append(filled + [flat.size] * (block - len(filled)))
            owners.append(expert)
    return blocks, owners


def six_tokens() -> NDArray[np.integer]:
    """The experts of six tokens: logits drawn once, four experts, two of them active."""
    logits = np.random.default_rng(4).standard_normal((6, 4)).astype(np.float32)
    return fused_topk(logits, 2, renormalize=True)[1]


# --- two GPUs ---


def masked_experts(
    x: NDArray[np.float32],
    w13: NDArray[np.float32],
    w2: NDArray[np.float32],
    topk_weights: NDArray[np.float32],
    topk_ids: NDArray[np.integer],
    expert_map: NDArray[np.integer],
) -> NDArray[np.float32]:
    """What one GPU computes of all tokens: its own experts' part, to be added to the others'.

    A pair whose expert is elsewhere counts nothing. (Here it is computed all the same, with expert 0; a
    kernel skips it.)

    Args:
        w13, w2: of the experts that this GPU holds.
        expert_map: from an expert's number in the model to its number here, -1 where it is elsewhere.
    """
    here = expert_map[topk_ids]
    weights = np.where(here < 0, np.float32(0), topk_weights)
    return fused_experts(x, w13, w2, weights, np.maximum(here, 0))


def copy_of(token: int, copies: int) -> int:
    """Which of an expert's copies a token uses, by its place in the batch, as vLLM's EPLB hashes it."""
    return (token * 2654435769 & 0xFFFFFFFF) % copies


def busiest(tokens: int, gpus: int = 2, experts: int = 8, active: int = 2) -> float:
    """Experts that the busiest GPU reads in a layer: the mean of 20,000 drawn steps, no expert favoured."""
    rng = np.random.default_rng(0)
    each = experts // gpus
    most = 0
    for _ in range(20_000 // 500):
        ids = rng.random((500, tokens, experts)).argsort(axis=-1)[..., :active]
        used = np.zeros((500, experts), bool)
        used[np.arange(500)[:, None], ids.reshape(500, -1)] = True
        most += int(used.reshape(500, gpus, each).sum(axis=-1).max(axis=-1).sum())
    return round(most / 20_000, 2)


if __name__ == "__main__":
    bill(1, 4, 16, 64, 256, 1024, 4096)
