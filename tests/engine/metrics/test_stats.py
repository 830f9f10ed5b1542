"""What a step counts: beside vLLM's own scheduler, and end to end through the engine."""

from __future__ import annotations

import random
from typing import Any

import pytest

from course.parity.decisions import mini_parts
from course.parity.record import vllm_parts, workload
from course.parity.traces import Run
from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.core.stats import CachingMetrics, PrefixCacheStats, SchedulerStats
from mini_vllm.metrics.stats import IterationStats
from mini_vllm.trace import TraceRecorder
from tests.engine.helpers.real_vllm import abort_counts

SIX = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def make_engine(**settings: Any) -> tuple[LLMEngine, list[tuple[SchedulerStats, IterationStats]]]:
    """An engine that counts, and what its logger is told."""
    given = {"block_size": 4, "num_gpu_blocks": 14, "max_model_len": 48, **settings}
    engine = LLMEngine(config=EngineConfig(**given), log_stats=True)
    told: list[tuple[SchedulerStats, IterationStats]] = []
    assert engine.metrics is not None
    engine.metrics.stat_loggers.append(lambda *stats: told.append(stats))
    return engine, told


def run(engine: LLMEngine) -> None:
    while engine.has_unfinished_requests():
        engine.step()


def test_a_request_that_does_not_fit_is_looked_up_in_each_step() -> None:
    # 12 usable blocks; each prompt of 40 wants ten and, with its answer, two more.
    engine, told = make_engine(num_gpu_blocks=13)
    for name, first in (("a", 3), ("b", 60)):
        engine.add_request(name, list(range(first, first + 40)), SIX)
    run(engine)
    looked_up = [stats.prefix_cache_stats.queries for stats, _ in told]
    # Both in step 1, b alone while a has the blocks, and in the step after a's last.
    assert looked_up == [80, *[40] * 6, *[0] * 5]
    counters = {metric.name: metric for metric in engine.get_metrics()}
    assert counters["vllm:prefix_cache_queries"].value == 320  # type: ignore[attr-defined]
    assert counters["vllm:prompt_tokens"].value == 80  # type: ignore[attr-defined]


def test_whoever_was_preempted_counts_apart_and_not_in_the_hit_rate() -> None:
    engine, told = make_engine(num_gpu_blocks=12)
    for name, first in (("a", 3), ("b", 60)):
        engine.add_request(name, list(range(first, first + 20)), SIX)
    rate = CachingMetrics()
    run(engine)
    for stats, _ in told:
        rate.observe(stats.prefix_cache_stats)
    assert sum(iteration.num_preempted_reqs for _, iteration in told) == 1
    again = [s.prefix_cache_stats for s, _ in told if s.prefix_cache_stats.preempted_requests]
    assert again
    assert all(s.preempted_queries > 20 for s in again), "its answer is looked up too"
    assert again[-1].preempted_hits > 0
    assert rate.hit_rate == 0.0


def test_tokens_and_times_of_a_step() -> None:
    engine, told = make_engine(max_num_batched_tokens=16, max_num_seqs=2)
    engine.add_request("long", list(range(3, 43)), SIX)
    run(engine)
    assert [it.num_prompt_tokens for _, it in told] == [0, 0, 40, 0, 0, 0, 0, 0]
    assert [it.num_generation_tokens for _, it in told] == [0, 0, 1, 1, 1, 1, 1, 1]
    assert [len(it.time_to_first_tokens_iter) for _, it in told] == [0, 0, 1, 0, 0, 0, 0, 0]
    assert [len(it.inter_token_latencies_iter) for _, it in told] == [0, 0, 0, 1, 1, 1, 1, 1]
    assert [stats.num_running_reqs for stats, _ in told] == [1] * 7 + [0]
    [done] = told[-1][1].finished_requests
    assert (done.request_id, done.finish_reason, done.num_prompt_tokens) == ("long", "length", 40)
    assert (done.num_generation_tokens, done.num_cached_tokens) == (6, 0)
    gaps = [gap for _, it in told for gap in it.inter_token_latencies_iter]
    assert sum(gaps) == pytest.approx(done.decode_time)
    assert done.inference_time == pytest.approx(done.prefill_time + done.decode_time)
    assert done.mean_time_per_output_token == pytest.approx(done.decode_time / 5)


def test_prompt_tokens_by_source() -> None:
    engine, told = make_engine(num_gpu_blocks=30)
    for name in ("a", "b"):
        engine.add_request(name, list(range(3, 24)), SIX)
    run(engine)
    prompts = told[0][1].prompt_token_stats
    assert (prompts.computed, prompts.local_cache_hit, prompts.total) == (22, 20, 42)


def test_emptying_the_cache_starts_the_rate_anew() -> None:
    engine, told = make_engine(num_gpu_blocks=30)
    rate = CachingMetrics()

    def ask(name: str) -> float:
        engine.add_request(name, list(range(3, 24)), SIX)
        run(engine)
        for stats, _ in told:
            rate.observe(stats.prefix_cache_stats)
        told.clear()
        return rate.hit_rate

    assert [ask("a"), ask("b")] == [0.0, 20 / 42]
    assert engine.reset_prefix_cache()
    assert [ask("c"), ask("d")] == [0.0, 20 / 42]


def test_the_rate_is_over_the_last_requests_by_whole_steps() -> None:
    rate = CachingMetrics(max_recent_requests=3)
    for hits in (0, 10, 10):
        rate.observe(PrefixCacheStats(requests=1, queries=10, hits=hits))
    assert rate.hit_rate == 20 / 30
    rate.observe(PrefixCacheStats(requests=1, queries=10, hits=10))
    assert rate.hit_rate == 1.0, "the oldest has left"
    rate.observe(PrefixCacheStats())
    assert rate.hit_rate == 1.0, "a step without a look-up changes nothing"
    rate.observe(PrefixCacheStats(requests=5, queries=50, hits=0))
    assert rate.hit_rate == 0.0, "the latest step stays, however many it brought"


def test_a_trace_looks_and_does_not_count() -> None:
    def queries(watch: bool) -> int:
        engine, told = make_engine(num_gpu_blocks=13)
        if watch:
            TraceRecorder(engine)
        for name, first in (("a", 3), ("b", 60)):
            engine.add_request(name, list(range(first, first + 40)), SIX)
        run(engine)
        return sum(stats.prefix_cache_stats.queries for stats, _ in told)

    assert queries(watch=True) == queries(watch=False) > 80


@pytest.mark.vllm
def test_vllms_scheduler_counts_the_same_in_each_step() -> None:
    from vllm.v1.metrics.stats import PrefixCacheStats as VllmPrefixCacheStats

    looked_up = preempted = 0
    for seed in random.Random("stats").sample(range(10**6), 12):
        work = workload(seed, random.Random(seed).choice(["mixed", "priority", "crowd"]))
        work["config"]["enable_prefix_caching"] = True
        theirs, mine = vllm_parts(work["config"]), mini_parts(work["config"])
        theirs.scheduler.kv_cache_manager.log_stats = theirs.scheduler.log_stats = True
        theirs.scheduler.kv_cache_manager.prefix_cache_stats = VllmPrefixCacheStats()
        made: list[Any] = []
        make_stats = theirs.scheduler.make_stats
        theirs.scheduler.make_stats = lambda *args, make=make_stats, made=made: made.append(
            make(*args)
        )
        upstream, ours = Run(work, theirs), Run(work, mine)
        while not ours.done:
            for each in (upstream, ours):
                each.arrive()
                each.decide()
            stats, expected = mine.scheduler.make_stats(), made.pop()
            for field in ("num_running_reqs", "num_waiting_reqs", "kv_cache_usage"):
                assert getattr(stats, field) == getattr(expected, field), (seed, ours.step, field)
            for field in PrefixCacheStats.__slots__:
                counted = getattr(stats.prefix_cache_stats, field)
                assert counted == getattr(expected.prefix_cache_stats, field), (seed, field)
            looked_up += stats.prefix_cache_stats.requests
            preempted += stats.prefix_cache_stats.preempted_requests
    assert looked_up > 300, "the workloads look up often"
    assert preempted > 20, "and victims do"


# -- who is counted ---------------------------------------------------------------------------------

COUNTED = {"stop": 0, "length": 1, "abort": 0, "error": 0, "repetition": 0}


def test_an_aborted_request_counts_nowhere() -> None:
    """The counter has a label for it, which stays 0: the output processor forgets the request before the
    core could report its end (`vllm/v1/engine/output_processor.py:450 OutputProcessor.abort_requests`)."""
    assert abort_counts.play("mini_vllm") == COUNTED


@pytest.mark.vllm
def test_nor_in_real_vllm() -> None:
    from course.parity.tokens_run import run_worker

    found = run_worker("tests.engine.helpers.real_vllm.abort_counts", ["vllm"], None)
    assert found == COUNTED
