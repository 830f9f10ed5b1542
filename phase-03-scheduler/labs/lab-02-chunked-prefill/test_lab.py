"""Lab 03-02: how a prompt is cut, what the cuts cost, and that no answer changes."""

from __future__ import annotations

import random
from types import ModuleType

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in
from mini_vllm import SamplingParams

support = load_support(__file__)


# ---- predictions ---------------------------------------------------------------------------------


def test_the_predictions_hold(lab: ModuleType) -> None:
    """The four predictions are right: two numbers of steps, and what eight chunks cost compared with one."""
    said = lab.predictions()
    facts = {
        "steps, alone": (
            8,
            "How many of the 4,000 tokens does a step take at most?",
        ),
        "steps, beside 48": (2, "How much do the 48 leave of each step?"),
        "pairs, 8 pieces for 1": (
            1.0,
            "Which tokens does a token see if the prompt is cut, and which if it is not?",
        ),
        "keys read, 8 pieces for 1": (
            4.5,
            "How many keys does the first of the eight chunks read, and how many the last?",
        ),
    }
    assert said.keys() == facts.keys(), f"four questions, {sorted(facts)}; yours: {sorted(said)}"
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact, 0.01)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- how a prompt is cut -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "chunks", "why"),
    [
        ((47, 64), [47], "all of it fits"),
        ((47, 47), [47], "it just fits"),
        ((47, 16), [16, 16, 15], "16 a step, and the rest"),
        ((48, 16), [16, 16, 16], "it comes out even: no step for nothing"),
        ((47, 16, 1), [15, 15, 15, 2], "somebody decodes and gets 1 of the 16 first"),
        ((47, 16, 15), [1] * 47, "one token a step is left"),
        ((47, 64, 0, 20), [20, 20, 7], "the threshold is less than the budget"),
        ((47, 16, 0, 20), [16, 16, 15], "the budget is less than the threshold"),
        ((47, 16, 0, 15), [15, 15, 15, 2], "the threshold is less"),
        ((20, 64, 0, 20), [20], "the threshold is just enough"),
        ((48, 16, 1, 0, 44), [4], "44 are in the cache, 4 are missing"),
        ((48, 8, 5, 2, 40), [2, 2, 2, 2], "40 are in the cache; of 3 that are left it may have 2"),
    ],
)
def test_chunks_by_hand(
    lab: ModuleType, arguments: tuple[int, ...], chunks: list[int], why: str
) -> None:
    """Budget, neighbours, threshold and cache cut a prompt correctly, each alone and all together."""
    names = ("num_prompt_tokens", "budget", "num_decoding", "threshold", "num_cached")
    shown = ", ".join(f"{name}={value}" for name, value in zip(names, arguments, strict=False))
    got = lab.prefill_chunks(*arguments)
    assert got == chunks, f"prefill_chunks({shown}): {why}: {chunks}, not {got}"


def test_somebody_who_never_gets_a_token(lab: ModuleType) -> None:
    """A prompt that would never get a token is refused, and the message has both numbers."""
    for budget, num_decoding in ((16, 16), (16, 20)):
        try:
            got = lab.prefill_chunks(47, budget, num_decoding)
        except ValueError as error:
            said = str(error)
        else:
            pytest.fail(
                f"{num_decoding} that decode leave nothing of {budget}, so the prompt is never "
                f"computed: raise ValueError instead of returning {got[:5]}"
            )
        assert str(budget) in said, f"the error names the budget, {budget}; yours: {said}"
        assert str(num_decoding) in said, (
            f"the error names the others, {num_decoding}; yours: {said}"
        )


def test_steps_with_nothing_else_said(lab: ModuleType) -> None:
    """By default there is no threshold and nothing is cached."""
    steps = lab.num_prefill_steps(33, 16)
    assert steps == 3, f"33 tokens, 16 in a step, no threshold, nothing found: 3 steps, not {steps}"


def test_steps_by_formula(lab: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The formula gives the number of chunks for every size near a boundary, without making them."""
    prefill_chunks = lab.prefill_chunks

    def taken(*arguments: object, **named: object) -> list[int]:
        pytest.fail("the pieces were made and counted: divide what is missing by what a step takes")

    monkeypatch.setattr(lab, "prefill_chunks", taken)
    for length in (1, 15, 16, 17, 31, 32, 33, 47):
        for budget in (1, 15, 16, 17, 64):
            for threshold in (0, 1, 8, 16, 99):
                for cached in {0, length // 2}:
                    chunks = prefill_chunks(length, budget, 0, threshold, cached)
                    got = lab.num_prefill_steps(length, budget, threshold, cached)
                    assert got == len(chunks), (
                        f"{length} tokens, {cached} of them cached, budget {budget}, threshold "
                        f"{threshold}: the pieces are {chunks}, the formula says {got}"
                    )
                    assert isinstance(got, int), f"steps are counted, so an int and not {got!r}"


def test_the_engine_cuts_the_same(lab: ModuleType) -> None:
    """With random settings and other requests decoding, your chunks are those that the engine makes."""
    rng = random.Random(302)
    for _ in range(8):
        seats, threshold = rng.randint(1, 4), rng.choice([0, 0, 5, 11])
        budget = rng.randint(seats + 1, 40)
        engine = support.make_engine(
            max_num_batched_tokens=budget,
            max_num_seqs=seats + 1,
            long_prefill_token_threshold=threshold,
            enable_prefix_caching=False,
        )
        pieces: list[int] = []
        engine.engine_core.step_observers.append(
            lambda record, pieces=pieces: pieces.append(
                record.scheduler_output.num_scheduled_tokens.get("long", 0)
            )
        )
        for number in range(seats):
            params = SamplingParams(temperature=0, max_tokens=99, ignore_eos=True)
            engine.add_request(f"{number}", [1], params)
        while engine.engine_core.scheduler.waiting:
            engine.step()
        pieces.clear()
        length = rng.randint(1, 60)
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        engine.add_request("long", [1, *range(3, 2 + length)], params)
        while engine.output_processor.is_taken("long"):
            engine.step()
        got = lab.prefill_chunks(length, budget, seats, threshold)
        assert got == pieces, (
            f"{length} tokens beside {seats} who decode, budget {budget}, threshold {threshold}: the "
            f"engine computed {pieces}, you say {got}"
        )


# ---- what the cuts cost --------------------------------------------------------------------------


def test_pairs_do_not_depend_on_the_cut(lab: ModuleType) -> None:
    """A prompt of 8 tokens has 36 pairs, in every one of its 128 cuts."""
    assert lab.num_pairs([1]) == 1, "a single token sees itself"
    assert lab.num_pairs([4]) == 10, "4 tokens see 1, 2, 3 and 4"
    for cuts in range(128):
        chunks = [1]
        for bit in range(7):
            if cuts >> bit & 1:
                chunks.append(1)
            else:
                chunks[-1] += 1
        got = lab.num_pairs(chunks)
        assert got == 36, f"8 tokens see 1 + 2 + … + 8 = 36, cut as {chunks} too; yours: {got}"


def test_cached_tokens_are_seen(lab: ModuleType) -> None:
    """A cached token is a key, but not a query."""
    got = lab.num_pairs([2, 2], 4)
    assert got == 5 + 6 + 7 + 8, f"tokens 5 to 8 see 5, 6, 7 and 8: 26, not {got}"
    got = lab.num_keys_read([2, 2], 4)
    assert got == 6 + 8, f"the first piece reads 6 keys, the second 8: 14, not {got}"


def test_keys_are_read_again(lab: ModuleType) -> None:
    """Every chunk reads the keys of all tokens before it again."""
    for chunks, read, why in (
        ([4], 4, "one piece reads each key once"),
        ([2, 2], 6, "2, then 4"),
        ([1, 1, 1, 1], 10, "1, 2, 3 and 4"),
        ([500] * 8, 18_000, "500, 1,000, and so on to 4,000"),
    ):
        got = lab.num_keys_read(chunks)
        assert got == read, f"pieces {chunks}: {why}: {read} keys, not {got}"


# ---- whether anybody's answer changes ------------------------------------------------------------


def made(lab: ModuleType, tokens: list[int], logprobs: list[float], chunks: list[int]) -> object:
    return lab.Answer(tokens, logprobs, chunks)


@pytest.mark.parametrize(
    ("tokens", "logprobs", "chunks", "verdict", "why"),
    [
        ([5, 6], [-0.5, -1.0], [9], {}, "it is the same answer"),
        ([5, 6], [-0.5, -1.0], [4, 4, 1], {}, "only the pieces differ, and they may"),
        ([5, 6], [-0.5, -1.0000071], [9], {}, "a sum in another order is off by 7e-06"),
        ([5, 7], [-0.5, -1.0], [9], {"fay": "tokens"}, "the second token differs"),
        ([6, 5], [-0.5, -1.0], [9], {"fay": "tokens"}, "the tokens stand in another order"),
        ([5], [-0.5], [9], {"fay": "tokens"}, "a token is missing"),
        ([5, 6, 7], [-0.5, -1.0, -2.0], [9], {"fay": "tokens"}, "there is one token more"),
        ([5, 6], [-0.5, -1.01], [9], {"fay": "logprobs"}, "the second logprob is off by 0.01"),
        ([5, 6], [-0.49, -1.0], [9], {"fay": "logprobs"}, "the first logprob is off by 0.01"),
        (
            [5, 6],
            [-0.49, -1.01],
            [9],
            {"fay": "logprobs"},
            "both logprobs are off by 0.01, and their sum is not",
        ),
        (
            [5, 6],
            [-0.5, -1.0015],
            [9],
            {"fay": "logprobs"},
            "one logprob is off by 0.0015, although the mean is off by less than 0.001",
        ),
        (
            [4, 6],
            [-0.9, -1.0],
            [9],
            {"fay": "tokens"},
            "tokens and logprobs differ: the tokens say it",
        ),
    ],
)
def test_what_counts_as_a_change(
    lab: ModuleType,
    tokens: list[int],
    logprobs: list[float],
    chunks: list[int],
    verdict: dict[str, str],
    why: str,
) -> None:
    """Tokens are compared exactly and logprobs nearly; chunks are not compared."""
    same = made(lab, [1, 2], [-0.1, -0.2], [4])
    expected = {"fay": made(lab, [5, 6], [-0.5, -1.0], [9]), "gil": same}
    got = lab.changed(expected, {"gil": same, "fay": made(lab, tokens, logprobs, chunks)})
    assert got == verdict, f"{why}, so the verdict is {verdict}, not {got}"


def test_the_tolerance_is_the_callers(lab: ModuleType) -> None:
    """The caller's tolerance decides: a difference of 0.02 counts at 0.01, but not at 0.1."""
    one, other = made(lab, [5], [-5.0], [9]), made(lab, [5], [-5.02], [9])
    for tolerance, verdict in ((0.1, {}), (0.01, {"fay": "logprobs"})):
        got = lab.changed({"fay": one}, {"fay": other}, tolerance)
        assert got == verdict, f"off by 0.02, tolerance {tolerance}: {verdict}, not {got}"
    got = lab.changed({"fay": one}, {"fay": made(lab, [5], [-5.5], [9])}, 0.5)
    assert got == {}, f"off by 0.5, tolerance 0.5: no change, not {got}"


def test_no_answer_changes(lab: ModuleType) -> None:
    """Every way to cut the prompts, with hits and without, gives the same answers."""
    expected = lab.ask(support.make_engine(), support.PROMPTS, 6)
    for settings in (
        {"max_num_batched_tokens": 16, "max_num_seqs": 4},
        {"max_num_batched_tokens": 7, "max_num_seqs": 3, "enable_prefix_caching": False},
        {"long_prefill_token_threshold": 1},
        {"long_prefill_token_threshold": 5, "num_gpu_blocks": 20, "max_model_len": 64},
    ):
        got = lab.changed(expected, lab.ask(support.make_engine(**settings), support.PROMPTS, 6))
        assert got == {}, f"with {settings} the engine says the same; you found {got}"


def test_your_probes_find_both(lab: ModuleType) -> None:
    """Each of your two probes exposes both faulty kernels: a check that cannot fail proves nothing."""
    allowed = {"max_num_batched_tokens", "long_prefill_token_threshold"}
    for number, (probe, caching) in enumerate(zip(lab.probes(), (False, True), strict=True), 1):
        more = set(probe.settings) - (set() if caching else allowed)
        assert not more, f"probe {number} may not set {sorted(more)}"
        assert 1 <= len(probe.prompts) <= 2, (
            f"probe {number}: {len(probe.prompts)} prompts, not 1 or 2"
        )
        longest = max(len(prompt) for prompt in probe.prompts.values())
        assert longest <= 20, f"probe {number}: a prompt of {longest} characters, not 20 at most"
        settings = dict(probe.settings) | {"enable_prefix_caching": caching}
        expected = lab.ask(support.make_engine(**settings), probe.prompts, 6)
        chunks = {name: answer.chunks for name, answer in expected.items()}
        for broken in (support.Forgetful, support.TopLeft):
            got = lab.changed(
                expected, lab.ask(support.make_engine(broken, **settings), probe.prompts, 6)
            )
            assert got, (
                f"probe {number}: {broken.__name__} answers as the right engine does. The steps computed so "
                f"many tokens of each prompt: {chunks}"
            )
