"""Lab 09-03: the predictions, the children, what they share, and the merging of their outputs."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in
from mini_vllm import SamplingParams
from mini_vllm.outputs import CompletionOutput
from mini_vllm.sampling_params import RequestOutputKind

support = load_support(__file__)
RECORDED = support.recorded()
KINDS = {kind.name: kind for kind in RequestOutputKind}


def params(n: int = 1, seed: int | None = 7, **fields: Any) -> SamplingParams:
    """A request's parameters."""
    return SamplingParams(**support.params(n, seed, **fields))


def fields_of(one: SamplingParams) -> dict[str, Any]:
    """All that was asked for, by name."""
    return {name: getattr(one, name) for name in SamplingParams.__slots__}


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers to the five questions hold, before anything is run."""
    facts: dict[str, tuple[Any, str]] = {
        "two requests": (4, "With which seeds are the six completions drawn?"),
        "cached": ([0, 112, 112, 112], "How many full blocks are there, and who computes them?"),
        "a haiku": ([0, 0, 0, 0], "Which tokens of the prompt may come from the cache at most?"),
        "one at a time": (
            [0, 112, 112, 112], "Where are the first child's blocks when it has finished?",
        ),
        "the first step": ([120, 8], "What does each of the first two still lack?"),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"five questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- the children --------------------------------------------------------------------------------

ASKED: dict[str, Any] = {
    "presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.1, "temperature": 0.7,
    "top_p": 0.9, "top_k": 40, "min_p": 0.1, "stop": ["x"], "stop_token_ids": [5], "bad_words": ["y"],
    "include_stop_str_in_output": True, "ignore_eos": True, "max_tokens": 9, "min_tokens": 2,
    "logprobs": 3, "prompt_logprobs": 1, "skip_special_tokens": False, "logit_bias": {6: 1.0},
    "allowed_token_ids": [6, 7, 8], "output_kind": RequestOutputKind.DELTA, "extra_args": {"a": 1},
    "skip_reading_prefix_cache": False,
}  # fmt: skip
"""Something other than the usual for whatever may be asked for."""


def test_a_child_is_an_ordinary_request(lab: ModuleType) -> None:
    """A child asks for one completion with its own seed; the rest is its parent's, which does not change."""
    for seed in (7, 0):
        parent = params(4, seed, **ASKED)
        before = fields_of(parent)
        for index in (0, 1, 3, 1):
            child = lab.child_params(parent, index)
            assert isinstance(child, SamplingParams), f"SamplingParams, not {type(child).__name__}"
            assert fields_of(parent) == before, "the parent's parameters have changed"
            assert child.n == 1, f"child {index} asks for {child.n} completions"
            assert child.seed == seed + index, (
                f"seed {seed}: child {index} has the seed {child.seed}"
            )
            other = sorted(
                name
                for name in before
                if name not in ("n", "seed") and getattr(child, name) != before[name]
            )
            assert not other, (
                f"child {index} differs from its parent in {other}: copy it, and do not rebuild it"
            )


def test_without_a_seed_children_have_none(lab: ModuleType) -> None:
    """Children of a request without a seed have none: they draw from the shared stream, and still differ."""
    for index in (0, 2):
        child = lab.child_params(params(3, None), index)
        assert child.seed is None, f"child {index} of a request without a seed has {child.seed}"
        assert child.n == 1, f"child {index} asks for {child.n} completions"


def test_your_children_say_what_vllms_said(lab: ModuleType) -> None:
    """Four ordinary requests with your parameters give vLLM's recorded answer to n = 4."""
    said = next(
        one["tokens"] for one in RECORDED if one["case"] == {"num_prompt_tokens": 40, "n": 4}
    )
    asked = [lab.child_params(params(4), index) for index in range(4)]
    got = support.say(*asked)
    for index, (mine, vllms) in enumerate(zip(got, said, strict=True)):
        assert mine == [vllms], f"child {index}: {mine}, and vLLM's said {vllms}"


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        ((4, 7), (2, 8), [(1, 0), (2, 1)]),
        ((2, 8), (4, 7), [(0, 1), (1, 2)]),
        ((3, 7), (3, 7), [(0, 0), (1, 1), (2, 2)]),
        ((2, 1), (3, 0), [(0, 1), (1, 2)]),
        ((4, 7), (4, 11), []),
        ((4, 7), (4, 10), [(3, 0)]),
        ((2, None), (2, None), []),
        ((2, None), (2, 0), []),
        ((2, 0), (2, None), []),
    ],
)
def test_children_of_two_requests(
    lab: ModuleType, first: Any, second: Any, pairs: list[tuple[int, int]]
) -> None:
    """Children of two requests give the same text if their seeds are equal, and only then."""
    got = [tuple(pair) for pair in lab.same_children(params(*first), params(*second))]
    words = [f"n={n}, seed={seed}" for n, seed in (first, second)]
    assert got == pairs, f"{words[0]} and {words[1]}: the pairs are {pairs}, not {got}"


def test_three_seeds_in_a_row(lab: ModuleType) -> None:
    """Seeds 7, 8, 9 with n = 4 give twelve children and six seeds. Seeds n apart share none."""
    seeds = [lab.child_params(params(4, seed), i).seed for seed in (7, 8, 9) for i in range(4)]
    counts = sorted(seeds.count(seed) for seed in set(seeds))
    assert counts == [1, 1, 2, 2, 3, 3], f"how often each seed occurs: {counts}"
    apart = [lab.child_params(params(4, seed), i).seed for seed in (7, 11) for i in range(4)]
    assert len(set(apart)) == 8, f"seeds 7 and 11 with n = 4 have children with the seeds {apart}"


def test_your_pairs_say_the_same_in_the_engine(lab: ModuleType) -> None:
    """Of Ada's four children and Bo's two, served together, your pairs give the same text."""
    asked = params(4, 7), params(2, 8)
    ada, bo = support.say(*asked)
    same = [(i, j) for i, mine in enumerate(ada) for j, his in enumerate(bo) if mine == his]
    got = [tuple(pair) for pair in lab.same_children(*asked)]
    assert got == same, f"the same in the engine: {same}, and by yours: {got}"


# ---- what they share -----------------------------------------------------------------------------


def check_case(lab: ModuleType, case: Any, cached: list[int], first_step: list[int]) -> None:
    """Fails where the lab's numbers differ from an engine's."""
    plain = vars(lab.Case(case.num_prompt_tokens, case.n))
    more = [f", {name} {value}" for name, value in vars(case).items() if value != plain[name]]
    what = f"{case.num_prompt_tokens} tokens, n = {case.n}{''.join(more)}"
    got = list(lab.cached_tokens(case))
    assert got == cached, f"{what}: the children find {cached} cached tokens, and you say {got}"
    got = list(lab.first_step(case))
    assert got == first_step, f"{what}: the first step computes {first_step}, and you say {got}"


def test_cached_tokens_are_vllms(lab: ModuleType) -> None:
    """Your numbers are vLLM's in 36 cases: lengths, n, slots, budgets, a warm cache, prompt logprobs."""
    for one in RECORDED:
        check_case(lab, lab.Case(**one["case"]), one["cached"], one["first_step"])


@pytest.mark.parametrize(
    "fields",
    [
        {"num_prompt_tokens": 120, "n": 4, "max_num_batched_tokens": 50},
        {"num_prompt_tokens": 40, "n": 3, "max_num_batched_tokens": 40},
        {"num_prompt_tokens": 40, "n": 4, "max_num_batched_tokens": 50},
        {"num_prompt_tokens": 33, "n": 3, "max_num_seqs": 2, "served_before": True},
        {"num_prompt_tokens": 20, "n": 3, "max_num_batched_tokens": 44, "prompt_logprobs": True},
        {"num_prompt_tokens": 40, "n": 2, "served_before": True, "prompt_logprobs": True},
    ],
    ids=["chunks", "one in a step", "a chunk of a child", "served before", "logprobs", "both"],
)
def test_cached_tokens_are_the_engines(lab: ModuleType, fields: dict[str, Any]) -> None:
    """Your numbers are `mini_vllm`'s in six more cases, some of them with chunks."""
    played = support.play(tuple(fields.items()))
    check_case(lab, lab.Case(**fields), played.cached, played.first_step)


def test_the_share(lab: ModuleType) -> None:
    """The share is taken of all the children's prompt tokens, also if the prompt was served before."""
    for fields, share in (
        ({"num_prompt_tokens": 120, "n": 4}, 336 / 480),
        ({"num_prompt_tokens": 40, "n": 3, "max_num_seqs": 1}, 64 / 120),
        ({"num_prompt_tokens": 40, "n": 3, "served_before": True}, 96 / 120),
        ({"num_prompt_tokens": 40, "n": 1}, 0.0),
        ({"num_prompt_tokens": 16, "n": 4}, 0.0),
        ({"num_prompt_tokens": 120, "n": 4, "prompt_logprobs": True}, 0.0),
    ):
        got = lab.cached_share(lab.Case(**fields))
        assert abs(got - share) < 1e-9, f"{fields}: a share of {share:.4f}, not {got:.4f}"


# ---- their outputs -------------------------------------------------------------------------------


def output(index: int, tokens: int, last: bool) -> CompletionOutput:
    """What a child has said so far."""
    return CompletionOutput(index, "", [9] * tokens, finish_reason="length" if last else None)


def take(parent: Any, one: CompletionOutput) -> tuple[list[CompletionOutput], bool]:
    """`parent.take`, whose answer is a list and a bool."""
    outputs, finished = parent.take(one)
    assert isinstance(outputs, list), f"a list of outputs, not {type(outputs).__name__}"
    return outputs, bool(finished)


def test_final_only_waits_for_the_last(lab: ModuleType) -> None:
    """Children finish in any order, and the caller gets the last output of each, by index."""
    parent = lab.Parent(3, RequestOutputKind.FINAL_ONLY)
    said = {index: output(index, index + 1, True) for index in range(3)}
    for index in (2, 1, 0):
        outputs, finished = take(parent, output(index, index, False))
        assert (outputs, finished) == ([], False), f"child {index} has said something and goes on"
    for index in (2, 0):
        outputs, finished = take(parent, said[index])
        assert outputs == [], f"child 1 has not finished, and these are passed on: {outputs}"
        assert not finished, "child 1 has not finished"
    outputs, finished = take(parent, said[1])
    assert finished, "all children have finished"
    order = [one.index for one in outputs]
    assert order == [0, 1, 2], f"the children by index, not {order}"
    assert outputs == [said[0], said[1], said[2]], "of each child its last output is passed on"


def test_a_child_that_reports_twice(lab: ModuleType) -> None:
    """A child that reports its end twice has finished once, and its end is passed on once."""
    for kind in RequestOutputKind:
        parent = lab.Parent(2, kind)
        end = output(1, 3, True)
        final = kind is RequestOutputKind.FINAL_ONLY
        outputs, finished = take(parent, end)
        assert outputs == ([] if final else [end]), f"{kind.name}: child 1 ends: {outputs}"
        assert not finished, f"{kind.name}: child 0 has not finished"
        outputs, finished = take(parent, end)
        assert outputs == [], f"{kind.name}: the end of child 1 was passed on before"
        assert not finished, f"{kind.name}: child 0 has not finished, child 1 has twice"


def test_streams_pass_through(lab: ModuleType) -> None:
    """An output that is not the last is passed on at once, and ends nothing."""
    parent = lab.Parent(1, RequestOutputKind.DELTA)
    for last in (False, False, True):
        one = output(0, 1, last)
        assert take(parent, one) == ([one], last), "each output is passed on as it comes"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_your_children_merged_are_the_engines_request(lab: ModuleType, kind: str) -> None:
    """n ordinary requests and your `Parent` give, step by step, what one request with n = 3 gives."""
    engines = support.streamed(KINDS[kind], 3)
    mine = support.streamed(KINDS[kind], 3, lab)
    for number, (got, want) in enumerate(zip(mine, engines, strict=False)):
        assert got == want, f"output {number} is {got}; the engine's own is {want}"
    assert len(mine) == len(engines), (
        f"{len(engines)} outputs come from the engine, {len(mine)} here"
    )
