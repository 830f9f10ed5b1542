"""Beam search: on tables made by hand, in the engine, and beside real vLLM's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.entrypoints.beam_search import (
    BeamSearchInstance,
    BeamSearchSequence,
    get_beam_search_score,
    one_token_params,
    to_completion,
)
from mini_vllm.outputs import Logprob
from mini_vllm.sampling_params import BeamSearchParams
from tests.engine.helpers.sampling.beam_searches import EOS, make_prompts, play
from tests.engine.helpers.thorough import either

Model = Callable[[tuple[int, ...]], dict[int, float]]
"""Output so far to the probability of each next token."""
PROMPT = [7, 7]


def search(model: Model, params: BeamSearchParams, prompt: list[int] | None = None) -> Any:
    """A whole search, where the model answers with its `2 * beam_width` likeliest tokens."""
    prompt = PROMPT if prompt is None else prompt
    instance = BeamSearchInstance(prompt, params, EOS)
    for _ in range(params.max_tokens):
        answers = []
        for beam in instance.beams:
            probs = model(tuple(beam.tokens[len(prompt) :]))
            best = sorted(probs, key=lambda token: -probs[token])[: 2 * params.beam_width]
            answers.append([{t: Logprob(math.log(probs[t]), None, None) for t in best}])
        instance.advance(answers)
    return instance


def outputs(instance: BeamSearchInstance) -> list[list[int]]:
    return [beam.tokens[instance.num_prompt_tokens :] for beam in instance.get_best()]


# -- tables ---------------------------------------------------------------------------------------


def garden_path(said: tuple[int, ...]) -> dict[int, float]:
    """The likelier first token leads to the less likely pair."""
    return {(): {10: 0.6, 11: 0.4}, (10,): {10: 0.5, 11: 0.5}, (11,): {10: 0.9, 11: 0.1}}[said]


def test_a_wider_beam_finds_what_greed_misses() -> None:
    narrow = search(garden_path, BeamSearchParams(beam_width=1, max_tokens=2))
    wide = search(garden_path, BeamSearchParams(beam_width=2, max_tokens=2))
    assert outputs(narrow)[0][0] == 10
    assert outputs(wide)[0] == [11, 10]
    assert wide.get_best()[0].cum_logprob == pytest.approx(math.log(0.36))
    assert [len(beam.logprobs) for beam in wide.get_best()] == [2, 2]


def stops_early(said: tuple[int, ...]) -> dict[int, float]:
    """EOS is everybody's likeliest token from the second on."""
    if not said:
        return {10: 0.5, 11: 0.3, EOS: 0.2}
    return {EOS: 0.6, 10: 0.25, 11: 0.15}


def test_a_beam_that_has_ended_leaves_room_for_another() -> None:
    """With `beam_width` candidates a beam instead of twice as many, too few would be left."""
    params = BeamSearchParams(beam_width=2, max_tokens=3)
    instance = search(stops_early, params)
    assert [len(beam.tokens) - 2 for beam in instance.beams] == [3, 3]
    assert len(instance.completed) == 1 + 2 + 2
    best = instance.get_best()
    assert [beam.finish_reason for beam in best] == ["stop", "stop"]
    assert [beam.stop_reason for beam in best] == [EOS, EOS]
    assert outputs(instance) == [[10, EOS], [11, EOS]]


def test_an_eos_that_is_ignored_is_a_token_like_others() -> None:
    params = BeamSearchParams(beam_width=1, max_tokens=3, ignore_eos=True)
    instance = search(stops_early, params)
    assert outputs(instance) == [[10, EOS, EOS]]
    assert instance.completed == []
    assert instance.get_best()[0].finish_reason is None


def test_the_length_counts_the_prompt_and_no_eos_at_the_end() -> None:
    assert get_beam_search_score([7, 7, 10, EOS], -3.0, EOS) == -1.0
    assert get_beam_search_score([7, 7, 10, 11], -3.0, EOS) == -0.75
    assert get_beam_search_score([7, 7, 10], -3.0, EOS, 0.0) == -3.0
    assert get_beam_search_score([7, 7, 10, 10], -3.0, EOS, 2.0) == -3.0 / 16


def test_a_long_prompt_makes_short_answers_win() -> None:
    """The penalty divides by a length in which the output hardly counts any more."""

    def model(said: tuple[int, ...]) -> dict[int, float]:
        return {EOS: 0.4, 10: 0.6} if len(said) == 1 else {10: 0.7, 11: 0.3}

    params = BeamSearchParams(beam_width=2, max_tokens=4)
    short, long = search(model, params, [7]), search(model, params, [7] * 400)
    assert outputs(short)[0] == [10, 10, 10, 10]
    assert outputs(long)[0] == [10, EOS]


@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.0, 2.0])
def test_a_beam_as_wide_as_the_tree_finds_the_best_of_all(length_penalty: float) -> None:
    """Against all sequences of a random table, those that end early included."""
    rng = np.random.default_rng(0)
    for _ in range(either(5, 100)):
        table: dict[tuple[int, ...], dict[int, float]] = {}

        def model(said: tuple[int, ...], table: Any = table) -> dict[int, float]:
            if said not in table:
                table[said] = dict(zip((EOS, 10, 11), rng.dirichlet([1, 1, 1]), strict=True))
            return table[said]

        params = BeamSearchParams(beam_width=8, max_tokens=3, length_penalty=length_penalty)
        instance = search(model, params)
        scores = []
        ends = [
            said
            for n in range(1, 4)
            for said in itertools.product((EOS, 10, 11), repeat=n)
            if EOS not in said[:-1] and (n == 3 or said[-1] == EOS)
        ]
        for said in ends:
            total = sum(math.log(model(said[:i])[token]) for i, token in enumerate(said))
            scores.append(
                get_beam_search_score([*PROMPT, *said], total, EOS, params.length_penalty)
            )
        ranked = [ends[i] for i in np.argsort(-np.array(scores), kind="stable")]
        assert [tuple(said) for said in outputs(instance)] == ranked[:8]


def test_a_drawn_token_is_one_candidate_more() -> None:
    """Answers of 2 * width + 1 entries: each token stays with the beam that it was said of."""
    params = BeamSearchParams(beam_width=1, max_tokens=1)
    instance = BeamSearchInstance(PROMPT, params, EOS)
    instance.beams = [BeamSearchSequence([*PROMPT, 20]), BeamSearchSequence([*PROMPT, 21])]
    first = {99: Logprob(-9.0, 50, None), 10: Logprob(-1.0, 1, None), 11: Logprob(-2.0, 2, None)}
    second = {30: Logprob(-0.5, 1, None), 31: Logprob(-3.0, 2, None)}
    instance.advance([[first], [second]])
    assert outputs(instance) == [[21, 30]]
    assert instance.beams[0].cum_logprob == -0.5
    assert instance.beams[0].logprobs == [second]


def test_a_beam_without_an_answer_is_lost() -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=1)
    instance = BeamSearchInstance(PROMPT, params, EOS)
    instance.beams = [BeamSearchSequence([*PROMPT, 20]), BeamSearchSequence([*PROMPT, 21])]
    instance.advance([None, [{30: Logprob(-0.5, 1, None)}]])
    assert outputs(instance) == [[21, 30]]
    instance.advance([[]])
    assert instance.beams == []


def test_what_a_step_asks_of_the_engine() -> None:
    asked = one_token_params(BeamSearchParams(beam_width=3, max_tokens=9, temperature=0.5))
    assert (asked.logprobs, asked.max_tokens, asked.temperature) == (6, 1, 0.5)


@pytest.mark.parametrize("keep", [False, True])
def test_a_beam_as_the_server_answers_it(keep: bool) -> None:
    params = BeamSearchParams(beam_width=1, max_tokens=2, include_stop_str_in_output=keep)
    instance = search(stops_early, params)
    ended = to_completion(0, instance.get_best()[0], instance, "text")
    assert ended.token_ids == ([10, EOS] if keep else [10])
    assert (ended.finish_reason, ended.stop_reason, ended.text) == ("stop", EOS, "text")
    going_on = to_completion(1, instance.beams[0], instance, "")
    assert (going_on.finish_reason, going_on.stop_reason) == ("length", None)


@pytest.mark.parametrize(
    "bad", [{"beam_width": 0}, {"beam_width": 1.5}, {"max_tokens": 0}, {"beam_width": True}]
)
def test_bad_widths_and_lengths(bad: dict[str, Any]) -> None:
    (name,) = bad
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1, got"):
        BeamSearchParams(**{"beam_width": 1, "max_tokens": 1} | bad)


# -- in the engine --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(max_model_len=256, num_gpu_blocks=128)


def test_a_width_of_one_is_greedy(llm: LLM) -> None:
    prompts = [{"prompt_token_ids": prompt[-40:]} for prompt in make_prompts(4)]
    found = llm.beam_search(prompts, BeamSearchParams(beam_width=1, max_tokens=8, ignore_eos=True))
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    texts = llm.generate(prompts, greedy, use_tqdm=False)
    said = [output.sequences[0].tokens[40:] for output in found]
    assert said == [output.outputs[0].token_ids for output in texts]


def test_beams_are_scored_as_they_would_be_read(llm: LLM) -> None:
    """The sum of a beam is the log probability of its tokens after the prompt."""
    prompt = make_prompts(1)[0][-30:]
    (found,) = llm.beam_search(
        [{"prompt_token_ids": prompt}], BeamSearchParams(beam_width=3, max_tokens=6)
    )
    asked = SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=0)
    for beam in found.sequences:
        (read,) = llm.generate({"prompt_token_ids": beam.tokens}, asked, use_tqdm=False)
        assert read.prompt_logprobs is not None
        positions = zip(beam.tokens[30:], read.prompt_logprobs[30:], strict=True)
        total = sum(entry[token].logprob for token, entry in positions if entry is not None)
        assert beam.cum_logprob == pytest.approx(total, abs=1e-4)
        assert beam.text == llm.get_tokenizer().decode(beam.tokens)


def test_how_many_are_searched_for_at_once_changes_nothing(llm: LLM) -> None:
    prompts = [{"prompt_token_ids": prompt[-20:]} for prompt in make_prompts(3)]
    params = BeamSearchParams(beam_width=2, max_tokens=4)
    together = llm.beam_search(prompts, params)
    one_by_one = llm.beam_search(prompts, params, concurrency_limit=1)
    said = [
        [[beam.tokens for beam in o.sequences] for o in each] for each in (together, one_by_one)
    ]
    assert said[0] == said[1]


def test_a_beam_that_outgrows_the_model_ends_the_search(llm: LLM) -> None:
    """As at the pin: the next step's request is refused, and with it all that was found."""
    prompt = [1, *[20] * 253]
    words = r"prompt \(length 256\) plus the number of requested output tokens"
    with pytest.raises(ValueError, match=words):
        llm.beam_search([prompt], BeamSearchParams(beam_width=2, max_tokens=3))
    assert llm.beam_search([prompt], BeamSearchParams(beam_width=2, max_tokens=2))


def test_too_wide_a_beam_is_refused(llm: LLM) -> None:
    with pytest.raises(ValueError, match="logprobs=22 asks for more"):
        llm.beam_search([[1, 5]], BeamSearchParams(beam_width=11, max_tokens=1))


# -- real vLLM ------------------------------------------------------------------------------------


def is_ended(beam: Sequence[Any]) -> bool:
    return bool(beam[0][-1] == EOS)


@pytest.mark.vllm
def test_beams_are_vllms() -> None:
    """Prompts whose texts are about to end: tokens and texts equal, scores to 1e-4."""
    from course.parity.tokens_run import run_worker

    prompts = make_prompts(either(8, 50))
    widths = either((1, 3, 5), (1, 2, 3, 4, 5))
    searches = [{"beam_width": width, "max_tokens": 14} for width in widths]
    searches.append({"beam_width": 3, "max_tokens": 14, "length_penalty": 0.0})
    job = {"prompts": prompts, "searches": searches}
    real = run_worker("tests.engine.helpers.sampling.beam_searches", ["vllm"], job)
    ours = play("mini_vllm", prompts, searches)
    num_beams, num_ended, num_mixed, largest = 0, 0, 0, 0.0
    for asked, mine, theirs in zip(searches, ours, real, strict=True):
        for prompt, our_beams, their_beams in zip(prompts, mine, theirs, strict=True):
            where = f"{asked}, prompt {prompts.index(prompt)}"
            said = [beam[:2] for beam in our_beams]
            assert said == [beam[:2] for beam in their_beams], where
            for beam, other in zip(our_beams, their_beams, strict=True):
                largest = max(largest, abs(beam[2] - other[2]))
            ended = [is_ended(beam) for beam in their_beams]
            num_beams, num_ended = num_beams + len(ended), num_ended + sum(ended)
            num_mixed += 0 < sum(ended) < len(ended)
    print(
        f"{len(searches) * len(prompts)} searches, {num_beams} beams, {num_ended} ended by EOS, in ",
        end="",
    )
    print(f"{num_mixed} searches beside others that go on; sums within {largest:.1e}")
    assert largest < 1e-4
    assert num_ended > num_beams // 5, "too few beams end"
    assert num_mixed > len(prompts) // 2, "EOS ends all beams or none"
