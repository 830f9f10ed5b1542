"""The checks of the paging path, as functions of the engine's parts.

Each takes `EngineParts`, runs the engine on a small random model and raises AssertionError where a
token, a decision or an invariant is wrong. `test_equivalences.py` calls them on the real parts;
`test_planted_faults.py` calls them on broken ones, to show that they see.

What is right comes from `greedy`: the same weights with plain dense attention over the whole
sequence at every token, no cache, no batch, no scheduler.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from engine_helpers import SMALL, random_model
from invariants import check_drained, check_sampled, check_scheduled, check_state

from mini_vllm.attention import AttentionMetadata
from mini_vllm.config import EngineConfig
from mini_vllm.engine import EngineParts, LLMEngine, StepRecord
from mini_vllm.llama import LlamaForCausalLM
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.scheduler import Scheduler

EOS = 2
GOLDEN = Path(__file__).parent / "golden"
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
        scores = np.einsum("qhd,khd->hqk", query, key) * size**-0.5
        scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", weights, value).reshape(n, -1).astype(np.float32)


@functools.cache
def _weights(parts: EngineParts = EngineParts()) -> LlamaForCausalLM:
    return random_model(parts=parts)


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
    model = random_model(parts=parts)
    return LLMEngine(model, EngineConfig(**settings), parts=parts)


def prompts(seed: int, *lengths: int) -> list[list[int]]:
    """Random prompts of these lengths, without special tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(3, SMALL.vocab_size, n).tolist() for n in lengths]


def drive(
    engine: LLMEngine, jobs: Sequence[Job], before_step: Callable[[], None] | None = None
) -> tuple[list[list[int]], list[int | None]]:
    """Run a workload to its end; per job the tokens it gave and the tokens it found in the cache.

    Raises AssertionError if it takes absurdly many steps, or if something is left in the end.
    """
    tokens: dict[str, list[int]] = {}
    cached: dict[str, int | None] = {}
    live: set[str] = set()
    limit = 50 + 4 * sum(len(job.prompt) + job.max_tokens for job in jobs)
    last = max([job.arrive for job in jobs] + [job.abort or 0 for job in jobs])
    step = 0
    while step <= last or engine.has_unfinished_requests():
        for i, job in enumerate(jobs):
            if job.arrive == step:
                prompt: Any = job.prompt
                if job.salt:
                    prompt = {"prompt_token_ids": prompt, "cache_salt": job.salt}
                engine.add_request(
                    str(i), prompt, job.params, arrival_time=float(step), priority=job.priority
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
    check_drained(engine.engine_core.scheduler)
    ids = [str(i) for i in range(len(jobs))]
    return [tokens.get(i, []) for i in ids], [cached.get(i) for i in ids]


def compare(what: str, jobs: Sequence[Job], got: Sequence[list[int]]) -> None:
    """Assert that each job gave the right tokens; an aborted one, the beginning of them."""
    for i, (job, tokens) in enumerate(zip(jobs, got, strict=True)):
        expected = job.expected
        if job.abort is not None:
            expected = expected[: len(tokens)]
        if tokens == expected:
            continue
        pairs = enumerate(zip(tokens, expected, strict=False))
        at = next((k for k, (a, b) in pairs if a != b), min(len(tokens), len(expected)))
        raise AssertionError(
            f"{what}: wrong tokens. Request {i} ({len(job.prompt)} prompt tokens) differs at output "
            f"{at}: got {tokens[at : at + 4]}, right is {expected[at : at + 4]}"
        )


def run_and_compare(
    what: str, parts: EngineParts, jobs: Sequence[Job], **settings: Any
) -> LLMEngine:
    engine = make_engine(parts, **settings)
    compare(what, jobs, drive(engine, jobs)[0])
    return engine


# -- equal tokens ---------------------------------------------------------------------------------


def alone(parts: EngineParts) -> None:
    """A request that runs alone gives the tokens of dense attention."""
    for prompt in prompts(1, 1, 3, 4, 5, 8, 17):
        run_and_compare("alone", parts, [Job(prompt, 10)], enable_prefix_caching=False)


def batched_equals_alone(parts: EngineParts) -> None:
    """Requests that run together, coming and going at different steps, do not see one another."""
    jobs = [
        Job(prompt, 4 + i, arrive=i // 3)
        for i, prompt in enumerate(prompts(2, 5, 1, 16, 7, 9, 12, 3, 20))
    ]
    for caching in (False, True):
        run_and_compare("batched", parts, jobs, enable_prefix_caching=caching, max_num_seqs=5)


def chunked_equals_unchunked(parts: EngineParts) -> None:
    """Cutting prompts into chunks, by budget or by threshold, changes no token."""
    jobs = [Job(prompt, 6) for prompt in prompts(3, 30, 17, 8, 21, 2)]
    run_and_compare("unchunked", parts, jobs, enable_prefix_caching=False)
    for settings in (
        {"max_num_batched_tokens": 9},
        {"max_num_batched_tokens": 64, "long_prefill_token_threshold": 5},
    ):
        run_and_compare("chunked", parts, jobs, enable_prefix_caching=False, **settings)


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
    ]


def cached_equals_uncached(parts: EngineParts) -> None:
    """Prefix hits change no token, and are as long as the rules say."""
    jobs = sharing_jobs()
    run_and_compare("uncached", parts, jobs, enable_prefix_caching=False, max_num_seqs=12)
    engine = make_engine(parts, max_num_seqs=12)
    got, hits = drive(engine, jobs)
    compare("cached", jobs, got)
    # The 9th output of `a` is never computed: of its 16 + 9 tokens 24 are, six blocks.
    expected = [0, 12, 0, 12, 0, 0, 16, 12, 12, 4, 24, 12]
    assert hits == expected, f"cached: tokens found in the cache are {hits}, should be {expected}"


def cached_and_chunked(parts: EngineParts) -> None:
    """Sharing a prompt that is still being computed, chunk by chunk."""
    jobs = sharing_jobs()
    for budget in (11, 23):
        engine = run_and_compare(
            "cached and chunked",
            parts,
            jobs,
            max_num_batched_tokens=max(12, budget),
            long_prefill_token_threshold=budget // 2,
            max_num_seqs=12,
        )
        assert engine.engine_core.scheduler.num_preemptions == 0


def preempted_equals_not(parts: EngineParts) -> None:
    """Requests that lose their blocks and start over give the same tokens."""
    jobs = [
        Job(prompt, 14, arrive=i // 2, priority=-i)
        for i, prompt in enumerate(prompts(5, 9, 7, 12, 6, 10))
    ]
    for caching in (False, True):
        for policy in ("fcfs", "priority"):
            engine = run_and_compare(
                f"preempted ({policy}, caching {caching})",
                parts,
                jobs,
                num_gpu_blocks=13,
                enable_prefix_caching=caching,
                scheduling_policy=policy,
            )
            assert engine.engine_core.scheduler.num_preemptions > 0, "nobody was preempted"


def evicted_is_forgotten(parts: EngineParts) -> None:
    """A prefix whose blocks went to others is computed anew, not read from their KV."""
    texts = prompts(6, 12, 13, 11, 14)
    jobs = [Job(texts[i % 4], 6, arrive=9 * i) for i in range(9)]
    run_and_compare("evicted", parts, jobs, num_gpu_blocks=12)


def any_block_size(parts: EngineParts) -> None:
    """The block size changes no token."""
    jobs = sharing_jobs()[:10]
    for block_size in (1, 2, 3, 5, 16):
        run_and_compare(
            f"block size {block_size}", parts, jobs, block_size=block_size, max_num_seqs=12
        )


# -- invariants and canaries ----------------------------------------------------------------------


def random_workload(seed: int) -> tuple[list[Job], dict[str, Any]]:
    """Jobs with shared beginnings, staggered, some aborted; and settings that make them compete."""
    rng = np.random.default_rng(seed)
    block_size = int(rng.choice([1, 2, 4, 8]))
    stems = [rng.integers(3, SMALL.vocab_size, 16).tolist() for _ in range(2)]
    jobs = []
    for _ in range(10):
        stem = stems[int(rng.integers(2))][: int(rng.integers(0, 17))]
        prompt = stem + rng.integers(3, SMALL.vocab_size, int(rng.integers(1, 9))).tolist()
        arrive = int(rng.integers(0, 25))
        abort = arrive + int(rng.integers(0, 12)) if rng.random() < 0.25 else None
        jobs.append(
            Job(
                prompt,
                int(rng.integers(1, 16)),
                arrive,
                abort,
                int(rng.integers(3)),
                bool(rng.random() < 0.5),
            )
        )
    slots = int(rng.integers(2, 7))
    settings: dict[str, Any] = {
        "block_size": block_size,
        # From "one request just fits" (39 computed tokens at most) to roomy.
        "num_gpu_blocks": 2 + 39 // block_size + int(rng.integers(0, 60)) // block_size,
        "max_num_seqs": slots,
        "max_num_batched_tokens": slots + int(rng.integers(0, 40)),
        "long_prefill_token_threshold": int(rng.choice([0, 3, 7])),
        "enable_prefix_caching": bool(rng.random() < 0.75),
        "scheduling_policy": str(rng.choice(["fcfs", "priority"])),
        "scheduler_reserve_full_isl": bool(rng.random() < 0.8),
    }
    return jobs, settings


def watch(engine: LLMEngine) -> None:
    """Check every invariant at every step that the engine takes from now on."""
    scheduler = engine.engine_core.scheduler
    schedule = scheduler.schedule
    before: dict[str, int] = {}

    def checked_schedule() -> Any:
        output = schedule()
        before.update((i, r.num_tokens) for i, r in scheduler.requests.items())
        check_scheduled(scheduler, output)
        return output

    def observe(record: StepRecord) -> None:
        check_sampled(scheduler, record.scheduler_output, record.model_runner_output, before)
        check_state(scheduler)

    scheduler.schedule = checked_schedule  # type: ignore[method-assign]
    engine.engine_core.step_observers.append(observe)


def invariants_hold(parts: EngineParts) -> None:
    """I1 to I13 at every step of workloads that share, compete, preempt and abort."""
    workloads = [random_workload(seed) for seed in range(6)]
    workloads.append((sharing_jobs(), {"max_num_seqs": 12, "long_prefill_token_threshold": 5}))
    for number, (jobs, settings) in enumerate(workloads):
        engine = make_engine(parts, **settings)
        watch(engine)
        compare(f"random workload {number}", jobs, drive(engine, jobs)[0])


def poison(engine: LLMEngine) -> Callable[[Any], None]:
    """A function to call between `schedule` and the forward: it fills with NaN every slot that
    nobody has a right to read, that is all but those of tokens computed before this step."""
    core = engine.engine_core
    caches = core.model_runner.kv_caches
    block_size = core.config.block_size

    def fill(output: Any) -> None:
        manager = core.kv_cache_manager
        valid = np.zeros((len(manager.block_pool.blocks), block_size), bool)
        for block in manager.block_pool.blocks[1:]:
            # Free or not, a published block can be found. It is full, or about to be filled.
            valid[block.block_id] = block.block_hash is not None
        for request_id, blocks in manager.req_to_blocks.items():
            scheduled = output.num_scheduled_tokens.get(request_id, 0)
            computed = core.scheduler.requests[request_id].num_computed_tokens - scheduled
            ids = [block.block_id for block in blocks]
            for position in range(len(ids) * block_size):
                place = ids[position // block_size], position % block_size
                if position < computed:
                    valid[place] = True
                elif position < computed + scheduled or blocks[position // block_size].ref_cnt == 1:
                    valid[place] = False  # to be written in this step, or later
        for cache in caches:
            cache[:, :, ~valid] = np.nan

    return fill


def canaries(parts: EngineParts) -> None:
    """No result ever depends on a slot that was not written for the request that reads it."""
    workloads = [random_workload(seed) for seed in range(20, 23)]
    workloads.append((sharing_jobs(), {"max_num_seqs": 12, "long_prefill_token_threshold": 5}))
    for number, (jobs, settings) in enumerate(workloads):
        engine = make_engine(parts, **settings)
        fill = poison(engine)
        runner = engine.engine_core.model_runner
        execute = runner.execute_model

        def poisoned(output: Any, fill: Any = fill, execute: Any = execute) -> Any:
            fill(output)
            return execute(output)

        runner.execute_model = poisoned  # type: ignore[method-assign]
        compare(f"canaries, workload {number}", jobs, drive(engine, jobs)[0])


# -- decisions ------------------------------------------------------------------------------------


def make_scheduler(parts: EngineParts = EngineParts(), **settings: Any) -> Scheduler:
    """A scheduler over the parts' manager and pool; defaults: block size 16, 512 tokens a request."""
    settings = {"num_gpu_blocks": 64, "max_model_len": 512} | settings
    return scheduler_of(parts, EngineConfig(**settings))


def scheduler_of(parts: EngineParts, config: EngineConfig) -> Scheduler:
    caching = config.enable_prefix_caching
    pool = parts.block_pool(config.num_gpu_blocks, caching)
    manager = parts.kv_cache_manager(
        config.num_gpu_blocks, config.block_size, config.max_model_len, caching, pool
    )
    return parts.scheduler(config, manager)


def make_request(scheduler: Scheduler, request_id: str, prompt: Sequence[int], **more: Any) -> Request:
    """A request for `scheduler`; `more`: max_tokens (16), priority, arrival_time, cache_salt, ..."""
    names = ("priority", "arrival_time", "cache_salt")
    rest = {name: more.pop(name) for name in names if name in more}
    params = SamplingParams(**({"max_tokens": 16, "ignore_eos": True} | more))
    params.update_from_generation_config({}, EOS)
    caching = scheduler.config.enable_prefix_caching
    size = scheduler.config.block_size if caching else None
    return Request(request_id, list(prompt), params, block_size=size, **rest)


def step(scheduler: Scheduler, sample: Callable[[Request], int] = lambda r: 9) -> SimpleNamespace:
    """One step with a made-up sampler; what was decided."""
    from mini_vllm.scheduler import ModelRunnerOutput

    output = scheduler.schedule()
    tables = {i: scheduler.kv_cache_manager.get_block_ids(i) for i in output.num_scheduled_tokens}
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


def recorded_decisions(parts: EngineParts) -> None:
    """Decisions that vLLM 0.22.1 took, as small as they come. `test_scheduler.py` has each alone."""
    three_duplicates(parts)
    preemption_vector(parts)
    eviction_order(parts)
    salts_apart(parts)


def _same(what: str, got: object, expected: object) -> None:
    assert got == expected, f"{what}: got {got}, vLLM decides {expected}"


def three_duplicates(parts: EngineParts) -> None:
    scheduler = make_scheduler(parts)
    for i in "abc":
        scheduler.add_request(make_request(scheduler, i, range(100, 132)))
    first = step(scheduler)
    _same("three duplicates, tokens", first.scheduled, {"a": 32, "b": 16, "c": 16})
    _same("three duplicates, tables", first.tables, {"a": [1, 2], "b": [1, 3], "c": [1, 4]})
    _same("three duplicates, references", scheduler.kv_cache_manager.block_pool.blocks[1].ref_cnt, 3)


def preemption_vector(parts: EngineParts) -> None:
    scheduler = make_scheduler(parts, num_gpu_blocks=6, max_model_len=80)
    a = make_request(scheduler, "a", range(100, 124), max_tokens=20)
    b = make_request(scheduler, "b", range(200, 224), max_tokens=20)
    scheduler.add_request(a)
    scheduler.add_request(b)
    for _ in range(9):
        step(scheduler)
    _same("two at 33 tokens", (a.num_tokens, b.num_tokens), (33, 33))
    tenth = step(scheduler)
    _same("b preempts itself", (tenth.scheduled, tenth.preempted), ({"a": 1}, {"b"}))
    _same("what b gave back", scheduler.kv_cache_manager.block_pool.get_num_free_blocks(), 2)
    while "a" in scheduler.requests:
        _same("b waits for a: 1 new block, 2 to revive", step(scheduler).scheduled, {"a": 1})
    back = step(scheduler)
    _same("b resumes with 32 of 33 tokens cached", back.scheduled, {"b": 1})
    _same("b revives its blocks", back.output.scheduled_cached_reqs.num_computed_tokens, [32])


def eviction_order(parts: EngineParts) -> None:
    """Freed tail first, a prompt's beginning outlives its end."""
    scheduler = make_scheduler(parts, num_gpu_blocks=5, max_model_len=64)
    scheduler.add_request(make_request(scheduler, "a", range(100, 148), max_tokens=1))
    _same("a's table", step(scheduler).tables, {"a": [1, 2, 3]})
    scheduler.add_request(make_request(scheduler, "b", range(200, 232), max_tokens=1))
    _same("b takes the unused block, then a's tail", step(scheduler).tables, {"b": [4, 3]})
    scheduler.add_request(make_request(scheduler, "c", range(100, 148), max_tokens=1))
    third = step(scheduler)
    _same("a's first two blocks are still there", third.scheduled, {"c": 16})
    _same("c's table", third.tables, {"c": [1, 2, 3]})


def salts_apart(parts: EngineParts) -> None:
    scheduler = make_scheduler(parts)
    for i, salt in (("a", "x"), ("b", "y"), ("c", "x")):
        scheduler.add_request(make_request(scheduler, i, range(100, 133), cache_salt=salt))
    _same("salts", step(scheduler).scheduled, {"a": 33, "b": 33, "c": 1})


def golden_traces(parts: EngineParts, limit: int = 3) -> None:
    """The first recorded workloads of vLLM's scheduler, decision by decision."""
    from course.parity import explain, replay
    from course.traces import read_traces

    def make(config: EngineConfig) -> Scheduler:
        return scheduler_of(parts, config)

    make.__qualname__ = parts.scheduler.__qualname__
    for file in sorted(GOLDEN.glob("*.jsonl*")):
        for number, (where, trace) in enumerate(read_traces(str(file))):
            if number >= limit:
                break
            difference = replay(where, trace, make)
            assert difference is None, f"golden trace: {explain(difference, make)}"


DETECTORS: dict[str, Callable[[EngineParts], None]] = {
    f.__name__: f
    for f in (
        alone,
        batched_equals_alone,
        chunked_equals_unchunked,
        cached_equals_uncached,
        cached_and_chunked,
        preempted_equals_not,
        evicted_is_forgotten,
        any_block_size,
        invariants_hold,
        canaries,
        recorded_decisions,
        golden_traces,
    )
}
