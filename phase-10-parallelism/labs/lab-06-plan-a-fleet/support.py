"""What the lab's tests and show.py share: models, sites, demands, and the simulator that judges a plan.

The simulator runs the engine's scheduler and KV cache; a step takes what `mini_vllm.sim.ranks` derives from
data sheets. Times are virtual, so they are the same on every machine. `recorded.json` has what it found for
the plans that the tests need; `show.py record` writes it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from mini_vllm.config.engine import EngineConfig
from mini_vllm.config.model import LlamaConfig
from mini_vllm.sim import (
    Fleet,
    Lengths,
    ServingMetrics,
    Simulator,
    StepWork,
    arrival_times,
    make_router,
    mini_parts,
    random_requests,
)
from mini_vllm.sim.hardware import cards, links, models
from mini_vllm.sim.ranks import RankedCost, make_ranked_cost, rank_params

RECORDED = Path(__file__).resolve().parent / "recorded.json"
RESERVED = 4e9
"""Bytes of a card for activations, graphs and buffers: assumed. vLLM measures them when it starts."""
OTHERS: dict[str, dict[str, int]] = {
    "llama-3.1-405b": {
        "vocab_size": 128_256, "hidden_size": 16_384, "intermediate_size": 53_248, "num_hidden_layers": 126,
        "num_attention_heads": 128, "num_key_value_heads": 8, "max_position_embeddings": 16_384,
    },
    "qwen2.5-32b": {
        "vocab_size": 152_064, "hidden_size": 5_120, "intermediate_size": 27_648, "num_hidden_layers": 64,
        "num_attention_heads": 40, "num_key_value_heads": 8, "max_position_embeddings": 32_768,
    },
}  # fmt: skip
"""Further models' `config.json`, as far as it matters here. (Qwen's has biases, which weigh nothing.)"""
SITES: dict[str, dict[str, Any]] = {
    "H100 servers": {
        "card": "h100", "link": "nvlink4", "between": "ndr400",
        "cards_per_server": 8, "servers": 4, "price": 3.0,
    },
    "three A100": {
        "card": "a100", "link": "nvlink3", "between": "ndr400",
        "cards_per_server": 3, "servers": 1, "price": 2.0,
    },
    "L4 over PCIe": {
        "card": "l4", "link": "pcie4", "between": "100gbe",
        "cards_per_server": 8, "servers": 2, "price": 0.75,
    },
}  # fmt: skip
"""Prices per card and hour are made up: an input, like all the rest."""


def config_of(name: str) -> LlamaConfig:
    """A model's settings."""
    if name in OTHERS:
        return LlamaConfig.from_dict({"architectures": ["LlamaForCausalLM"], **OTHERS[name]})
    return models()[name]


def model_of(lab: ModuleType, name: str, **changes: Any) -> Any:
    """The learner's `Model`, from a model's settings."""
    config = config_of(name)
    fields = {
        "params": rank_params(config, 1, 1, 0), "layers": config.num_hidden_layers,
        "hidden": config.hidden_size, "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads, "head_size": config.head_dim, "vocab": config.vocab_size,
        "max_model_len": config.max_model_len,
    }  # fmt: skip
    return lab.Model(**(fields | changes))


def site_of(lab: ModuleType, name: str, **changes: Any) -> Any:
    """The learner's `Site`."""
    fields = SITES[name] | {"reserved": RESERVED} | changes
    fields["card"] = cards()[fields["card"]]
    for link in ("link", "between"):
        fields[link] = links()[fields[link]]
    return lab.Site(**fields)


class Scene(NamedTuple):
    """Somebody's question."""

    model: str
    site: str
    rate: float
    prompt: int
    output: int
    ttft_ms: float
    tpot_ms: float


SCENES = {
    "Noor's 70B": Scene("llama-3-70b", "H100 servers", 16, 1000, 250, 500, 25),
    "Noor's 70B, Monday": Scene("llama-3-70b", "H100 servers", 32, 1000, 250, 500, 25),
    "8B, many users": Scene("llama-3-8b", "H100 servers", 200, 500, 60, 300, 20),
    "8B, in a hurry": Scene("llama-3-8b", "H100 servers", 20, 500, 150, 300, 4.0),
    "8B on L4": Scene("llama-3-8b", "L4 over PCIe", 12, 500, 100, 1500, 90),
    "70B on three cards": Scene("llama-3-70b", "three A100", 0.15, 6000, 500, 8000, 150),
    "405B": Scene("llama-3.1-405b", "H100 servers", 1, 1000, 200, 2000, 60),
}


def demand_of(lab: ModuleType, scene: Scene) -> Any:
    """The learner's `Demand`."""
    limits = scene.ttft_ms / 1e3, scene.tpot_ms / 1e3
    return lab.Demand(scene.rate, scene.prompt, scene.output, *limits)


def asked(lab: ModuleType, name: str) -> tuple[Any, Any, Any]:
    """A scene's model, site and demand."""
    scene = SCENES[name]
    return model_of(lab, scene.model), site_of(lab, scene.site), demand_of(lab, scene)


@cache
def priced(model: str, site: str, tp: int, pp: int) -> RankedCost:
    """What the simulator takes a step to cost."""
    where, card = SITES[site], cards()[SITES[site]["card"]]
    crosses = tp * pp > where["cards_per_server"]
    return make_ranked_cost(
        config_of(model), card, where["link"], tp, pp,
        pipeline_link=where["between" if crosses else "link"],
        gpu_memory_utilization=0.92 - RESERVED / card.memory_bytes,
    )  # fmt: skip


class Measured(NamedTuple):
    """What came of a simulated plan: means and 99th percentiles, in milliseconds."""

    ttft_ms: float
    tpot_ms: float
    p99_ttft_ms: float
    p99_tpot_ms: float

    def keeps(self, scene: Scene) -> bool:
        """Whether the means are within the limits."""
        return self.ttft_ms <= scene.ttft_ms and self.tpot_ms <= scene.tpot_ms


def simulate(name: str, tp: int, pp: int, replicas: int) -> Measured:
    """What the simulator says of a plan for a scene: the recorded figures, if there are any."""
    found = recorded().get(f"{name}: {tp} x {pp} x {replicas}")
    return Measured(*found) if found else run(name, tp, pp, replicas)


@cache
def recorded() -> dict[str, list[float]]:
    """Figures of plans, by "scene: tp x pp x replicas"."""
    found: dict[str, list[float]] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


def run(name: str, tp: int, pp: int, replicas: int) -> Measured:
    """Serve the requests of a scene, which arrive at random (Poisson), each with the least loaded replica.

    As many as arrive in the time that eight requests take one after the other, at most 1,200.
    """
    scene = SCENES[name]
    cost = priced(scene.model, scene.site, tp, pp)
    stay = (scene.ttft_ms + scene.output * scene.tpot_ms) / 1e3
    count = min(1200, max(150, int(8 * scene.rate * stay)))
    config = EngineConfig(
        num_gpu_blocks=cost.num_kv_tokens // 16 + 1, max_model_len=cost.max_model_len, max_num_seqs=512,
        enable_prefix_caching=False, pipeline_parallel_size=pp,
    )  # fmt: skip
    metrics = ServingMetrics()

    def engine(index: int, metrics: ServingMetrics) -> Simulator:
        return Simulator(mini_parts(config), cost, metrics, None, index)

    fleet = Fleet(engine, replicas, make_router("least-loaded", replicas, 16), metrics)
    lengths = Lengths.parse(str(scene.prompt)), Lengths.parse(str(scene.output))
    fleet.run(random_requests(arrival_times(count, scene.rate, 1.0, 10), *lengths, 0, 1, 10))
    found = fleet.result()
    names = ("mean_ttft_ms", "mean_tpot_ms", "p99_ttft_ms", "p99_tpot_ms")
    return Measured(*[round(found[key], 2) for key in names])


def cheaper(name: str, cards_rented: int) -> list[tuple[int, int, int]]:
    """Of each split that the simulator accepts, the most replicas on fewer cards: (tp, pp, replicas)."""
    scene, found = SCENES[name], []
    for tp in (1, 2, 4, 8):
        for pp in (1, 2, 3, 4):
            replicas = (cards_rented - 1) // (tp * pp)
            if replicas and tp <= SITES[scene.site]["cards_per_server"] and fits(scene, tp, pp):
                found.append((tp, pp, replicas))
    return found


def fits(scene: Scene, tp: int, pp: int) -> bool:
    """Whether a replica starts, and holds one request of the greatest length."""
    try:
        cost = priced(scene.model, scene.site, tp, pp)
    except ValueError:
        return False
    return cost.num_kv_tokens >= cost.max_model_len


def step_of(cost: RankedCost, tokens: int, requests: int, kv: int) -> float:
    """Seconds that the simulator takes for a step."""
    return cost.device(StepWork(1, int(tokens > requests), requests, 0, tokens, kv, 0))
