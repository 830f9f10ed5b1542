"""Lab 03-06, the meters: what each of them makes of the same steps."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support

support = load_support(__file__)


def test_every_look_up_counts(lab: ModuleType) -> None:
    """The counters count tokens, not requests, and count them at each look-up."""
    steps = [support.step(lab, text) for text in ("eve/9/0 gil/8/4", "gil/8/4", "gil/8/0", "")]
    got = tuple(lab.counters(steps))
    assert got == (33, 8), (
        f"9 and three times 8 looked up, 8 found: (33, 8), got {got}. A request that waits is looked up in "
        "each step, and its tokens count each time"
    )


def test_preempted_look_ups_stand_apart(lab: ModuleType) -> None:
    """Look-ups of preempted requests are in neither counter."""
    steps = [support.step(lab, "eve/9/0"), support.step(lab, "fay/12/8! eve/9/8")]
    got = tuple(lab.counters(steps))
    assert got == (18, 8), (
        f"Eve's two look-ups only: (18, 8), got {got}. Fay was preempted before, so hers go elsewhere"
    )


def test_vllm_counted_the_same(lab: ModuleType) -> None:
    """Your counters equal what vLLM's core sent with each step, in 28 workloads."""
    support.same_as_vllm(lab, "queries and hits, server", "Sums over all steps.")


def test_offline_drops_silent_steps(lab: ModuleType) -> None:
    """The offline counters leave out a step without output."""
    steps = [
        support.step(lab, "eve/9/0"),
        support.step(lab, "gil/8/4", sampled="eve"),
        support.step(lab, "hal/7/4"),
    ]
    got = tuple(lab.counters_offline(steps))
    assert got == (8, 4), (
        f"somebody gets a token in the second step only: (8, 4), got {got}. What belongs to a step without "
        "output is thrown away, not kept for later"
    )


def test_vllm_dropped_the_same(lab: ModuleType) -> None:
    """Your offline counters equal those of vLLM's offline `LLM`, in 28 workloads."""
    support.same_as_vllm(lab, "queries and hits, offline", "In two of them it drops something.")


def sources(
    lab: ModuleType, steps: list[Any], prompts: dict[str, int], want: tuple[int, int]
) -> str:
    """Whether `by_source` says `want`; nothing if it does."""
    got = tuple(lab.by_source(steps, prompts))
    return "" if got == want else f"(local_compute, local_cache_hit): {want}, got {got}. "


def test_the_last_look_up_is_the_source(lab: ModuleType) -> None:
    """Of a request's look-ups, the one that let it in is the source; later ones change nothing."""
    steps = [
        support.step(lab, "gil/12/8"), support.step(lab, "gil/12/4"), support.step(lab, "", sampled="gil"),
        support.step(lab, "gil/13/12!"), support.step(lab, "", sampled="gil"),
    ]  # fmt: skip
    wrong = sources(lab, steps, {"gil": 12}, (8, 4))
    assert not wrong, wrong + (
        "Gil found 8 while he waited and 4 when he was let in. What he finds after his first token is not "
        "prompt any more"
    )


def test_its_own_work_is_called_a_hit(lab: ModuleType) -> None:
    """A request that is preempted before its first token may find its own blocks, and they count as hits."""
    steps = [support.step(lab, "fay/12/0"), support.step(lab, "fay/12/8!", sampled="fay")]
    wrong = sources(lab, steps, {"fay": 12}, (4, 8))
    assert not wrong, wrong + (
        "Fay's second look-up was before her first token, so it is the one that counts, preempted or not"
    )


def test_without_a_token_nothing_is_counted(lab: ModuleType) -> None:
    """A request without a token is not counted, and one that was never looked up has computed all."""
    steps = [
        support.step(lab, "eve/9/0 fay/8/4", sampled="eve"),
        support.step(lab, "", sampled="gil"),
    ]
    wrong = sources(lab, steps, {"eve": 9, "fay": 8, "gil": 7}, (16, 0))
    assert not wrong, wrong + (
        "Eve's 9 and Gil's 7, who does not read the cache; Fay has no token yet"
    )


def test_vllm_named_the_same_sources(lab: ModuleType) -> None:
    """Your sources equal vLLM's `prompt_tokens_by_source`, in 28 workloads."""
    support.same_as_vllm(lab, "local_compute", "Each prompt counts once, at its first token.")


def test_the_rate_is_of_tokens(lab: ModuleType) -> None:
    """The rate is a sum over a sum, in tokens, and 0.0 if nothing was looked up."""
    steps = [support.step(lab, "eve/90/0"), support.step(lab, ""), support.step(lab, "gil/10/8")]
    got = lab.line_rate(steps)
    assert got == pytest.approx(0.08), f"8 of 100 tokens: 0.08, got {got:.4f}; not a mean of rates"
    empty = [
        lab.line_rate(s) for s in ([], [support.step(lab, "")], [support.step(lab, "fay/8/4!")])
    ]
    assert empty == [0.0] * 3, f"no look-up that counts, so 0.0, got {empty}"


def test_the_window_forgets_whole_steps(lab: ModuleType) -> None:
    """The window forgets whole steps: here it has room for three look-ups."""
    texts = ("a/8/4 b/8/4 c/8/4", "", "d/8/0", "e/8/4", "f/8/8! g/8/8! h/8/0", "i/8/8 j/8/8 k/8/8")
    steps = [support.step(lab, text) for text in texts]
    for count, want, why in [
        (1, 12 / 24, "three look-ups are not too many"),
        (2, 12 / 24, "a step without look-ups drives nobody out"),
        (3, 0.0, "four are too many, so the step with a, b and c goes, and d is left"),
        (4, 4 / 16, "d and e"),
        (5, 4 / 24, "d, e and h; f and g were preempted before, so they take no room"),
        (6, 1.0, "for i, j and k three steps go at once"),
    ]:
        got = lab.line_rate(steps[:count], 3)
        assert got == pytest.approx(want), (
            f"the first {count} steps, at most 3 look-ups: {want:.4f}, got {got:.4f}: {why}"
        )


def test_the_window_holds_a_thousand(lab: ModuleType) -> None:
    """The window holds 1,000 look-ups unless the caller says otherwise."""
    others = [support.step(lab, "b/8/0")] * 1000
    for count, want in [(999, 1 / 1000), (1000, 0.0)]:
        got = lab.line_rate([support.step(lab, "a/8/8"), *others[:count]])
        assert got == pytest.approx(want), (
            f"one look-up that found all, then {count} that found nothing: {want:.4f}, got {got:.4f}"
        )


def test_the_window_looks_after_every_step(lab: ModuleType) -> None:
    """The window is trimmed after every step: what was forgotten does not come back."""
    steps = [support.step(lab, text) for text in ("a/8/4", "b/8/0 c/8/0 d/8/0", "e/8/8", "f/8/0")]
    got = lab.line_rate(steps, 3)
    assert got == pytest.approx(8 / 16), (
        f"after step 2 a is gone, after step 3 b, c and d, so e and f are left: 0.5, got {got:.4f}"
    )


def test_the_newest_step_stays(lab: ModuleType) -> None:
    """The newest step stays in the window, however many look-ups it has."""
    steps = [support.step(lab, "a/8/0"), support.step(lab, "b/8/4 c/8/4 d/8/4 e/8/4")]
    got = lab.line_rate(steps, 3)
    assert got == pytest.approx(0.5), (
        f"four look-ups in one step, and room for three: they all stay, 0.5, got {got:.4f}"
    )
    got = lab.line_rate([*steps, support.step(lab, ""), support.step(lab, "f/8/8!")], 3)
    assert got == pytest.approx(0.5), (
        f"then a step without a look-up, and one with a preempted request's: they leave no trace, so the "
        f"four are still the newest, 0.5, got {got:.4f}"
    )


def test_vllm_said_so_in_its_log(lab: ModuleType) -> None:
    """Your rate equals the one in the log line of vLLM's server, in 28 workloads."""
    rule = "Queries and hits of the newest steps, up to 1,000 look-ups."
    support.same_as_vllm(lab, "window of the log line", rule)
    support.same_as_vllm(lab, "log line", rule)


def test_hidden_work_by_hand(lab: ModuleType) -> None:
    """Hidden work is what is computed a second time: Fay is preempted after two tokens."""
    steps = [
        support.step(lab, "fay/8/0", {"fay": 8}, "fay"),
        support.step(lab, "", {"fay": 1}, "fay"),
        support.step(lab, "fay/10/4!", {"fay": 6}, "fay"),
    ]
    got = lab.hidden_work(steps, {"fay": 8})
    assert got == 5, (
        f"15 tokens were computed: 8 of the prompt, and 2 of the answer's 3, for the last one is never "
        f"computed. The other 5 are the second time, got {got}"
    )
    steps = [
        support.step(lab, "eve/8/4", {"eve": 4}, "eve"),
        support.step(lab, "", {"eve": 1}, "eve"),
    ]
    got = lab.hidden_work(steps, {"eve": 8})
    assert got == 0, f"nobody is preempted and nothing is hidden: 0, got {got}"


def test_hidden_work_of_the_capture(lab: ModuleType) -> None:
    """Without preemption no work is hidden; with it, whatever the victim did not find again is."""
    want = {"preempted": 64 - 48, "preempted before the first token": 48}
    for line in support.captured():
        steps = support.predictions.steps(lab, line)
        got = lab.hidden_work(steps, line["said"]["num_prompt_tokens"])
        hidden = want.get(line["name"], 0)
        assert got == hidden, (
            f"{line['name']}: {hidden} tokens that no meter shows, got {got}. In 'preempted' Fay "
            "has computed 64 tokens and finds 48 of them again; in the other run she has computed 48 before "
            "her first token, finds 32 of them, and the meter calls these found"
        )
