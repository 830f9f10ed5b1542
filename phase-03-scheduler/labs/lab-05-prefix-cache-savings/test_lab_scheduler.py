"""Lab 03-05: the two loops complete, scene by scene."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from mini_vllm.core.request import RequestStatus
from mini_vllm.core.sched import scheduler as given

support = load_support(__file__)
DOCUMENT = tuple(range(20, 32))  # three blocks


def make(lab: ModuleType, **settings: Any) -> Any:
    return support.make_scheduler(lab.Scheduler, **settings)


def ids(requests: Any) -> list[str]:
    return [request.request_id for request in requests]


# ---- a head start --------------------------------------------------------------------------------


def test_a_newcomer_starts_behind_what_is_found(lab: ModuleType) -> None:
    """A newcomer starts after what is found: Fay has been computed, and Gil asks about her document."""
    scheduler = make(lab)
    support.come(scheduler, "fay", (*DOCUMENT, 40))
    support.turn(scheduler)
    gil = support.come(scheduler, "gil", (*DOCUMENT, 50, 51, 52, 53, 54))
    plan = scheduler.schedule()
    got = plan.num_scheduled_tokens["gil"]
    assert got == 5, f"12 of Gil's 17 tokens are found, 5 are missing; yours gives him {got}"
    [new] = plan.scheduled_new_reqs
    assert new.num_computed_tokens == 12, (
        f"his counter starts at what was found, and the plan tells the worker: 12, not "
        f"{new.num_computed_tokens}"
    )
    assert gil.num_computed_tokens == 17, (
        f"after the plan it stands at 12 + 5 = 17, not {gil.num_computed_tokens}"
    )
    assert gil.num_cached_tokens == 12, (
        f"his user is told that 12 were cached, not {gil.num_cached_tokens}"
    )
    [table] = new.block_ids
    assert table == [1, 2, 3, 5, 6], (
        "the worker needs his whole table: Fay's blocks 1, 2, 3 and his own 5 and 6; the plan says "
        f"{table}"
    )
    counts = [scheduler.kv_cache_manager.block_pool.blocks[i].ref_cnt for i in (1, 2, 3)]
    assert counts == [2, 2, 2], f"he holds what he found, so two hold each of them, not {counts}"


def test_two_look_ups_in_one_plan(lab: ModuleType) -> None:
    """Blocks are published as soon as they are given: Fay and Gil come together, and he finds hers."""
    scheduler = make(lab)
    support.come(scheduler, "fay", (*DOCUMENT, 40))
    support.come(scheduler, "gil", (*DOCUMENT, 50))
    got = dict(scheduler.schedule().num_scheduled_tokens)
    assert got == {"fay": 13, "gil": 1}, (
        f"one `schedule`: 13 for Fay, and 1 for Gil, who is looked up after her; yours: {got}"
    )


def test_all_of_a_prompt_is_found(lab: ModuleType) -> None:
    """A prompt that is cached to its end still computes its last token, with the block around it."""
    scheduler = make(lab)
    for name in ("fay", "gil"):
        support.come(scheduler, name, DOCUMENT)
    plan = scheduler.schedule()
    assert dict(plan.num_scheduled_tokens) == {"fay": 12, "gil": 4}, (
        f"8 of Gil's 12 tokens are found and 4 computed; yours: {plan.num_scheduled_tokens}"
    )
    tables = [new.block_ids[0] for new in plan.scheduled_new_reqs]
    assert tables == [[1, 2, 3], [1, 2, 4]], f"his third block is his own; tables: {tables}"


def test_what_is_missing_is_cut(lab: ModuleType) -> None:
    """Budget and threshold cut what is left to compute after the hits."""
    for settings, expected, why in (
        (
            {"long_prefill_token_threshold": 3},
            {"fay": 1, "gil": 3},
            "threshold 3, and 5 are missing",
        ),
        (
            {"max_num_batched_tokens": 5, "max_num_seqs": 4},
            {"fay": 1, "gil": 4},
            "Fay leaves 4 of 5",
        ),
        ({"long_prefill_token_threshold": 6}, {"fay": 1, "gil": 5}, "5 are missing, below 6"),
    ):
        scheduler = make(lab, **settings)
        fay = support.come(scheduler, "fay", (*DOCUMENT, 40))
        while not fay.num_output_tokens:
            support.turn(scheduler)
        gil = support.come(scheduler, "gil", (*DOCUMENT, 50, 51, 52, 53, 54))
        got = dict(support.turn(scheduler).num_scheduled_tokens)
        assert got == expected, f"{settings}: {why}: {expected}, not {got}"
        assert gil.num_cached_tokens == 12, f"12 were found, not {gil.num_cached_tokens}"


def test_who_does_not_fit_is_as_before(lab: ModuleType) -> None:
    """A request that does not fit is unchanged, even if part of its prompt was found."""
    scheduler = make(lab, num_gpu_blocks=9, max_model_len=32)
    fay = support.come(scheduler, "fay", (*DOCUMENT, 40))
    support.come(scheduler, "ida", range(60, 69))
    support.turn(scheduler)
    gil = support.come(scheduler, "gil", (*DOCUMENT, *range(50, 60)))
    support.come(scheduler, "hal", (70, 71))
    plan = support.turn(scheduler)
    assert "gil" not in plan.num_scheduled_tokens, "22 tokens want 3 blocks more, and 1 is free"
    assert ids(scheduler.waiting) == ["gil", "hal"], (
        f"Gil waits, and Hal behind him although one block would do; waiting: {ids(scheduler.waiting)}"
    )
    assert gil.num_computed_tokens == 0, (
        f"while a request waits, nothing of it counts as computed: 0, not {gil.num_computed_tokens}"
    )
    assert gil.status is RequestStatus.WAITING, f"he waits; his status is {gil.status!r}"
    counts = [block.ref_cnt for block in scheduler.kv_cache_manager.get_blocks("fay").blocks]
    assert counts == [1, 1, 1, 1], f"he holds none of Fay's blocks; they are held by {counts}"
    scheduler.finish_requests("ida", RequestStatus.FINISHED_ABORTED)
    got = dict(support.turn(scheduler).num_scheduled_tokens)
    assert got == {"fay": 1, "gil": 10, "hal": 2}, f"Ida has left, so both fit; yours: {got}"
    assert fay.num_preemptions == 0, "and nobody lost blocks for it"


def test_a_look_up_holds_for_one_attempt(lab: ModuleType) -> None:
    """The prefix is looked up at each attempt: when Gil fits at last, more of his document is published."""
    scheduler = make(lab, num_gpu_blocks=9, max_model_len=32, long_prefill_token_threshold=4)
    support.come(scheduler, "ida", range(60, 69))
    for _ in range(3):
        support.turn(scheduler)
    support.come(scheduler, "fay", (*DOCUMENT, 40))
    gil = support.come(scheduler, "gil", (*DOCUMENT, *range(50, 60)))
    for _ in range(3):
        support.turn(scheduler)
    assert gil.status is RequestStatus.WAITING, f"Gil does not fit; his status is {gil.status!r}"
    scheduler.finish_requests("ida", RequestStatus.FINISHED_ABORTED)
    support.turn(scheduler)
    assert gil.num_cached_tokens == 12, (
        "at the first attempt Gil found 4 tokens, and now there are 12: look at each attempt, because "
        f"nothing is reserved by looking; yours found {gil.num_cached_tokens}"
    )


def test_without_caching(lab: ModuleType) -> None:
    """Without caching nothing is looked up, and the scheduler decides as in lab 03-01."""
    scheduler = make(lab, enable_prefix_caching=False)
    requests = [
        support.come(scheduler, name, (*DOCUMENT, 40), block_size=None) for name in ("fay", "gil")
    ]
    got = dict(scheduler.schedule().num_scheduled_tokens)
    assert got == {"fay": 13, "gil": 13}, f"both compute their 13 tokens; yours: {got}"
    cached = [request.num_cached_tokens for request in requests]
    assert cached == [0, 0], f"nothing was cached for either: [0, 0], not {cached}"


def test_without_chunks(lab: ModuleType) -> None:
    """Without chunked prefill a prompt waits unless the tokens that it lacks fit into the rest of the
    step."""
    settings = {"enable_chunked_prefill": False, "max_num_batched_tokens": 72}
    scheduler = make(lab, **settings)
    for name, prompt in (("fay", range(20, 80)), ("gil", range(100, 120)), ("hal", (7, 8))):
        support.come(scheduler, name, prompt)
    got = [dict(support.turn(scheduler).num_scheduled_tokens) for _ in range(2)]
    assert got == [{"fay": 60}, {"fay": 1, "gil": 20, "hal": 2}], (
        "the step has 12 left and Gil misses 20, so he waits, and Hal behind him; in the next both fit. "
        f"Yours: {got}"
    )
    scheduler = make(lab, **settings)
    support.come(scheduler, "fay", range(20, 80))
    support.come(scheduler, "gil", (*range(20, 64), *range(90, 102)))
    got = dict(support.turn(scheduler).num_scheduled_tokens)
    assert got == {"fay": 60, "gil": 12}, (
        "Gil has 56 tokens, but 44 are found, and 12 are what the step has left: he fits. Yours: "
        f"{got}"
    )
    scheduler = make(lab, long_prefill_token_threshold=30, **settings)
    support.come(scheduler, "fay", range(20, 80))
    support.come(scheduler, "gil", range(100, 150))
    got = dict(support.turn(scheduler).num_scheduled_tokens)
    assert got == {"fay": 30, "gil": 30}, (
        "the threshold cuts all the same, at 30, and first: the step has 42 left, less than the 50 that Gil "
        f"misses, but enough for his 30. Yours: {got}"
    )


# ---- who comes back ------------------------------------------------------------------------------


def test_who_comes_back_is_resumed(lab: ModuleType) -> None:
    """A request that comes back is resumed: the worker still knows it, and gets its whole table anew."""
    scheduler = make(lab, num_gpu_blocks=6, max_model_len=20)
    support.come(scheduler, "fay", (*DOCUMENT, 40, 41, 42))
    gil = support.come(scheduler, "gil", (*DOCUMENT, 50, 51, 52))
    support.turn(scheduler)
    support.turn(scheduler)  # both have 16 tokens computed: four blocks each, three of them shared
    plan = support.turn(scheduler)  # Fay's 17th token needs a block
    assert plan.preempted_req_ids == {"gil"}, (
        f"Fay needs a block and none is free, so Gil loses his; preempted: {plan.preempted_req_ids}"
    )
    assert gil.status is RequestStatus.PREEMPTED, f"he waits as PREEMPTED, not as {gil.status!r}"
    counts = [gil.num_preemptions, scheduler.num_preemptions]
    assert counts == [1, 1], f"one preemption, counted for him and in all: [1, 1], not {counts}"
    support.turn(scheduler)
    scheduler.finish_requests("fay", RequestStatus.FINISHED_ABORTED)
    plan = scheduler.schedule()
    known = plan.scheduled_cached_reqs
    assert plan.scheduled_new_reqs == [], (
        "the worker knows Gil, so he is not sent as new. Who comes back has the status PREEMPTED"
    )
    assert known.req_ids == ["gil"], f"he is in the plan, once; known: {known.req_ids}"
    assert known.resumed_req_ids == {"gil"}, (
        f"and as resumed, so that his table replaces the old one; resumed: {known.resumed_req_ids}"
    )
    assert known.new_block_ids == [([1, 2, 3, 5, 4],)], (
        "the worker needs his whole table: 1, 2, 3, which he found again, and 5 and 4; the plan says "
        f"{known.new_block_ids}"
    )
    assert known.num_computed_tokens == [12], (
        f"his counter starts at the 12 that he found again, not at {known.num_computed_tokens}"
    )
    got = dict(plan.num_scheduled_tokens)
    assert got == {"gil": 5}, f"he has 17 tokens, 2 of them his answer: 5 are missing; yours: {got}"
    assert gil.status is RequestStatus.RUNNING, f"and he runs; his status is {gil.status!r}"


def test_what_the_user_is_told(lab: ModuleType) -> None:
    """`num_cached_tokens` is about the prompt: a request that has output keeps its number."""
    scheduler = make(lab, num_gpu_blocks=8, max_model_len=28)
    support.come(scheduler, "fay", range(20, 35))
    gil = support.come(scheduler, "gil", range(60, 71))
    for _ in range(3):
        support.turn(scheduler)
    assert gil.status is RequestStatus.PREEMPTED, "in step 3 Fay takes a block of Gil's"
    scheduler.finish_requests("fay", RequestStatus.FINISHED_ABORTED)
    got = dict(support.turn(scheduler).num_scheduled_tokens)
    assert got == {"gil": 5}, f"13 tokens, and 8 of them are found again; yours: {got}"
    assert gil.num_cached_tokens == 0, (
        "for his prompt nothing was found, and he has output: it stays 0. What a victim finds again is "
        f"{gil.num_cached_tokens}, and not of interest to a user"
    )


def test_what_the_user_is_told_before_the_first_token(lab: ModuleType) -> None:
    """For a victim without output the second look-up counts: Gil loses his blocks in mid-prompt and is
    resumed."""
    scheduler = make(lab, num_gpu_blocks=8, max_model_len=28, max_num_batched_tokens=20)
    support.come(scheduler, "fay", range(20, 36))
    gil = support.come(scheduler, "gil", range(60, 71))
    got = [dict(support.turn(scheduler).num_scheduled_tokens) for _ in range(2)]
    assert got == [{"fay": 16, "gil": 4}, {"fay": 1}], (
        f"in step 2 Fay takes a block, and Gil's rest finds too few; yours: {got}"
    )
    scheduler.finish_requests("fay", RequestStatus.FINISHED_ABORTED)
    plan = support.turn(scheduler)
    assert plan.scheduled_cached_reqs.resumed_req_ids == {"gil"}, (
        "he has no output yet, but the worker knows him: it is the status that says who comes back; resumed: "
        f"{plan.scheduled_cached_reqs.resumed_req_ids}"
    )
    assert gil.num_cached_tokens == 4, (
        f"his first token comes from this admission, which found 4; he is told {gil.num_cached_tokens}"
    )


# ---- victims that were served already ------------------------------------------------------------


@pytest.mark.parametrize("budget", [72, 2])
def test_a_victim_gives_back_its_place_and_its_budget(lab: ModuleType, budget: int) -> None:
    """A victim gives back its place and its budget: High needs Low's block, and Mid is served, too."""
    scheduler = make(lab, num_gpu_blocks=4, max_model_len=12, scheduling_policy="priority")
    support.come(scheduler, "low", (20, 21), priority=5)
    support.turn(scheduler)
    support.come(scheduler, "high", range(30, 34), priority=0)
    support.come(scheduler, "mid", range(40, 43), priority=1)
    support.turn(scheduler)
    scheduler.max_num_scheduled_tokens = budget
    plan = scheduler.schedule()
    got = dict(plan.num_scheduled_tokens)
    assert plan.preempted_req_ids == {"low"}, (
        f"High needs a block, and Low matters least; preempted: {plan.preempted_req_ids}"
    )
    assert got == {"high": 1, "mid": 1}, (
        f"a step of {budget}: Low had 1 of it and a place in the list before High. It gives back both, so "
        f"High and Mid are served; yours: {got}"
    )
    assert plan.scheduled_cached_reqs.req_ids == ["high", "mid"], (
        f"nor is Low sent to the worker: {plan.scheduled_cached_reqs.req_ids}"
    )


def test_the_loops_are_yours(lab: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Your scheduler works without the engine's own waiting loop."""

    def taken(self: object, *arguments: object) -> None:
        pytest.fail("the plan was made by the engine's own method: write yours, without `super()`")

    monkeypatch.setattr(given.Scheduler, "_schedule_waiting", taken)
    scheduler = make(lab, num_gpu_blocks=6, max_model_len=20)
    for name, last in (("fay", 40), ("gil", 50)):
        support.come(scheduler, name, (*DOCUMENT, last, last + 1, last + 2))
    got = [dict(support.turn(scheduler).num_scheduled_tokens) for _ in range(3)]
    assert got == [{"fay": 15, "gil": 3}, {"fay": 1, "gil": 1}, {"fay": 1}], (
        f"three steps of your own, the last with a victim: {got}"
    )
