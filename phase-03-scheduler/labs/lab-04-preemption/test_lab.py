"""Lab 03-04: who loses blocks, what is kept, who comes back."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in
from mini_vllm.core.request import RequestStatus
from mini_vllm.core.sched import scheduler as given
from mini_vllm.core.sched.upstream_scheduler import UpstreamScheduler

support = load_support(__file__)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """The six predictions about Eve, Fay and Gil on nine blocks are right."""
    said = lab.predictions()
    steps = support.eve_fay_gil(given.Scheduler)
    cached = support.eve_fay_gil(given.Scheduler, enable_prefix_caching=True)
    lost = [(name, i) for i, (_, victims) in enumerate(steps, 1) for name in victims]
    needed = 9 + 11 + 11 + 7 + 8 + 5  # prompts, and all of the answers but the last token
    computed, less = (sum(sum(tokens.values()) for tokens, _ in run) for run in (steps, cached))
    facts = {
        "first victim": (
            lost[0],
            "Whose next token wants a block when none is free, and who is last in the list then?",
        ),
        "gil keeps": (
            1,
            "Which steps have sampled a token for him, and does a victim give back what was sent?",
        ),
        "second victim": (
            lost[1],
            "Who takes the last free block, who asks next, and who is last in the list by now?",
        ),
        "gil is back": (
            next(i for i, (tokens, _) in enumerate(steps, 1) if i > 5 and "gil" in tokens),
            "Who is at the head of the queue, how many blocks does that request want, and who has to "
            "finish first? What does the step that admits it have left for Gil?",
        ),
        "computed twice": (
            computed - needed,
            "How many tokens had each victim computed when it lost its blocks?",
        ),
        "computed twice, with prefix caching": (
            less - needed,
            "Which full blocks of a victim has nobody taken by the time it comes back?",
        ),
    }
    assert said.keys() == facts.keys(), f"six questions, {sorted(facts)}; yours: {sorted(said)}"
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- first come, first served --------------------------------------------------------------------


def test_the_last_of_the_running_loses(lab: ModuleType) -> None:
    """Four requests need a block each and none is free: two lose theirs, from the end of the list."""
    scheduler = support.full(lab, 0, 0, 0, 0)
    plan = support.turn(scheduler)
    got, victims = plan.num_scheduled_tokens, sorted(plan.preempted_req_ids)
    assert (got, victims) == ({"ann": 1, "ben": 1}, ["cleo", "dan"]), (
        "Ann takes Dan's block, Ben takes Cleo's: the last of `running` each time. Yours serves "
        f"{got}, and preempts {victims}"
    )
    held = support.shares(scheduler)
    assert held == {"ann": 2, "ben": 2, "cleo": 0, "dan": 0}, f"blocks each: {held}"


def test_as_many_victims_as_it_takes(lab: ModuleType) -> None:
    """Preemption goes on until the request fits: Fay's chunk needs two blocks, so Hal and Gil both lose
    theirs."""
    scheduler = support.make(
        lab, 4, long_prefill_token_threshold=8, scheduler_reserve_full_isl=False
    )
    for name, length, want in (("fay", 16, 1), ("gil", 4, 4), ("hal", 4, 4)):
        support.come(scheduler, name, length, want)
    support.turn(scheduler)
    plan = support.turn(scheduler)
    got, victims = plan.num_scheduled_tokens, sorted(plan.preempted_req_ids)
    assert (got, victims) == ({"fay": 8}, ["gil", "hal"]), (
        "after Hal has lost one block Fay's piece of 8 still does not fit. Ask again, for the same 8, until "
        f"it fits. Yours serves {got}, and preempts {victims}"
    )


def test_the_last_one_preempts_itself(lab: ModuleType) -> None:
    """The last request in the list preempts itself: Ann takes Cleo's block, and no request is behind Ben."""
    scheduler = support.full(lab, 0, 0, 0)
    plan = support.turn(scheduler)
    got, victims = plan.num_scheduled_tokens, sorted(plan.preempted_req_ids)
    assert (got, victims) == ({"ann": 1}, ["ben", "cleo"]), (
        "Ben is the last of the list when he finds no block, so he is his own victim. He gets nothing in "
        f"this step, and asks no more. Yours serves {got}, and preempts {victims}"
    )


def test_what_a_victim_keeps(lab: ModuleType) -> None:
    """A victim keeps its tokens, but not its blocks, its counter, its batch slot or its place."""
    scheduler = support.full(lab, 0, 0)
    ben = scheduler.running[1]
    support.turn(scheduler)
    assert ben.output_token_ids == [2], (
        f"his answer so far was sent to him; it stays: [2], not {ben.output_token_ids}"
    )
    held = support.shares(scheduler)["ben"]
    assert held == 0, f"all his blocks go back to the pool; he holds {held}"
    assert ben.num_computed_tokens == 0, (
        f"no block, so nothing of him counts as computed: 0, not {ben.num_computed_tokens}"
    )
    assert ben.status is RequestStatus.PREEMPTED, (
        f"PREEMPTED, or the worker hears of a newcomer when he returns; the status is {ben.status!r}"
    )
    assert support.names(scheduler.running) == ["ann"], "he does not run any more"
    counts = (ben.num_preemptions, scheduler.num_preemptions)
    assert counts == (1, 1), f"one preemption, his and the scheduler's: (1, 1), not {counts}"


def test_victims_wait_at_the_head(lab: ModuleType) -> None:
    """Victims wait ahead of requests that were never admitted, in the order in which they ran."""
    scheduler = support.full(lab, 0, 0, 0, 0)
    support.come(scheduler, "eve", 4)
    support.turn(scheduler)
    waiting = support.names(scheduler.waiting)
    assert waiting == ["cleo", "dan", "eve"], (
        "Dan was put at the head first, then Cleo before him; Eve came later than both. Waiting: "
        f"{waiting}"
    )


def test_blocks_that_are_not_needed_stop_nobody(lab: ModuleType) -> None:
    """The last free block goes to the request that needs it, and no request is preempted."""
    scheduler = support.make(lab, 3)
    support.come(scheduler, "ann", 4, 4)
    support.come(scheduler, "ben", 2, 4)
    support.turn(scheduler)
    plan = support.turn(scheduler)
    assert plan.num_scheduled_tokens == {"ann": 1, "ben": 1}, (
        "a third block is free for Ann, and Ben has room in his. An answer without new blocks is not None: "
        f"yours serves {plan.num_scheduled_tokens}"
    )
    known = plan.scheduled_cached_reqs
    assert known.new_block_ids == [([3],), None], (
        f"the worker hears of Ann's new block, and of none for Ben: [([3],), None], not {known.new_block_ids}"
    )
    assert not plan.preempted_req_ids, f"nobody is preempted; yours: {plan.preempted_req_ids}"


def test_the_budget_still_ends_the_loop(lab: ModuleType) -> None:
    """The budget ends the loop as in lab 03-01: three requests run, a step holds 2, and the third is not
    in it."""
    scheduler = support.make(lab)
    for name in ("ann", "ben", "cleo"):
        support.come(scheduler, name, 2)
    support.turn(scheduler)
    scheduler.max_num_scheduled_tokens = 2
    plan = support.turn(scheduler)
    got = plan.num_scheduled_tokens
    assert got == {"ann": 1, "ben": 1}, f"a step of 2 serves Ann and Ben; yours: {got}"
    assert not plan.preempted_req_ids, (
        f"nobody loses blocks for it; yours: {plan.preempted_req_ids}"
    )


# ---- coming back ---------------------------------------------------------------------------------


def test_who_comes_back_is_resumed(lab: ModuleType) -> None:
    """A victim comes back as resumed: the worker knows it, its new table replaces the old one, and it
    lacks all tokens."""
    scheduler = support.full(lab, 0, 0)
    ben = scheduler.running[1]
    plan = support.turn(scheduler)
    for _ in range(4):
        if not plan.num_scheduled_tokens.get("ben"):
            plan = support.turn(scheduler)
    known = plan.scheduled_cached_reqs
    assert not plan.scheduled_new_reqs, (
        f"the worker knows Ben: he is not sent as new; yours: {plan.scheduled_new_reqs}"
    )
    assert known.resumed_req_ids == {"ben"}, (
        f"he belongs into `scheduled_resumed_reqs`; the plan says resumed: {known.resumed_req_ids}"
    )
    assert plan.num_scheduled_tokens == {"ben": 5}, (
        f"4 of prompt and the 1 he had sampled are missing: 5; yours: {plan.num_scheduled_tokens}"
    )
    assert [len(ids[0]) if ids else 0 for ids in known.new_block_ids] == [2], (
        f"his table is sent whole, two blocks; the plan says {known.new_block_ids}"
    )
    assert ben.status is RequestStatus.RUNNING, f"and he runs; his status is {ben.status!r}"
    assert ben.num_cached_tokens == 0, (
        f"whoever was admitted has `num_cached_tokens` 0, as in lab 03-01; his is {ben.num_cached_tokens}"
    )
    assert len(ben.output_token_ids) == 2, (
        f"the step that computes all 5 brings the second token; he has {ben.output_token_ids}"
    )


def test_who_has_no_answer_yet_is_resumed_too(lab: ModuleType) -> None:
    """A victim without output is resumed, too: Ben loses his blocks in mid-prompt, and the worker knows
    him."""
    scheduler = support.make(
        lab, 4, long_prefill_token_threshold=4, scheduler_reserve_full_isl=False
    )
    support.come(scheduler, "ann", 4, want=3)
    support.come(scheduler, "ben", 12, want=1)
    plans = [support.turn(scheduler) for _ in range(4)]
    lost = [sorted(plan.preempted_req_ids) for plan in plans]
    assert lost == [[], [], ["ben"], []], (
        f"Ben's third piece finds no block in step 3, and he is the last: he loses his two; yours: {lost}"
    )
    back = plans[3]
    assert not back.scheduled_new_reqs, (
        "Ben has no token of answer, but two of his pieces were computed, so the worker knows him. His "
        "status tells, and his answer does not. In step 4 yours sends as new: "
        f"{[new.req_id for new in back.scheduled_new_reqs]}"
    )
    resumed = back.scheduled_cached_reqs.resumed_req_ids
    assert resumed == {"ben"}, f"in step 4 Ben is resumed; yours: {resumed}"


def test_the_loops_are_yours(lab: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Your scheduler works without the engine's own four methods."""

    def taken(self: object, *args: object) -> None:
        pytest.fail("this was done by the engine's own method: write yours, without `super()`")

    mine = ("_schedule_running", "_schedule_waiting", "_pop_victim", "_preempt_request")
    for name in mine:
        monkeypatch.setattr(given.Scheduler, name, taken)
    monkeypatch.setattr(UpstreamScheduler, "_pop_victim", taken)
    for priorities in ((0, 0), (1, 0)):
        scheduler = support.full(lab, *priorities)
        served = [dict(support.turn(scheduler).num_scheduled_tokens) for _ in range(4)]
        first, second = ("ann", "ben") if priorities == (0, 0) else ("ben", "ann")
        expected = [{first: 1}, {first: 1}, {first: 1}, {second: 5}]
        assert served == expected, f"priorities {priorities}: {expected}, not {served}"


# ---- priority ------------------------------------------------------------------------------------


def test_the_least_important_loses(lab: ModuleType) -> None:
    """A larger priority number matters less, and among equal numbers the later arrival loses its blocks."""
    scheduler = support.full(lab, 1, 2, 2, 0)
    order = support.names(scheduler.running)
    assert order == ["dan", "ann", "ben", "cleo"], f"admitted by priority; running: {order}"
    plan = support.turn(scheduler)
    got, victims = plan.num_scheduled_tokens, sorted(plan.preempted_req_ids)
    assert (got, victims) == ({"dan": 1, "ann": 1}, ["ben", "cleo"]), (
        f"Dan takes Cleo's (2, later), Ann takes Ben's (2). Yours serves {got}, and preempts {victims}"
    )
    scheduler = support.full(lab, 9, 0)
    low = scheduler.running.pop()
    scheduler.running.insert(0, low)
    plan = support.turn(scheduler)
    got, victims = plan.num_scheduled_tokens, sorted(plan.preempted_req_ids)
    assert (got, victims) == ({}, ["ann"]), (
        "Ann, of priority 9, stands first and finds no block. She is the least important of those who run, "
        f"so it is she who loses, wherever she stands. Yours serves {got}, and preempts {victims}"
    )


def test_its_own_victim_ends_the_loop(lab: ModuleType) -> None:
    """A request that is its own victim ends the loop, even in the middle of the list."""
    scheduler = support.make(lab, 3, scheduling_policy="priority")
    support.come(scheduler, "ann", 2)
    support.come(scheduler, "low", 3, priority=9)
    support.turn(scheduler)
    support.come(scheduler, "ben", 2)
    support.turn(scheduler)
    plan = support.turn(scheduler)
    got, victims = plan.num_scheduled_tokens, sorted(plan.preempted_req_ids)
    assert (got, victims) == ({"ann": 1}, ["low"]), (
        "Ann, Low, Ben run. Low's 5th token finds no block, and Low itself is the least important. With that "
        f"the loop is over, also for Ben, as vLLM has it. Yours serves {got}, and preempts {victims}"
    )


def test_nobody_is_admitted_beside_a_preemption(lab: ModuleType) -> None:
    """A step that preempts admits no request: Low gave up two blocks, but Eve waits for the next step."""
    scheduler = support.make(lab, 4, scheduling_policy="priority")
    support.come(scheduler, "ann", 4, priority=1)
    support.come(scheduler, "low", 8, priority=9)
    support.turn(scheduler)
    support.come(scheduler, "eve", 3)
    scheduler.max_num_running_reqs = 3
    got = [dict(support.turn(scheduler).num_scheduled_tokens) for _ in range(2)]
    assert got == [{"ann": 1}, {"ann": 1, "eve": 3}], (
        "`schedule` admits nobody in a step with victims, and learns of them from `step.preempted_reqs`. "
        f"Ann alone, then Ann and Eve; yours: {got}"
    )


def served_already(lab: ModuleType) -> Any:
    """Low, Ann, Ben, Cleo run. Low is served, then Ann's 5th token finds no block."""
    scheduler = support.make(lab, 4, scheduling_policy="priority")
    support.come(scheduler, "low", 2, priority=9)
    support.turn(scheduler)
    for name, length in (("ann", 4), ("ben", 2), ("cleo", 2)):
        support.come(scheduler, name, length)
    support.turn(scheduler)
    step = given.Step(token_budget=3)
    scheduler._schedule_running(step)
    return step


def test_a_victim_of_this_step_gives_all_back(lab: ModuleType) -> None:
    """A victim served in this step gives back its budget, its tokens, its blocks and its place in the
    schedule."""
    step = served_already(lab)
    victims = support.names(step.preempted_reqs)
    assert victims == ["low"], f"Low, of priority 9, loses its block for Ann; yours: {victims}"
    assert "low" not in step.num_scheduled_tokens, (
        f"Low was served before Ann, and is in the plan no more; yours: {step.num_scheduled_tokens}"
    )
    served = support.names(step.scheduled_running_reqs)
    assert "low" not in served, (
        f"`scheduled_running_reqs` becomes what the worker hears of; it holds {served}"
    )
    assert "low" not in step.req_to_new_blocks, (
        f"nor has Low new blocks; `req_to_new_blocks` holds {sorted(step.req_to_new_blocks)}"
    )
    left = 3 - sum(step.num_scheduled_tokens.values())
    assert step.token_budget == left, (
        f"a budget of 3, and {step.num_scheduled_tokens} served: {left} left, not {step.token_budget}. "
        "Low's token is to be had again"
    )


def test_the_asker_asks_for_the_same(lab: ModuleType) -> None:
    """A request that takes a victim's blocks still asks for the same tokens: what Low gives back is not
    for Ann."""
    scheduler = support.make(
        lab,
        2,
        long_prefill_token_threshold=4,
        scheduler_reserve_full_isl=False,
        scheduling_policy="priority",
    )
    support.come(scheduler, "low", 2, want=3, priority=9)
    support.turn(scheduler)
    support.come(scheduler, "ann", 8, want=1)
    support.turn(scheduler)
    step = given.Step(token_budget=3)
    scheduler._schedule_running(step)
    victims, got = support.names(step.preempted_reqs), step.num_scheduled_tokens
    assert victims == ["low"], f"Ann finds no block, and Low, of priority 9, goes; yours: {victims}"
    assert got == {"ann": 2}, (
        "a step of 3: Low took 1, so Ann asked for 2, found no block, and asks again for 2. The 1 that Low "
        f"gives back is for those behind her, as in vLLM. Ann gets 2; yours serves {got}"
    )


def test_nobody_is_skipped_behind_a_victim(lab: ModuleType) -> None:
    """No request is skipped behind a victim: when Low leaves the front, Ben moves to where Ann was."""
    step = served_already(lab)
    got = dict(step.num_scheduled_tokens)
    others = {name: n for name, n in got.items() if name != "low"}
    expected = {"ann": 1, "ben": 1, "cleo": 1}
    assert others == expected, (
        "a budget of 3, and Low's token given back: Ann, Ben and Cleo get one each. Whoever is missing "
        f"was either skipped, because the list moved up under the index, or found no budget. Yours: {got}"
    )


def test_equals_do_not_take_turns(lab: ModuleType) -> None:
    """Equals do not take turns: with the same priority and arrival the id decides, always for the same
    request."""
    scheduler = support.make(
        lab,
        9,
        block_size=1,
        max_num_seqs=2,
        long_prefill_token_threshold=1,
        scheduler_reserve_full_isl=False,
        scheduling_policy="priority",
    )
    for name in ("0_gil", "1_gil"):
        support.come(scheduler, name, 6, want=4, arrival_time=0.0)
    lost = []
    number = 0
    while scheduler.has_unfinished_requests() and number < 100:
        lost += support.turn(scheduler).preempted_req_ids
        number += 1
    assert not scheduler.has_unfinished_requests(), (
        f"after {number} steps neither is done. The last to lose their blocks: {', '.join(lost[-4:])}. Each "
        "takes them from the other before the other can finish: let the request id decide"
    )
    assert (number, set(lost)) == (18, {"1_gil"}), (
        f"18 steps, and only the larger id loses; yours took {number}, and {sorted(set(lost))} lost"
    )
