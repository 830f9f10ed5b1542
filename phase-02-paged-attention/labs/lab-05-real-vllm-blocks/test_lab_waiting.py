"""Lab 02-05, the door: what a waiting request needs, and which rule holds it back."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support

support = load_support(__file__)


def moment(lab: ModuleType, **changes: Any) -> Any:
    """A moment in which nothing stands in the way: 48 tokens, 6 of 9 usable blocks of 16 free."""
    open_door = lab.Moment(
        preempted=False, token_budget=64, num_running=1, max_num_seqs=4, ahead=0, num_tokens=48,
        hit_blocks=0, free_hit_blocks=0, free_blocks=6, num_gpu_blocks=10, block_size=16,
    )  # fmt: skip
    return replace(open_door, **changes)


def same_rule(lab: ModuleType, want: str | None, why: str, **changes: Any) -> None:
    """`why_waiting` names the rule `want`."""
    got = lab.why_waiting(moment(lab, **changes))
    assert got == want, f"{changes}: {want!r}, got {got!r}. {why}"


def test_hits_that_are_free_are_needed_too(lab: ModuleType) -> None:
    """A hit that nobody holds leaves the free queue; one that is held costs nothing."""
    for args, want in {
        (81, 16, 0, 0): 6, (81, 16, 3, 0): 3, (81, 16, 3, 3): 6, (81, 16, 3, 1): 4, (16, 16, 0, 0): 1,
    }.items():  # fmt: skip
        got = lab.blocks_needed(*args)
        num_tokens, size, hits, free = args
        assert got == want, (
            f"{num_tokens} tokens in blocks of {size}, {hits} blocks found, {free} of them free: {want} "
            f"leave the free queue, got {got}. A block that was found is not asked for anew, but if nobody "
            "holds it, it lies in the free queue and is taken from there"
        )


def test_an_open_door(lab: ModuleType) -> None:
    """A request with budget, a slot, its turn and blocks is admitted, even if it takes the last block."""
    same_rule(lab, None, "Nothing stands in its way.")
    same_rule(lab, None, "Three blocks needed, three free: that is enough.", free_blocks=3)
    same_rule(lab, None, "A budget of 1 is a budget.", token_budget=1)
    same_rule(lab, None, "Three run, and there are four seats.", num_running=3)
    same_rule(lab, None, "Nine usable blocks, all free, for nine.", num_tokens=144, free_blocks=9)


def test_four_questions_before_the_blocks(lab: ModuleType) -> None:
    """Preemption, budget, slots or turn alone makes a request wait, even with all blocks free."""
    same_rule(lab, "preemption", "Nobody is let in in a step that preempted.", preempted=True)
    same_rule(lab, "budget", "The step has no token left.", token_budget=0)
    same_rule(lab, "max_num_seqs", "All seats are taken.", num_running=4)
    same_rule(lab, "behind", "Somebody in front of it waits.", ahead=1, num_tokens=1)


def test_the_first_rule_is_the_answer(lab: ModuleType) -> None:
    """If several rules hold, the answer is the one that Scheduler.schedule comes to first."""
    order = "schedule() asks: preempted? budget? seats? and only then looks at the head, and its blocks."
    none: dict[str, Any] = {"free_blocks": 0, "num_tokens": 400}
    all_four: dict[str, Any] = {"preempted": True, "token_budget": 0, "num_running": 4, "ahead": 2}
    same_rule(lab, "preemption", order, **none, **all_four)
    same_rule(lab, "budget", order, **none, **all_four | {"preempted": False})
    same_rule(lab, "max_num_seqs", order, **none, num_running=4, ahead=2)
    same_rule(lab, "behind", order, **none, ahead=2)


def test_the_gate_asks_for_the_whole_sequence(lab: ModuleType) -> None:
    """With the gate a long prompt waits although its first chunk would fit; without, it is let in."""
    long: dict[str, Any] = {"num_tokens": 96, "long_prefill_token_threshold": 16, "free_blocks": 5}
    why = "96 tokens are 6 blocks, 5 are free, and this step would compute 16 tokens, one block."
    same_rule(lab, "gate", why, **long)
    same_rule(
        lab, None, "Without the gate only the chunk must fit.", **long, reserve_full_isl=False
    )
    same_rule(lab, "gate", "The budget cuts the chunk to 10 tokens, one block.",
              num_tokens=96, token_budget=10, free_blocks=1)  # fmt: skip
    same_rule(lab, "blocks", "The chunk has 17 tokens: two blocks, one is free.",
              num_tokens=96, token_budget=17, free_blocks=1)  # fmt: skip
    same_rule(lab, "blocks", "A threshold of 0 is no limit: the chunk is the whole prompt.",
              num_tokens=64, free_blocks=3)  # fmt: skip
    same_rule(lab, "blocks", "Not even one block for the chunk.",
              num_tokens=96, token_budget=10, free_blocks=0, reserve_full_isl=False)  # fmt: skip
    same_rule(lab, None, "A threshold above the prompt changes nothing.",
              num_tokens=48, long_prefill_token_threshold=100, free_blocks=3)  # fmt: skip


def test_a_chunk_begins_behind_the_hits(lab: ModuleType) -> None:
    """Found tokens are not computed, so the chunk's blocks come behind those that were found."""
    found: dict[str, Any] = {"num_tokens": 96, "hit_blocks": 3, "token_budget": 16}
    same_rule(lab, "gate", "Three hits that are held: one block for the chunk, three for the rest.",
              **found, free_blocks=2)  # fmt: skip
    same_rule(lab, None, "Without the gate: one block for the chunk, and one is free.",
              **found, free_blocks=1, reserve_full_isl=False)  # fmt: skip
    same_rule(lab, "blocks", "Three hits that are free, and the chunk's: four, and three are free.",
              **found, free_hit_blocks=3, free_blocks=3, reserve_full_isl=False)  # fmt: skip
    same_rule(lab, None, "Three hits that are free and three more: six.",
              num_tokens=96, hit_blocks=3, free_hit_blocks=3, free_blocks=6)  # fmt: skip
    same_rule(lab, "blocks", "Three hits that are free and three more: six, and five are free.",
              num_tokens=81, hit_blocks=3, free_hit_blocks=3, free_blocks=5)  # fmt: skip
    same_rule(lab, None, "97 tokens, 96 of them found in held blocks: one token is left, one block.",
              num_tokens=97, hit_blocks=6, free_blocks=1)  # fmt: skip
    same_rule(lab, None, "The same without the gate: found tokens are no part of the chunk.",
              num_tokens=97, hit_blocks=6, free_blocks=1, reserve_full_isl=False)  # fmt: skip
    same_rule(lab, "blocks", "The threshold is for what is computed: 32 tokens, two blocks, and one is free.",
              num_tokens=96, hit_blocks=3, long_prefill_token_threshold=32, free_blocks=1)  # fmt: skip
    same_rule(lab, "gate", "Blocks of 4: two hits are 8 tokens, the chunk has 4, and 4 more come later.",
              block_size=4, num_tokens=16, hit_blocks=2, token_budget=4, free_blocks=1)  # fmt: skip


def test_more_than_the_usable_pool_waits_for_ever(lab: ModuleType) -> None:
    """A pool of 10 blocks can give out 9, so the gate never admits a sequence of 10 blocks."""
    same_rule(lab, "never", "145 tokens are 10 blocks, and block 0 is the null block.",
              num_tokens=145, free_blocks=9)  # fmt: skip
    same_rule(lab, "never", "It would be the same with 10,000 tokens.", num_tokens=10_000)
    same_rule(lab, "gate", "144 tokens are 9 blocks: they fit once all are free.",
              num_tokens=144, free_blocks=8)  # fmt: skip
    same_rule(lab, "never", "The hits lie in the same pool, so they do not help.",
              num_tokens=145, hit_blocks=2, free_hit_blocks=2, free_blocks=9)  # fmt: skip
    same_rule(lab, "never", "Two hits that somebody holds need not be taken, but its 10 blocks include them.",
              num_tokens=145, hit_blocks=2, free_blocks=7)  # fmt: skip
    same_rule(lab, None, "Without the gate it is let in and preempted: `--only '4 blocks, chunk by chunk'`.",
              num_tokens=145, free_blocks=9, reserve_full_isl=False)  # fmt: skip
    same_rule(lab, "never", "Without the gate, when not even its chunk fits: its whole never will.",
              num_tokens=145, free_blocks=0, reserve_full_isl=False)  # fmt: skip


LIFTED = {
    "two seats": (1, "cy", "max_num_seqs"),
    "32 tokens a step": (1, "bo", "budget"),
    "the whole prompt": (1, "bo", "gate"),
    "4 blocks": (1, "ada", "never"),
    "hits that are free": (3, "bo", "blocks"),
    "cy behind bo": (2, "cy", "behind"),
}
"""Run: step and request that waits, and the rule; the run that lifts it lets the request in, in that step."""


@pytest.mark.parametrize("name", LIFTED)
def test_vllm_lets_it_in_without_that_rule(lab: ModuleType, name: str) -> None:
    """In six waits of real vLLM, lifting the one rule admits the request in the same step."""
    step, request, rule = LIFTED[name]
    [other] = [line["name"] for line in support.of_kind("moments") if line["lifts"] == name]
    for run, want in ((name, rule), (other, None)):
        [(admitted, at)] = [
            (admitted, at)
            for s, who, admitted, at in support.predictions.moments(lab, support.named(run))
            if (s, who) == (step, request)
        ]
        got = lab.why_waiting(at)
        said = "let it in" if admitted else "had it wait"
        assert got == want, (
            f"run {run!r}, step {step}, {request}: vLLM {said}, so {want!r}, got {got!r}. The moment: {at}"
        )


def test_vllm_let_in_the_same_requests(lab: ModuleType) -> None:
    """Every waiting request of every step is admitted or not, as in vLLM."""
    rule = "The counters of that moment stand in capture.jsonl; capture.py --replay --only moments shows all."
    support.same_as_vllm(lab, "moments", rule)


# ---- the prefix cache ----------------------------------------------------------------------------


def hits(
    lab: ModuleType, want: list[int], why: str, prompts: list[list[int]], size: int = 16
) -> None:
    """`expected_hits` gives `want`."""
    got = lab.expected_hits(prompts, size)
    lengths = [len(prompt) for prompt in prompts]
    assert got == want, f"prompts of {lengths} tokens, blocks of {size}: {want}, got {got}. {why}"


def test_less_than_a_block_is_never_found(lab: ModuleType) -> None:
    """Copies shorter than a block find nothing, because only full blocks are published."""
    hits(lab, [0] * 8, "Six tokens fill no block.", [[7] * 6] * 8)
    hits(lab, [0, 0], "100 tokens fill no block of 128.", [[7] * 100] * 2, 128)
    hits(lab, [0, 16], "Of 31 tokens one block is full.", [[7] * 31] * 2)


def test_a_duplicate_recomputes_its_last_block(lab: ModuleType) -> None:
    """A copy of 32 tokens finds 16: one token must be computed, and the cache gives whole blocks."""
    why = "One token must be computed, to have something to sample from, and hits are whole blocks."
    hits(lab, [0, 16, 16], why, [[7] * 32] * 3)
    hits(lab, [0, 0], why, [[7] * 16] * 2)
    hits(
        lab,
        [0, 32],
        "Of 33 tokens the last is outside the full blocks, and is computed.",
        [[7] * 33] * 2,
    )
    hits(
        lab,
        [0, 32],
        "A full last block is published, and a longer prompt finds it.",
        [[7] * 32, [7] * 40],
    )
    hits(lab, [0, 3], "Blocks of 1: all but the last token.", [[1, 2, 3, 4]] * 2, 1)


def test_a_block_is_found_behind_its_own_past_only(lab: ModuleType) -> None:
    """Equal tokens at another position, or behind another beginning, are a different block."""
    a, b, c = [1] * 4, [2] * 4, [3] * 4
    hits(lab, [0, 0], "Shifted by one token, no block is the same.", [a + b, [9, *a, *b]], 4)
    hits(lab, [0, 0], "b begins here, there it came behind a.", [a + b + c, b + c + a], 4)
    hits(
        lab, [0, 8], "a and b are found, and c instead of b ends it.", [a + b + b, a + b + c + c], 4
    )
    hits(lab, [0, 0], "The same tokens in another order.", [[1, 2, 3, 4, 5], [2, 1, 4, 3, 5]], 2)
    hits(lab, [0, 4], "Only what came behind the same beginning.", [a + b + c, a + c + c + c], 4)
    hits(
        lab,
        [0, 0, 4, 8],
        "Any earlier prompt may have left it.",
        [a + b, c + b, a + c + a, a + c + b],
        4,
    )
    hits(lab, [], "No prompts.", [])


def test_every_look_up_is_in_the_denominator(lab: ModuleType) -> None:
    """A refused request is looked up again in the next step, and its tokens and hits count again."""
    two = [[7] * 33, [7] * 33]
    for prompts, lookups, want in [
        (two, [1, 1], 32 / 66), (two, [1, 4], 128 / 165), ([[7] * 6] * 3, [1, 1, 1], 0.0),
        ([[7] * 48, [8] * 48], [1, 9], 0.0), ([[7] * 32] * 4, [1] * 4, 48 / 128), ([], [], 0.0),
    ]:  # fmt: skip
        got = lab.hit_rate(prompts, 16, lookups)
        assert got == pytest.approx(want), (
            f"prompts of {[len(p) for p in prompts]} tokens, looked up {lookups} times: {want:.4f}, got "
            f"{got:.4f}. Both sums count tokens, and both count every look-up, not every request or block"
        )


def test_vllm_found_the_same(lab: ModuleType) -> None:
    """In eight runs vLLM counted the same cached tokens for every request, and the same hit rate."""
    support.same_as_vllm(lab, "hits", "The prompts stand in runs.py.")
