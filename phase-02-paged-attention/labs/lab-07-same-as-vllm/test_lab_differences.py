"""Lab 02-07: the first difference and its rule; and your blocks beside vLLM's."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support

support = load_support(__file__)


def first(lab: ModuleType, seed: int, steps: Any = None, make: Any = support.reference) -> Any:
    trace, recorded = support.traces()[seed]
    return lab.first_difference(trace, recorded if steps is None else steps, make)


@pytest.mark.parametrize("seed", support.SEEDS)
def test_a_right_manager_makes_no_difference(lab: ModuleType, seed: int) -> None:
    """Your replay finds no difference on `mini_vllm`'s manager: the ids are the same in every step."""
    found = first(lab, seed)
    assert found is None, (
        f"this manager is `mini_vllm`'s, which gives vLLM's blocks, so it is your calls that differ: {found}"
    )


def test_a_table_that_differs_is_found(lab: ModuleType) -> None:
    """A difference has the step, the request and both tables, and nothing of what comes after."""
    steps = support.traces()[7][1]
    busy = [i for i, s in enumerate(steps) if s.decision["blocks"]]
    for at, swapped in ((busy[1], False), (busy[-1], False), (busy[-1], True)):
        blocks = steps[at].decision["blocks"]
        request_id = list(blocks)[-1]
        *front, a, b = blocks[request_id]
        other = [*front, b, a] if swapped else [*front, a, 99]
        found = first(lab, 7, support.forged(steps, at, blocks={**blocks, request_id: other}))
        assert found is not None, (
            f"the table of {request_id} in step {at} was changed, and nothing is said"
        )
        assert tuple(found[:4]) == (at, request_id, other, blocks[request_id]), (
            f"in step {at} {request_id} has {other} in the trace and {blocks[request_id]} here. You say: "
            f"step {found.step}, {found.request_id}, {found.theirs} and {found.ours}. Tables are compared "
            "when all turns are over and nothing is sampled yet"
        )


def test_a_difference_has_its_rule(lab: ModuleType) -> None:
    """An entry that was there before and a block that was just given out break different rules."""
    steps = support.traces()[7][1]
    seen = set()
    wants = {"admitted": (-1, "order"), "runs": (0, "grow"), "runs and grows": (-1, "order")}
    for at, turns in enumerate(steps):
        for turn in turns.turns:
            blocks = turns.decision["blocks"]
            table = blocks.get(turn.request_id, [])
            held = steps[at - 1].decision["blocks"].get(turn.request_id, []) if at else []
            grows = "runs and grows" if len(table) > len(held) else "runs"
            how = "admitted" if turn.admitted else grows
            if turn.admitted == bool(held) or len(table) < 2 or how in seen:
                continue
            seen.add(how)
            place, want = wants[how]
            other = list(table)
            other[place] = 99
            found = first(
                lab, 7, support.forged(steps, at, blocks={**blocks, turn.request_id: other})
            )
            assert (found and found[:5]) == (at, turn.request_id, other, table, want), (
                f"step {at}: {turn.request_id} ({how}), before the step "
                f"it held {held}; vLLM {other}, here {table}. The rule is “{want}”; you say {found}"
            )


def test_a_block_of_somebody_else_is_named(lab: ModuleType) -> None:
    """After the turns, the manager here is asked which other request holds the block."""
    steps = support.traces()[7][1]
    tables = [turns.decision["blocks"] for turns in steps]
    at, mine = next(
        (i, next(iter(now)))
        for i, (before, now) in enumerate(pairwise(tables), 1)
        if len(now) > 1 and len(now[r := next(iter(now))]) > len(before.get(r, now[r]))
    )
    other = list(tables[at])[-1]

    def make(config: Any) -> Any:
        manager = support.reference(config)
        right = manager.get_block_ids

        def twice(request_id: str) -> tuple[list[int], ...]:
            [table] = right(request_id)
            now = right(mine) == (tables[at][mine],) and request_id in (mine, other)
            return ([*table[:-1], 77] if now else table,)

        manager.get_block_ids = twice
        return manager

    found = first(lab, 7, make=make)
    assert (found and (found.step, found.request_id, found.rule)) == (at, mine, "own"), (
        f"in step {at} {mine} gets a new block here, 77, that {other} holds here, too: the rule is “own”. "
        f"`others` are the blocks in the tables of all other requests of this manager. You say {found}"
    )


def test_other_answers_are_differences(lab: ModuleType) -> None:
    """A manager with more room than vLLM had makes a difference, and so does one with less."""
    steps = support.traces()[7][1]

    def roomy(config: Any) -> Any:
        return support.reference({**config, "num_blocks": config["num_blocks"] + 9})

    at, turn = next((i, t) for i, s in enumerate(steps) for t in s.turns if t.victims or not t.fits)
    found = first(
        lab, 7, [*support.forged(steps, 0, free=steps[0].decision["free"] + 9)[:1]], roomy
    )
    assert found is None, f"9 blocks more, and 9 more are expected to be free: {found}"
    generous = [support.forged([s], 0, free=s.decision["free"] + 9)[0] for s in steps]
    found = first(lab, 7, generous, roomy)
    rule = "gate" if turn.admitted else "room"
    assert (found and (found.step, found.request_id, found.theirs, found.rule)) == (
        at, turn.request_id, None, rule,
    ), (
        f"in step {at} vLLM has no room for {turn.request_id}, and a manager with 9 blocks more has: theirs "
        f"is None, the rule “{rule}”. You say {found}"
    )  # fmt: skip
    assert found.ours, f"ours is the table that {turn.request_id} got here, not {found.ours}"

    at, turn = next((i, t) for i, s in enumerate(steps) for t in s.turns if t.victims and t.fits)

    def early(config: Any) -> Any:  # the refusal that cost somebody its blocks does not come
        manager = support.reference(config)
        right = manager.allocate_slots

        def gives(request: Any, *args: Any, **kwargs: Any) -> Any:
            given = right(request, *args, **kwargs)
            refused = request.request_id == turn.request_id and request.num_computed_tokens
            return manager.empty_kv_cache_blocks if given is None and refused else given

        manager.allocate_slots = gives
        return manager

    found = first(lab, 7, make=early)
    assert (found and found[:3] + found[4:5]) == (at, turn.request_id, None, "room"), (
        f"in step {at} vLLM refused {turn.request_id} and preempted {turn.victims[0]} for it; a manager "
        "gives at the first asking. theirs is None, because it is vLLM that said no; the rule is “room”. You "
        f"say {found}"
    )
    assert found.ours, f"ours is the table that {turn.request_id} has here, not {found.ours}"

    for admitted, rule in ((True, "gate"), (False, "room")):
        at, turn = next(
            (i, t) for i, s in enumerate(steps) for t in s.turns if t.admitted is admitted and i
        )

        def strict(config: Any, turn: Any = turn) -> Any:
            manager = support.reference(config)
            right = manager.allocate_slots

            def refuses(request: Any, num_new: int, *args: Any, **kwargs: Any) -> Any:
                refused = request.request_id == turn.request_id and (
                    turn.admitted or request.num_computed_tokens
                )
                return None if refused else right(request, num_new, *args, **kwargs)

            manager.allocate_slots = refuses
            return manager

        found = first(lab, 7, make=strict)
        theirs = steps[found.step].decision["blocks"][turn.request_id] if found else None
        assert (found and found[1:5]) == (turn.request_id, theirs, None, rule), (
            f"vLLM gives {turn.request_id} {theirs}, and a manager refuses: ours is None, the rule “{rule}”. "
            f"You say {found}"
        )


def test_a_replay_stops_at_the_first(lab: ModuleType) -> None:
    """A replay stops at the first difference, because everything after it has no meaning."""
    steps = support.traces()[7][1]
    busy = [i for i, s in enumerate(steps) if s.decision["blocks"]]
    at = busy[len(busy) // 2], busy[-1]
    for step in at:
        blocks = steps[step].decision["blocks"]
        steps = support.forged(steps, step, blocks={i: [*table, 99] for i, table in blocks.items()})
    found = first(lab, 7, steps)
    assert (found and found.step) == at[0], (
        f"tables differ in the steps {at[0]} and {at[1]}; the first is {at[0]}, you name "
        f"{found and found.step}. Stop there: what follows differs for no reason of its own"
    )


def test_the_first_request_in_the_step_is_named(lab: ModuleType) -> None:
    """If several tables differ, the first in the decision's own order is named."""
    steps = support.traces()[7][1]
    at = next(i for i, s in enumerate(steps) if len(s.decision["blocks"]) > 2)
    blocks = steps[at].decision["blocks"]
    changed = {i: [*table, 99] for i, table in blocks.items()}
    for order in (list(blocks), list(blocks)[::-1]):
        other = {i: changed[i] for i in order}
        found = first(lab, 7, support.forged(steps, at, blocks=other))
        assert (found and found.request_id) == order[0], (
            f'every table of step {at} differs; decision["blocks"] names {order}, in this order, so '
            f"{order[0]} is the first. You name {found and found.request_id}"
        )


def test_the_free_blocks_are_counted_last(lab: ModuleType) -> None:
    """The free blocks are compared last: a block that was never given back shows in no table."""
    steps = support.traces()[7][1]
    free = steps[12].decision["free"]
    for theirs in (99, free - 1):
        found = first(lab, 7, support.forged(steps, 12, free=theirs))
        assert tuple((found or ())[:5]) == (12, "", [theirs], [free], "free"), (
            f"the trace says {theirs} free blocks after step 12, here there are {free}: a difference with "
            f"the rule “free”, no request, and the two numbers as lists. You say {found}. The count is read "
            "when those who finished have left"
        )


def test_a_manager_that_raises(lab: ModuleType) -> None:
    """An exception out of the manager is a difference, too, whichever exception it is."""

    class Odd(Exception):
        pass

    def make(config: Any) -> Any:
        manager = support.reference(config)
        right = manager.allocate_slots

        def raises(request: Any, *args: Any, **kwargs: Any) -> Any:
            if request.num_tokens > 40:
                raise Odd(f"no room for {request.request_id}")
            return right(request, *args, **kwargs)

        manager.allocate_slots = raises
        return manager

    found = first(lab, 7, make=make)
    assert (found and (found.rule, found.ours)) == ("raised", None), (
        f"the manager raised in the middle of a step; you say {found}"
    )
    assert found.note == f"no room for {found.request_id}", (
        f"the note has what was raised: {found.note!r}"
    )
    assert (
        found.theirs == support.traces()[7][1][found.step].decision["blocks"][found.request_id]
    ), (
        f"theirs is the table that vLLM gave {found.request_id} in step {found.step}, not {found.theirs}"
    )


RULES = {
    "gate": (support.turn("a", 9, admitted=True), [], None, [1, 2, 3], set()),
    "gate, the other way": (support.turn("a", 9, admitted=True), [], [1, 2, 3], None, set()),
    "room": (support.turn("a"), [1, 2], None, [1, 2, 3], set()),
    "room, the other way": (support.turn("a"), [1, 2], [1, 2, 3], None, {3}),
    "gate, and not null": (support.turn("a", 9, admitted=True), [], None, [0, 2, 3], set()),
    "null": (support.turn("a", 9, admitted=True), [], [1, 2, 3], [1, 2, 0], set()),
    "null, and shorter": (support.turn("a"), [5], [5, 1], [0], {0}),
    "hit": (support.turn("a", 3, admitted=True), [], [1, 2, 3], [1, 3], {1}),
    "length": (support.turn("a"), [1, 2], [1, 2, 3], [1, 2], set()),
    "grow": (support.turn("a"), [1, 2], [1, 2, 3], [1, 7, 3], {7}),
    "first": (support.turn("a", 3, admitted=True), [], [1, 2, 3], [1, 5, 3], {1, 5}),
    "first, the first": (support.turn("a", 5, admitted=True), [], [4, 2, 3], [1, 2, 3], set()),
    "own": (support.turn("a", 5, admitted=True), [], [1, 2, 3], [1, 5, 3], {1, 5}),
    "own, running": (support.turn("a"), [1], [1, 2], [1, 6], {6}),
    "order": (support.turn("a", 5, admitted=True), [], [1, 2, 3], [1, 5, 3], {1}),
    "order, running": (support.turn("a"), [1], [1, 2], [1, 6], {1}),
}


@pytest.mark.parametrize("case", RULES)
def test_the_rule(lab: ModuleType, case: str) -> None:
    """With blocks of 4, `rule_of` gives the first line of its table that applies."""
    turn, before, theirs, ours, others = RULES[case]
    want = case.partition(",")[0]
    got = lab.rule_of(turn, before, theirs, ours, others, 4)
    assert got == want, (
        f"{'admitted with' if turn.admitted else 'running,'} {turn.num_tokens} tokens, before {before}, vLLM "
        f"{theirs}, here {ours}, others here hold {sorted(others)}: the rule is “{want}”, yours says "
        f"“{got}”. {lab.RULES[want]}"
    )


@pytest.mark.parametrize("seed", support.SEEDS)
def test_your_blocks_are_vllms(lab: ModuleType, seed: int) -> None:
    """The manager under test gives vLLM's blocks; it is yours where labs 02-01 and 02-03 are written."""
    trace = support.traces()[seed][0]
    if first(lab, seed) is not None:
        pytest.fail(
            "your replay finds a difference on a manager that is right, so nothing can be said of this one. "
            "First mend what test_a_right_manager_makes_no_difference says"
        )
    found = first(lab, seed, make=lab.make_manager)
    if found is not None:
        print(support.suspects(lab, lab.make_manager))
        pytest.fail(lab.report(trace, found))
