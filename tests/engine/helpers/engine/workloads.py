"""What the engine's tests run, and how: right tokens, workloads, and a scheduler without a model.

What is right comes from `greedy`: the same weights with plain dense attention over the whole
sequence at every token, no cache, no batch, no scheduler.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from mini_vllm.attention import AttentionMetadata
from mini_vllm.config.engine import EngineConfig
from mini_vllm.core.request import Request
from mini_vllm.core.sched.output import ModelRunnerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.parts import EngineParts
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.sampling_params import SamplingParams
from tests.engine.helpers.engine.engine_helpers import SMALL, engine_over_random_model, random_model
from tests.engine.helpers.engine.invariants import check_drained

EOS = 2
DEFAULT_PARTS = EngineParts()
CLEAR = 1e-3  # a lead in logits that no order of float32 sums can turn round


# -- what is right --------------------------------------------------------------------------------


class DenseAttention:
    """Causal attention over one whole sequence, by the formula. Ignores cache and metadata."""

    def get_kv_cache_shape(self, *_: int) -> tuple[int, ...]:
        return (0,)

    def forward(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray, kv_cache: Any, md: Any
    ) -> np.ndarray:
        n, heads, size = query.shape
        key, value = (x.repeat(heads // x.shape[1], 1) for x in (key, value))
        query, key, value = (x.swapaxes(0, 1) for x in (query, key, value))  # a matrix a head
        scores = query @ key.swapaxes(1, 2) * size**-0.5
        scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return (weights @ value).swapaxes(0, 1).reshape(n, -1)


@functools.cache
def _dense() -> LlamaForCausalLM:
    model = random_model()
    model.attention = DenseAttention()
    return model


@functools.cache
def _greedy(prompt: tuple[int, ...], max_tokens: int) -> list[int]:
    model = _dense()
    tokens, outputs = list(prompt), list[int]()
    md = AttentionMetadata(np.zeros(1, np.int32), np.zeros(0, np.int32), None, None, 1)  # type: ignore[arg-type]
    caches = [np.empty(0, np.float32)] * model.config.num_hidden_layers
    while len(outputs) < max_tokens:
        hidden = model.forward(np.array(tokens), np.arange(len(tokens)), caches, md)
        logits = model.compute_logits(hidden[-1:])[0]
        second, first = np.sort(logits)[-2:]
        if first - second < CLEAR:
            break  # too close to call: rounding may decide, so no test goes past it
        outputs.append(int(logits.argmax()))
        tokens.append(outputs[-1])
    assert outputs, f"the first token after {prompt} is a near tie; choose another prompt"
    return outputs


def greedy(prompt: Sequence[int], max_tokens: int, ignore_eos: bool = True) -> list[int]:
    """The right tokens. Fewer than asked for if EOS ends them, or at the first near tie."""
    outputs = _greedy(tuple(prompt), max_tokens)
    if not ignore_eos and EOS in outputs:
        return outputs[: outputs.index(EOS) + 1]
    return outputs


# -- running the engine ---------------------------------------------------------------------------


@dataclass
class Job:
    """A request of a workload: it is added before step `arrive`, aborted before step `abort`."""

    prompt: list[int]
    max_tokens: int = 8
    arrive: int = 0
    abort: int | None = None
    priority: int = 0
    ignore_eos: bool = True
    salt: str | None = None

    @property
    def expected(self) -> list[int]:
        return greedy(self.prompt, self.max_tokens, self.ignore_eos)

    @property
    def params(self) -> SamplingParams:
        # Where a near tie cuts `expected` short, the engine stops there too.
        count = len(_greedy(tuple(self.prompt), self.max_tokens))
        return SamplingParams(temperature=0, max_tokens=count, ignore_eos=self.ignore_eos)


def make_engine(parts: EngineParts, **settings: Any) -> LLMEngine:
    settings = {"block_size": 4, "num_gpu_blocks": 200, "max_num_seqs": 8} | settings
    return engine_over_random_model(EngineConfig(**settings), parts)


def prompts(seed: int, *lengths: int) -> list[list[int]]:
    """Random prompts of these lengths, without special tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(3, SMALL.vocab_size, n).tolist() for n in lengths]


def drive(
    engine: LLMEngine, jobs: Sequence[Job], before_step: Callable[[], None] | None = None
) -> tuple[list[list[int]], list[int | None]]:
    """Run a workload to its end; per job the tokens it gave and the tokens it found in the cache.

    Raises AssertionError if it takes absurdly many steps.
    """
    tokens: dict[str, list[int]] = {}
    cached: dict[str, int | None] = {}
    live: set[str] = set()
    limit = 50 + 4 * sum(len(job.prompt) + job.max_tokens for job in jobs)
    last = max([0, *(job.arrive for job in jobs), *(job.abort or 0 for job in jobs)])
    step = 0
    while step <= last or engine.has_unfinished_requests():
        for i, job in enumerate(jobs):
            if job.arrive == step:
                prompt: Any = job.prompt
                if job.salt:
                    prompt = {"prompt_token_ids": prompt, "cache_salt": job.salt}
                arrival = step + i / len(jobs)
                engine.add_request(
                    str(i), prompt, job.params, arrival_time=arrival, priority=job.priority
                )
                live.add(str(i))
            if job.abort == step and str(i) in live:
                live.remove(str(i))
                engine.abort_request(str(i))
        if before_step:
            before_step()
        for output in engine.step():
            tokens[output.request_id] = list(output.outputs[0].token_ids)
            cached[output.request_id] = output.num_cached_tokens
            if output.finished:
                live.remove(output.request_id)
        step += 1
        assert step < limit, f"the engine hangs: {sorted(live)} unfinished after {step} steps"
    ids = [str(i) for i in range(len(jobs))]
    return [tokens.get(i, []) for i in ids], [cached.get(i) for i in ids]


def compare(what: str, engine: LLMEngine, jobs: Sequence[Job], got: Sequence[list[int]]) -> None:
    """Assert that each job gave the right tokens (an aborted one, the beginning of them), and that
    the engine holds nothing any more."""
    for i, (job, tokens) in enumerate(zip(jobs, got, strict=True)):
        expected = job.expected
        if job.abort is not None:
            expected = expected[: len(tokens)]
        if tokens == expected:
            continue
        pairs = enumerate(zip(tokens, expected, strict=False))
        at = next((k for k, (a, b) in pairs if a != b), min(len(tokens), len(expected)))
        raise AssertionError(
            f"{what}: wrong tokens. Request {i} ({len(job.prompt)} prompt tokens) differs at "
            f"output {at}: got {tokens[at : at + 4]}, right is {expected[at : at + 4]}"
        )
    check_drained(engine.engine_core.scheduler)


def run_and_compare(
    what: str, parts: EngineParts, jobs: Sequence[Job], **settings: Any
) -> LLMEngine:
    engine = make_engine(parts, **settings)
    compare(what, engine, jobs, drive(engine, jobs)[0])
    return engine


# -- workloads ------------------------------------------------------------------------------------


def sharing_jobs() -> list[Job]:
    """Prompts that share beginnings in all the ways that matter, at block size 4.

    Duplicates that end on a block's edge and in its middle, a prompt that goes on where another
    ends, forks after a block, equal blocks after different beginnings; at once and later.
    """
    a, b, c, p, q, r = prompts(4, 16, 14, 6, 4, 4, 4)
    return [
        Job(a, 9),
        Job(a, 9),
        Job(b, 12),
        Job(b + c, 6),  # in the same step: only b's full blocks may be shared
        Job(p + r + c, 5),
        Job(q + c, 5),
        Job(b + c, 7, arrive=2),  # while b writes its outputs into its own last block
        Job(a, 9, arrive=6),
        Job(a[:12] + q, 6, arrive=8),
        Job(q + r + c, 6, arrive=9),  # r after q is not r after p
        Job(a + greedy(a, 9) + c, 6, arrive=18),  # the next turn of a conversation
        Job(b, 12, arrive=19),
        Job(a, 9, arrive=19, salt="another tenant"),
    ]


def random_workload(seed: int) -> tuple[list[Job], dict[str, Any]]:
    """Jobs with shared beginnings, staggered, some aborted; and settings that make them compete."""
    rng = np.random.default_rng(seed)
    block_size = int(rng.choice([1, 2, 4, 8]))
    stems = [rng.integers(3, SMALL.vocab_size, 16).tolist() for _ in range(2)]
    jobs = []
    for _ in range(10):
        stem = stems[int(rng.integers(2))][: int(rng.integers(0, 17))]
        prompt = stem + rng.integers(3, SMALL.vocab_size, int(rng.integers(1, 9))).tolist()
        arrive = int(rng.integers(0, 15))
        abort = arrive + int(rng.integers(0, 12)) if rng.random() < 0.25 else None
        jobs.append(
            Job(
                prompt,
                int(rng.integers(1, 24)),
                arrive,
                abort,
                int(rng.integers(3)),
                bool(rng.random() < 0.5),
            )
        )
    slots = int(rng.integers(2, 7))
    settings: dict[str, Any] = {
        "block_size": block_size,
        # From "one request just fits" (47 computed tokens at most) to roomy.
        "num_gpu_blocks": 2 + 47 // block_size + int(rng.integers(0, 24)) // block_size,
        "max_num_seqs": slots,
        "max_num_batched_tokens": slots + int(rng.integers(0, 40)),
        "long_prefill_token_threshold": int(rng.choice([0, 3, 7])),
        "enable_prefix_caching": bool(rng.random() < 0.75),
        "scheduling_policy": str(rng.choice(["fcfs", "priority"])),
        "scheduler_reserve_full_isl": bool(rng.random() < 0.8),
    }
    return jobs, settings


def sharing_workloads() -> list[tuple[list[Job], dict[str, Any]]]:
    whole: dict[str, Any] = {"max_num_seqs": 13}
    return [(sharing_jobs(), whole), (sharing_jobs(), whole | {"long_prefill_token_threshold": 5})]


# -- a scheduler without a model ------------------------------------------------------------------


def make_scheduler(parts: EngineParts = DEFAULT_PARTS, **settings: Any) -> Scheduler:
    """A scheduler over the parts' manager and pool; by default 64 blocks of 16."""
    settings = {"num_gpu_blocks": 64, "max_model_len": 512} | settings
    return scheduler_of(parts, EngineConfig(**settings))


def scheduler_of(parts: EngineParts, config: EngineConfig) -> Scheduler:
    caching = config.enable_prefix_caching
    pool = parts.block_pool(config.num_gpu_blocks, caching)
    manager = parts.kv_cache_manager(
        config.num_gpu_blocks, config.block_size, config.max_model_len, caching, pool
    )
    return parts.make_scheduler(config, manager)


def make_request(
    scheduler: Scheduler, request_id: str, prompt: Sequence[int], **more: Any
) -> Request:
    """A request for `scheduler`; `more`: priority, arrival_time, cache_salt, parameters."""
    names = ("priority", "arrival_time", "cache_salt")
    rest = {name: more.pop(name) for name in names if name in more}
    params = SamplingParams(**({"max_tokens": 16, "ignore_eos": True} | more))
    params.update_from_generation_config({}, EOS)
    caching = scheduler.config.enable_prefix_caching
    size = scheduler.config.block_size if caching else None
    return Request(request_id, list(prompt), params, block_size=size, **rest)


def step(scheduler: Scheduler, sample: Callable[[Request], int] = lambda r: 9) -> SimpleNamespace:
    """One step with a made-up sampler; what was decided."""
    output = scheduler.schedule()
    tables = {
        i: scheduler.kv_cache_manager.get_block_ids(i)[0] for i in output.num_scheduled_tokens
    }
    ids = list(output.num_scheduled_tokens)
    requests = [scheduler.requests[i] for i in ids]
    sampled = [[sample(r)] if r.num_computed_tokens == r.num_tokens else [] for r in requests]
    result = ModelRunnerOutput(ids, {i: k for k, i in enumerate(ids)}, sampled)
    before = {r.request_id: r.num_tokens for r in requests}
    outputs = scheduler.update_from_output(output, result)
    return SimpleNamespace(
        output=output,
        scheduled=output.num_scheduled_tokens,
        preempted=output.preempted_req_ids,
        tables=tables,
        outputs=outputs,
        result=result,
        before=before,
    )
