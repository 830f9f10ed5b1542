"""Noor's tenants on one Llama: sizes and times on paper, the rest from the engine. Set-up for the pages.

Her model's sizes and her card's speed are the simulator's, from a config and a data sheet
(`mini_vllm/sim/hardware.json`). Texts, schedules and cached tokens are the engine's, with the three adapters
that are shipped.

The pages import this module by its name: start Python in this folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mini_vllm import LLM, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.engine.step_record import StepRecord
from mini_vllm.lora.layers import get_lora_modules
from mini_vllm.lora.lora_model import LoRAModel
from mini_vllm.lora.request import LoRARequest
from mini_vllm.model_loader import load_model, load_weights
from mini_vllm.sim import make_ranked_cost, models

Array = npt.NDArray[np.float32]
LLAMA_3_8B, H100, BYTES = "llama-3-8b", "h100", 2
TENANTS = {"ada": "snake", "bo": "telegram", "cy": "questions"}
"""Each tenant's adapter, of those that are shipped."""
GREEDY = SamplingParams(temperature=0, max_tokens=64)


def adapter_gb(rank: int) -> float:
    """An adapter's file for Noor's model, if it was trained for q, k, v and o."""
    model = models()[LLAMA_3_8B]
    hidden = model.hidden_size
    key_size = model.num_key_value_heads * model.head_dim
    pairs = 2 * (hidden + hidden) + 2 * (hidden + key_size)  # q, o; k, v
    return BYTES * model.num_hidden_layers * rank * pairs / 1e9


@dataclass(frozen=True)
class ReadTime:
    """Milliseconds in which a card reads what a step needs of its weights."""

    merged: float
    adapters: float


def read_weights(tenants: int, rank: int = 16) -> ReadTime:
    """A decode step with a request of each tenant: a model for each, or an adapter."""
    cost = make_ranked_cost(LLAMA_3_8B, H100, None)
    base = BYTES * cost.stages[0].params
    ms = 1000 / cost.card.bandwidth
    return ReadTime(
        round(tenants * base * ms, 1), round((base + tenants * adapter_gb(rank) * 1e9) * ms, 1)
    )


def adapter_path(name: str) -> str:
    return str(DEFAULT_MODEL.parent / "tiny-llama-lora" / name)


def ask_for(tenant: str) -> LoRARequest | None:
    """A tenant's adapter; nothing for `base`."""
    if tenant == "base":
        return None
    return LoRARequest(tenant, 1 + list(TENANTS).index(tenant), adapter_path(TENANTS[tenant]))


@cache
def base_weight(name: str = "model.layers.0.self_attn.q_proj") -> Array:
    """`[out, in]`, of the shipped Llama."""
    weight: Array = load_weights(DEFAULT_MODEL)[f"{name}.weight"]
    return weight


def factors(
    adapter: str = "snake", name: str = "model.layers.0.self_attn.q_proj"
) -> tuple[Array, Array]:
    """`A` `[r, in]` and `B` `[out, r]`, which is scaled already."""
    modules = get_lora_modules(load_model(DEFAULT_MODEL))
    folder = Path(adapter_path(adapter))
    pair = LoRAModel.from_local_checkpoint(folder, modules, max_lora_rank=16).loras[name]
    return pair.lora_a, pair.lora_b


def some_rows(count: int = 5) -> Array:
    """Rows that come into a layer."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((count, base_weight().shape[1])).astype(np.float32)


def ask_all(prompt: str) -> dict[str, str]:
    """The base's answer and each tenant's, from one batch."""
    llm = LLM(enable_lora=True, max_loras=3)
    names = ["base", *TENANTS]
    outputs = llm.generate(
        [prompt] * 4, GREEDY, use_tqdm=False, lora_request=[ask_for(n) for n in names]
    )
    return {n: prompt + output.outputs[0].text for n, output in zip(names, outputs, strict=True)}


def run_steps(requests: list[tuple[str, int]], max_loras: int) -> list[list[int]]:
    """Which requests are in each step, by their number in `requests`.

    Args:
        requests: tenant and number of tokens, in the order in which they come, all before the first step.
    """
    engine = LLM(enable_lora=True, max_loras=max_loras).llm_engine
    steps: list[list[int]] = []

    def note(record: StepRecord) -> None:
        steps.append([int(req_id) for req_id in record.scheduler_output.num_scheduled_tokens])

    engine.engine_core.step_observers.append(note)
    for number, (tenant, max_tokens) in enumerate(requests):
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        engine.add_request(str(number), "A cached block", params, lora_request=ask_for(tenant))
    while engine.has_unfinished_requests():
        engine.step()
    return steps


def list_steps(requests: list[tuple[str, int]], max_loras: int) -> list[list[str]]:
    """The same, by tenant."""
    return [[requests[number][0] for number in step] for step in run_steps(requests, max_loras)]


def count_cached(askers: list[str], prompt: str) -> list[tuple[str, int]]:
    """One after the other ask with the same prompt: prompt tokens that each finds in the cache."""
    llm = LLM(enable_lora=True, max_loras=3)
    found = []
    for asker in askers:
        output = llm.generate(prompt, GREEDY, use_tqdm=False, lora_request=ask_for(asker))[0]
        found.append((asker, output.num_cached_tokens or 0))
    return found
