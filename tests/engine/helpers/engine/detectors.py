"""The checks of the paging path, as functions of the engine's parts.

Each takes `EngineParts`, runs the engine on a small random model and raises AssertionError where a
token, a decision or an invariant is wrong. `test_equivalences.py` calls them on the real parts;
`tests/authors/test_planted_faults.py` calls them on broken ones, to show that they see.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from course.parity import explain, replay
from course.parity.traces import read_traces
from mini_vllm.config.engine import EngineConfig
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.parts import EngineParts
from mini_vllm.engine.step_record import StepRecord
from tests.engine.helpers.engine.invariants import check_sampled, check_scheduled, check_state
from tests.engine.helpers.engine.workloads import (
    Job,
    compare,
    drive,
    make_engine,
    make_request,
    make_scheduler,
    prompts,
    random_workload,
    run_and_compare,
    scheduler_of,
    sharing_jobs,
    sharing_workloads,
    step,
)

GOLDEN = Path(__file__).parents[3] / "golden"


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


def cached_equals_uncached(parts: EngineParts) -> None:
    """Prefix hits change no token, and are as long as the rules say."""
    jobs = sharing_jobs()
    run_and_compare("uncached", parts, jobs, enable_prefix_caching=False, max_num_seqs=13)
    engine = make_engine(parts, max_num_seqs=13)
    got, hits = drive(engine, jobs)
    compare("cached", engine, jobs, got)
    # The 9th output of `a` is never computed: of its 16 + 9 tokens 24 are, six blocks.
    expected = [0, 12, 0, 12, 0, 0, 16, 12, 12, 4, 24, 12, 0]
    assert hits == expected, f"cached: tokens found in the cache are {hits}, should be {expected}"


def cached_and_chunked(parts: EngineParts) -> None:
    """Sharing a prompt that is still being computed, chunk by chunk."""
    jobs = sharing_jobs()
    for budget in (11, 23):
        engine = run_and_compare(
            "cached and chunked",
            parts,
            jobs,
            max_num_batched_tokens=max(13, budget),
            long_prefill_token_threshold=budget // 2,
            max_num_seqs=13,
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
            f"block size {block_size}", parts, jobs, block_size=block_size, max_num_seqs=13
        )


# -- invariants and canaries ----------------------------------------------------------------------


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
    workloads = [random_workload(seed) for seed in range(6)] + sharing_workloads()
    for number, (jobs, settings) in enumerate(workloads):
        engine = make_engine(parts, **settings)
        watch(engine)
        compare(f"random workload {number}", engine, jobs, drive(engine, jobs)[0])


def poison(engine: LLMEngine) -> Callable[[Any], None]:
    """A function to call between `schedule` and the forward: it fills with NaN every slot that
    nobody has a right to read, that is all but those of tokens computed before this step."""
    core = engine.engine_core
    caches = core.model_runner.kv_caches
    block_size = core.config.block_size
    # Ask the backend for its layout: these two numbers mark the axes of block and offset.
    layout = engine.model.attention.get_kv_cache_shape(1009, 1013, 2, 8)
    axes = layout.index(1009), layout.index(1013)

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
            np.moveaxis(cache, axes, (0, 1))[~valid] = np.nan

    return fill


def canaries(parts: EngineParts) -> None:
    """No result ever depends on a slot that was not written for the request that reads it."""
    workloads = [random_workload(seed) for seed in range(20, 23)] + sharing_workloads()
    for number, (jobs, settings) in enumerate(workloads):
        engine = make_engine(parts, **settings)
        fill = poison(engine)
        runner = engine.engine_core.model_runner
        execute = runner.execute_model

        def poisoned(output: Any, fill: Any = fill, execute: Any = execute) -> Any:
            fill(output)
            return execute(output)

        runner.execute_model = poisoned  # type: ignore[method-assign]
        compare(f"canaries, workload {number}", engine, jobs, drive(engine, jobs)[0])


# -- decisions ------------------------------------------------------------------------------------


def recorded_decisions(parts: EngineParts) -> None:
    """Decisions that vLLM 0.22.1 took, as small as they come."""
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
    _same(
        "three duplicates, references", scheduler.kv_cache_manager.block_pool.blocks[1].ref_cnt, 3
    )


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

    def make(config: EngineConfig) -> Scheduler:
        return scheduler_of(parts, config)

    make.__qualname__ = getattr(parts.scheduler, "__qualname__", "Scheduler")
    for file in sorted(GOLDEN.glob("scheduler-*.jsonl*")):
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
