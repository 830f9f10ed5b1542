"""Lab 08-05: vLLM's counters with the shipped EAGLE head, predicted and read."""

from __future__ import annotations

import random
from types import ModuleType

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
near = support.near


# ---- predictions ---------------------------------------------------------------------------------

ASK = {
    "texts that change": "the decoding is greedy: which token is kept where a guess is wrong?",
    "accepted at position 1, percent": "a text of bytes: how often is the next letter plain?",
    "accepted at position 3, percent": "all three must be right: how much is lost from one to the next?",
    "tokens per draft, k = 3": "what does a draft bring when none of its tokens is accepted?",
    "fewer steps, k = 3, times": "30 requests share a step: when does the last one finish?",
    "draft tokens per draft, k = 3": "does anybody guess fewer tokens near the end of a text?",
    "accepted past the end of a text": "a text ends anywhere within a draft's tokens: how far is it to the "
    "draft's end, on average?",
}


def facts(lab: ModuleType) -> dict[str, tuple[float, float]]:
    """Each answer from the recording, and how far off it may be."""
    kept, counted = support.recorded(), support.in_vllm(lab, 3)
    tokens, requests = sum(kept["plain"]["tokens"]), len(kept["right"])
    rates = [100 * accepted / counted.drafts for accepted in counted.per_position]
    past = requests + counted.drafts + counted.accepted - tokens
    return {
        "texts that change": (0, 0),
        "accepted at position 1, percent": (rates[0], 10),
        "accepted at position 3, percent": (rates[2], 12),
        "tokens per draft, k = 3": (1 + counted.accepted / counted.drafts, 0.4),
        "fewer steps, k = 3, times": (kept["plain"]["steps"] / kept["runs"]["3"]["steps"], 0.4),
        "draft tokens per draft, k = 3": (counted.draft_tokens / counted.drafts, 0),
        "accepted past the end of a text": (past, 20),
    }


@pytest.mark.parametrize("question", ASK)
def test_the_predictions_hold(lab: ModuleType, question: str) -> None:
    """Each prediction is close to the number that real vLLM counted."""
    said = lab.predictions()
    missing, extra = sorted(ASK.keys() - said.keys()), sorted(said.keys() - ASK.keys())
    assert not missing + extra, f"not answered: {missing}; not asked for: {extra}"
    want, room = facts(lab)[question]
    wrong = wrong_in(said[question], want, room)
    assert not wrong, f"{question}: {wrong}. Ask yourself: {ASK[question]}"


# ---- from acceptance to counters -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "tokens", "k", "want"),
    [
        ([0, 0, 0], 4, 2, (3, 6, 0, (0, 0))),
        ([3, 0, 0, 0], 4, 3, (1, 3, 3, (1, 1, 1))),
        ([5, 5, 5, 5], 5, 1, (2, 2, 2, (2,))),
        ([2, 9, 9, 0, 9], 6, 3, (3, 9, 5, (2, 2, 1))),
        ([1, 9, 3, 9], 5, 3, (2, 6, 4, (2, 1, 1))),
        ([], 1, 3, (0, 0, 0, (0, 0, 0))),
        ([4], 2, 4, (1, 4, 4, (1, 1, 1, 1))),
    ],
    ids=[
        "none right", "all right", "more right than guessed", "on from the token after", "past the end",
        "over with the prefill", "end before the draft's",
    ],
)  # fmt: skip
def test_one_request(
    lab: ModuleType, right: list[int], tokens: int, k: int, want: tuple[object, ...]
) -> None:
    """The counters of one request are right on small texts worked out by hand."""
    got = lab.serve_one(right, tokens, k)
    assert got == want, (
        f"right guesses {right}, {tokens} tokens, k = {k}: drafts, verified, accepted, by position: "
        f"{want}, not {tuple(got)}"
    )


def test_requests_together(lab: ModuleType) -> None:
    """Requests served together share each step until they finish, and their counters add up."""
    requests = [([0, 0, 0, 0], 5), ([3, 0, 0, 0], 4), ([], 1)]
    steps, counters = lab.serve(requests, 3)
    want = (5, 15, 3, (1, 1, 1))
    assert counters == want, f"{requests}, k = 3: counters {want}, not {tuple(counters)}"
    assert steps == 5, (
        f"{requests}, k = 3: one prefill and the longest, 4 drafts: 5 steps, not {steps}"
    )


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_vllm_counted_the_same(lab: ModuleType, k: int) -> None:
    """Every counter and the number of steps are those of real vLLM on thirty prompts."""
    steps, counters = lab.serve(support.requests(), k)
    want = support.in_vllm(lab, k)
    assert counters == want, f"k = {k}: vLLM counted {tuple(want)}, you {tuple(counters)}"
    there = support.recorded()["runs"][str(k)]["steps"]
    assert steps == there, f"k = {k}: vLLM took {there} steps, you {steps}"


def test_the_engine_counts_the_same(lab: ModuleType) -> None:
    """This course's engine counts the same on the eight prompts whose guesses rounding cannot change."""
    in_engine, chosen = support.in_engine(), (6, 11, 13, 15, 17, 22, 26, 28)
    texts = [in_engine.prompts()[i] for i in chosen]
    counters, lengths = in_engine.run(3, texts)
    requests = [support.requests()[i] for i in chosen]
    assert lengths == [length for _, length in requests], "the texts are the recorded ones"
    want = lab.Counters(
        *(counters[f"num_{name}"] for name in ("drafts", "draft_tokens", "accepted_tokens")),
        tuple(counters["num_accepted_tokens_per_pos"]),
    )
    got = lab.serve(requests, 3).counters
    assert got == want, f"the engine counted {tuple(want)}, you {tuple(got)}"


# ---- from counters to numbers --------------------------------------------------------------------


def test_the_three_numbers(lab: ModuleType) -> None:
    """Each of the log's three numbers has a denominator of its own."""
    counters = lab.Counters(10, 50, 28, (9, 7, 6, 4, 2))
    got = lab.acceptance_rates(counters)
    assert list(got) == [0.9, 0.7, 0.6, 0.4, 0.2], (
        f"{tuple(counters)}: of 10 drafts 9 had the first token accepted, and so on: 0.9, 0.7, 0.6, 0.4, "
        f"0.2, not {got}"
    )
    near(lab.mean_acceptance_length(counters), 3.8, f"{tuple(counters)}: mean acceptance length")
    near(lab.draft_acceptance_rate(counters), 0.56, f"{tuple(counters)}: draft acceptance rate")


def test_what_nobody_has_seen(lab: ModuleType) -> None:
    """Tokens from prefills and drafts are in the texts, or were thrown away."""
    for counters, requests, tokens, want in (
        (lab.Counters(2, 6, 4, (2, 1, 1)), 1, 5, 2),
        (lab.Counters(0, 0, 0, (0,)), 3, 3, 0),
        (lab.Counters(5, 15, 3, (1, 1, 1)), 3, 10, 1),
    ):
        got = lab.thrown_away(counters, requests, tokens)
        assert got == want, (
            f"{tuple(counters)}, {requests} requests, {tokens} tokens in all: {want} tokens past an end, "
            f"not {got}"
        )


# ---- from acceptance alone -----------------------------------------------------------------------


def test_expected_drafts(lab: ModuleType) -> None:
    """The expected drafts are the tokens from drafts over the tokens per draft, close to vLLM's count."""
    near(
        lab.expected_drafts([0.8, 0.5, 0.2], 2, 52),
        20,
        "rates 0.8, 0.5, 0.2; 2 texts, 52 tokens, 50 by drafts",
    )
    near(lab.expected_drafts([0.0], 1, 31), 30, "nothing accepted, 31 tokens")
    near(lab.expected_drafts([1.0] * 4, 4, 104), 20, "all accepted, k = 4, 104 tokens in 4 texts")
    kept = support.recorded()
    known = [n / support.in_vllm(lab, 5).drafts for n in support.in_vllm(lab, 5).per_position]
    for k in (1, 2, 3, 5):
        got = lab.expected_drafts(known[:k], len(kept["right"]), sum(kept["plain"]["tokens"]))
        counted = support.in_vllm(lab, k).drafts
        assert abs(got / counted - 1) < 0.08, (
            f"the rates of k = 5 used for k = {k}: {got:.0f} drafts, and vLLM counted {counted}"
        )


def test_fewest_guesses(lab: ModuleType) -> None:
    """The fewest guesses are the smallest k that is enough, or None if no k is."""
    rates = [0.75, 0.5, 0.25, 0.125]
    for wanted, want in (
        (1.0, 0),
        (1.2, 1),
        (1.75, 1),
        (2.0, 2),
        (2.5, 3),
        (2.625, 4),
        (2.7, None),
    ):
        got = lab.fewest_guesses(rates, wanted)
        assert got == want, f"{wanted} tokens per draft from rates {rates}: k = {want}, not {got}"


def test_synthetic_acceptance_brings_the_rates(lab: ModuleType) -> None:
    """Over many drafts, synthetic acceptance gives the rates that were asked for."""
    rng = random.Random(8)
    for rates in ([0.9, 0.6, 0.3], [0.5, 0.5, 0.0], [1.0, 0.25]):
        lengths = [
            lab.synthetic_accepted(rates, [rng.random() for _ in rates]) for _ in range(20_000)
        ]
        for position, rate in enumerate(rates):
            share = sum(length > position for length in lengths) / len(lengths)
            assert abs(share - rate) < 0.015, (
                f"rates {rates}: accepted up to position {position + 1} in {share:.3f} of the drafts"
            )


def test_synthetic_acceptance_stops_at_the_first_rejection(lab: ModuleType) -> None:
    """Synthetic acceptance stops at the first rejection, with draws on the edges too."""
    for rates, uniforms, want in (
        ([0.5, 0.25], [0.4, 0.4], 2), ([0.5, 0.25], [0.4, 0.5], 1), ([0.5, 0.25], [0.5, 0.0], 0),
        ([1.0, 0.0], [0.99, 0.0], 1), ([0.0, 0.0], [0.0, 0.0], 0), ([1.0, 1.0], [0.99, 0.99], 2),
    ):  # fmt: skip
        got = lab.synthetic_accepted(rates, uniforms)
        assert got == want, (
            f"rates {rates}, draws {uniforms}: {want} accepted, not {got}. The second is asked only where "
            "the first was accepted, and both are to be in the second rate"
        )
