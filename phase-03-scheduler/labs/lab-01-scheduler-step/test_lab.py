"""Lab 03-01: budget, seats and blocks, each asked at its place."""

from __future__ import annotations

from types import ModuleType

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in
from mini_vllm.core.request import RequestStatus
from mini_vllm.core.sched import scheduler as given

support = load_support(__file__)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """The four predictions are right."""
    said = lab.predictions()
    facts = {
        "three prompts of 8": (
            {"ann": 8, "ben": 2},
            "What does the step have left for the second, and what for the third?",
        ),
        "ten people, four seats": (4, "Which of the limits is met first?"),
        "a stream and a prompt of 20": (
            {"eve": 1, "fay": 15},
            "Who is served first: who runs, or who waits?",
        ),
        "threshold 6": (
            {"fay": 6, "gil": 6, "hal": 4},
            "No request gets more than 6 and the step no more than 16. What is left for the third?",
        ),
    }
    assert said.keys() == facts.keys(), f"four questions, {sorted(facts)}; yours: {sorted(said)}"
    for name, (fact, ask) in facts.items():
        people = said[name] if isinstance(said[name], dict) else {}
        capital = [who for who in people if isinstance(who, str) and who != who.lower()]
        assert not capital, f"{name}: request ids are in small letters here; yours has {capital}"
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


CLAMPS = [
    ((20, 0, 64), 20, "nothing stands in the way"),
    ((20, 0, 16), 16, "the budget has 16 left"),
    ((20, 8, 16), 8, "the threshold is less"),
    ((20, 16, 8), 8, "the budget is less"),
    ((5, 8, 16), 5, "it needs no more"),
    ((1, 8, 16), 1, "a decode"),
    ((8, 8, 8), 8, "all three agree"),
    ((20, 1, 16), 1, "the threshold is one token"),
]


@pytest.mark.parametrize(("arguments", "tokens", "why"), CLAMPS, ids=[why for *_, why in CLAMPS])
def test_clamp(lab: ModuleType, arguments: tuple[int, int, int], tokens: int, why: str) -> None:
    """A request gets what it lacks, but no more than the threshold and no more than is left of the budget."""
    got = lab.clamp(*arguments)
    assert got == tokens, f"clamp{arguments}: {why}: {tokens}, not {got}"


# ---- the running -----------------------------------------------------------------------------------


def test_the_running_are_served_first(lab: ModuleType) -> None:
    """Running requests come first: Eve decodes, and Fay's prompt gets what Eve leaves."""
    scheduler = support.make(lab)
    support.come(scheduler, eve=5)
    support.turn(scheduler)
    support.come(scheduler, fay=20)
    plan = support.turn(scheduler)
    got = plan.num_scheduled_tokens
    assert got == {"eve": 1, "fay": 15}, (
        f"Eve runs and is behind by 1; of the 16, 15 are left for Fay's 20. Yours: {got}"
    )
    assert list(got) == ["eve", "fay"], f"those who run come first in the plan; yours: {list(got)}"


def test_whoever_is_behind_gets_what_is_missing(lab: ModuleType) -> None:
    """The second chunk of a prompt needs no other code than a decode."""
    scheduler = support.make(lab)
    support.come(scheduler, fay=20)
    got = [dict(support.turn(scheduler).num_scheduled_tokens) for _ in range(4)]
    assert got == [{"fay": 16}, {"fay": 4}, {"fay": 1}, {"fay": 1}], (
        f"20 tokens are 16 and 4, then one each: what is missing is tokens less computed. Yours: {got}"
    )


def test_the_budget_ends_in_the_middle(lab: ModuleType) -> None:
    """Three requests run and the budget is two: the third is not in the step, not even with 0 tokens."""
    scheduler = support.make(lab, max_num_batched_tokens=8, max_num_seqs=3)
    support.come(scheduler, ann=2, ben=2, cleo=4)
    support.turn(scheduler)
    scheduler.max_num_scheduled_tokens = 2
    plan = support.turn(scheduler)
    got = plan.num_scheduled_tokens
    assert got == {"ann": 1, "ben": 1}, (
        f"a step of 2 serves the first two; whoever gets nothing is not in the plan. Yours: {got}"
    )
    running = [request.request_id for request in scheduler.running]
    assert running == ["ann", "ben", "cleo"], (
        f"Cleo still runs, without a token; running: {running}"
    )


def test_blocks_for_whoever_runs(lab: ModuleType) -> None:
    """A running request's new blocks are noted in the schedule, and one that finds no block ends the loop."""
    scheduler = support.make(
        lab, num_gpu_blocks=5, max_model_len=16, scheduler_reserve_full_isl=False
    )
    support.come(scheduler, ann=4, ben=4, cleo=2)
    first = support.turn(scheduler)
    tables = {new.req_id: len(new.block_ids[0]) for new in first.scheduled_new_reqs}
    assert tables == {"ann": 1, "ben": 1, "cleo": 1}, (
        f"a block each for three newcomers, who stand in `scheduled_new_reqs`; there the plan has {tables}"
    )
    second = support.turn(scheduler)
    known = second.scheduled_cached_reqs
    assert list(second.num_scheduled_tokens) == ["ann"], (
        "Ann's 5th token takes the last block, and Ben's finds none: the loop ends, although Cleo behind him "
        f"needs no block. Yours: {second.num_scheduled_tokens}"
    )
    assert known.new_block_ids == [([4],)], (
        "the plan tells the worker Ann's new block, [([4],)] (a list for each KV cache group, here one), and "
        f"not her whole table; it says {known.new_block_ids}"
    )


def test_a_threshold_for_those_who_run(lab: ModuleType) -> None:
    """The threshold holds in every step: no request ever gets more than 6 tokens."""
    scheduler = support.make(lab, long_prefill_token_threshold=6)
    support.come(scheduler, fay=20, gil=8, hal=9)
    got = [dict(support.turn(scheduler).num_scheduled_tokens) for _ in range(3)]
    expected = [
        {"fay": 6, "gil": 6, "hal": 4},
        {"fay": 6, "gil": 2, "hal": 5},
        {"fay": 6, "gil": 1, "hal": 1},
    ]
    assert got == expected, f"with a threshold of 6: {expected}, not {got}"


def test_who_runs_asks_for_a_piece(lab: ModuleType) -> None:
    """After admission, a running request asks for blocks for one chunk, not for its whole prompt."""
    scheduler = support.make(
        lab, num_gpu_blocks=8, max_model_len=24, long_prefill_token_threshold=4
    )
    support.come(scheduler, fay=20, gil=20)
    got = [dict(support.turn(scheduler).num_scheduled_tokens) for _ in range(3)]
    assert got == [{"fay": 4, "gil": 4}] * 3, (
        "7 blocks: each piece of 4 takes one, so three steps find blocks for both. (In the third two "
        "are free when Gil asks. The rest of his prompt wants three, but this piece wants one.) Yours: "
        f"{got}"
    )


# ---- the waiting -----------------------------------------------------------------------------------


def test_the_budget_cuts_the_last_one(lab: ModuleType) -> None:
    """The budget cuts the last prompt: of three prompts of 8, a step of 10 computes 8, 2 and none."""
    scheduler = support.make(lab, max_num_batched_tokens=10)
    support.come(scheduler, ann=8, ben=8, cleo=8)
    got = dict(support.turn(scheduler).num_scheduled_tokens)
    assert got == {"ann": 8, "ben": 2}, (
        f"10 tokens: 8 and 2, and nobody is admitted for 0. Yours: {got}"
    )
    waiting = [request.request_id for request in scheduler.waiting]
    assert waiting == ["cleo"], f"Cleo waits, and nobody else; waiting: {waiting}"


def test_seats(lab: ModuleType) -> None:
    """Ten requests share four batch slots, and a slot that becomes free goes to the next request."""
    scheduler = support.make(lab, max_num_seqs=4)
    support.come(scheduler, **{f"p{i}": 1 for i in range(10)})
    got = list(support.turn(scheduler).num_scheduled_tokens)
    assert got == ["p0", "p1", "p2", "p3"], f"four seats, in order of arrival; yours: {got}"
    scheduler.finish_requests("p1", RequestStatus.FINISHED_ABORTED)
    got = list(support.turn(scheduler).num_scheduled_tokens)
    assert got == ["p0", "p2", "p3", "p4"], f"p1 has left, so p4 gets the seat; yours: {got}"


def test_a_seat_without_a_token(lab: ModuleType) -> None:
    """A running request that gets no tokens in this step still holds its batch slot."""
    scheduler = support.make(lab, num_gpu_blocks=7, max_model_len=24, max_num_seqs=2)
    support.come(scheduler, ann=4, ben=20, cleo=3)
    got = [dict(support.turn(scheduler).num_scheduled_tokens) for _ in range(2)]
    assert got == [{"ann": 4, "ben": 12}, {"ann": 1}], (
        "two seats, Ann's and Ben's. In step 2 his 8 tokens want 2 blocks and 1 is left, so he gets none; "
        f"Cleo's 3 would find that block, but no seat: count `running`. Yours: {got}"
    )


def test_nobody_passes(lab: ModuleType) -> None:
    """No request passes the head of the queue: Gil does not fit, so Hal waits behind him."""
    scheduler = support.make(lab, num_gpu_blocks=8, max_model_len=24)
    support.come(scheduler, fay=12, gil=20, hal=3)
    got = [list(support.turn(scheduler).num_scheduled_tokens) for _ in range(2)]
    assert got == [["fay"], ["fay"]], (
        "7 blocks, 3 of them Fay's: Gil's 20 tokens want 5. Hal wants one, but he came later. Yours: "
        f"{got}"
    )
    waiting = [request.request_id for request in scheduler.waiting]
    assert waiting == ["gil", "hal"], f"both stay where they are in the queue; waiting: {waiting}"


def test_all_of_it_must_fit(lab: ModuleType) -> None:
    """With the gate on, a prompt is admitted only if the whole of it fits; with it off, the chunk is
    enough."""
    for gate, expected in ((True, ["fay"]), (False, ["fay", "gil"])):
        scheduler = support.make(
            lab, num_gpu_blocks=8, max_model_len=24, scheduler_reserve_full_isl=gate
        )
        support.come(scheduler, fay=12, gil=20)
        got = list(support.turn(scheduler).num_scheduled_tokens)
        assert got == expected, (
            f"4 tokens are left of the step and 4 blocks of the pool, for Gil's 20 tokens. With "
            f"scheduler_reserve_full_isl={gate} the plan holds {expected}; yours: {got}"
        )


def test_what_an_admission_changes(lab: ModuleType) -> None:
    """An admission changes queue, list, status and the worker's table; `schedule` moves the counter, once."""
    scheduler = support.make(lab)
    support.come(scheduler, fay=9)
    fay = scheduler.waiting.peek_request()
    plan = scheduler.schedule()
    assert scheduler.running == [fay], f"whoever is admitted runs; running: {scheduler.running}"
    assert len(scheduler.waiting) == 0, (
        f"and does not wait any more; waiting: {list(scheduler.waiting)}"
    )
    assert fay.status is RequestStatus.RUNNING, f"and the status says so; it is {fay.status!r}"
    assert fay.num_cached_tokens == 0, (
        f"nothing was found in the cache: 0, not {fay.num_cached_tokens}"
    )
    assert fay.num_computed_tokens == 9, (
        f"`schedule` moves the counter by 9 after your loops; it stands at {fay.num_computed_tokens}. If "
        "it is 18, you have moved it, too"
    )
    newcomers = [new.req_id for new in plan.scheduled_new_reqs]
    assert newcomers == ["fay"], (
        f"whoever is admitted stands in `scheduled_new_reqs`; there the plan has {newcomers}"
    )
    [new] = plan.scheduled_new_reqs
    [table] = new.block_ids
    assert len(table) == 3, f"9 tokens lie in 3 blocks of 4; the plan says {table}"
    assert plan.scheduled_cached_reqs.req_ids == [], (
        "a newcomer is sent as new, and not again as known"
    )


def test_the_loops_are_yours(lab: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Your scheduler works without the engine's own loops."""

    def taken(self: object, step: object) -> None:
        pytest.fail("the plan was made by the engine's own loop: write yours, without `super()`")

    for name in ("_schedule_running", "_schedule_waiting"):
        monkeypatch.setattr(given.Scheduler, name, taken)
    scheduler = support.make(lab)
    support.come(scheduler, eve=5, fay=20)
    got = [dict(support.turn(scheduler).num_scheduled_tokens) for _ in range(2)]
    assert got == [{"eve": 5, "fay": 11}, {"eve": 1, "fay": 9}], f"two steps of your own: {got}"
