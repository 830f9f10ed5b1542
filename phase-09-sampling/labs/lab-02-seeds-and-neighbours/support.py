"""What the lab's tests and scripts share: the engine on a learner's noise, and schemes with a fault."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.engine.parts import EngineParts
from mini_vllm.model_loader import get_model
from mini_vllm.sample.generator import TorchGenerator
from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sample.ops import apply_temperature, softmax
from mini_vllm.sample.sampler import Sampler

Array = NDArray[np.float32]
RECORDED = Path(__file__).resolve().parent / "recorded.json"
MINE = "mine"
NUM_PROMPT_TOKENS, NUM_TOKENS, NEIGHBOURS_TOKENS = 44, 12, 8


# ---- who is served -------------------------------------------------------------------------------


def prompt_of(number: int) -> list[int]:
    """44 tokens, others for each number."""
    return [1, *(5 + (7 * number + 3 * i * i) % 120 for i in range(NUM_PROMPT_TOKENS - 1))]


def requests_of(situation: Any) -> list[tuple[str, list[int], dict[str, Any]]]:
    """Id, prompt and parameters of each request: the neighbours, and behind them the one with seed 7."""
    found = []
    for number, neighbour in enumerate(situation.neighbours, start=1):
        knobs: dict[str, Any] = (
            {"temperature": 0.0} if neighbour == "greedy" else {"seed": neighbour}
        )
        knobs["max_tokens"] = NEIGHBOURS_TOKENS
        found.append((f"neighbour {number}", prompt_of(number), knobs))
    found.append((MINE, prompt_of(0), {"seed": 7, "max_tokens": NUM_TOKENS}))
    return [(i, ids, {"temperature": 4.0, "ignore_eos": True} | k) for i, ids, k in found]


# ---- the engine on another's noise ---------------------------------------------------------------


class NoiseSampler(Sampler):
    """The engine's sampler; its noise is put in before each step."""

    noise: Array

    def sample(self, logits: Array, sampling_metadata: SamplingMetadata) -> tuple[Any, Array]:
        """[n, V] logits to [n] tokens, by `self.noise`."""
        greedy = logits.argmax(axis=-1)
        temperature = sampling_metadata.temperature
        if temperature is None:
            return greedy, logits
        logits = apply_temperature(logits, temperature, False)
        drawn = (softmax(logits) / self.noise).argmax(axis=-1)
        return np.where(temperature == 0, greedy, drawn), logits


class Draws:
    """Asks a scheme for noise in each step, for rows in mid-prompt too, as vLLM does.

    What is drawn for a row in mid-prompt is thrown away, and the scheme is told so.
    """

    def __init__(self, engine: LLMEngine, scheme: Any, make_row: Callable[..., Any]) -> None:
        self.runner = runner = engine.engine_core.model_runner
        self.scheme, self.make_row = scheme, make_row
        self.execute, self.sample = runner.execute_model, runner.sample_tokens
        self.sample_rows = runner._sample_rows
        self.drawn: dict[str, Array] = {}
        self.discarded = self.preempted = 0
        runner.execute_model = self.execute_model  # type: ignore[method-assign]
        runner.sample_tokens = self.sample_tokens  # type: ignore[method-assign]
        runner._sample_rows = self.take_noise  # type: ignore[method-assign]

    def execute_model(self, scheduler_output: Any) -> Any:
        """A step's forward pass, and what the scheme must hear of the plan."""
        for req_id in sorted(scheduler_output.finished_req_ids):
            self.scheme.finish(req_id)
        self.preempted += MINE in scheduler_output.preempted_req_ids
        self.scheduled, self.drawn = scheduler_output.num_scheduled_tokens, {}
        return self.execute(scheduler_output)

    def sample_tokens(self, grammar_output: None = None) -> Any:
        """The step's tokens. The scheme hears whose draws were thrown away."""
        result = self.sample(grammar_output)
        if not self.drawn:
            self.draw()
        for req_id, sampled in zip(result.req_ids, result.sampled_token_ids, strict=True):
            if not sampled:
                self.scheme.discard(req_id)
                self.discarded += 1
        return result

    def draw(self) -> None:
        """Noise for all rows of the step."""
        rows = []
        for req_id, number in self.scheduled.items():
            state = self.runner.requests[req_id]
            position = int(self.runner.input_batch.num_computed_tokens[state.row]) + number - 1
            rows.append(self.make_row(req_id, state.sampling_params.seed, position))
        noise = self.scheme.noise(rows, self.runner.vocab_size)
        self.drawn = dict(zip(self.scheduled, noise, strict=True))

    def take_noise(self, logits: Any, states: list[Any], result: Any) -> Any:
        """The runner's own `_sample_rows`, with the noise of these rows."""
        self.draw()
        sampler: Any = self.runner.sampler
        sampler.noise = np.stack([self.drawn[state.req_id] for state in states])
        return self.sample_rows(logits, states, result)


@cache
def _model() -> Any:
    return get_model(str(DEFAULT_MODEL), EngineConfig().attention, None)


def serve(scheme: Any, situation: Any, make_row: Callable[..., Any]) -> tuple[list[int], Draws]:
    """The tokens of the request with seed 7 on the engine, and what happened on the way."""
    config = EngineConfig(
        block_size=16,
        max_model_len=64,
        max_num_batched_tokens=situation.token_budget,
        max_num_seqs=8,
        num_gpu_blocks=situation.num_blocks,
    )
    engine = LLMEngine(_model(), config, parts=EngineParts(sampler=NoiseSampler))
    draws = Draws(engine, scheme, make_row)
    for req_id, prompt, knobs in requests_of(situation):
        engine.add_request(req_id, {"prompt_token_ids": prompt}, SamplingParams(**knobs))
    tokens: list[int] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.request_id == MINE:
                tokens = list(output.outputs[0].token_ids)
    return tokens, draws


def player(lab: ModuleType, make_scheme: Callable[[], Any]) -> Callable[[Any], list[int]]:
    """`play(situation)`: each time with a scheme of its own."""
    return lambda situation: serve(make_scheme(), situation, lab.Row)[0]


class Stateless:
    """A noise function in the place of streams. Who has no seed gets one when it arrives, as in V2."""

    def __init__(self, noise: Callable[..., Array], make_row: Callable[..., Any]) -> None:
        self.function, self.make_row = noise, make_row
        self.rng = np.random.RandomState(0)
        self.seeds: dict[str, int] = {}

    def noise(self, rows: Sequence[Any], vocab: int) -> Array:
        for row in rows:
            if row.req_id not in self.seeds:
                drawn = int(self.rng.randint(1 << 31))
                self.seeds[row.req_id] = drawn if row.seed is None else row.seed
        rows = [self.make_row(row.req_id, self.seeds[row.req_id], row.position) for row in rows]
        return self.function(rows, vocab)

    def discard(self, req_id: str) -> None:
        """There is nothing to take back."""

    def finish(self, req_id: str) -> None:
        self.seeds.pop(req_id, None)


# ---- schemes with a fault ------------------------------------------------------------------------


class Right:
    """A stream per request, as it should be. The faults below change one thing each."""

    def __init__(self) -> None:
        self.shared = TorchGenerator(0)
        self.streams: dict[Any, TorchGenerator] = {}
        self.again: dict[str, Array] = {}
        self.last: dict[str, Array] = {}

    def key(self, index: int, row: Any) -> Any:
        """Whose stream this is."""
        return row.req_id

    def noise(self, rows: Sequence[Any], vocab: int) -> Array:
        drawn = [self.draw(self.key(i, row), row, vocab) for i, row in enumerate(rows)]
        self.last = {row.req_id: noise for row, noise in zip(rows, drawn, strict=True)}
        return np.stack(drawn)

    def draw(self, key: Any, row: Any, vocab: int) -> Array:
        """[V]"""
        if row.seed is None:
            return self.shared.standard_exponential(vocab)
        if row.req_id in self.again:
            return self.again.pop(row.req_id)
        stream = self.streams.setdefault(key, TorchGenerator(row.seed))
        return stream.standard_exponential(vocab)

    def discard(self, req_id: str) -> None:
        self.again[req_id] = self.last[req_id]

    def finish(self, req_id: str) -> None:
        self.streams.pop(req_id, None)


class OneStream(Right):
    """All requests draw from one stream."""

    def draw(self, key: Any, row: Any, vocab: int) -> Array:
        return self.shared.standard_exponential(vocab)


class CpuPath(Right):
    """Seeds count only in a batch where every row has one: what `forward_cpu` of vLLM 0.22.1 does."""

    def noise(self, rows: Sequence[Any], vocab: int) -> Array:
        if any(row.seed is None for row in rows):
            self.last = {}
            return self.shared.standard_exponential((len(rows), vocab))
        return super().noise(rows, vocab)

    def discard(self, req_id: str) -> None:
        if req_id in self.last:
            super().discard(req_id)


class NoRewind(Right):
    """A draw that is thrown away is not taken back."""

    def discard(self, req_id: str) -> None:
        pass


class BySeed(Right):
    """Requests with the same seed share a stream."""

    def key(self, index: int, row: Any) -> Any:
        return row.seed


class ByRow(Right):
    """The stream stays with the row when a request moves."""

    def key(self, index: int, row: Any) -> Any:
        return index


class BatchOnly(Right):
    """A stream lives as long as its request is in the batch."""

    def noise(self, rows: Sequence[Any], vocab: int) -> Array:
        there = {row.req_id for row in rows}
        self.streams = {key: one for key, one in self.streams.items() if key in there}
        return super().noise(rows, vocab)


FAULTS: dict[str, type[Right]] = {
    "one stream": OneStream,
    "vLLM's CPU path": CpuPath,
    "no rewind": NoRewind,
    "by seed": BySeed,
    "by row": ByRow,
    "in the batch only": BatchOnly,
}


def recorded() -> dict[str, list[int]]:
    """The tokens of the request with seed 7 in real vLLM on a CPU; see in_vllm.py."""
    found: dict[str, list[int]] = json.loads(RECORDED.read_text(encoding="utf-8"))["tokens"]
    return found
