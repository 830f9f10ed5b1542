"""`LLMEngine` step by step: who is where after which step, and the same tokens whatever happens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mini_vllm import EngineConfig, LLMEngine, RequestOutputKind, SamplingParams
from mini_vllm.engine.build import resolve_config
from mini_vllm.engine.step_record import StepRecord
from tests.engine.helpers.engine.engine_helpers import make_engine, random_model, run
from tests.engine.helpers.engine.text_helpers import (
    check_no_leak,
    finish,
    free_blocks,
    greedy,
    ids_of,
    text_engine,
)
from tests.engine.helpers.thorough import either

GREEDY = greedy(16, ignore_eos=True)


def prompts(count: int, seed: int = 0, longest: int = 40) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 64, rng.integers(1, longest)).tolist() for _ in range(count)]


def test_nothing_to_do_is_no_step() -> None:
    engine = make_engine(num_gpu_blocks=20)
    assert not engine.has_unfinished_requests()
    assert engine.step() == []
    assert engine.engine_core.num_steps == 0


def test_a_request_waits_then_runs_then_is_gone() -> None:
    engine = make_engine(num_gpu_blocks=20)
    assert engine.add_request("a", [5, 6, 7], greedy(3, ignore_eos=True)) == "a"
    assert engine.engine_core.num_steps == 0, "adding a request computes nothing"
    assert engine.get_num_unfinished_requests() == 1
    counts = []
    while engine.has_unfinished_requests():
        (output,) = engine.step()
        counts.append((len(output.outputs[0].token_ids), output.finished))
    assert counts == [(1, False), (2, False), (3, True)]
    check_no_leak(engine)


def test_requests_may_come_at_any_time() -> None:
    """Each gets the tokens it gets alone, whoever was there before."""
    model = random_model()
    many = prompts(8)
    alone = [run(make_engine(model, num_gpu_blocks=64), [p], GREEDY)[0] for p in many]
    engine = make_engine(model, num_gpu_blocks=64, max_num_batched_tokens=32, max_num_seqs=8)
    tokens: dict[str, list[int]] = {}
    for i, prompt in enumerate(many):
        engine.add_request(str(i), prompt, GREEDY)
        for _ in range(i % 3):
            tokens.update((o.request_id, o.outputs[0].token_ids) for o in engine.step())
    tokens.update((k, v.outputs[0].token_ids) for k, v in finish(engine).items())
    assert [tokens[str(i)] for i in range(8)] == alone
    check_no_leak(engine)


def test_a_chunked_prompt_gives_nothing_until_it_is_done() -> None:
    engine = make_engine(num_gpu_blocks=20, max_num_batched_tokens=8, max_num_seqs=2)
    engine.add_request("a", prompts(1)[0][:1] * 20, greedy(2, ignore_eos=True))
    assert [len(engine.step()) for _ in range(4)] == [0, 0, 1, 1]


def test_more_requests_than_slots_wait_their_turn() -> None:
    engine = make_engine(num_gpu_blocks=64, max_num_seqs=2)
    for i in range(5):
        engine.add_request(str(i), [5 + i], greedy(3, ignore_eos=True))
    order = []
    while engine.has_unfinished_requests():
        outputs = engine.step()
        assert len(outputs) <= 2
        order += [o.request_id for o in outputs if o.finished]
    assert order == ["0", "1", "2", "3", "4"]


def test_a_step_observer_sees_every_step() -> None:
    engine = make_engine(num_gpu_blocks=20)
    seen: list[StepRecord] = []
    engine.engine_core.step_observers.append(seen.append)
    engine.add_request("a", [5, 6, 7], greedy(4, ignore_eos=True))
    finish(engine)
    assert [record.index for record in seen] == [1, 2, 3, 4]
    assert [r.scheduler_output.num_scheduled_tokens for r in seen] == [{"a": 3}] + [{"a": 1}] * 3
    assert [r.outputs[0].finish_reason for r in seen] == [None, None, None, "length"]
    assert all(r.schedule_time >= 0 and r.execute_time > 0 and r.update_time >= 0 for r in seen)


# -- preemption -----------------------------------------------------------------------------------


def test_preempted_requests_lose_nothing() -> None:
    model = random_model()
    many = prompts(6, seed=3)
    params = greedy(30, ignore_eos=True)
    expected = run(make_engine(model, num_gpu_blocks=200, block_size=4), many, params)
    engine = make_engine(model, num_gpu_blocks=30, block_size=4)
    assert run(engine, many, params, check=True) == expected
    assert engine.engine_core.scheduler.num_preemptions > 0
    check_no_leak(engine)


def test_a_preempted_sampling_request_goes_on_in_its_random_stream() -> None:
    model = random_model()
    many = prompts(6, seed=3)
    params = SamplingParams(temperature=1.5, seed=11, max_tokens=30, ignore_eos=True)
    expected = run(make_engine(model, num_gpu_blocks=200, block_size=4), many, params)
    engine = make_engine(model, num_gpu_blocks=30, block_size=4)
    assert run(engine, many, params) == expected
    assert engine.engine_core.scheduler.num_preemptions > 0


def test_streamed_text_survives_preemption() -> None:
    many = [f"prompt number {i} " for i in range(5)]
    params = greedy(40, ignore_eos=True, output_kind=RequestOutputKind.DELTA)

    def streams(blocks: int) -> tuple[dict[str, str], int]:
        engine = text_engine(num_gpu_blocks=blocks, block_size=4)
        for i, prompt in enumerate(many):
            engine.add_request(str(i), prompt, params)
        texts: dict[str, str] = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                before = texts.get(output.request_id, "")
                texts[output.request_id] = before + output.outputs[0].text
        check_no_leak(engine)
        return texts, engine.engine_core.scheduler.num_preemptions

    expected, none = streams(200)
    actual, some = streams(30)
    assert (none, some > 0) == (0, True)
    assert actual == expected


def test_priority_preempts_the_least_important() -> None:
    settings = {"num_gpu_blocks": 14, "block_size": 4, "scheduling_policy": "priority"}
    engine = make_engine(**settings)
    for request_id, priority in (("important", 0), ("less", 5), ("middle", 3)):
        engine.add_request(request_id, [7] * 9, greedy(20, ignore_eos=True), priority=priority)
    preempted: list[str] = []
    engine.engine_core.step_observers.append(
        lambda record: preempted.extend(record.scheduler_output.preempted_req_ids)
    )
    done = finish(engine)
    assert preempted[0] == "less"
    assert "important" not in preempted
    assert {len(o.outputs[0].token_ids) for o in done.values()} == {20}
    check_no_leak(engine)


def test_aborting_a_preempted_request_leaks_nothing() -> None:
    engine = make_engine(num_gpu_blocks=14, block_size=4)
    for i in range(3):
        engine.add_request(str(i), [7 + i] * 9, greedy(20, ignore_eos=True))
    scheduler = engine.engine_core.scheduler
    while not scheduler.num_preemptions:
        engine.step()
    (victim,) = [request.request_id for request in scheduler.waiting]
    engine.abort_request(victim)
    assert victim not in finish(engine)
    check_no_leak(engine)


# -- prefix caching -------------------------------------------------------------------------------


def test_num_cached_tokens_is_what_the_first_admission_found() -> None:
    engine = make_engine(num_gpu_blocks=64, block_size=4)
    engine.add_request("a", list(range(10, 30)), GREEDY)
    finish(engine)
    for prompt, cached in (
        (list(range(10, 30)), 16),  # not 20: the last token must be computed
        (list(range(10, 31)), 20),
        (list(range(10, 15)), 4),
        ([*range(10, 18), 5, 5, 5], 8),
        (list(range(11, 30)), 0),  # the chain begins with another block
    ):
        engine.add_request("b", prompt, GREEDY)
        assert finish(engine)["b"].num_cached_tokens == cached


def test_num_cached_tokens_counts_the_last_admission_before_the_first_token() -> None:
    """Preempted in mid-prompt, a request is admitted again before it has any output, and what it
    finds then is what vLLM reports: it takes the figures with the first output
    (`vllm/v1/core/sched/scheduler.py:627` sets them, `vllm/v1/core/sched/scheduler.py:1517` takes them)."""
    settings: dict[str, Any] = {
        "num_gpu_blocks": 13, "block_size": 4, "max_num_batched_tokens": 8, "max_num_seqs": 4,
        "scheduler_reserve_full_isl": False,
    }  # fmt: skip
    engine = make_engine(**settings)
    engine.add_request("old", [9] * 15, greedy(20, ignore_eos=True))
    engine.add_request("new", list(range(10, 46)), greedy(1, ignore_eos=True))
    admissions: list[int] = []

    def watch(record: StepRecord) -> None:
        output = record.scheduler_output
        new = {n.req_id: n.num_computed_tokens for n in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        again = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        if "new" in new or "new" in cached.resumed_req_ids:
            admissions.append((new | again)["new"])

    engine.engine_core.step_observers.append(watch)
    done = finish(engine)
    assert len(admissions) > 1, "it was not preempted in mid-prompt"
    assert admissions[-1] > 0, "it found nothing when it came back"
    assert done["new"].num_cached_tokens == admissions[-1]


def test_reset_prefix_cache_waits_until_nobody_holds_blocks() -> None:
    engine = make_engine(num_gpu_blocks=20, block_size=4)
    engine.add_request("a", [7] * 9, GREEDY)
    engine.step()
    assert not engine.reset_prefix_cache()
    finish(engine)
    assert engine.reset_prefix_cache()
    engine.add_request("a", [7] * 9, GREEDY)
    assert finish(engine)["a"].num_cached_tokens == 0


# -- configuration --------------------------------------------------------------------------------


def test_open_settings_are_filled_in_from_the_model() -> None:
    model = random_model()
    config = resolve_config(EngineConfig(), model)
    assert config.max_model_len == model.config.max_position_embeddings
    page = 2 * 4 * 2 * 2 * 8 * 16  # K and V, 4 bytes, 2 layers, 2 KV heads of 8, blocks of 16
    small = resolve_config(EngineConfig(kv_cache_memory_bytes=10 * page + 1), model)
    assert small.num_gpu_blocks == 10
    kept = resolve_config(EngineConfig(num_gpu_blocks=7, max_model_len=33), model)
    assert (kept.num_gpu_blocks, kept.max_model_len) == (7, 33)


def test_max_model_len_caps_prompt_and_output_together() -> None:
    engine = make_engine(num_gpu_blocks=20, max_model_len=24)
    engine.add_request("a", [7] * 20, greedy(100, ignore_eos=True))
    engine.add_request("b", [7] * 23, greedy(100, ignore_eos=True))
    done = finish(engine)
    assert [len(done[k].outputs[0].token_ids) for k in "ab"] == [4, 1]
    assert {o.outputs[0].finish_reason for o in done.values()} == {"length"}


def test_two_engines_over_one_model_do_not_meet() -> None:
    model = random_model()
    expected = run(make_engine(model, num_gpu_blocks=40), [[7, 8, 9]], GREEDY)
    first, second = (make_engine(model, num_gpu_blocks=40) for _ in range(2))
    first.add_request("a", [7, 8, 9], GREEDY)
    second.add_request("a", [9, 8, 7], GREEDY)
    first.step()
    second.step()
    assert [finish(first)["a"].outputs[0].token_ids] == expected
    finish(second)


def test_random_traffic_leaks_nothing() -> None:
    """Adds, aborts, stop strings, children and finishes in a pool that is too small for all."""
    rng = np.random.default_rng(0)
    engine: LLMEngine = text_engine(num_gpu_blocks=28, block_size=4)
    alive: set[str] = set()
    finished = 0
    num_steps = either(150, 300)
    for step in range(num_steps):
        if rng.random() < 0.4 and len(alive) < 12:
            request_id = f"r{step}"
            params = SamplingParams(
                n=int(rng.integers(1, 3)),
                temperature=1.0,
                seed=step,
                max_tokens=int(rng.integers(1, 30)),
                stop=[chr(int(rng.integers(97, 123)))] if rng.random() < 0.5 else None,
                logprobs=1 if rng.random() < 0.3 else None,
                prompt_logprobs=1 if rng.random() < 0.2 else None,
            )
            engine.add_request(request_id, ids_of("x" * int(rng.integers(1, 40))), params)
            alive.add(request_id)
        if alive and rng.random() < 0.05:
            request_id = sorted(alive)[int(rng.integers(len(alive)))]
            engine.abort_request(request_id)
            alive.discard(request_id)
        for output in engine.step():
            assert output.request_id in alive, "an output for a request that has ended"
            if output.finished:
                alive.discard(output.request_id)
                finished += 1
        engine.engine_core.kv_cache_manager.check_invariants()
    engine.abort_request(alive)
    check_no_leak(engine)
    assert finished > num_steps // 10
    assert engine.engine_core.scheduler.num_preemptions > 0


@pytest.mark.parametrize("caching", [False, True])
def test_a_pool_with_no_block_to_spare(caching: bool) -> None:
    """9 prompt and 11 output tokens, of which the last is never computed: 19 slots, 5 blocks."""
    engine = make_engine(num_gpu_blocks=6, block_size=4, enable_prefix_caching=caching)
    engine.add_request("a", [7] * 9, greedy(11, ignore_eos=True))
    lowest = 99
    while engine.has_unfinished_requests():
        engine.step()
        lowest = min(lowest, free_blocks(engine))
    assert lowest == 0
    check_no_leak(engine)


def test_the_default_kv_cache_holds_the_longest_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as a quarter of the free memory goes; for small models it is 128 MiB."""
    from mini_vllm.config.cache import DEFAULT_KV_CACHE_BYTES
    from mini_vllm.engine import build

    monkeypatch.setattr(build, "available_memory", lambda: 4 * 2**30)
    assert build.default_kv_cache_bytes(2**20) == DEFAULT_KV_CACHE_BYTES
    assert build.default_kv_cache_bytes(2**29) == 2**29
    assert build.default_kv_cache_bytes(2**31) == 2**30
