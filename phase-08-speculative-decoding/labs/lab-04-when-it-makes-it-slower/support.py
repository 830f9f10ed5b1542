"""What the lab's tests and show.py share: servers, texts, and the workloads that a controller is scored on.

The simulator (`mini_vllm.sim`) runs the engine's scheduler; a step takes what the server says, and drafts are
accepted by a text's rates. Times are virtual, so that a score is the same on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from mini_vllm.config.engine import EngineConfig
from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.sim import ServingMetrics, SimRequest, Simulator, Speculation, StepWork, mini_parts
from mini_vllm.sim.cost import DERIVED, MoeRooflineCost

HERE = Path(__file__).resolve().parent
MOST = 6
"""Draft tokens per request at most."""
EVERY = 8
"""Steps between two calls of a controller."""
PROMPT = 400
Choose = Callable[[Any, int, int], int]

# ---- servers -------------------------------------------------------------------------------------


def servers() -> dict[str, dict[str, Any]]:
    """The arguments of `Server`, derived from data sheets; see `mini_vllm/sim/cost.py`."""
    llama, head = DERIVED["a100-llama-3-8b"], DERIVED["a100-eagle-llama-3-8b"]
    plain = {
        "dense_s": llama.params * llama.bytes_per_param / llama.bandwidth,
        "row_s": 2 * llama.params / llama.flops,
        "kv_token_s": llama.kv_bytes_per_token / llama.bandwidth,
        "host_s": 2e-3,
    }
    drafter = {
        "draft_pass_s": head.params * head.bytes_per_param / head.bandwidth,
        "draft_row_s": 2 * head.params / head.flops,
    }
    mixtral = DERIVED["h200-mixtral-8x7b"]
    assert isinstance(mixtral, MoeRooflineCost), "Mixtral's cost counts experts"
    mixture = {
        "dense_s": mixtral.params * mixtral.bytes_per_param / mixtral.bandwidth,
        "row_s": 2 * mixtral.params_used / mixtral.flops,
        "kv_token_s": mixtral.kv_bytes_per_token / mixtral.bandwidth,
        "host_s": 2e-3,
        "draft_pass_s": head.params * head.bytes_per_param / mixtral.bandwidth,
        "draft_row_s": 2 * head.params / mixtral.flops,
        "expert_s": mixtral.params_per_expert * mixtral.bytes_per_param / mixtral.bandwidth,
        "num_experts": mixtral.num_experts,
        "active": mixtral.num_experts_per_tok,
    }
    return {"Llama, n-gram": plain, "Llama, EAGLE": plain | drafter, "Mixtral, EAGLE": mixture}


@dataclass(frozen=True)
class Seconds:
    """A cost for the simulator: the larger of memory and arithmetic."""

    memory: Callable[[StepWork], float]
    row_s: float
    name: str = "lab 08-04"
    source: str = "a server of the lab"
    add_request_s: float = 0.0
    num_kv_tokens: int | None = None
    max_model_len: int | None = None
    scatter: tuple[float, ...] = ()

    def host(self, work: StepWork) -> float:
        return 0.0

    def launching(self, work: StepWork) -> float:
        return 0.0

    def device(self, work: StepWork) -> float:
        return max(self.memory(work), work.num_tokens * self.row_s) if work.num_tokens else 0.0


def costs(server: dict[str, Any]) -> tuple[Seconds, Seconds | None]:
    """The model's and the drafter's. The host's part is left out: EAGLE hides it behind longer steps."""
    experts, active = server.get("num_experts", 1), server.get("active", 1)

    def memory(work: StepWork) -> float:
        used = experts * (1 - (1 - active / experts) ** work.num_tokens)
        weights: float = server["dense_s"] + used * server.get("expert_s", 0.0)
        return weights + float(work.kv_tokens * server["kv_token_s"])

    model = Seconds(memory, server["row_s"])
    if "draft_pass_s" not in server:
        return model, None
    return model, Seconds(lambda work: float(server["draft_pass_s"]), server["draft_row_s"])


# ---- workloads -----------------------------------------------------------------------------------


class Part(NamedTuple):
    """`batch` requests that come at once, for `tokens` tokens each, of a text with these conditional rates.
    The next part begins when all have finished."""

    batch: int
    tokens: int
    conditional: tuple[float, ...]


TEXTS = {
    "edits of code": (0.92, 0.92, 0.91, 0.91, 0.9, 0.9),
    "chat": (0.7, 0.62, 0.58, 0.55, 0.52, 0.5),
    "poems": (0.35, 0.28, 0.25, 0.22, 0.2, 0.2),
}
PRACTICE: dict[str, list[Part]] = {
    "one user": [Part(1, 400, TEXTS["chat"]), Part(1, 400, TEXTS["edits of code"])],
    "a crowd of poets": [Part(96, 60, TEXTS["poems"])],
    "morning to noon": [Part(b, 90, TEXTS["chat"]) for b in (2, 16, 64, 128)],
    "the text changes": [Part(8, 200, TEXTS["poems"]), Part(8, 300, TEXTS["edits of code"])],
}


def _text(first: float, falls: float) -> tuple[float, ...]:
    return tuple(round(first * falls**position, 3) for position in range(MOST))


HELD_OUT: dict[str, list[Part]] = {
    "a crowd changes its text": [Part(96, 60, _text(0.28, 0.9)), Part(96, 110, _text(0.93, 0.99))],
    "one user does": [Part(1, 320, _text(0.3, 0.95)), Part(1, 400, _text(0.94, 0.98))],
    "noon to night": [Part(b, 80, _text(0.72, 0.92)) for b in (96, 32, 5, 1)],
    "three texts": [
        Part(10, 200, _text(0.9, 0.96)), Part(64, 90, _text(0.45, 0.9)), Part(3, 220, _text(0.62, 0.88)),
    ],
}  # fmt: skip
"""The tests' workloads. Each is served with both EAGLE servers."""


class Run(Speculation):
    """Drafts whose acceptance is the current part's, and whose number is a controller's choice."""

    def __init__(self, lab: ModuleType, drafter: Any, choose: Choose) -> None:
        config = SpeculativeConfig.from_dict(_config())
        super().__init__(config, drafter, seed=8)
        self.lab, self.choose = lab, choose
        self.steps = self.chosen = 0
        self.by_part: list[list[int]] = []

    def begin(self, part: Part) -> None:
        self._rates = list(part.conditional)
        self.by_part.append([])

    def num_draft_tokens(self, scheduler: Any) -> int:
        if self.steps % EVERY == 0 and scheduler.running:
            counters = read(self.lab, self.stats)
            context = sum(r.num_tokens for r in scheduler.running) // len(scheduler.running)
            self.chosen = self.choose(counters, len(scheduler.running), context)
            if type(self.chosen) is not int or not 0 <= self.chosen <= MOST:
                raise AssertionError(f"choose() returned {self.chosen!r}, not 0 to {MOST}")
            self.by_part[-1].append(self.chosen)
        self.steps += 1
        return self.chosen


def read(lab: ModuleType, stats: Any) -> Any:
    """The counters as the learner's `Counters`."""
    return lab.Counters(
        stats.num_drafts,
        stats.num_draft_tokens,
        stats.num_accepted_tokens,
        tuple(stats.num_accepted_tokens_per_pos),
    )


def _config() -> dict[str, Any]:
    return {
        "method": "eagle", "model": "any", "num_speculative_tokens": MOST,
        "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5] * MOST,
    }  # fmt: skip


class Served(NamedTuple):
    """Seconds of each part, the counters at the end, and for each part the k that were chosen in it."""

    seconds: list[float]
    stats: Any
    chosen: list[list[int]]


def serve(lab: ModuleType, server: dict[str, Any], parts: Sequence[Part], choose: Choose) -> Served:
    """Serve the parts one after the other, with this controller."""
    model, drafter = costs(server)
    config = EngineConfig(
        num_gpu_blocks=16_000, max_model_len=2048, max_num_batched_tokens=100_000,
        enable_prefix_caching=False, speculative_config=_config(),
    )  # fmt: skip
    run = Run(lab, drafter, choose)
    simulator = Simulator(mini_parts(config), model, ServingMetrics(), None, 0, run)
    seconds = []
    for index, part in enumerate(parts):
        begin = simulator.now
        run.begin(part)
        simulator.run(
            SimRequest(f"{index}.{i}", begin, [i] * PROMPT, part.tokens) for i in range(part.batch)
        )
        seconds.append(simulator.now - begin)
    return Served(seconds, run.stats, run.by_part)


def fixed(k: int) -> Choose:
    """A server with `num_speculative_tokens` = k; 0: off."""
    return lambda counters, batch, context: k


# ---- the score -----------------------------------------------------------------------------------


class Score(NamedTuple):
    """A workload's tokens per second, each over those of somebody who knows the best k of each part.

    Attributes:
        controller: the learner's.
        best_fixed: the best single k for the whole workload, known beforehand.
        off: no speculation.
        best_k: the best k of each part.
        chosen: the learner's, on average over each part.
    """

    controller: float
    best_fixed: float
    off: float
    best_k: list[int]
    chosen: list[float]

    def compare_k(self) -> str:
        """The best k and the learner's, part by part."""
        return f"best k by part {self.best_k}, yours on average {self.chosen}"


class Oracle(NamedTuple):
    """Seconds that a workload takes with the best k of each part, with the best k for all, and with none;
    and the best k of each part."""

    best: float
    best_fixed: float
    off: float
    best_k: list[int]


def ask_oracle(lab: ModuleType, server: dict[str, Any], parts: Sequence[Part]) -> Oracle:
    """All k are tried; the tests do not wait for it."""
    by_k = [serve(lab, server, parts, fixed(k)).seconds for k in range(MOST + 1)]
    by_part = list(zip(*by_k, strict=True))
    best_k = [seconds.index(min(seconds)) for seconds in by_part]
    return Oracle(sum(map(min, by_part)), min(map(sum, by_k)), sum(by_k[0]), best_k)


def recorded() -> dict[str, Oracle]:
    """The oracle's seconds for the held-out workloads, by "server: workload", from `show.py --record`."""
    found = json.loads((HERE / "oracle.json").read_text(encoding="utf-8"))
    return {name: Oracle(*values) for name, values in found.items()}


def score(lab: ModuleType, server: dict[str, Any], parts: Sequence[Part], oracle: Oracle) -> Score:
    """How the controller of `lab` does beside the oracle."""
    controller = lab.Controller(lab.Server(**server), MOST)
    served = serve(lab, server, parts, controller.choose)
    shares = [oracle.best / taken for taken in (sum(served.seconds), oracle.best_fixed, oracle.off)]
    chosen = [round(sum(part) / len(part), 1) for part in served.chosen]
    return Score(*shares, oracle.best_k, chosen)
