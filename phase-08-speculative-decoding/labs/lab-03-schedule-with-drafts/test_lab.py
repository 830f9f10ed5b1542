"""Lab 08-03: drafts are tokens of the step, and what is rejected is taken back as a count."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in
from mini_vllm.core.request import RequestStatus
from mini_vllm.core.sched import async_scheduler as ahead
from mini_vllm.core.sched import scheduler as given

support = load_support(__file__)
X, Y, Z = 11, 12, 13  # drafts


def test_the_predictions_hold(lab: ModuleType) -> None:
    """The predictions hold: six steps on paper."""
    said = lab.predictions()
    facts = {
        "after one accepted": (
            (12, 11),
            "The step had four inputs. Which of them are tokens of her text now, and which token of her text "
            "has never been an input?",
        ),
        "room for six": (
            {"eve": 3, "gil": 1},
            "Each wants its newest token and three drafts. What is left when Eve has hers, and which of "
            "Gil's inputs come first?",
        ),
        "near the end": (
            2,
            "At which position would her 16th token stand, counted from 0, and is it ever an input?",
        ),
        "blocks": (
            {"ngram": 4, "eagle": 5},
            "How many slots do the step's inputs need, and who is given more behind them?",
        ),
        "the second is EOS": (2, "Does an answer go on behind its EOS?"),
        "preempted in flight": (
            (12, 0),
            "What did the preemption leave of what had been computed, and can there be less?",
        ),
    }
    assert said.keys() == facts.keys(), f"six questions, {sorted(facts)}; yours: {sorted(said)}"
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- the drafter's own slots -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "slots"), [("ngram", 0), ("draft_model", 3), ("eagle", 3), ("eagle3", 3)]
)
def test_lookahead(lab: ModuleType, method: str, slots: int) -> None:
    """Only drafters that write keys and values of their own get lookahead."""
    got = lab.lookahead(method, 3)
    assert got == slots, f"{method}, k = 3: {slots} slots are asked for the drafter, not {got}"


@pytest.mark.parametrize(("method", "held"), [("ngram", 4), ("eagle", 5)])
def test_lookahead_in_blocks(lab: ModuleType, method: str, held: int) -> None:
    """Three drafts at position 12 end at 16, so four blocks; three slots asked for the head take a fifth."""
    scheduler = support.decoding(lab, "eve", length=12, method=method)
    assert support.blocks(scheduler, "eve") == 3, (
        "who is admitted gets slots for its prompt alone, since nothing is drafted before a token is there"
    )
    support.propose(scheduler, eve=[X, Y, Z])
    scheduler.schedule()
    got = support.blocks(scheduler, "eve")
    assert got == held, (
        f"12 computed tokens, 4 inputs, blocks of 4, {method}: {held} blocks, not {got}"
    )


# ---- how many tokens -------------------------------------------------------------------------------


@pytest.mark.parametrize("drafts", [[], [X], [X, Y, Z]])
def test_drafts_are_tokens_of_the_step(lab: ModuleType, drafts: list[int]) -> None:
    """`_num_new_tokens` counts Eve's newest token and each of her drafts."""
    scheduler = support.decoding(lab, "eve")
    proposed = [*drafts]
    support.propose(scheduler, eve=proposed)
    plan = scheduler.schedule()
    got = plan.num_scheduled_tokens
    assert got == {"eve": 1 + len(drafts)}, (
        f"Eve has 10 tokens, 9 of them computed, and {len(drafts)} drafts: the step holds "
        f"{1 + len(drafts)} of hers. Yours: {got}"
    )
    recorded = plan.scheduled_spec_decode_tokens
    expected = {"eve": drafts} if drafts else {}
    assert recorded == expected, (
        f"`scheduled_spec_decode_tokens` is {expected}, and a request without drafts has no entry; yours: "
        f"{recorded}"
    )
    assert proposed == drafts, (
        f"the list with the drafts is the drafter's, and stays {drafts}; it is {proposed} now"
    )


def test_a_prompt_in_chunks_is_no_draft(lab: ModuleType) -> None:
    """`_num_new_tokens` gives a request the tokens that it lacks, with or without speculation."""
    scheduler = support.make(lab, max_num_batched_tokens=8)
    support.come(scheduler, "fay", 18)
    got = []
    for _ in range(3):
        plan = scheduler.schedule()
        got.append((plan.num_scheduled_tokens["fay"], dict(plan.scheduled_spec_decode_tokens)))
        support.take_in(scheduler, plan, fay=[])
    assert got == [(8, {}), (8, {}), (2, {})], (
        f"18 tokens in steps of 8 are 8, 8 and 2, and none of them is a draft. Yours: {got}"
    )


def test_the_budget_cuts_drafts(lab: ModuleType) -> None:
    """The budget cuts drafts: Eve, Gil and Noor want 4 tokens each, and the step has room for 6."""
    scheduler = support.decoding(lab, "eve", "gil", "noor")
    support.propose(scheduler, eve=[X, Y, Z], gil=[X, Y, Z], noor=[X, Y, Z])
    scheduler.max_num_scheduled_tokens = 6
    plan = scheduler.schedule()
    got, recorded = plan.num_scheduled_tokens, plan.scheduled_spec_decode_tokens
    assert got == {"eve": 4, "gil": 2}, (
        f"four for Eve, and the two that are left for Gil; yours: {got}"
    )
    assert recorded == {"eve": [X, Y, Z], "gil": [X]}, (
        f"of Gil's two tokens the first is his own newest, so one draft found room. Yours: {recorded}"
    )


def test_no_room_for_any_draft(lab: ModuleType) -> None:
    """If the budget's last token is Gil's own, his drafts find no room, and are not tried again."""
    scheduler = support.decoding(lab, "eve", "gil")
    support.propose(scheduler, eve=[X], gil=[X, Y, Z])
    scheduler.max_num_scheduled_tokens = 3
    plan = scheduler.schedule()
    recorded = plan.scheduled_spec_decode_tokens
    assert plan.num_scheduled_tokens == {"eve": 2, "gil": 1}, (
        f"two for Eve, one for Gil: {plan.num_scheduled_tokens}"
    )
    assert recorded == {"eve": [X]}, (
        f"none of Gil's drafts is in the step, so he has no entry, not even an empty one. Yours: {recorded}"
    )
    support.take_in(scheduler, plan, eve=[X, 5], gil=[5])
    again = scheduler.schedule().num_scheduled_tokens
    assert again == {"eve": 1, "gil": 1}, (
        "nobody has proposed anything since, and a draft is worth one step: 1 token each. Yours: "
        f"{again}"
    )


@pytest.mark.parametrize(("threshold", "drafts"), [(1, []), (2, [X])])
def test_the_threshold_cuts_drafts(lab: ModuleType, threshold: int, drafts: list[int]) -> None:
    """`long_prefill_token_threshold` cuts drafts like the tokens of a prompt."""
    scheduler = support.make(lab, long_prefill_token_threshold=threshold)
    support.come(scheduler, "eve", 1)
    support.take_in(scheduler, scheduler.schedule())
    support.propose(scheduler, eve=[X, Y, Z])
    plan = scheduler.schedule()
    got = (plan.num_scheduled_tokens["eve"], plan.scheduled_spec_decode_tokens.get("eve", []))
    assert got == (threshold, drafts), (
        f"no request gets more than {threshold} in a step, her newest token first: {threshold} tokens, the "
        f"drafts among them {drafts}. Yours: {got}"
    )


@pytest.mark.parametrize(("length", "tokens"), [(11, 4), (12, 3), (13, 2), (14, 1)])
def test_the_model_ends(lab: ModuleType, length: int, tokens: int) -> None:
    """`_num_new_tokens` ends at position 14 with a `max_model_len` of 16: the last that is ever an input."""
    scheduler = support.decoding(lab, "eve", length=length, max_model_len=16)
    support.propose(scheduler, eve=[X, Y, Z])
    plan = scheduler.schedule()
    got = plan.num_scheduled_tokens.get("eve", 0)
    assert got == tokens, (
        f"{length} computed tokens, and 15 can ever be computed, because the 16th ends the answer: {tokens} "
        f"in this step, not {got}"
    )


# ---- drafts come -----------------------------------------------------------------------------------


def test_who_is_in_its_prompt_drafts_nothing(lab: ModuleType) -> None:
    """`update_draft_token_ids` passes over requests in their prompt and finished ones."""
    scheduler = support.make(lab, max_num_batched_tokens=8)
    fay = support.come(scheduler, "fay", 18)
    gone = support.come(scheduler, "gil", 4)
    support.take_in(scheduler, scheduler.schedule(), fay=[])
    scheduler.finish_requests("gil", RequestStatus.FINISHED_ABORTED)
    support.propose(scheduler, gil=[X], fay=[X, Y, Z])
    assert fay.spec_token_ids == [], (
        f"Fay has computed 8 of her 18 tokens: no drafts for her, not {fay.spec_token_ids}"
    )
    assert gone.spec_token_ids == [], f"Gil has left; he gets nothing, not {gone.spec_token_ids}"
    got = scheduler.schedule().num_scheduled_tokens
    assert got == {"fay": 8}, f"her second chunk has 8 tokens of her prompt; yours: {got}"


def test_a_proposal_replaces_the_one_before(lab: ModuleType) -> None:
    """`update_draft_token_ids` replaces the drafts proposed before, also by an empty list."""
    scheduler = support.decoding(lab, "eve")
    support.propose(scheduler, eve=[X, Y])
    support.propose(scheduler, eve=[])
    got = scheduler.schedule().num_scheduled_tokens
    assert got == {"eve": 1}, f"the drafter found nothing this time: 1 token, not {got}"


# ---- the result comes ------------------------------------------------------------------------------


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_rejected_drafts_are_taken_back(lab: ModuleType, accepted: int) -> None:
    """`_take_back` takes back the rejected of 3 drafts; Eve has 10 tokens, 9 of them computed."""
    scheduler = support.decoding(lab, "eve")
    eve = scheduler.requests["eve"]
    support.propose(scheduler, eve=[X, Y, Z])
    plan = scheduler.schedule()
    assert eve.num_computed_tokens == 13, (
        f"`schedule` counts all four inputs as computed: 13, not {eve.num_computed_tokens}"
    )
    support.take_in(scheduler, plan, eve=[*[X, Y, Z][:accepted], 5])
    got = support.counters(eve)
    assert got == (11 + accepted, 10 + accepted), (
        f"{accepted} of 3 drafts accepted and one token sampled: {11 + accepted} tokens, of which all but "
        f"the newest have been an input: {10 + accepted}. Yours: {got}"
    )
    assert eve.num_output_placeholders == 0, (
        "no step is in flight, so Eve has no placeholders, and none can be taken off; yours: "
        f"{eve.num_output_placeholders}"
    )
    stats = scheduler.spec_decoding_stats
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == (3, accepted), (
        f"the meters say 3 drafted, {accepted} accepted; they say {stats}"
    )


def test_no_block_goes_back(lab: ModuleType) -> None:
    """A rejected draft's slot is used again, by the token that takes its place."""
    scheduler = support.decoding(lab, "eve", length=12)
    table = []
    for _ in range(3):
        support.propose(scheduler, eve=[X, Y, Z])
        plan = scheduler.schedule()
        table.append(list(scheduler.kv_cache_manager.get_block_ids("eve")[0]))
        support.take_in(scheduler, plan, eve=[5])
    held = [len(ids) for ids in table]
    assert held == [4, 5, 5], (
        "inputs 12 to 15, 13 to 16, 14 to 17 in blocks of 4, as each step keeps one token: 4, 5, 5 blocks; "
        f"yours: {held}"
    )
    assert table[1][:4] == table[0], f"her blocks stay hers: {table}"


def test_the_answer_ends_among_accepted_drafts(lab: ModuleType) -> None:
    """`_update_request_with_output` ends the answer at an EOS; drafts accepted after it are not in it."""
    scheduler = support.decoding(lab, "eve", "gil")
    eve = scheduler.requests["eve"]
    support.propose(scheduler, eve=[X, support.EOS, Z])
    plan = scheduler.schedule()
    news = support.take_in(scheduler, plan, eve=[X, support.EOS, Z, 5])
    assert news["eve"] == [X, support.EOS], (
        f"EOS is the second token and the last that Eve gets: {[X, support.EOS]}, not {news['eve']}"
    )
    assert eve.output_token_ids == [5, X, support.EOS], (
        f"and nothing behind it belongs to her answer, which is {eve.output_token_ids}"
    )
    assert eve.status is RequestStatus.FINISHED_STOPPED, f"she has finished; {eve.status!r}"
    held, running = support.blocks(scheduler, "eve"), [r.request_id for r in scheduler.running]
    assert (held, running) == (0, ["gil"]), (
        f"her blocks are free and Gil runs alone; {held} blocks are held, running: {running}"
    )


def test_the_answer_has_its_length(lab: ModuleType) -> None:
    """`_update_request_with_output` takes two tokens of four if two are still wanted."""
    scheduler = support.make(lab)
    eve = support.come(scheduler, "eve", 9, want=3)
    support.take_in(scheduler, scheduler.schedule())
    support.propose(scheduler, eve=[X, Y, Z])
    news = support.take_in(scheduler, scheduler.schedule(), eve=[X, Y, Z, 5])
    assert news["eve"] == [X, Y], (
        f"max_tokens is 3 and she has one: two more, {[X, Y]}, not {news['eve']}"
    )
    assert eve.status is RequestStatus.FINISHED_LENGTH_CAPPED, (
        f"she ends by length; her status is {eve.status!r}"
    )


# ---- preemption ------------------------------------------------------------------------------------


def test_a_victim_of_the_same_step_leaves_it_with_its_drafts(lab: ModuleType) -> None:
    """A victim served in the same step leaves it with its drafts, and another request gets its tokens."""
    scheduler = support.make(lab, scheduling_policy="priority", num_gpu_blocks=6, max_model_len=16)
    support.come(scheduler, "low", 4, priority=5)
    support.take_in(scheduler, scheduler.schedule())
    support.come(scheduler, "high", 8, priority=0)
    support.come(scheduler, "mid", 1, priority=1)
    support.take_in(scheduler, scheduler.schedule())
    scheduler.max_num_scheduled_tokens = 5
    support.propose(scheduler, low=[X, Y], high=[X, Y, Z], mid=[X])
    plan = scheduler.schedule()
    got = (plan.num_scheduled_tokens, plan.scheduled_spec_decode_tokens, plan.preempted_req_ids)
    assert got == ({"high": 2, "mid": 2}, {"high": [X], "mid": [X]}, {"low"}), (
        "of the step's 5 tokens low took 3 and left high 2. high's draft wants a block, so low loses its own "
        "and leaves the step, drafts and all; its 3 tokens are there again, for mid. Yours: "
        f"{got}"
    )
    support.take_in(scheduler, plan, high=[X, 5])
    got = support.counters(scheduler.requests["high"])
    assert got == (11, 10), f"high goes on with 11 tokens, 10 computed; yours: {got}"


# ---- two plans in flight ---------------------------------------------------------------------------


def in_flight(lab: ModuleType, *names: str, **settings: Any) -> tuple[Any, Any]:
    """People of 8 tokens, admitted; a first plan with drafts is in flight. The scheduler, that plan."""
    scheduler = support.make(lab, "eagle", ahead=True, **settings)
    for name in names:
        support.come(scheduler, name, 8)
    support.take_in(scheduler, scheduler.schedule())
    return scheduler, scheduler.schedule()


def test_placeholders_count_like_tokens(lab: ModuleType) -> None:
    """`_num_new_tokens` begins after the drafts in flight, as if all of them were accepted."""
    scheduler, first = in_flight(lab, "eve")
    eve = scheduler.requests["eve"]
    assert first.num_scheduled_tokens == {"eve": 4}, (
        f"her newest token and k = 3 drafts, whatever they are: {first.num_scheduled_tokens}"
    )
    assert (eve.num_computed_tokens, eve.num_output_placeholders) == (12, 4), (
        "12 counted as computed, and 4 places for what comes; "
        f"{(eve.num_computed_tokens, eve.num_output_placeholders)}"
    )
    second = scheduler.schedule()
    got = (second.num_scheduled_tokens, second.scheduled_spec_decode_tokens)
    assert got == ({"eve": 4}, {"eve": [-1, -1, -1]}), (
        "9 tokens, 4 placeholders and 3 drafts, 12 of them computed: 4 tokens, the last 3 of them drafts. "
        f"Yours: {got}"
    )


def test_placeholders_stand_before_drafts(lab: ModuleType) -> None:
    """`_schedule_drafts` puts placeholders before drafts: the second step has room for two of four tokens."""
    scheduler, _ = in_flight(lab, "eve")
    scheduler.max_num_scheduled_tokens = 2
    second = scheduler.schedule()
    got = (second.num_scheduled_tokens, second.scheduled_spec_decode_tokens)
    assert got == ({"eve": 2}, {"eve": [-1]}), (
        "9 tokens, 4 placeholders and 3 drafts, 12 of them computed: the next is a placeholder, and behind "
        f"it one draft finds room. Yours: {got}"
    )


@pytest.mark.parametrize("accepted", [0, 1, 3])
def test_placeholders_are_taken_back(lab: ModuleType, accepted: int) -> None:
    """`_take_back` takes rejected drafts off the placeholders while the next step is being computed."""
    scheduler, first = in_flight(lab, "eve")
    eve = scheduler.requests["eve"]
    scheduler.schedule()
    support.take_in(scheduler, first, eve=[*[X, Y, Z][:accepted], 5])
    got = (*support.counters(eve), eve.num_output_placeholders)
    expected = (10 + accepted, 13 + accepted, 4)
    assert got == expected, (
        f"{accepted} of the first plan's 3 drafts accepted: {expected[0]} tokens; 16 inputs were counted, "
        f"less {3 - accepted}; and 4 places are left, the second plan's. Tokens, computed, placeholders: "
        f"{expected}, not {got}"
    )


def test_preempted_in_flight(lab: ModuleType) -> None:
    """`_take_back` of a request preempted in flight: its tokens still come, and no count is wrong."""
    # 3 drafts and the head's 3 slots: 15 slots in the first plan, 19 in the second; 9 blocks of 4.
    scheduler, first = in_flight(lab, "eve", "gil", num_gpu_blocks=10, max_model_len=36)
    gil = scheduler.requests["gil"]
    second = scheduler.schedule()
    assert second.preempted_req_ids == {"gil"}, (
        f"the pool is too small for both by now: Gil goes; preempted: {second.preempted_req_ids}"
    )
    support.take_in(scheduler, first, eve=[5], gil=[X, 5])
    got = (*support.counters(gil), gil.num_output_placeholders)
    assert got == (11, 0, 0), (
        "he keeps the two tokens that were in flight, has nothing computed, and waits for nothing: "
        f"(11, 0, 0), not {got}"
    )


# ---- whose code it is ------------------------------------------------------------------------------


def test_the_methods_are_yours(lab: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Your file works without the engine's own methods."""

    def taken(*args: object, **kwargs: object) -> None:
        pytest.fail("the engine's own method was called: write yours, without `super()`")

    for name in (
        "_count_new_tokens",
        "_schedule_drafts",
        "_take_back_rejected",
    ):
        monkeypatch.setattr(given.Scheduler, name, taken)
    for name in ("update_draft_token_ids", "_update_request_with_output"):
        monkeypatch.setattr(given.Scheduler, name, taken)
    monkeypatch.setattr(ahead.AsyncScheduler, "_count_new_tokens", taken)
    scheduler = support.decoding(lab, "eve")
    support.propose(scheduler, eve=[X, Y, Z])
    support.take_in(scheduler, scheduler.schedule(), eve=[X, 5])
    got = support.counters(scheduler.requests["eve"])
    assert got == (12, 11), f"12 tokens, 11 computed; yours: {got}"
