"""Lab 03-05: what the cache saves, by hand and on the shipped model."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)


def asks(lab: ModuleType, *prompts: str, answer: int = 4) -> list[Any]:
    """Prompts written as letters, a token each; `x:` before one is its salt."""
    made = []
    for text in prompts:
        salt, _, letters = text.rpartition(":")
        made.append(lab.Ask(tuple(ord(letter) for letter in letters), answer, salt or None))
    return made


# ---- predictions ---------------------------------------------------------------------------------


def test_the_predictions_hold(lab: ModuleType) -> None:
    """The eight predictions are right."""
    said = lab.predictions()
    facts = {
        "without caching": (
            544,
            "How many of somebody's four tokens of answer are computed, and how many only sampled?",
        ),
        "with caching": (
            96,
            "Who computes the shared prompt, and what is left to compute for the other seven?",
        ),
        "nothing shared": (544, "What can be found if the first token differs already?"),
        "system prompt of 66": (112, "How many of the 66 are in full blocks?"),
        "eight identical prompts of 64": (
            116,
            "One token must run, and hits are whole blocks. How many of the 64 can be found?",
        ),
        "threshold 16": (
            192,
            "What is published when the first has got its 16 tokens, and what does the second find then? "
            "And the third?",
        ),
        "smallest pool, all found": (
            38,
            "How many blocks do the strangers take from the front of the queue, both together?",
        ),
        "largest pool, nothing found": (
            22,
            "How many blocks do the strangers take? When is every block of the pool among these?",
        ),
    }
    assert said.keys() == facts.keys(), f"eight questions, {sorted(facts)}; yours: {sorted(said)}"
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- by hand -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected", "why"),
    [
        ((65, 64, 4), 64, "sixteen full blocks, and a token that is left to run"),
        (
            (67, 66, 4),
            64,
            "the seventeenth block holds 2 shared tokens and others: not published as one",
        ),
        ((80, 66, 4), 64, "a block that is half the same is another block"),
        ((65, 65, 4), 64, "the 65th token stands in a block that is not full"),
        (
            (64, 64, 4),
            60,
            "all is cached, but the last token must run: its block is computed again",
        ),
        ((66, 66, 4), 64, "two tokens stand behind the last full block"),
        ((3, 3, 4), 0, "no full block"),
        ((4, 4, 4), 0, "one full block, which holds the last token"),
        ((5, 4, 4), 4, "one full block in front of the last token"),
        ((9, 20, 4), 8, "more is cached than is asked for"),
        ((40, 7, 1), 7, "blocks of one token"),
        ((7, 7, 1), 6, "blocks of one token: all but the last"),
        ((1, 0, 4), 0, "nothing is cached"),
    ],
)
def test_found(lab: ModuleType, arguments: tuple[int, int, int], expected: int, why: str) -> None:
    """Only full blocks are found, and never the last token."""
    got = lab.found(*arguments)
    assert got == expected, f"found{arguments}: {why}: {expected}, not {got}"


@pytest.mark.parametrize(
    ("prompts", "threshold", "expected", "why"),
    [
        (["abcdefghi"], 0, [12], "9 of prompt, and 3 of the 4 of answer"),
        (["abcdefghi", "abcdefghj"], 0, [12, 4], "8 are found, 1 is left, and 3 of answer"),
        (["abcdefghi", "xbcdefghi"], 0, [12, 12], "another first token is another text"),
        (
            ["abcdx", "abcdefghi", "abcdefghj"],
            0,
            [8, 8, 4],
            "the third shares more with the second",
        ),
        (["abcdefghi", "abcdx", "abcdefghj"], 0, [12, 4, 4], "the first is still there"),
        (["abcdefgh", "abcdefgh"], 0, [11, 7], "identical, in whole blocks: 4 of 8 are found"),
        (["abcde", "s:abcde", "s:abcdf"], 0, [8, 8, 4], "a salt is found by the same salt only"),
        (["s:abcde", "t:abcde", "abcde"], 0, [8, 8, 8], "three who share nothing"),
        (
            ["abcdefghi", "abcdefghj"],
            4,
            [12, 8],
            "the first has got one block when the second comes",
        ),
        (["abcdefghi"] * 4, 4, [12, 8, 4, 4], "each gets 4 behind what the one before has got"),
        (["abcdefghi"] * 2, 3, [12, 12], "3 tokens fill no block"),
        (["abcdefghi"] * 3, 9, [12, 4, 4], "the threshold is just enough"),
    ],
)
def test_who_pays_what(
    lab: ModuleType, prompts: list[str], threshold: int, expected: list[int], why: str
) -> None:
    """Each request pays what the cache does not have: blocks of 4, answers of 4 tokens, all ask at once."""
    got = lab.scheduled_tokens(asks(lab, *prompts), 4, True, threshold)
    assert list(got) == expected, (
        f"{' '.join(prompts)}, threshold {threshold}: {why}: {expected}, not {got}"
    )


def test_without_caching_everybody_pays(lab: ModuleType) -> None:
    """Without caching every request computes its whole prompt, and its answer but the last token."""
    got = list(lab.scheduled_tokens(support.system_and_tail(lab), 4, False))
    assert got == [68] * 8, f"65 of prompt and 3 of answer each, eight times 68, not {got}"
    one = list(lab.scheduled_tokens(asks(lab, "abc", answer=1), 4, False))
    assert one == [3], f"one token of answer is sampled and not computed: [3], not {one}"


def test_savings(lab: ModuleType) -> None:
    """The formula gives the same saving as the list that it stands for."""
    for people, prompt, shared, expected, why in (
        (8, 65, 64, 448, "seven followers find 64 each"),
        (8, 67, 66, 448, "66 are 16 full blocks, too"),
        (8, 64, 64, 420, "identical and in whole blocks: seven find 60"),
        (8, 65, 65, 448, "identical, and the last token stands alone"),
        (1, 65, 64, 0, "nobody follows"),
        (8, 65, 0, 0, "nothing is shared"),
    ):
        got = lab.savings(people, prompt, shared, 4)
        assert got == expected, f"savings({people}, {prompt}, {shared}, 4): {why}: not {got}"
        shares = support.words(0, shared) if shared else ()
        workload = [
            lab.Ask(shares + (support.words(1 + i, prompt - shared) if prompt > shared else ()), 4)
            for i in range(people)
        ]
        off, on = (sum(lab.scheduled_tokens(workload, 4, caching)) for caching in (False, True))
        assert off - on == got, f"your lists say {off} - {on} = {off - on}, your formula {got}"


# ---- on the shipped model ------------------------------------------------------------------------


def test_the_engine_computes_as_many(lab: ModuleType) -> None:
    """The real engine computes exactly as many tokens, and no answer changes."""
    people = support.system_and_tail(lab)
    scenes: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "eight people": (people, {}),
        "without caching": (people, {"enable_prefix_caching": False}),
        "nothing shared": ([lab.Ask(support.words(i, 65), 4) for i in range(8)], {}),
        "a system prompt of 66": (support.system_and_tail(lab, 66), {}),
        "identical, 64": ([lab.Ask(support.words(0, 64), 4)] * 8, {}),
        "a threshold of 16": (people, {"long_prefill_token_threshold": 16}),
        "a budget of 16": (people, {"max_num_batched_tokens": 16, "max_num_seqs": 8}),
        "four tenants": ([ask._replace(salt=f"t{i % 4}") for i, ask in enumerate(people)], {}),
        "blocks of 16": (people, {"block_size": 16}),
    }
    answers = []
    for name, (workload, settings) in scenes.items():
        caching = settings.get("enable_prefix_caching", True)
        size = settings.get("block_size", 4)
        threshold = settings.get("long_prefill_token_threshold", 0)
        served = support.serve(support.make_engine(**settings), workload)
        got = list(lab.scheduled_tokens(workload, size, caching, threshold))
        computed = [one.computed for one in served]
        assert got == computed, f"{name}: the engine computes {computed}, you say {got}"
        if workload is people or name == "four tenants":
            answers.append([one.answer for one in served])
    assert answers == [answers[0]] * len(answers), (
        f"eight people in six scenes: the answers of the engine should be the same, and are {answers}"
    )


def test_random_workloads(lab: ModuleType) -> None:
    """Random workloads agree with the engine: much shared text, salts, thresholds, blocks of 1 to 5."""
    for seed in range(60):
        rng = random.Random(seed)
        size, threshold = rng.choice((1, 2, 3, 5)), rng.choice((0, 0, 1, 4, 7))
        workload = [
            lab.Ask(
                tuple(rng.choice((7, 7, 7, 8)) for _ in range(rng.randint(1, 14))),
                rng.randint(1, 3),
                rng.choice((None, None, "s")),
            )
            for _ in range(rng.randint(2, 7))
        ]
        settings = {"block_size": size, "long_prefill_token_threshold": threshold}
        settings |= {"max_num_batched_tokens": 100}
        served = support.count(support.make_scheduler(**settings), workload)
        got = list(lab.scheduled_tokens(workload, size, True, threshold))
        computed = [one.computed for one in served]
        assert got == computed, (
            f"workload {seed}, blocks of {size}, threshold {threshold}: the engine computes {computed}, "
            f"you say {got}, for {[ask.prompt for ask in workload]} with the salts "
            f"{[ask.salt for ask in workload]}"
        )


def test_a_conversation_on_the_model(lab: ModuleType) -> None:
    """In a conversation, the model's own answers are part of the next prompt."""
    for size in (3, 4):
        turns = [(20, 9), (7, 8), (5, 4), (1, 1), (12, 6)]
        engine, said = support.make_engine(block_size=size), ()
        computed = []
        for number, (question, answer) in enumerate(turns):
            said += support.words(number, question)
            [served] = support.serve(engine, [lab.Ask(said, answer)])
            said += tuple(served.answer)
            computed.append(served.computed)
        got = list(lab.conversation(turns, size, True))
        assert got == computed, f"blocks of {size}: the engine computes {computed}, you say {got}"
