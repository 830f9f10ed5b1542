"""What async scheduling, a GPU's default at the pin, leaves behind when a request ends (`-m vllm`).

The pages say so: CHEATSHEET, INTERVIEW 8 and EXERCISES 3 of phase 01.
"""

from __future__ import annotations

import pytest

from course.parity.traces import EOS
from tests.engine.helpers.scheduler.batch_queue import CONFIG, Plan, arrival, play

pytestmark = pytest.mark.vllm


def after_the_last_token(
    plans: list[Plan], num_tokens: int
) -> list[tuple[dict[str, int], list[str]]]:
    """The plans behind the one that computed the last token: what was planned, and what wasted."""
    return [(plan.tokens, plan.wasted) for plan in plans[num_tokens:]]


def test_a_length_stop_leaves_two_empty_plans() -> None:
    plans = play(CONFIG, {0: [arrival("a", 5, max_tokens=4)]}, lambda name, made: 20 + made)
    assert [plan.tokens for plan in plans[:4]] == [{"a": 5}, {"a": 1}, {"a": 1}, {"a": 1}]
    assert after_the_last_token(plans, 4) == [({}, []), ({}, [])]


def test_an_eos_stop_leaves_a_wasted_row_and_one_empty_plan() -> None:
    ends = {0: [arrival("a", 5, max_tokens=40, ignore_eos=False)]}
    plans = play(CONFIG, ends, lambda name, made: EOS if made == 3 else 20 + made)
    assert after_the_last_token(plans, 4) == [({"a": 1}, ["a"]), ({}, [])]


def test_a_block_is_given_away_while_the_plan_that_writes_it_is_in_flight() -> None:
    """Five blocks of 4. `a` holds four, `b` needs three and waits; then `a` ends by EOS."""
    first = [arrival("a", 13, max_tokens=40, ignore_eos=False), arrival("b", 9, max_tokens=2)]
    plans = play(
        CONFIG | {"num_blocks": 6}, {0: first}, lambda name, made: EOS if made == 2 else 20
    )
    wasted = next(plan for plan in plans if plan.wasted == ["a"])
    following = next(plan for plan in plans if "b" in plan.tokens)
    assert wasted.blocks["a"][-1] in following.blocks["b"]
    assert following.number == wasted.number + 1
    assert following.taken_in == wasted.number, "the wasted row's result had been taken in before"
