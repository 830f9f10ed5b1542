"""Lab 10-06: which cards, split how, and how many copies. One solution.

Sizes are in bytes, times in seconds, prices per hour. A *replica* is one copy of the model. A *split* says
how it is cut: `tp` ranks share each layer, and each of `pp` stages has some of the layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf, sqrt
from typing import NamedTuple

from mini_vllm.sim.collectives import all_gather_s, all_reduce_s
from mini_vllm.sim.hardware import Card, Link

# ---- given ---------------------------------------------------------------------------------------

UTILIZATION = 0.92
"""The part of a card's memory that vLLM takes: its default `gpu_memory_utilization`."""
NUMBER = 2
"""Bytes of a number in 16 bits: K and V, and whatever is sent."""


@dataclass(frozen=True)
class Model:
    """What the planner reads of a `config.json`, and the number of weights."""

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
    """What can be rented."""

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
    return {
        "three cards": [1, 3],
        "a second copy": 216_640,
        "from four to eight": 15.6,
        "thirty requests": 8,
        "eight stages": 1,
    }


# ---- what fits -----------------------------------------------------------------------------------


def kv_bytes_per_token(model: Model, split: Split) -> int:
    """K and V of one token on the rank that has the most of it."""
    layers = ceil(model.layers / split.pp)
    return 2 * layers * max(1, model.kv_heads // split.tp) * model.head_size * NUMBER


def kv_tokens(model: Model, site: Site, split: Split) -> int:
    """Tokens that the KV cache of one replica holds; 0 where the weights leave no room."""
    share = ceil(model.layers / split.pp) / model.layers / split.tp
    weights = model.params * model.bytes_per_param * share
    room = UTILIZATION * site.card.memory_bytes - site.reserved - weights
    return max(0, int(room / kv_bytes_per_token(model, split)))


def refuse(model: Model, site: Site, split: Split) -> str:
    """Why this split is impossible, in one word; "" if it is possible."""
    if model.heads % split.tp:
        return "heads"
    if max(model.kv_heads, split.tp) % min(model.kv_heads, split.tp):
        return "kv heads"
    if split.pp > model.layers:
        return "layers"
    if split.ep and not model.experts:
        return "experts"
    if split.tp > site.cards_per_server:
        return "server"
    if kv_tokens(model, site, split) < model.max_model_len:
        return "memory"
    return ""


# ---- what is fast enough -------------------------------------------------------------------------


def step_seconds(
    model: Model, site: Site, split: Split, tokens: int, requests: int, kv: float
) -> float:
    """Seconds of one step, through all stages."""
    weights = model.params * model.bytes_per_param / split.tp
    of_token = 2 * model.layers * max(1, model.kv_heads // split.tp) * model.head_size * NUMBER
    read = (weights + kv * of_token) / site.card.bandwidth
    computed = 2 * model.params * tokens / split.tp / site.card.flops
    seconds = max(read, computed) + hand_over_s(model, site, split, tokens)
    if split.tp > 1:
        size = tokens * model.hidden * NUMBER
        sums = 2 * model.layers + 1
        seconds += sums * all_reduce_s(site.card, site.link, split.tp, size)
        logits = requests * model.vocab / split.tp * NUMBER
        seconds += all_gather_s(site.link, split.tp, logits)
    return seconds


def forecast(model: Model, site: Site, split: Split, demand: Demand, replicas: int) -> Forecast:
    """Given: what each of so many replicas does with its part of the demand."""

    def step(tokens: int, requests: int, kv: float) -> float:
        return step_seconds(model, site, split, tokens, requests, kv)

    return settle(step, demand, demand.rate / replicas)


def holds(model: Model, site: Site, split: Split, demand: Demand, replicas: int) -> bool:
    """Whether so many replicas keep both limits, and have room for what they run."""
    tpot_s, ttft_s, running = forecast(model, site, split, demand, replicas)
    fast = tpot_s <= demand.tpot_s and ttft_s <= demand.ttft_s
    peak = running + 2 * sqrt(running)
    return fast and peak * (demand.prompt + demand.output) <= kv_tokens(model, site, split)


# ---- what is cheapest ----------------------------------------------------------------------------


def replicas_needed(model: Model, site: Site, split: Split, demand: Demand) -> int | None:
    """The least number of replicas that holds; None if no number does that the site has cards for."""
    for replicas in range(1, site.most_copies(split) + 1):
        if holds(model, site, split, demand, replicas):
            return replicas
    return None


def cheapest(model: Model, site: Site, demand: Demand) -> Plan | None:
    """The cheapest plan that holds; of equal prices, the one with the least TPOT. None if there is none."""
    plans = []
    most = site.cards_per_server * site.servers
    for tp in range(1, site.cards_per_server + 1):
        for pp in range(1, most // tp + 1):
            split = Split(tp, pp)
            if refuse(model, site, split):
                continue
            replicas = replicas_needed(model, site, split, demand)
            if replicas is not None:
                seen = forecast(model, site, split, demand, replicas)
                price = replicas * split.cards * site.price
                plans.append(Plan(split, replicas, price, seen))
    return min(plans, key=lambda plan: (plan.price, plan.forecast.tpot_s), default=None)
