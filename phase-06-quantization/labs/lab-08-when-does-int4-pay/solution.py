"""Lab 06-08: for how many tokens in a step a quantised model is faster. One way to do it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Card:
    """Given: a GPU's peak rates, dense, in operations and bytes a second, and its memory in bytes.

    Attributes:
        flops: of products of 16-bit numbers.
        int8, fp8: of products of 8-bit numbers; None where the card, or vLLM on it, has none.
    """

    name: str
    flops: float
    bandwidth: float
    int8: float | None
    fp8: float | None
    memory: float


@dataclass(frozen=True)
class Model:
    """Given: a Llama by its `config.json`."""

    name: str
    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int
    tied: bool = False


@dataclass(frozen=True)
class Scheme:
    """Given: how the linears of the layers are stored and multiplied. Embedding and head stay in 16 bits.

    Attributes:
        bits: that a weight takes in memory, its share of scales and zero points included.
        product: the numbers that are multiplied: "16", "int8" or "fp8".
        dequant: what turning weights into 16-bit numbers adds to the time of the product, as a share of
            it: 0.25 makes the product take 1.25 times as long.
        unpacks_first: a kernel of its own writes all weights to memory in 16 bits, in every step, and an
            ordinary product reads them there.
    """

    name: str
    bits: float
    product: str = "16"
    dequant: float = 0.0
    unpacks_first: bool = False


class Request(NamedTuple):
    """Given: one request's part of a step. A decode has one new token, a prompt's chunk has many.

    Attributes:
        new: tokens computed in this step.
        cached: tokens whose K and V are in the cache already.
        sampled: whether a token is chosen, which needs a row of the head; False for a chunk of a prompt
            that is not its last.
    """

    new: int
    cached: int = 0
    sampled: bool = True


L4 = Card("L4", 121e12, 300e9, int8=242e12, fp8=242e12, memory=24e9)
LLAMA_8B = Model("llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, 128_256)
FP16 = Scheme("fp16", 16)
W4A16 = Scheme("w4a16", 4.125)
W8A8 = Scheme("w8a8", 8, "int8")
FP8 = Scheme("fp8", 8, "fp8")


def predictions() -> dict[str, float]:
    """Four guesses."""
    return {
        "times faster, alone": 3.2,
        "times faster, sixty-four decode": 1.8,
        "times faster, the same with a chunk": 1.0,
        "tokens from which the linears gain nothing": 404,
    }


# ---- bytes, given --------------------------------------------------------------------------------


def bits_per_weight(bits: int, group_size: int, scale_bits: int = 16, zero_bits: int = 0) -> float:
    """Bits that a weight takes in memory, its share of the scale and the zero point of its group included.

    Args:
        bits: of the weight itself.
        group_size: weights that share one scale, and one zero point where there are some.
        scale_bits, zero_bits: of one scale and of one zero point; 0 for none.
    """
    return bits + (scale_bits + zero_bits) / group_size


def linear_weights(model: Model) -> int:
    """How many weights the linears of all layers have: the matrices for q, k, v and o, gate, up and down.

    Neither the embedding nor the head is among them, nor are the norms.
    """
    q, kv = model.heads * model.head_size, model.kv_heads * model.head_size
    return model.layers * model.hidden * (2 * q + 2 * kv + 3 * model.mlp)


def resident_bytes(model: Model, scheme: Scheme) -> float:
    """Bytes of the whole model in memory.

    The linears are stored as the scheme says. In 16 bits stay the embedding, the head (the same table
    where `tied`) and the norms: two vectors of `hidden` a layer, and one behind the last layer.
    """
    tables = (1 if model.tied else 2) * model.vocab * model.hidden
    norms = (2 * model.layers + 1) * model.hidden
    return linear_weights(model) * scheme.bits / 8 + 2 * (tables + norms)


def people_at_once(
    card: Card, model: Model, scheme: Scheme, context: int, kv_bytes: float = 2
) -> int:
    """How many requests have room for their K and V at the same time; 0 where the model does not even fit.

    vLLM takes 0.92 of the card's memory by default, and the cache gets what the model leaves of it.
    (Activations and graphs take something too, which is left out here.)

    Args:
        context: tokens each of them has in the cache, at least 1.
        kv_bytes: of one number in the cache.
    """
    room = 0.92 * card.memory - resident_bytes(model, scheme)
    return max(0, int(room // (context * kv_bytes_per_token(model, kv_bytes))))


def kv_bytes_per_token(model: Model, kv_bytes: float = 2) -> float:
    """Bytes that one token takes up in the KV cache, over all layers (lab 00-04)."""
    return 2 * model.layers * model.kv_heads * model.head_size * kv_bytes


# ---- seconds of one part -------------------------------------------------------------------------


def product_rate(card: Card, scheme: Scheme) -> float:
    """Given: operations a second at which the linears are multiplied.

    A card without tensor cores for fp8 multiplies in 16 bits: there fp8 is a way to store weights, no more.
    int8 has no such fallback.

    Raises:
        ValueError: int8 on a card that has none; the message names the scheme and the card.
    """
    if scheme.product == "int8":
        if card.int8 is None:
            raise ValueError(f"{scheme.name}: {card.name} has no int8 product")
        return card.int8
    if scheme.product == "fp8" and card.fp8 is not None:
        return card.fp8
    return card.flops


def linears_seconds(card: Card, scheme: Scheme, weights: int, tokens: int) -> tuple[float, float]:
    """Reading and computing; unpacking comes before either."""
    read = weights * scheme.bits / 8 / card.bandwidth
    compute = 2 * weights * tokens / product_rate(card, scheme) * (1 + scheme.dequant)
    if scheme.unpacks_first:
        sixteen = 2 * weights / card.bandwidth
        return read + sixteen + sixteen, read + sixteen + compute
    return read, compute


def head_seconds(card: Card, model: Model, rows: int) -> tuple[float, float]:
    """Given: seconds of the head, `hidden` by `vocab` in 16 bits, of `rows` tokens: by reading, by computing.

    If no row needs a token, the head does not run at all.
    """
    if rows == 0:
        return 0.0, 0.0
    size = model.vocab * model.hidden
    return 2 * size / card.bandwidth, 2 * size * rows / card.flops


def attention_seconds(
    card: Card, model: Model, step: Sequence[Request], kv_bytes: float = 2
) -> tuple[float, float]:
    """Given: seconds of attention over all layers and requests of a step: by reading, by computing.

    Each request reads the K and V of its own tokens once, those that are new included. A new token
    attends to every cached one, to the new ones before it and to itself, and for each of these it costs
    4 operations for every number of a head, in all query heads and layers, in 16 bits.
    """
    tokens = sum(request.cached + request.new for request in step)
    pairs = sum(one.new * one.cached + one.new * (one.new + 1) // 2 for one in step)
    read = tokens * kv_bytes_per_token(model, kv_bytes) / card.bandwidth
    return read, 4 * model.layers * model.heads * model.head_size * pairs / card.flops


# ---- a step --------------------------------------------------------------------------------------


def parts(
    card: Card, model: Model, scheme: Scheme, step: Sequence[Request], kv_bytes: float = 2
) -> dict[str, tuple[float, float]]:
    """Given, on your functions: what each part of a step would take to read and to compute."""
    tokens = sum(request.new for request in step)
    rows = sum(request.sampled for request in step)
    return {
        "linears": linears_seconds(card, scheme, linear_weights(model), tokens),
        "head": head_seconds(card, model, rows),
        "attention": attention_seconds(card, model, step, kv_bytes),
    }


def step_seconds(
    card: Card, model: Model, scheme: Scheme, step: Sequence[Request], kv_bytes: float = 2
) -> float:
    """Parts come one after the other, and each is as slow as the slower of its two halves."""
    return sum(max(both) for both in parts(card, model, scheme, step, kv_bytes).values())


def regime(
    card: Card, model: Model, scheme: Scheme, step: Sequence[Request], kv_bytes: float = 2
) -> tuple[str, str]:
    """The longest part, and what it waits for."""
    found = parts(card, model, scheme, step, kv_bytes)
    longest = max(found, key=lambda name: max(found[name]))
    read, compute = found[longest]
    return longest, "memory" if compute < read else "compute"


def mixed_step(people: int, context: int, prompt: int, budget: int) -> list[Request]:
    """Given: a step in which people decode and one prompt is computed as far as there is room (phase 03).

    Decoding requests come first, a token each; the prompt gets the rest of the budget. A chunk that is not
    the prompt's end asks for no token. A step never has more tokens than the budget, and no request is in
    it without a token.

    Args:
        people: who decode, each with `context` tokens in the cache; 0 for none.
        prompt: tokens of the one that comes, none of them computed yet.
        budget: tokens of a step, `max_num_batched_tokens`.
    """
    decodes = [Request(1, context)] * min(people, budget)
    chunk = min(prompt, budget - len(decodes))
    return [*decodes, Request(chunk, 0, sampled=chunk == prompt)] if chunk else decodes


# ---- when it pays --------------------------------------------------------------------------------


def full_gain_until(card: Card, scheme: Scheme) -> int:
    """Where computing takes as long as reading: 2 (1 + d) n / rate = bits / 8 / bandwidth."""
    ridge = product_rate(card, scheme) / card.bandwidth
    return math.floor(ridge * scheme.bits / 16 / (1 + scheme.dequant))


def break_even(card: Card, scheme: Scheme, other: Scheme = FP16, most: int = 8192) -> int | None:
    """The first number of tokens for which it is no faster; the number of weights cancels."""
    for tokens in range(1, most + 1):
        mine = max(linears_seconds(card, scheme, 1, tokens))
        if mine >= max(linears_seconds(card, other, 1, tokens)):
            return tokens
    return None


def explanations() -> dict[str, str]:
    """What explains each report of the README."""
    return {
        "A": "compute",
        "B": "kernel",
        "C": "memory",
        "D": "compute",
        "E": "kernel",
    }
