"""The scheduler's decisions, one rule a test, without a model.

The vectors marked "recorded" are decisions that vLLM 0.22.1 was seen to take (its synchronous
scheduler, on a CPU); the others follow from its source.
"""

from __future__ import annotations

from typing import Any

import pytest

from mini_vllm.config.engine import EngineConfig
from mini_vllm.core.sched.scheduler import Scheduler
from tests.engine.helpers.engine.detectors import (
    eviction_order,
    preemption_vector,
    salts_apart,
    three_duplicates,
)
from tests.engine.helpers.engine.invariants import check_drained
from tests.engine.helpers.engine.workloads import DEFAULT_PARTS, make_request, make_scheduler, step
from tests.engine.helpers.scheduler.scheduler_helpers import apart, setup, text

# -- recorded vectors -----------------------------------------------------------------------------


def test_recorded_a_prompt_of_24_and_4_tokens_takes_steps_of_24_1_1_1() -> None:
    scheduler, _ = setup(text(24), more={"max_tokens": 4})
    steps = []
    while scheduler.has_unfinished_requests():
        steps.append(step(scheduler).scheduled)
    assert steps == [{"0": 24}, {"0": 1}, {"0": 1}, {"0": 1}]
    check_drained(scheduler)


def test_recorded_threshold_10_cuts_two_prompts_of_24_into_10_10_4() -> None:
    scheduler, (a, b) = setup(*apart(24, 2), long_prefill_token_threshold=10)
    chunks = []
    for counter in (10, 20, 24):
        done = step(scheduler)
        assert a.num_computed_tokens == b.num_computed_tokens == counter
        chunks.append((done.scheduled, done.result.sampled_token_ids))
    assert chunks == [
        ({"0": 10, "1": 10}, [[], []]),
        ({"0": 10, "1": 10}, [[], []]),
        ({"0": 4, "1": 4}, [[9], [9]]),
    ]
    assert step(scheduler).scheduled == {"0": 1, "1": 1}


def test_recorded_three_duplicates_in_one_step_share_their_first_block() -> None:
    """32 tokens, block 16: {32, 16, 16}, tables [1, 2] [1, 3] [1, 4], block 1 held by all three."""
    three_duplicates(DEFAULT_PARTS)


def test_recorded_a_duplicate_hits_a_block_that_is_hashed_before_the_forward() -> None:
    scheduler, requests = setup(text(32), text(32))
    scheduler.schedule()
    pool = scheduler.kv_cache_manager.block_pool
    assert pool.blocks[1].block_hash == requests[0].block_hashes[0]
    assert requests[1].num_cached_tokens == 16


@pytest.mark.parametrize(
    ("caching", "scheduled", "tables"),
    [
        (True, {"0_x": 33, "1_x": 1}, {"0_x": [8, 9, 10], "1_x": [8, 9, 11]}),
        (False, {"0_x": 33, "1_x": 33}, {"0_x": [8, 9, 10], "1_x": [11, 12, 13]}),
    ],
)
def test_recorded_n_2_shares_through_the_prefix_cache_only(
    caching: bool, scheduled: dict[str, int], tables: dict[str, list[int]]
) -> None:
    scheduler = make_scheduler(enable_prefix_caching=caching)
    scheduler.add_request(make_request(scheduler, "before", text(112, 500), max_tokens=1))
    step(scheduler)  # blocks 1 to 7 have been used: they stand at the back of the queue now
    for child in ("0_x", "1_x"):
        scheduler.add_request(make_request(scheduler, child, text(33)))
    done = step(scheduler)
    assert (done.scheduled, done.tables) == (scheduled, tables)


def test_recorded_preemption_waits_for_one_new_and_two_revived_blocks() -> None:
    """6 blocks, two prompts of 24: at 33 tokens the second preempts itself; 2 blocks are free, but
    it needs 3 until the first ends, and resumes with 32 of 33 tokens cached."""
    preemption_vector(DEFAULT_PARTS)


@pytest.mark.parametrize(("threshold", "chunks"), [(0, [33]), (10, [10, 10, 10, 3])])
def test_recorded_preemption_without_caching_recomputes_33_tokens(
    threshold: int, chunks: list[int]
) -> None:
    """The full-sequence gate delays the return although one chunk would fit."""
    scheduler, (a, b) = setup(
        *apart(24, 2),
        num_gpu_blocks=6,
        max_model_len=80,
        enable_prefix_caching=False,
        long_prefill_token_threshold=threshold,
        more={"max_tokens": 20},
    )
    while not b.num_preemptions:
        step(scheduler)
    assert (a.num_tokens, b.num_tokens) == (34, 33)
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 2
    while "0" in scheduler.requests:
        assert step(scheduler).scheduled == {"0": 1}
    assert [step(scheduler).scheduled["1"] for _ in chunks] == chunks
    assert b.num_tokens == 34


def test_recorded_four_long_duplicates_after_nine_short_prompts_hit_256_tokens() -> None:
    """Block 128, 24-token prompts first: below one block nothing is shared; 768 of 1416 in all."""
    scheduler = make_scheduler(block_size=128, num_gpu_blocks=40, max_num_batched_tokens=4096)
    short, long = text(24), text(300, 500)
    requests = []
    for i, prompt in enumerate([short] * 9 + [long] * 4):
        request = make_request(scheduler, f"{i:02}", prompt, max_tokens=1)
        requests.append(request)
        scheduler.add_request(request)
        if i == 8:
            step(scheduler)
    step(scheduler)
    hits = [request.num_cached_tokens for request in requests]
    assert hits == [0] * 9 + [0, 256, 256, 256]
    assert (sum(hits), sum(request.num_prompt_tokens for request in requests)) == (768, 1416)


def test_a_freed_prompts_beginning_outlives_its_end() -> None:
    eviction_order(DEFAULT_PARTS)


def test_cache_salts_keep_equal_prompts_apart() -> None:
    salts_apart(DEFAULT_PARTS)


# -- the budget -----------------------------------------------------------------------------------


def test_running_requests_come_first_and_a_prompt_gets_what_is_left() -> None:
    """Budget 64, a decode and a prompt of 50: the next prompt of 30 is cut to 13."""
    scheduler, _ = setup(text(5), max_num_batched_tokens=64, max_num_seqs=8)
    step(scheduler)
    for i, prompt in (("A", text(50, 200)), ("B", text(30, 300))):
        scheduler.add_request(make_request(scheduler, i, prompt))
    done = step(scheduler)
    assert list(done.scheduled.items()) == [("0", 1), ("A", 50), ("B", 13)]
    assert step(scheduler).scheduled == {"0": 1, "A": 1, "B": 17}


def test_a_spent_budget_leaves_running_requests_out() -> None:
    scheduler, _ = setup(*apart(6, 3), max_num_batched_tokens=8, max_num_seqs=3)
    assert step(scheduler).scheduled == {"0": 6, "1": 2}
    assert step(scheduler).scheduled == {"0": 1, "1": 4, "2": 3}


def test_without_chunking_a_prompt_that_exceeds_the_budget_waits_and_blocks_the_queue() -> None:
    scheduler, _ = setup(
        text(40),
        text(30, 200),
        text(2, 300),
        enable_chunked_prefill=False,
        max_num_batched_tokens=64,
        max_num_seqs=8,
        max_model_len=64,
    )
    assert step(scheduler).scheduled == {"0": 40}
    assert step(scheduler).scheduled == {"0": 1, "1": 30, "2": 2}


def test_sequence_slots_bound_the_running() -> None:
    scheduler, _ = setup(*apart(4, 3), max_num_seqs=2, more={"max_tokens": 2})
    assert step(scheduler).scheduled == {"0": 4, "1": 4}
    assert step(scheduler).scheduled == {"0": 1, "1": 1}
    assert step(scheduler).scheduled == {"2": 4}


def test_the_threshold_also_cuts_what_a_prefix_hit_leaves() -> None:
    scheduler, _ = setup(text(40), text(40), long_prefill_token_threshold=20)
    assert step(scheduler).scheduled == {"0": 20, "1": 20}
    assert scheduler.requests["1"].num_cached_tokens == 16


def test_a_request_samples_only_in_the_step_that_catches_up() -> None:
    scheduler, (a,) = setup(text(20), max_num_batched_tokens=8, max_num_seqs=1)
    sampled = [step(scheduler).result.sampled_token_ids for _ in range(4)]
    assert sampled == [[[]], [[]], [[9]], [[9]]]
    assert a.output_token_ids == [9, 9]


def test_counters_advance_when_a_step_is_scheduled_not_when_it_returns() -> None:
    scheduler, (a,) = setup(text(20))
    output = scheduler.schedule()
    assert a.num_computed_tokens == 20
    assert output.scheduled_new_reqs[0].num_computed_tokens == 0


# -- admission ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "reserve", "admitted"), [(64, True, True), (65, True, False), (65, False, True)]
)
def test_admission_waits_until_the_whole_sequence_fits_into_what_is_free_now(
    length: int, reserve: bool, admitted: bool
) -> None:
    """The first request took 1 of 5 blocks and will want 2 more; nobody keeps them for it."""
    scheduler, _ = setup(
        text(40),
        text(length, 200),
        num_gpu_blocks=6,
        long_prefill_token_threshold=8,
        scheduler_reserve_full_isl=reserve,
        more={"max_tokens": 1},
    )
    assert step(scheduler).scheduled == ({"0": 8, "1": 8} if admitted else {"0": 8})


def test_nobody_overtakes_a_request_that_does_not_fit() -> None:
    scheduler, _ = setup(text(40), text(64, 200), text(2, 300), num_gpu_blocks=6)
    assert step(scheduler).scheduled == {"0": 40}
    assert [r.request_id for r in scheduler.waiting] == ["1", "2"]


def test_a_request_the_pool_could_never_hold_is_refused_with_the_numbers() -> None:
    scheduler = make_scheduler(num_gpu_blocks=5, max_model_len=512)
    with pytest.raises(ValueError, match=r"'big' may need 5 KV blocks of 16 tokens.*pool has 4"):
        scheduler.add_request(make_request(scheduler, "big", text(60), max_tokens=6))
    assert not scheduler.has_unfinished_requests()
    scheduler.add_request(make_request(scheduler, "fits", text(60), max_tokens=5))
    while scheduler.has_unfinished_requests():
        step(scheduler)
    check_drained(scheduler)


def test_a_request_of_exactly_the_pools_size_runs_to_its_end_beside_others() -> None:
    """At the pin such a request can hang for ever (vllm-project/vllm issue 35541)."""
    scheduler, requests = setup(
        text(60), text(20, 300), num_gpu_blocks=5, max_model_len=64, more={"max_tokens": 50}
    )
    for _ in range(200):
        if not scheduler.has_unfinished_requests():
            break
        step(scheduler)
    assert [r.num_tokens for r in requests] == [64, 64]
    check_drained(scheduler)


def test_a_living_requests_id_is_refused_and_a_finished_ones_may_be_used_again() -> None:
    scheduler, _ = setup(text(4), more={"max_tokens": 1})
    with pytest.raises(ValueError, match="request id '0' is already in use"):
        scheduler.add_request(make_request(scheduler, "0", text(4)))
    step(scheduler)
    scheduler.add_request(make_request(scheduler, "0", text(7, 200)))
    again = step(scheduler)
    assert again.scheduled == {"0": 7}
    assert again.output.finished_req_ids == {"0"}  # the old one: the worker must forget it first


@pytest.mark.parametrize("missing", ["num_gpu_blocks", "max_model_len"])
def test_a_config_with_an_open_end_is_refused(missing: str) -> None:
    settings: dict[str, Any] = {"num_gpu_blocks": 8, "max_model_len": 64}
    settings[missing] = None
    with pytest.raises(ValueError, match="needs num_gpu_blocks and max_model_len"):
        Scheduler(EngineConfig(**settings))
