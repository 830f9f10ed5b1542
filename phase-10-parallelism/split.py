"""Noor's model on several cards, and the shipped Llama on several ranks. Set-up for the pages.

Noor's numbers are the simulator's, worked out from data sheets (`mini_vllm/sim/hardware.json`). Tokens,
ledgers and schedules are the engine's, whose ranks are processes of their own.

The pages import this module by its name: start Python in this folder.

    python phase-10-parallelism/split.py            the eight cards, used in three ways
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mini_vllm import LLM, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.distributed.parallel_state import get_place, get_pp_indices
from mini_vllm.model_loader import load_config, load_weights
from mini_vllm.sim import make_ranked_cost, models
from mini_vllm.sim.cost import StepWork
from mini_vllm.sim.ranks import BYTES

Array = npt.NDArray[np.float32]
LLAMA_3_70B, H100 = "llama-3-70b", "h100"


@dataclass(frozen=True)
class Share:
    """What one card of `tp` x `pp` holds and reads, by the simulator's model of costs.

    Attributes:
        weights_gb: its part of the weights.
        weights_ms: reading them once.
        kv_tokens: room for K and V beside them, in tokens of the whole model, on paper: activations and
            CUDA graphs come off.
    """

    weights_gb: float
    weights_ms: float
    kv_tokens: int


def share(tp: int, pp: int = 1) -> Share:
    """A card's part of Noor's model; the first stage's.

    Raises ValueError where the model does not fit.
    """
    cost = make_ranked_cost(LLAMA_3_70B, H100, None, tp, pp)
    weights = BYTES * cost.stages[0].params
    return Share(
        round(weights / 1e9, 1),
        round(weights / cost.card.bandwidth * 1000, 1),
        cost.num_kv_tokens,
    )


def refusal(tp: int) -> str:
    """Why Noor's model does not go on so many cards, in lines of a page's width."""
    try:
        make_ranked_cost(LLAMA_3_70B, H100, None, tp)
    except ValueError as error:
        return textwrap.fill(str(error), 90)
    raise AssertionError(f"it fits on {tp}")


@dataclass(frozen=True)
class StepTime:
    """Milliseconds of a step, and of them, those in which the ranks speak."""

    ms: float
    speaking: float


def decode(users: int, tp: int, pp: int = 1, link: str = "nvlink", length: int = 4096) -> StepTime:
    """A step that gives each of the users one token of a text of this length."""
    return _time(StepWork(1, 0, users, 0, users, users * length, users * length), tp, pp, link)


def prefill(tokens: int, tp: int, pp: int = 1, link: str = "nvlink") -> StepTime:
    """A step that computes the beginning of one prompt."""
    return _time(_chunk(tokens), tp, pp, link)


def _chunk(tokens: int) -> StepWork:
    return StepWork(1, 1, 1, 1, tokens, tokens, tokens * (tokens + 1) // 2)


def _time(work: StepWork, tp: int, pp: int, link: str) -> StepTime:
    cost = make_ranked_cost(LLAMA_3_70B, H100, link, tp, pp)
    return StepTime(round(cost.device(work) * 1000, 1), round(cost.communication(work) * 1000, 1))


@dataclass(frozen=True)
class Choice:
    """Eight cards in one way.

    Attributes:
        token_ms: of a lone user.
        busy_ms: between two tokens, with all users.
        prompt_tokens_s: a second, in chunks of 2,048 that follow each other through the stages.
        kv_tokens: room, all copies together.
    """

    token_ms: float
    busy_ms: float
    prompt_tokens_s: int
    kv_tokens: int


def choose(tp: int, pp: int = 1, copies: int = 1, users: int = 64) -> Choice:
    """Eight cards, the users shared out evenly. In a pipeline they travel as one batch."""
    cost = make_ranked_cost(LLAMA_3_70B, H100, None, tp, pp)
    slowest = max(stage.busy for stage in cost.stage_times(_chunk(2048)))
    return Choice(
        decode(1, tp, pp).ms,
        decode(users // copies, tp, pp).ms,
        round(copies * 2048 / slowest),
        cost.num_kv_tokens * copies,
    )


def holds(rank: int, tp: int, pp: int) -> dict[str, object]:
    """What a rank has of Noor's model: layers and heads, first to last."""
    model = models()[LLAMA_3_70B]
    stage, place = get_place(rank, tp)
    layers = get_pp_indices(model.num_hidden_layers, stage, pp)

    def cut(size: int) -> str:
        return f"{place * size // tp} to {(place + 1) * size // tp - 1}"

    return {
        "stage": stage,
        "layers": f"{layers[0]} to {layers[-1]}",
        "query heads": cut(model.num_attention_heads),
        "KV heads": cut(model.num_key_value_heads),
    }


@cache
def _weights() -> dict[str, Array]:
    prefix = "model.layers.0.mlp."
    weights = load_weights(DEFAULT_MODEL)
    return {name: weights[f"{prefix}{name}_proj.weight"] for name in ("gate", "up", "down")}


def hidden_states(tokens: int = 5) -> Array:
    """Some rows for the first layer's MLP."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((tokens, load_config(DEFAULT_MODEL).hidden_size)).astype(np.float32)


def mlp(x: Array, rank: int = 0, size: int = 1) -> Array:
    """The shipped Llama's first MLP, or the part of it that one of `size` ranks computes."""
    w = _weights()
    gate, up = (np.split(w[name], size)[rank] for name in ("gate", "up"))
    down = np.split(w["down"], size, axis=1)[rank]
    g = x @ gate.T
    parts: Array = (g / (1 + np.exp(-g)) * (x @ up.T)) @ down.T
    return parts


def run_on_ranks(
    prompts: list[str], max_tokens: int, **sizes: int
) -> tuple[list[str], list[dict[str, Any]]]:
    """Texts, and each rank's ledgers by group: `tensor`, `pipeline`."""
    llm = LLM(**sizes)  # type: ignore[arg-type]
    core: Any = llm.llm_engine.engine_core
    greedy = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    try:
        texts = [o.outputs[0].text for o in llm.generate(prompts, greedy, use_tqdm=False)]
        ledgers: list[dict[str, Any]] = core.model_executor.collective_rpc("get_ledgers")
    finally:
        core.shutdown()
    return texts, ledgers


def count_calls(prompts: list[str], max_tokens: int, **sizes: int) -> dict[str, tuple[int, int]]:
    """Calls and bytes of the first rank, by kind."""
    _, ledgers = run_on_ranks(prompts, max_tokens, **sizes)
    found: dict[str, tuple[int, int]] = {}
    for ledger in ledgers[0].values():
        for (kind, _, nbytes), times in ledger.calls.items():
            calls, size = found.get(kind, (0, 0))
            found[kind] = calls + times, size + times * nbytes
    return found


def list_schedules(prompts: list[str], max_tokens: int, staggered: bool = False) -> list[list[int]]:
    """Which requests each schedule of a pipeline of two stages has, by their number in `prompts`.

    Args:
        staggered: each arrives one step after the one before.
    """
    llm = LLM(pipeline_parallel_size=2)
    engine: Any = llm.llm_engine
    core = engine.engine_core
    schedules: list[list[int]] = []

    def note(plan: Any, _: float) -> None:
        if engine.has_unfinished_requests():  # later ones only empty the queue
            schedules.append(sorted(int(r) for r in plan.num_scheduled_tokens))

    core.batch_queue.plan_observers.append(note)
    greedy = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    try:
        for number, prompt in enumerate(prompts):
            engine.add_request(str(number), prompt, greedy)
            if staggered:
                engine.step()
        while engine.has_unfinished_requests():
            engine.step()
    finally:
        core.shutdown()
    return schedules


if __name__ == "__main__":
    print("                  ms a token,  with 64   prompt tokens     tokens of")
    print("                        alone    users        a second      KV cache")
    for name, sizes in (
        ("TP 8", (8, 1, 1)),
        ("TP 4, two copies", (4, 1, 2)),
        ("TP 4, PP 2", (4, 2, 1)),
    ):
        c = choose(*sizes)
        print(f"{name:16} {c.token_ms:12} {c.busy_ms:8} {c.prompt_tokens_s:15,} {c.kv_tokens:13,}")
