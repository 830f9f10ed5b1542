"""Lab 02-07: the calls that a replay makes, turn by turn."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from course.learner.labs import load_support

support = load_support(__file__)


def test_a_running_request_asks_for_its_tokens(lab: ModuleType) -> None:
    """A running request asks for slots without a look-up, because it has its prefix already."""
    for answer in (True, False):
        manager = support.Noting((answer,))
        got = support.replay_of(lab, manager, "ada").ask(support.turn("ada", 3))
        assert manager.short() == ["allocate ada"], (
            f"a running request asks once, for slots; your calls are {manager.short()}. What the prefix "
            "cache has was looked up when it was admitted, and only then"
        )
        _, _, num_new_tokens, num_hits, hits, whole = manager.calls[0]
        assert (num_new_tokens, num_hits, bool(hits)) == (3, 0, False), (
            f"this turn is of 3 tokens; you asked for {num_new_tokens}, with {num_hits} hit tokens"
        )
        assert not whole, (
            "the full-sequence gate is for admissions; a running request is in already"
        )
        assert got is answer, (
            f"the manager {'gave blocks' if answer else 'gave None'} and ask() says {got!r}: True where it "
            "got blocks (they may be none at all: an empty result is no refusal), False where None came back"
        )


def test_an_admission_looks_up_first(lab: ModuleType) -> None:
    """An admission passes its hits with their length, and the whole sequence must fit."""
    manager = support.Noting(hits=2)
    replay = support.replay_of(lab, manager, "bo")
    assert replay.ask(support.turn("bo", 2, admitted=True)), "the manager gave blocks: True"
    assert manager.short() == ["look up bo", "allocate bo"], (
        f"your calls are {manager.short()}: first get_computed_blocks(request), then allocate_slots with "
        "what came of it"
    )
    assert manager.calls[1][2:5] == (2, 8, manager.hits), (
        f"the look-up found 8 tokens, 2 are left. allocate_slots wants 2 new tokens, 8 computed ones and "
        f"the blocks that were found; it got {manager.calls[1][2:4]}"
        + ("" if manager.calls[1][4] is manager.hits else ", and other blocks")
    )
    assert manager.calls[1][5] is True, (
        "full_sequence_must_fit is not set. A request is admitted only if all its tokens fit, even if this "
        "step computes a chunk of them"
    )
    computed = replay.requests["bo"].num_computed_tokens
    assert computed == 8, (
        f"bo is in, and num_computed_tokens is {computed}: the 8 hit tokens are computed, and the 2 of this "
        "turn are not until the step is scheduled"
    )


def test_a_refused_admission_changes_nothing(lab: ModuleType) -> None:
    """A refused request stays in the queue as it was, and looks up again at its next turn."""
    manager = support.Noting((False,), hits=2)
    replay = support.replay_of(lab, manager, "bo")
    assert replay.ask(support.turn("bo", 2, admitted=True, fits=False)) is False, (
        "allocate_slots gave None, so ask() is False"
    )
    computed = replay.requests["bo"].num_computed_tokens
    assert computed == 0, (
        f"bo was refused and has {computed} computed tokens. The hits that were found are held by nobody, "
        "and may be gone by the next step: take them over only when the request is let in"
    )


def test_the_gate_can_be_off(lab: ModuleType) -> None:
    """With `scheduler_reserve_full_isl: false` only this turn's tokens must fit."""
    for said in (False, True):
        manager = support.Noting()
        replay = support.replay_of(lab, manager, "bo", scheduler_reserve_full_isl=said)
        replay.ask(support.turn("bo", 4, admitted=True))
        assert manager.calls[-1][5] is said, (
            f"the config says scheduler_reserve_full_isl: {said}, and full_sequence_must_fit was "
            f"{manager.calls[-1][5]}"
        )


def test_a_victim_starts_over(lab: ModuleType) -> None:
    """A victim gives back its blocks and its counter falls to 0; the request and its tokens stay."""
    manager = support.Noting()
    replay = support.replay_of(lab, manager, "cy")
    request = replay.requests["cy"]
    request.append_output_token_ids(9)
    request.num_computed_tokens = 11
    replay.preempt("cy")
    assert manager.short() == ["free cy"], (
        f"your calls are {manager.short()}: one free(request), which gives back all its blocks"
    )
    assert request.num_computed_tokens == 0, (
        f"cy holds nothing any more and num_computed_tokens is {request.num_computed_tokens}. When it "
        "returns it asks for slots from the first token on, less what it then finds in the cache"
    )
    kept = replay.requests.get("cy"), request.num_tokens, request.output_token_ids
    assert kept == (request, 11, [9]), (
        "a victim keeps its tokens, its outputs too, and comes back later: do not forget it"
    )


def test_who_leaves_is_forgotten(lab: ModuleType) -> None:
    """A request that finishes or is aborted gives back its blocks and leaves `requests`."""
    manager = support.Noting()
    replay = support.replay_of(lab, manager, "ada", "bo")
    replay.leave("ada")
    assert manager.short() == ["free ada"], (
        f"your calls are {manager.short()}, should be one free of ada"
    )
    assert list(replay.requests) == ["bo"], (
        f"ada has left; requests still has {list(replay.requests)}"
    )


def test_a_turn_asks_before_each_victim(lab: ModuleType) -> None:
    """A turn asks the manager before each victim, and every answer is compared."""
    manager = support.Noting((False, False, True))
    replay = support.replay_of(lab, manager, "ada", "bo", "cy")
    agrees = replay.serve(support.turn("ada", victims=("cy", "bo")))
    want = ["allocate ada", "free cy", "allocate ada", "free bo", "allocate ada"]
    assert manager.short() == want, (
        f"ada's turn cost cy and bo their blocks, in this order. Your calls: {manager.short()}. vLLM asks, "
        "is refused, preempts one, and asks again: so must you, or a manager that has room too early is "
        "never found out"
    )
    assert agrees is True, "two refusals and then blocks, as in vLLM: serve() is True"


def test_a_manager_with_more_room_is_found_out(lab: ModuleType) -> None:
    """If the manager gives blocks where vLLM had none, the turn ends and no request is preempted."""
    manager = support.Noting((False, True))
    replay = support.replay_of(lab, manager, "ada", "bo", "cy")
    agrees = replay.serve(support.turn("ada", victims=("cy", "bo")))
    assert agrees is False, (
        "this manager gave ada blocks after cy was preempted, and vLLM's refused once more: serve() is False"
    )
    assert "free bo" not in manager.short(), "the turn is over at the first wrong answer; bo stays"
    for answer, fits in ((True, False), (False, True)):
        manager = support.Noting((answer,))
        replay = support.replay_of(lab, manager, "bo")
        got = replay.serve(support.turn("bo", 10, admitted=True, fits=fits))
        assert got is False, (
            f"vLLM {'admitted' if fits else 'refused'} bo, and this manager "
            f"{'gave' if answer else 'gave no'} blocks: serve() is False, yours says {got}"
        )
    replay = support.replay_of(lab, support.Noting((False,)), "bo")
    assert replay.serve(support.turn("bo", 10, admitted=True, fits=False)) is True, (
        "vLLM refused bo and so did this manager: they agree, serve() is True"
    )


def test_who_preempts_itself_does_not_ask_again(lab: ModuleType) -> None:
    """If the last victim is the request itself, its turn ends without another question."""
    manager = support.Noting((False, False))
    replay = support.replay_of(lab, manager, "ada", "bo")
    agrees = replay.serve(support.turn("ada", victims=("bo", "ada"), fits=False))
    assert manager.short() == ["allocate ada", "free bo", "allocate ada", "free ada"], (
        f"ada was refused twice, and was its own last victim. Your calls: {manager.short()}. It holds "
        "nothing now and must not ask for one more token"
    )
    assert agrees is True, "both refusals are vLLM's: serve() is True"


def test_the_counters_move_when_all_are_scheduled(lab: ModuleType) -> None:
    """compute() adds the step's tokens to the counters; during the turns they stay as they are."""
    replay = support.replay_of(lab, support.Noting(hits=1), "ada", "bo")
    replay.ask(support.turn("ada", 6, admitted=True))
    before = replay.requests["ada"].num_computed_tokens
    assert before == 4, (
        f"after its turn ada has {before} computed tokens; 4 were hits. The 6 of the turn are added by "
        "compute(), when the whole step is scheduled: a request that is preempted later in the step never "
        "computes them"
    )
    replay.compute({"ada": 6})
    got = {i: r.num_computed_tokens for i, r in replay.requests.items()}
    assert got == {"ada": 10, "bo": 0}, (
        f"after compute() of 6 for ada: {got}, should be 10, and bo 0"
    )


def test_tokens_come_before_the_ends(lab: ModuleType) -> None:
    """Each token is appended first, which hashes the block it fills; then finished requests leave."""
    manager = support.Noting()
    replay = support.replay_of(lab, manager, "ada", "bo", "cy", "al")
    ada, bo = replay.requests["ada"], replay.requests["bo"]
    for token in (40, 41):
        replay.take_in({"ada": token, "bo": token}, ["cy", "bo", "al"] if token == 41 else [])
    assert ada.all_token_ids[-2:] == [40, 41], (
        f"ada sampled 40 and then 41; its last tokens are {ada.all_token_ids[-2:]}"
    )
    assert bo.all_token_ids[-2:] == [40, 41], (
        f"bo sampled 40, then 41 as its last; its last tokens are {bo.all_token_ids[-2:]}. Who has finished "
        "takes its last token in first, and leaves then"
    )
    assert len(ada.block_hashes) == 3, (
        f"12 tokens in blocks of 4 have 3 hashes, ada has {len(ada.block_hashes)}: use "
        "append_output_token_ids, which hashes"
    )
    assert manager.short() == ["free cy", "free bo", "free al"], (
        f"cy, bo and al have finished and leave, in this order: it is the order of the free queue. Your "
        f"calls: {manager.short()}"
    )
    assert list(replay.requests) == ["ada"], (
        f"only ada goes on; requests has {list(replay.requests)}"
    )


def test_a_step_has_vllms_order(lab: ModuleType) -> None:
    """A step makes the turns' calls in vLLM's order, and then counts itself as done."""
    trace, steps = support.traces()[7]
    seen: list[Any] = []
    freed: dict[str, tuple[int, int]] = {}
    manager = support.reference(trace["config"])
    right, free = manager.allocate_slots, manager.free

    def watched(request: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(request.request_id)
        return right(request, *args, **kwargs)

    def leaves(request: Any) -> None:
        freed[request.request_id] = request.num_computed_tokens, request.num_tokens
        free(request)

    manager.allocate_slots, manager.free = watched, leaves
    replay = lab.Replay(trace, manager)
    for number, turns in enumerate(steps[:40]):
        seen.clear()
        said = replay.step(turns)
        assert said is None, f"step {number}, on a manager that is right: {lab.report(trace, said)}"
        assert replay.number == number + 1, f"after step {number} `number` is {replay.number}"
        want = []
        for turn in turns.turns:
            want += [turn.request_id] * (len(turn.victims) + (turn.request_id not in turn.victims))
        assert seen == want, f"step {number}: you asked for {seen}, in vLLM it was {want}"
        for request_id in turns.decision["finished"]:
            computed, tokens = freed[request_id]
            assert computed == tokens - 1, (
                f"step {number}: {request_id} left with {computed} of {tokens} tokens computed, and all but "
                "the last are. The counters move, then the tokens come, then who has finished leaves"
            )


def test_who_comes_and_is_aborted_is_gone(lab: ModuleType) -> None:
    """Arrivals come before aborts, because a request can do both before the same step."""
    manager = support.Noting()
    manager.block_pool = support.reference(support.CONFIG).block_pool
    replay = support.replay_of(lab, manager)
    found = replay.step(support.nothing_but(arrived="ada", aborted="ada"))
    assert found is None, f"a step with an arrival, an abort and no turn; you say {found}"
    assert not replay.requests, (
        f"ada arrived and was aborted before the step, and `requests` has {list(replay.requests)} after it: "
        "arrivals come first, then aborts"
    )
