"""Noor's model on several cards, and the shipped Llama on several ranks. Set-up for the pages.

Noor's numbers are worked out from two data sheets. Tokens, ledgers and schedules are the engine's, whose
ranks are processes of their own.

The pages import this module by its name: start Python in this folder.

    python phase-10-parallelism/split.py            the eight cards, cut in four ways
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mini_vllm import LLM, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.distributed.parallel_state import get_place, get_pp_indices
from mini_vllm.model_loader import load_config, load_weights

Array = npt.NDArray[np.float32]
GB = 1e9


@dataclass(frozen=True)
class Shape:
    """A Llama's sizes, weights in 16 bits."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int

    @property
    def weight_bytes(self) -> int:
        attention = self.hidden * self.head_size * 2 * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate
        return 2 * (self.layers * layer + 2 * self.vocabulary * self.hidden)

    @property
    def kv_bytes(self) -> int:
        """Of one token: K and V of every layer."""
        return 2 * self.layers * self.kv_heads * self.head_size * 2


LLAMA_3_70B = Shape(80, 8192, 64, 8, 128, 28672, 128256)
"""Its `config.json`."""
CARD_BYTES = 80 * 1024**3
BANDWIDTH = 3.35e12
"""H100 SXM, bytes a second: NVIDIA's data sheet."""
UTILIZATION = 0.92
"""`gpu_memory_utilization` (`vllm/config/cache.py:66 in CacheConfig`)."""


@dataclass(frozen=True)
class Share:
    """What one card of `tp` x `pp` holds and reads.

    Attributes:
        weights_gb: its part of the weights.
        weights_ms: reading them once.
        kv_tokens: room for K and V beside them, in tokens of the whole model, on paper: activations and
            CUDA graphs come off. 0: the weights alone are too many.
    """

    weights_gb: float
    weights_ms: float
    kv_tokens: int


def share(tp: int, pp: int = 1, model: Shape = LLAMA_3_70B) -> Share:
    """A card's part. Where it divides evenly, as here, it does not matter which card."""
    weights = model.weight_bytes / (tp * pp)
    kv_bytes = model.kv_bytes / pp * max(1, model.kv_heads // tp) / model.kv_heads
    room = UTILIZATION * CARD_BYTES - weights
    return Share(
        round(weights / GB, 1),
        round(weights / BANDWIDTH * 1000, 1),
        max(0, int(room / kv_bytes)),
    )


def holds(rank: int, tp: int, pp: int, model: Shape = LLAMA_3_70B) -> dict[str, object]:
    """What a rank has of the model: layers, heads and rows of the vocabulary, first to last."""
    stage, place = get_place(rank, tp)
    layers = get_pp_indices(model.layers, stage, pp)

    def cut(size: int) -> str:
        return f"{place * size // tp} to {(place + 1) * size // tp - 1}"

    return {
        "stage": stage,
        "layers": f"{layers[0]} to {layers[-1]}",
        "query heads": cut(model.heads),
        "KV heads": cut(model.kv_heads),
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
    print("             GB a card   ms to read   tokens of KV")
    for name, sizes in (("TP 2", (2, 1)), ("TP 4", (4, 1)), ("TP 8", (8, 1)), ("TP 4, PP 2", (4, 2))):
        s = share(*sizes)
        print(f"{name:12} {s.weights_gb:9} {s.weights_ms:12} {s.kv_tokens:14,}")
