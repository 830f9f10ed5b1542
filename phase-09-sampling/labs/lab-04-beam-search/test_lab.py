"""Lab 09-04: candidates, score, one step, whole searches on tables, the engine, vLLM's answers, the hunt."""

from __future__ import annotations

import functools
import math
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in
from mini_vllm import LLM
from mini_vllm.entrypoints.beam_search import BeamSearchInstance
from mini_vllm.outputs import Logprob
from mini_vllm.sampling_params import BeamSearchParams

support = load_support(__file__)
EOS = support.EOS


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your predictions of requests, tokens, a winner and candidates hold."""
    facts = {
        "requests": (37, "How many beams are there in the first step, and how many in the others?"),
        "computed": (
            20, "Of the prompt's blocks, which are full? And what does each beam have behind them?",
        ),
        "winner": (
            ["B", "A"], "Divide each sum by its length, with the prompt's tokens and without the EOS.",
        ),
        "candidates": (6, "How many of the best extensions may end at once, and how many must go on?"),
        "enough": (4, "Of one beam's extensions, how many can end, and how many can be wanted?"),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"five questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, (fact, question) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {question}"


# ---- candidates and score ------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 5])
def test_as_many_candidates_as_vllm(lab: ModuleType, width: int) -> None:
    """A pool of all extensions has enough candidates, even if each beam's best one ends."""
    got = lab.num_candidates(width)
    others = got - width
    assert others == width, (
        f"width {width}: you ask for {got}. If the {width} best of them end, {others} are left to go on "
        "with, and as many are wanted as the search is wide"
    )


@pytest.mark.parametrize(
    ("tokens", "total", "penalty", "want", "why"),
    [
        ([7, 7, 10, 11], -3.0, 1.0, -0.75, "four tokens, the prompt's among them"),
        ([7, 7, 10, EOS], -3.0, 1.0, -1.0, "an EOS at the end does not count"),
        ([7, EOS, 10, 11], -3.0, 1.0, -0.75, "an EOS elsewhere is a token like others"),
        ([7, 7, 10], -3.0, 0.0, -3.0, "penalty 0: the sum itself"),
        ([7, 7, 10, 10], -3.0, 2.0, -3.0 / 16, "penalty 2: the length squared"),
    ],
)
def test_the_score(
    lab: ModuleType, tokens: list[int], total: float, penalty: float, want: float, why: str
) -> None:
    """The score is the sum over the length to the power of the penalty."""
    got = lab.score(tokens, total, EOS, penalty)
    assert got == pytest.approx(want), (
        f"tokens {tokens} (EOS is {EOS}), sum {total}, penalty {penalty}: {want:.4f}, not {got:.4f}; {why}"
    )


# ---- one step ------------------------------------------------------------------------------------


def pairs(beams: Any) -> list[tuple[list[int], float]]:
    """Beams as lists and rounded numbers, in any order."""
    return sorted((list(beam.tokens), round(beam.cum_logprob, 4)) for beam in beams)


def test_every_candidate_extends_its_beam(lab: ModuleType) -> None:
    """A beam's sum goes on from its own, and EOS ends the beam."""
    beams = [lab.Beam([7, 20], -1.0), lab.Beam([7, 21], -2.0)]
    answers = [{10: -0.5, EOS: -0.25}, {30: -0.125, 10: -3.0}]
    going_on, ended = lab.extend(beams, answers, EOS, False)
    want = [([7, 20, 10], -1.5), ([7, 21, 10], -5.0), ([7, 21, 30], -2.125)]
    assert pairs(going_on) == want, f"going on: {want}, not {pairs(going_on)}"
    want = [([7, 20, EOS], -1.25)]
    assert pairs(ended) == want, f"ended: {want}, not {pairs(ended)}"
    kept = pairs(beams)
    assert kept == [([7, 20], -1.0), ([7, 21], -2.0)], f"the beams stay as they are: {kept}"


def test_an_eos_that_is_ignored_goes_on(lab: ModuleType) -> None:
    """An EOS that is ignored is a token like others."""
    going_on, ended = lab.extend([lab.Beam([7], 0.0)], [{EOS: -1.0, 10: -2.0}], EOS, True)
    got = pairs(going_on), pairs(ended)
    want = [([7, EOS], -1.0), ([7, 10], -2.0)], []
    assert got == want, f"ignore_eos: going on and ended are {want}, not {got}"


# ---- whole searches ------------------------------------------------------------------------------


def outputs(beams: Any, prompt: list[int]) -> list[list[int]]:
    return [list(beam.tokens)[len(prompt) :] for beam in beams]


def garden_path(tokens: tuple[int, ...]) -> dict[int, float]:
    """The likelier first token leads to the less likely pair."""
    return {
        (7,): {10: 0.6, 11: 0.4},
        (7, 10): {10: 0.5, 11: 0.5},
        (7, 11): {10: 0.9, 11: 0.1},
    }[tokens]


def test_two_beams_find_what_one_misses(lab: ModuleType) -> None:
    """Two beams find the text that one misses, because 0.4 times 0.9 is more than 0.6 times 0.5."""
    ask = support.asking(garden_path)
    (best, *_) = lab.beam_search(ask, [7], 2, 2, EOS)
    got = list(best.tokens), math.exp(best.cum_logprob)
    assert got[0] == [7, 11, 10], f"7 11 10 has the probability 0.36; yours: {got}"
    assert got[1] == pytest.approx(0.36), f"its probability is 0.36, not {got[1]:.3f}"
    got = list(lab.beam_search(support.asking(garden_path), [7], 1, 1, EOS)[0].tokens)
    assert got == [7, 10], f"width 1, one token: the likeliest, 7 10, not {got}"


def ends_early(tokens: tuple[int, ...]) -> dict[int, float]:
    """EOS is everybody's likeliest token from the second on."""
    return {10: 0.5, 11: 0.3, EOS: 0.2} if len(tokens) == 2 else {EOS: 0.6, 10: 0.25, 11: 0.15}


def test_beams_that_end_leave_room_for_others(lab: ModuleType) -> None:
    """The search goes on with as many beams as it is wide, to the last step."""
    ask = support.asking(ends_early)
    beams = lab.beam_search(ask, [7, 7], 2, 4, EOS)
    counts = [len(step) for step in ask.steps]
    assert counts == [1, 2, 2, 2], (
        "in every step two beams' best extension ends, and two others go on, also when enough have ended: "
        f"[1, 2, 2, 2] requests, not {counts}"
    )
    assert ask.num_candidates == [lab.num_candidates(2)] * 4, (
        f"every step asks for num_candidates(2) tokens; yours: {ask.num_candidates}"
    )
    got = outputs(beams, [7, 7])
    assert got == [[10, EOS], [11, EOS]], (
        f"the best two of all, ended or not, best first: [[10, {EOS}], [11, {EOS}]], not {got}"
    )


def test_who_ended_early_may_lose(lab: ModuleType) -> None:
    """A beam that ended early may lose to one that has not ended."""

    def probs(tokens: tuple[int, ...]) -> dict[int, float]:
        return {EOS: 0.2, 10: 0.8} if len(tokens) == 1 else {EOS: 0.001, 10: 0.999}

    got = outputs(lab.beam_search(support.asking(probs), [7], 1, 3, EOS), [7])
    assert got == [[10, 10, 10]], f"0.8 to go on, 0.2 to end at once: [[10, 10, 10]], not {got}"


def test_nobody_goes_on(lab: ModuleType) -> None:
    """If no beam goes on, the engine is asked for nothing more."""
    ask = support.asking(lambda tokens: {EOS: 1.0})
    got = outputs(lab.beam_search(ask, [7], 2, 5, EOS), [7])
    assert got == [[EOS]], f"the one beam ends in the first step: [[{EOS}]], not {got}"
    assert len(ask.steps) == 1, f"one step, then there is nothing to ask for; yours: {ask.steps}"


def test_a_long_prompt_makes_short_answers_win(lab: ModuleType) -> None:
    """On a model like the README's A and B, a long prompt makes the short answer win."""

    def probs(tokens: tuple[int, ...]) -> dict[int, float]:
        said = len(tokens) - tokens.count(7)
        return {EOS: 0.4, 10: 0.6} if said == 1 else {10: 0.7, 11: 0.3}

    for length, want in ((1, [10, 10, 10, 10]), (400, [10, EOS])):
        prompt = [7] * length
        got = outputs(lab.beam_search(support.asking(probs), prompt, 2, 4, EOS), prompt)[0]
        assert got == want, f"prompt of {length} tokens: the best is {want}, not {got}"


def test_the_penalty_after_a_long_prompt(lab: ModuleType) -> None:
    """The README's A and B are scored at several prompt lengths and penalties."""
    for length, penalty, want in ((4, 1, "B"), (400, 1, "A"), (400, 45, "A"), (400, 46, "B")):
        a = lab.score([7] * length + [10, 10, EOS], -3.0, EOS, penalty)
        b = lab.score([7] * length + [10] * 5, -4.2, EOS, penalty)
        got = "A" if a > b else "B"
        assert got == want, (
            f"prompt of {length} tokens, penalty {penalty}: {want} wins; yours say {got}: {a:.3g}, {b:.3g}"
        )


def reference(
    ask: Any, prompt: list[int], eos: int = EOS, **params: Any
) -> list[tuple[list[int], float]]:
    """The same search by `mini_vllm`'s own parts."""
    asked = BeamSearchParams(**params)
    search = BeamSearchInstance(prompt, asked, eos)
    for _ in range(asked.max_tokens):
        answers = [ask.answer(beam.tokens, 2 * asked.beam_width) for beam in search.beams]
        search.advance([[{t: Logprob(lp, None, None) for t, lp in a.items()}] for a in answers])
    return [(beam.tokens, beam.cum_logprob) for beam in search.get_best()]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.5])
def test_random_models(lab: ModuleType, length_penalty: float) -> None:
    """Searches of width 1 to 4 on random models are right, with an EOS that counts or is ignored."""
    for number in range(24):
        params = {
            "beam_width": 1 + number % 4,
            "max_tokens": 4,
            "length_penalty": length_penalty,
            "ignore_eos": number % 5 == 0,
        }
        ask = support.random_model(number, (EOS, *range(10, 17)))
        want = reference(ask, [7, 9], **params)
        beams = lab.beam_search(ask, [7, 9], eos=EOS, **params)
        got = [(list(beam.tokens), beam.cum_logprob) for beam in beams]
        said, asked = [tokens for tokens, _ in got], [tokens for tokens, _ in want]
        for place, (right, mine) in enumerate(zip(want, got, strict=False), start=1):
            assert mine[0] == right[0], (
                f"model {number}, prompt [7, 9], {params}: beam {place} is {right[0]}, sum {right[1]:.3f}, "
                f"and yours {mine[0]}, sum {mine[1]:.3f}. Beams are ranked by `score` in each step and at "
                "the end; an EOS in the last place shortens a beam, even an EOS that is ignored"
            )
        assert len(said) == len(asked), (
            f"model {number}: {len(asked)} beams, and yours are {len(said)}"
        )
        assert [total for _, total in got] == pytest.approx([total for _, total in want]), (
            f"model {number}: the tokens are right, and the sums are not: {got}, not {want}"
        )


def test_the_prompt_stays_as_it_is(lab: ModuleType) -> None:
    """The prompt stays as it is, because the caller may need it again."""
    prompt = [7, 9]
    lab.beam_search(support.random_model(1), prompt, 2, 3, EOS)
    assert prompt == [7, 9], f"the prompt was [7, 9] and is {prompt} after the search"


# ---- the engine ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm() -> LLM:
    """The engine, without its own search."""
    engine = support.make_llm()

    def refuse(*args: object, **kwargs: object) -> None:
        pytest.fail("`LLM.beam_search` was called: send one-token requests yourself")

    engine.beam_search = refuse  # type: ignore[method-assign]
    return engine  # type: ignore[no-any-return]


def test_the_engine_is_asked_for_one_token(lab: ModuleType, llm: LLM) -> None:
    """The engine gets one request per sequence, and gives its likeliest tokens."""
    prompts = support.recorded()["prompts"][:2]
    scheduled = llm.llm_engine.engine_core.num_steps
    got = lab.ask_engine(llm, prompts, 6)
    steps = llm.llm_engine.engine_core.num_steps - scheduled
    lengths = [len(answer) for answer in got]
    assert lengths == [6, 6], f"two sequences, 6 candidates each: {lengths}"
    flat = lab.ask_engine(llm, [[1, 30 + i, 200 - i, 77] for i in range(12)], 1)
    lengths = [len(answer) for answer in flat]
    assert lengths == [1] * 12, (
        f"12 sequences, 1 candidate each: {lengths}. A token that is drawn and is not the likeliest is one "
        "more, so nothing may be drawn"
    )
    assert steps == 1, (
        f"all sequences are asked for at once, in one step of the engine, not {steps}"
    )
    for prompt, answer in zip(prompts, got, strict=True):
        probability = sum(math.exp(logprob) for logprob in answer.values())
        assert 0.3 < probability < 1.0001, (
            f"6 candidates after {prompt[-3:]} have the probability {probability:.3f} together"
        )
        best = support.recorded()["answers"][0][prompts.index(prompt)][0][0][0]
        got_best = max(answer, key=lambda token: answer[token])
        assert got_best == best, f"the likeliest after {prompt[-3:]} is {best}, not {got_best}"


def test_what_a_search_costs(lab: ModuleType) -> None:
    """A search costs the requests and the tokens that the README asks for."""
    llm = support.make_llm()
    steps = support.count_tokens(llm)
    prompt = [1, *range(20, 119)]
    ask = functools.partial(lab.ask_engine, llm)
    lab.beam_search(ask, prompt, 4, 10, EOS, ignore_eos=True)
    counts = [len(step) for step in steps]
    assert counts == [1] + [4] * 9, f"1 request, then 9 times 4; yours: {counts}"
    computed = [sum(number for _, number in step) for step in steps[:2]]
    assert computed == [100, 20], (
        f"100 tokens, then 4 times the 5 behind six full blocks of 16; computed: {computed}"
    )


def test_the_beams_are_vllms(lab: ModuleType, llm: LLM) -> None:
    """In 28 searches your beams are real vLLM's, in tokens, sums and order."""
    found = support.recorded()
    ask = functools.partial(lab.ask_engine, llm)
    for search, answers in zip(found["searches"], found["answers"], strict=True):
        for prompt, want in zip(found["prompts"], answers, strict=True):
            beams = lab.beam_search(ask, prompt, eos=EOS, **search)
            got = outputs(beams, prompt)
            for place, ((theirs, total), mine) in enumerate(zip(want, got, strict=False), start=1):
                assert mine == theirs, (
                    f"{search}, prompt of {len(prompt)} tokens: vLLM's beam {place} says {theirs}, sum "
                    f"{total:.3f}; yours {mine}, sum {beams[place - 1].cum_logprob:.3f}"
                )
            assert len(got) == len(want), f"{search}: {len(want)} beams, and yours are {len(got)}"
            sums = [beam.cum_logprob for beam in beams]
            assert sums == pytest.approx([total for _, total in want], abs=1e-3), (
                f"{search}, prompt of {len(prompt)} tokens: vLLM's sums are {want}, yours {sums}"
            )


# ---- the hunt ------------------------------------------------------------------------------------


def reached(number: int, width: int) -> float:
    """Where a search of this width ends on the random model of this number."""
    ask = support.random_model(number)
    return reference(ask, [0], eos=-1, beam_width=width, max_tokens=6)[0][1]


def test_a_wider_search_that_ends_worse(lab: ModuleType) -> None:
    """`find_worse` finds the first of 100 random models on which a wider search ends worse."""
    got = lab.find_worse(support.random_model, 100, (1, 2, 3), 6)
    assert got is not None, "there is one among the first 100 models, and you find none"
    number, narrow, wide = got
    assert wide > narrow, f"model {number}: {wide} is not wider than {narrow}"
    one, other = reached(number, narrow), reached(number, wide)
    assert other < one - 1e-9, (
        f"model {number}: width {narrow} reaches {one:.4f} and width {wide} reaches {other:.4f}, which is "
        "not worse"
    )
    assert number == 30, f"there is one before model {number}: the first is asked for"


def test_where_no_search_ends_worse(lab: ModuleType) -> None:
    """On a model that ignores earlier tokens, greedy is best and all sums are equal, so none is found."""

    def make_ask(number: int) -> Any:
        return support.asking(lambda tokens: {10: 0.5, 11: 0.3, 12: 0.2})

    got = lab.find_worse(make_ask, 5, (1, 2, 3), 4)
    assert got is None, f"all widths find the same here: None, not {got}"
    tables: list[int] = []

    def counted(number: int) -> Any:
        tables.append(number)
        return support.random_model(number)

    got = lab.find_worse(counted, 30, (1, 2, 3), 6)
    assert got is None, f"models 0 to 29 have none: None, not {got}"
    assert sorted(set(tables)) == list(range(30)), (
        f"30 models are to be searched, 0 to 29; you made {len(set(tables))}"
    )
    got = lab.find_worse(support.random_model, 31, (2, 3), 6)
    assert got is None, f"widths 2 and 3 alone: None among the first 31, not {got}"
