"""Lab 10-06: which cards, split how, and how many copies. Your work: every NotImplementedError.

Sizes are in bytes, times in seconds, prices per hour. A *replica* is one copy of the model. A *split* says
how it is cut: `tp` ranks share each layer, and each of `pp` stages has some of the layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf, sqrt  # noqa: F401
from typing import NamedTuple

from mini_vllm.sim.collectives import all_gather_s, all_reduce_s  # noqa: F401
from mini_vllm.sim.hardware import Card, Link

# ---- given ---------------------------------------------------------------------------------------

UTILIZATION = 0.92
"""The part of a card's memory that vLLM takes: its default `gpu_memory_utilization`."""
NUMBER = 2
"""Bytes of a number in 16 bits: K and V, and whatever is sent."""


@dataclass(frozen=True)
class Model:
    """What the planner reads of a `config.json`; and `params`, how many weights of `bytes_per_param` it has.

    `experts` is 0 where the model is no mixture of experts.
    """

    params: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int
    max_model_len: int
    bytes_per_param: float = 2
    experts: int = 0


@dataclass(frozen=True)
class Site:
    """What can be rented.

    Attributes:
        card: with `memory_bytes`, `flops` and `bandwidth`.
        link, between: what joins the cards of one server, and cards of two.
        cards_per_server, servers: how many there are.
        price: of a card and hour.
        reserved: bytes of a card for activations, graphs and buffers.
    """

    card: Card
    link: Link
    between: Link
    cards_per_server: int
    servers: int
    price: float
    reserved: float = 4e9

    def most_copies(self, split: Split) -> int:
        """How many replicas its servers hold. A replica that is larger than a server takes whole ones."""
        each = self.cards_per_server // split.cards
        return self.servers * each or self.servers // ceil(split.cards / self.cards_per_server)


class Split(NamedTuple):
    """How one replica is cut. `ep`: expert parallelism, each rank with whole experts."""

    tp: int = 1
    pp: int = 1
    ep: bool = False

    @property
    def cards(self) -> int:
        return self.tp * self.pp


@dataclass(frozen=True)
class Demand:
    """Requests per second, their lengths, and what each may take on average."""

    rate: float
    prompt: int
    output: int
    ttft_s: float
    tpot_s: float


class Forecast(NamedTuple):
    """What a replica does: the mean times of a request, and how many requests it runs at once."""

    tpot_s: float
    ttft_s: float
    running: float


class Plan(NamedTuple):
    """The answer."""

    split: Split
    replicas: int
    price: float
    forecast: Forecast


def hand_over_s(model: Model, site: Site, split: Split, tokens: int) -> float:
    """Seconds that a step of so many tokens is on its way between stages."""
    link = site.link if split.cards <= site.cards_per_server else site.between
    share = tokens * model.hidden * NUMBER / split.tp
    gather = all_gather_s(site.link, split.tp, share) if split.tp > 1 else 0.0
    return (split.pp - 1) * 2 * (link.send_s(share) + gather)


def settle(step: Callable[[int, int, float], float], demand: Demand, rate: float) -> Forecast:
    """Where a replica settles at `rate` requests per second, on average. The README says how.

    Args:
        step: seconds of a step of so many tokens, for so many requests, which read so many tokens' K and V.
    """
    length = demand.prompt + demand.output / 2
    running = 1.0
    for _ in range(100):
        batch = max(1, round(running))
        decode = step(batch, batch, batch * length)
        prefill = step(demand.prompt + batch, batch + 1, demand.prompt + batch * length)
        left = 1 - rate * (prefill - decode)
        busy = rate * prefill
        if left <= 0 or busy >= 1 or running > 1e5:
            return Forecast(inf, inf, inf)
        tpot = decode / left
        running, before = (running + rate * demand.output * tpot) / 2, running
        if abs(running - before) < 1e-4 * running:
            break
    wait = busy / (2 * (1 - busy)) * prefill
    return Forecast(tpot, prefill + decode / 2 + wait, running)


# ---- before you write anything -------------------------------------------------------------------


def predictions() -> dict[str, float | list[int]]:
    """Your answers to the README's five questions, under the names given there."""
    raise NotImplementedError


# ---- what fits -----------------------------------------------------------------------------------


def kv_bytes_per_token(model: Model, split: Split) -> int:
    """K and V of one token on the rank that has the most of it.

    A rank of a stage has K and V (two arrays) of the stage's layers, for its share of the KV heads, which is
    one head at least, with `head_size` numbers of `NUMBER` bytes each. The layers are dealt out as evenly as
    they can be: the fullest stage has layers / pp of them, rounded up.
    """
    raise NotImplementedError


def kv_tokens(model: Model, site: Site, split: Split) -> int:
    """Tokens that the KV cache of one replica holds; 0 where the weights leave no room.

    All ranks have as many blocks as the fullest. It has its stage's share of the weights, by layers, of which
    each of `tp` ranks has an equal part; the embedding counts with the layers. A weight has
    `bytes_per_param`. The room is `UTILIZATION` of the card's `memory_bytes`, minus `site.reserved`, minus
    these weights. Round down to whole tokens; blocks do not matter.
    """
    raise NotImplementedError


def refuse(model: Model, site: Site, split: Split) -> str:
    """Why this split is impossible, in one word; "" if it is possible. The first of these that is broken:

    "heads": `tp` must divide the heads.
    "kv heads": `tp` must divide the KV heads, or be a multiple of them, so that each is there equally often.
    "layers": a stage has one layer at least.
    "experts": only a mixture of experts has expert parallelism.
    "server": a house rule: `tp` stays in one server, since each layer has two sums. A pipeline may leave it.
    "memory": the KV cache must hold one request of `max_model_len`, or vLLM does not start.
    """
    raise NotImplementedError


# ---- what is fast enough -------------------------------------------------------------------------


def step_seconds(
    model: Model, site: Site, split: Split, tokens: int, requests: int, kv: float
) -> float:
    """Seconds of one step, through all stages.

    Reading and computing overlap, so the longer of the two counts. The step passes every stage, so what it
    reads is divided by `tp` only, not by `pp`: the weights, and of each token of KV what a rank's heads have
    in all layers. The operations are 2 for each weight and token, shared by `tp` ranks.

    Add communication, which does not overlap: `hand_over_s`; and with tp > 1, on `site.link`,
    2 x layers + 1 sums, `all_reduce_s(site.card, site.link, tp, bytes)`, of an array of tokens x hidden
    numbers, and one gather, `all_gather_s(site.link, tp, bytes)`, to which a rank gives each request's logits
    for its part of the vocabulary. Numbers have `NUMBER` bytes.

    Args:
        tokens: computed in the step. requests: that are in it. kv: tokens whose K and V are read.
    """
    raise NotImplementedError


def forecast(model: Model, site: Site, split: Split, demand: Demand, replicas: int) -> Forecast:
    """Given: what each of so many replicas does with its part of the demand."""

    def step(tokens: int, requests: int, kv: float) -> float:
        return step_seconds(model, site, split, tokens, requests, kv)

    return settle(step, demand, demand.rate / replicas)


def holds(model: Model, site: Site, split: Split, demand: Demand, replicas: int) -> bool:
    """Whether so many replicas keep both limits, and have room for what they run.

    Room: for the requests that run on average and twice the square root of that, each with its whole prompt
    and output. Whether the split is possible is not asked here.
    """
    raise NotImplementedError


# ---- what is cheapest ----------------------------------------------------------------------------


def replicas_needed(model: Model, site: Site, split: Split, demand: Demand) -> int | None:
    """The least number of replicas that holds; None if no number does that the site has cards for.

    `site.most_copies` says how many that are. Whether the split is possible is not asked here either.
    """
    raise NotImplementedError


def cheapest(model: Model, site: Site, demand: Demand) -> Plan | None:
    """The cheapest plan that holds; of equal prices, the one with the least TPOT. None if there is none.

    Splits: `tp` up to a server's cards, `pp` as long as the site has tp x pp cards, without `ep`, and none
    that `refuse` refuses. The price is that of all cards, per hour.
    """
    raise NotImplementedError
