"""Lab 08-01: the look-up, the draft, the requests that draft, and what a known text would have counted."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in
from mini_vllm import EngineConfig

support = load_support(__file__)
COUNTERS = (
    "num_steps", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos",
)  # fmt: skip


def test_the_predictions_hold(lab: ModuleType) -> None:
    """The predictions hold: four about one draft, one about a copied text."""
    facts = {
        "one length": ([7, 1], "Where does 5 6 stand first, and what comes after it there?"),
        "two lengths": ([8, 2], "Which three tokens does the text end with, and where else are they?"),
        "a rhythm": ([5, 3], "Where do the two copies end, and how many tokens follow each of them?"),
        "near the limit": ([3, 0], "How long is a request with all its drafts, and how long may it be?"),
        "steps": (
            [20, 6], "Which tokens have two before them that stood there already, and what does a pass add "
            "to those it accepts?",
        ),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"the names are {sorted(facts)}; missing from your answers, or not asked for: {apart}"
    )
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- the look-up ---------------------------------------------------------------------------------


def expect_place(lab: ModuleType, tokens: list[int], min_n: int, max_n: int, want: Any) -> None:
    """Fail if `find_ngram` finds another place."""
    got = lab.find_ngram(tokens, min_n, max_n)
    assert got == want, (
        f"find_ngram({tokens}, {min_n}, {max_n}): {want}, not {got}. The text ends with "
        f"{tokens[-max_n:]}"
    )


def test_of_equally_long_copies_the_earliest_counts(lab: ModuleType) -> None:
    """Of two copies of 5 6, and of three of 2 1, the earliest counts."""
    expect_place(lab, [5, 6, 7, 1, 5, 6, 8, 2, 5, 6], 2, 2, 2)
    expect_place(lab, [2, 1, 2, 1, 2, 1, 9, 2, 1], 1, 2, 2)


def test_a_longer_copy_counts_more_than_an_earlier_one(lab: ModuleType) -> None:
    """A copy of 1 5 6 counts more than an earlier copy of 5 6."""
    text = [5, 6, 7, 9, 1, 5, 6, 8, 2, 1, 5, 6]
    expect_place(lab, text, 1, 3, 7)
    expect_place(lab, text, 1, 5, 7)
    expect_place(lab, text, 1, 2, 2)


def test_a_copy_has_at_least_min_n_tokens(lab: ModuleType) -> None:
    """A copy has at least min_n tokens, and a text shorter than that has no copy."""
    expect_place(lab, [5, 7, 1, 5], 2, 3, None)
    expect_place(lab, [5, 7, 1, 5], 1, 3, 1)
    expect_place(lab, [4, 5, 7, 4, 5], 2, 3, 2)
    for tokens in ([], [3], [3, 3]):
        expect_place(lab, tokens, 2, 3, None)


def test_a_text_is_no_copy_of_its_own_end(lab: ModuleType) -> None:
    """A text is not a copy of its own end, but a copy may overlap that end."""
    expect_place(lab, [1, 2, 3, 4], 1, 3, None)
    expect_place(lab, [9, 4, 4, 4], 2, 2, 3)
    expect_place(lab, [1, 2, 1, 2, 1], 1, 5, 3)


# ---- the draft -----------------------------------------------------------------------------------


def expect_draft(lab: ModuleType, case: Any, want: list[int]) -> None:
    """Fail if `draft` gives something else."""
    got = list(lab.draft(case.tokens, case.min_n, case.max_n, case.k, case.max_model_len))
    assert got == want, (
        f"{case.tokens} ({len(case.tokens)} tokens) with min_n {case.min_n}, max_n {case.max_n}, "
        f"k {case.k}, max_model_len {case.max_model_len}: vLLM drafts {want}, you {got}"
    )


def test_a_draft_is_what_came_next(lab: ModuleType) -> None:
    """A draft is the k tokens after the copy, or fewer if the text ends first."""
    text = [5, 6, 7, 1, 5, 6]
    for k, want in ((1, [7]), (3, [7, 1, 5]), (4, [7, 1, 5, 6]), (9, [7, 1, 5, 6])):
        expect_draft(lab, support.Case(text, 2, 2, k, 64), want)
    expect_draft(lab, support.Case([1, 2, 3, 4], 1, 2, 3, 64), [])


def test_no_draft_reaches_past_max_model_len(lab: ModuleType) -> None:
    """A text of ten tokens with four drafts stays within contexts of 9 to 15 tokens."""
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    for limit, number in ((9, 0), (10, 0), (11, 1), (12, 2), (13, 3), (14, 4), (15, 4)):
        expect_draft(lab, support.Case(text, 2, 2, 4, limit), [3, 4, 5, 6][:number])


def test_random_texts_are_drafted_as_in_vllm(lab: ModuleType) -> None:
    """On 400 random texts the drafts are those of vLLM's own function."""
    for case, want in support.recorded():
        expect_draft(lab, case, want)


# ---- who drafts ----------------------------------------------------------------------------------


def propose(lab: ModuleType, sampled: list[list[int]], lengths: list[int], row: list[int]) -> Any:
    """What `propose` returns if all requests have the same row."""
    proposer = lab.NgramProposer(support.make_config(2, 2, 2, max_model_len=len(row)))
    rows = np.array([row] * len(sampled), np.int32)
    return proposer.propose(sampled, np.array(lengths, np.int32), rows)


def test_who_has_sampled_nothing_drafts_nothing(lab: ModuleType) -> None:
    """Three requests in the middle of their prompts draft nothing; the two that decode do."""
    got = propose(lab, [[], [2], [], [1, 2], []], [5] * 5, [1, 2, 3, 1, 2, 0, 0, 0])
    assert got == [[], [3, 1], [], [3, 1], []], (
        f"only the second and fourth of five requests have sampled: [[], [3, 1], [], [3, 1], []], not {got}"
    )


def test_a_request_has_the_tokens_that_it_is_said_to_have(lab: ModuleType) -> None:
    """A row may hold another request's tokens after its own; they are not part of its text."""
    got = propose(lab, [[2], [1], [2]], [5, 4, 2], [1, 2, 3, 1, 2, 7, 1, 2])
    assert got == [[3, 1], [], []], (
        f"of the row 1 2 3 1 2 7 1 2 the first request has 5 tokens, the others 4 and 2: [[3, 1], [], []], "
        f"not {got}"
    )


def test_drafts_are_lists_of_plain_numbers(lab: ModuleType) -> None:
    """Drafts are plain Python integers, because the scheduler keeps them with the request's tokens."""
    got = propose(lab, [[2]], [5], [1, 2, 3, 1, 2, 0, 0, 0])
    assert [[type(token) for token in one] for one in got] == [[int, int]], (
        f"two drafts that are of type int, not {got!r}"
    )


def test_the_proposer_is_for_ngram(lab: ModuleType) -> None:
    """The given constructor raises an error for another drafter's settings, or for none."""
    eagle = {"method": "eagle", "model": "a-head", "num_speculative_tokens": 3}
    for spec in (None, eagle):
        config = EngineConfig(max_model_len=64, speculative_config=spec)
        with pytest.raises(ValueError, match="needs the method 'ngram'"):
            lab.NgramProposer(config)


# ---- what it brings ------------------------------------------------------------------------------


def expect_counts(
    lab: ModuleType, text: list[int], num_prompt: int, max_tokens: int, k: int, want: list[Any]
) -> None:
    """Fail if `replay` counts something else: steps, drafts, drafted, accepted, by position."""
    proposer = lab.NgramProposer(support.make_config(k, 2, 3))
    counts = lab.replay(text, num_prompt, max_tokens, proposer)
    for name, number in zip(COUNTERS, want, strict=True):
        got = getattr(counts, name)
        assert got == number, (
            f"{name}: {number}, not {got}, for the text {text} with a prompt of {num_prompt} tokens, "
            f"max_tokens {max_tokens} and k {k}"
        )


def test_a_copied_text_is_accepted(lab: ModuleType) -> None:
    """If the model repeats its prompt of 12 tokens, the drafts are accepted."""
    text = list(range(12)) * 3
    expect_counts(lab, text, 12, 12, 4, [4, 2, 8, 8, [2, 2, 2, 2]])
    expect_counts(lab, text, 12, 13, 4, [5, 3, 12, 12, [3, 3, 3, 3]])
    expect_counts(lab, text, 12, 1, 4, [1, 0, 0, 0, [0, 0, 0, 0]])


def test_a_text_without_repetition_costs_what_it_did(lab: ModuleType) -> None:
    """A text without repetition takes one pass per token, and no pass has drafts."""
    expect_counts(lab, list(range(30)), 10, 15, 4, [15, 0, 0, 0, [0, 0, 0, 0]])


def test_acceptance_ends_at_the_first_difference(lab: ModuleType) -> None:
    """If 3 4 5 6 is drafted and the text goes on 3 9 5 6, only the 3 is accepted."""
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 9, 5, 6, 20, 21, 22, 23]
    expect_counts(lab, text, 8, 6, 4, [5, 2, 8, 1, [1, 0, 0, 0]])


def test_vllm_has_counted_the_same(lab: ModuleType) -> None:
    """vLLM counted the same for four prompts, answered by the shipped model with and without drafts."""
    for run in support.recorded_runs():
        proposer = lab.NgramProposer(support.make_config(run.k, run.min_n, run.max_n, 512))
        counts = lab.replay(run.text, run.num_prompt_tokens, run.max_tokens, proposer)
        for name in COUNTERS:
            got, want = getattr(counts, name), getattr(run, name)
            assert got == want, (
                f"{name}: vLLM has counted {want} for {run.prompt!r} with k {run.k} and max_tokens "
                f"{run.max_tokens}, you {got}"
            )


def test_in_the_engine_the_text_stays_and_vllms_counters_come_out(lab: ModuleType) -> None:
    """In the engine, your proposer leaves two of those texts as they were and yields vLLM's counters."""
    runs = support.recorded_runs()
    for run in (runs[0], runs[3]):
        answer, counted = support.run_engine(lab.NgramProposer, run)
        assert answer == run.text[run.num_prompt_tokens :][: run.max_tokens], (
            f"the answer to {run.prompt!r} has changed: whatever the drafts are, it may not"
        )
        for name in COUNTERS:
            got, want = counted[name], getattr(run, name)
            assert got == want, (
                f"{name}: vLLM has counted {want} for {run.prompt!r}, the engine with your proposer {got}"
            )
