"""How many experts of a layer a batch uses in the shipped Mixtral, counted: its routers are real ones.

    python phase-07-gemm-and-moe/touched.py

64 requests have 96 tokens each. A decode step of B requests is B tokens at the same place of B requests. The
tokens are given and not sampled, and each request goes through the model once: what is counted is routing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from unittest.mock import patch

import numpy as np
from bill import touched
from numpy.typing import NDArray

import mini_vllm.layers.fused_moe.layer as module
from mini_vllm.compress.evaluate import HELD_OUT, hidden_states, load_documents
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.layers.fused_moe.router import fused_topk
from mini_vllm.model_loader import load_model
from mini_vllm.tokenizer import Tokenizer
from mini_vllm.utils.threads import shared_products

TINY_MIXTRAL = DEFAULT_MODEL.parent / "tiny-mixtral"
ROWS, TOKENS, BEHIND = 64, 96, 32


def chats() -> Iterator[int]:
    """Documents that the model was not trained on, one after the other."""
    for ids in load_documents(HELD_OUT, TINY_MIXTRAL):
        yield from ids


def sums() -> Iterator[int]:
    """Additions, one a line."""
    tokenizer, rng = Tokenizer.from_folder(TINY_MIXTRAL), random.Random(7)
    while True:
        a, b = rng.randrange(1000), rng.randrange(1000)
        yield from tokenizer.encode(f"{a} + {b} = {a + b}\n")[1:]


@cache
def chosen(kind: str) -> NDArray[np.integer]:
    """The experts of every token: `[layers, requests, tokens, 2]`, the first tokens of a request left out."""
    stream = {"chats": chats, "sums": sums}[kind]()
    requests = [[next(stream) for _ in range(TOKENS)] for _ in range(ROWS)]
    model = load_model(str(TINY_MIXTRAL))
    calls: list[NDArray[np.integer]] = []

    def noted(*arguments: object) -> object:
        weights, ids = fused_topk(*arguments)
        calls.append(ids)
        return weights, ids

    with patch.object(module, "fused_topk", noted), shared_products():
        for request in requests:
            list(hidden_states(model, [request]))
    return np.stack(calls).reshape(ROWS, -1, TOKENS, 2).swapaxes(0, 1)[:, :, BEHIND:]


def counted(kind: str, tokens: int, layer: int | None = None) -> float:
    """Experts that a decode step of so many requests uses, the mean over steps (and over layers)."""
    ids = chosen(kind) if layer is None else chosen(kind)[layer : layer + 1]
    layers, _, steps, _ = ids.shape
    batches = ids.reshape(layers, ROWS // tokens, tokens, steps, 2)
    used = (batches[..., None] == np.arange(8)).any(axis=(2, 4))
    return float(used.sum(axis=-1).mean())


def favourite(kind: str, layer: int) -> float:
    """The share of a layer's choices that its most popular expert gets; without favourites an eighth."""
    counts = np.bincount(chosen(kind)[layer].ravel(), minlength=8)
    return round(float(counts.max() / counts.sum()), 2)


def compare_touched(*batches: int) -> None:
    print("tokens   no favourites   chats   sums   sums, last layer")
    for tokens in batches:
        print(
            f"{tokens:6}   {touched(tokens):13.2f}   {counted('chats', tokens):5.2f}"
            f"   {counted('sums', tokens):4.2f}   {counted('sums', tokens, layer=3):16.2f}"
        )


if __name__ == "__main__":
    compare_touched(1, 4, 16, 64)
    for kind in ("chats", "sums"):
        print(kind, [favourite(kind, layer) for layer in range(4)])
