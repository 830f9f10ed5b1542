"""Logprobs of outputs and prompts: their shape, and that no way of running changes them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from mini_vllm import RequestOutput, SamplingParams
from mini_vllm.core.sched.output import EngineCoreOutput
from mini_vllm.engine.logprobs import LogprobsProcessor
from mini_vllm.sample.ops import LogprobsLists
from tests.engine.helpers.engine.text_helpers import (
    FIRST_BYTE,
    PROMPT,
    check_no_leak,
    final,
    finish,
    greedy,
    spelled,
    text_engine,
)

LOGPROB_SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"num_gpu_blocks": 64},
    "chunked": {"num_gpu_blocks": 64, "max_num_batched_tokens": 7, "max_num_seqs": 4},
    "no prefix caching": {"num_gpu_blocks": 64, "enable_prefix_caching": False},
    "blocks of 1": {"num_gpu_blocks": 400, "block_size": 1},
    "preempted": {
        "num_gpu_blocks": 24,
        "block_size": 4,
        "max_num_batched_tokens": 9,
        "max_num_seqs": 4,
    },
}


@pytest.fixture(scope="module")
def scored() -> dict[str, dict[str, RequestOutput]]:
    """The same three requests under each of `LOGPROB_SETTINGS`, after a run that warms the cache."""
    runs = {}
    for name, settings in LOGPROB_SETTINGS.items():
        engine = text_engine(**settings)
        for turn in ("warm", "cold"):
            for i, prompt in enumerate([PROMPT, PROMPT + "and more", "héé€"]):
                params = greedy(18, logprobs=3, prompt_logprobs=2, ignore_eos=True)
                engine.add_request(f"{turn} {i}", prompt, params)
            done = finish(engine)
        check_no_leak(engine)
        if name == "preempted":
            assert engine.engine_core.scheduler.num_preemptions > 0, "the pool was not too small"
        runs[name] = {key: value for key, value in done.items() if key.startswith("cold")}
    return runs


def numbers(positions: Any) -> list[Any]:
    return [p and [(t, e.rank, e.decoded_token) for t, e in p.items()] for p in positions]


def values(positions: Any) -> list[float]:
    return [e.logprob for p in positions if p for e in p.values()]


@pytest.mark.parametrize("name", [name for name in LOGPROB_SETTINGS if name != "plain"])
def test_logprobs_are_the_same_however_it_ran(
    scored: dict[str, dict[str, RequestOutput]], name: str
) -> None:
    for key, expected in scored["plain"].items():
        actual = scored[name][key]
        one, other = actual.outputs[0], expected.outputs[0]
        assert one.token_ids == other.token_ids
        assert numbers(actual.prompt_logprobs) == numbers(expected.prompt_logprobs)
        assert numbers(one.logprobs) == numbers(other.logprobs)
        np.testing.assert_allclose(
            values(actual.prompt_logprobs), values(expected.prompt_logprobs), atol=1e-4
        )
        np.testing.assert_allclose(values(one.logprobs), values(other.logprobs), atol=1e-4)


def test_logprobs_have_the_promised_shape(scored: dict[str, dict[str, RequestOutput]]) -> None:
    for output in scored["plain"].values():
        one = output.outputs[0]
        assert one.logprobs is not None
        assert output.prompt_logprobs is not None
        assert len(one.logprobs) == len(one.token_ids)
        assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
        assert output.prompt_logprobs[0] is None
        pairs = [
            *zip(one.logprobs, one.token_ids, [3] * 99, strict=False),
            *zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], [2] * 99, strict=False),
        ]
        for position, token_id, k in pairs:
            assert position is not None
            assert next(iter(position)) == token_id, "the token that stands there comes first"
            assert k <= len(position) <= k + 1
            ranks = {e.rank for e in position.values()}
            assert set(range(1, k + 1)) <= ranks
            best = [e.logprob for e in sorted(position.values(), key=lambda e: e.rank or 0)]
            assert best == sorted(best, reverse=True)
            assert all(e.logprob <= 0 for e in position.values())
        total = sum(p[t].logprob for p, t in zip(one.logprobs, one.token_ids, strict=True))
        assert one.cumulative_logprob == pytest.approx(total)


def test_prompt_logprobs_are_what_sampling_sees() -> None:
    """Score a completion as a prompt: its tokens get the logprobs they were sampled with."""
    first = final(greedy(20, ignore_eos=True, logprobs=1))
    one = first.outputs[0]
    assert one.logprobs is not None
    again = final(
        greedy(1, prompt_logprobs=1, ignore_eos=True),
        {"prompt_token_ids": first.prompt_token_ids + one.token_ids},
    )
    assert again.prompt_logprobs is not None
    scored_again = again.prompt_logprobs[len(first.prompt_token_ids) :]
    for before, after, token_id in zip(one.logprobs, scored_again, one.token_ids, strict=True):
        assert after is not None
        assert after[token_id].logprob == pytest.approx(before[token_id].logprob, abs=1e-4)
        assert after[token_id].rank == before[token_id].rank


def test_logprobs_of_the_whole_vocabulary() -> None:
    output = final(greedy(3, logprobs=-1, ignore_eos=True), max_logprobs=-1).outputs[0]
    assert output.logprobs is not None
    for position in output.logprobs:
        assert len(position) == FIRST_BYTE + 256
        assert sum(np.exp(e.logprob) for e in position.values()) == pytest.approx(1, abs=1e-4)


def test_logprobs_are_none_unless_asked_for() -> None:
    output = final(greedy(3, ignore_eos=True))
    one = output.outputs[0]
    assert (one.logprobs, one.cumulative_logprob, output.prompt_logprobs) == (None, None, None)
    none_listed = final(greedy(3, ignore_eos=True, logprobs=0)).outputs[0]
    assert [len(p) for p in none_listed.logprobs or ()] == [1, 1, 1]


def test_a_single_prompt_token_has_no_logprob() -> None:
    output = final(greedy(2, prompt_logprobs=2, ignore_eos=True), [9])
    assert output.prompt_logprobs == [None]


def test_requests_that_want_different_logprobs_do_not_mix() -> None:
    engine = text_engine(num_gpu_blocks=64)
    wanted = {"a": 0, "b": 5, "c": None, "d": 2}
    for request_id, k in wanted.items():
        engine.add_request(request_id, PROMPT + request_id, greedy(6, logprobs=k, ignore_eos=True))
    done = finish(engine)
    for request_id, k in wanted.items():
        single = final(greedy(6, logprobs=k, ignore_eos=True), PROMPT + request_id).outputs[0]
        one = done[request_id].outputs[0]
        assert one.token_ids == single.token_ids
        if k is None:
            assert one.logprobs is None
        else:
            assert numbers(one.logprobs) == numbers(single.logprobs)


def test_decoded_tokens_give_a_split_character_to_its_last_byte() -> None:
    params = greedy(40, **spelled("aé€"), logprobs=0)
    one = final(params).outputs[0]
    texts = [p[t].decoded_token for p, t in zip(one.logprobs or (), one.token_ids, strict=True)]
    assert texts == ["a", "", "é", "", "", "€", "<eos>"]


@pytest.mark.parametrize(("asked", "kept"), [(0, [7]), (1, [7, 3]), (-1, [7, 3, 4, 5])])
def test_columns_that_a_neighbour_asked_for_are_passed_over(asked: int, kept: list[int]) -> None:
    """A row is as wide as the batch's most; a request takes its own columns of it, -1 all."""
    row = LogprobsLists(
        np.array([[7, 3, 4, 5]], np.int32), np.zeros((1, 4), np.float32), np.array([9])
    )
    processor = LogprobsProcessor(None, SamplingParams(logprobs=asked, prompt_logprobs=asked))
    processor.update_from_output(
        EngineCoreOutput("a", [7], new_logprobs=row, new_prompt_logprobs_tensors=row)
    )
    assert [list(position) for position in processor.logprobs or ()] == [kept]
    assert [list(position) for position in (processor.prompt_logprobs or [])[1:] if position] == [
        kept
    ]


def test_a_characters_last_byte_keeps_all_text_that_the_tokens_before_it_did_not_give() -> None:
    """A tokenizer that drops the space of a text's first token gives the token before another text when it
    stands alone: only what the two share is that token's."""

    class Tokenizer:
        texts: ClassVar = {
            (1,): "a",
            (1, 2): " a\ufffd",
            (1, 2, 3): " a€",
            (2,): "\ufffd",
            (2, 3): "€",
        }

        def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
            return self.texts.get(tuple(token_ids), "\ufffd")

    processor = LogprobsProcessor(Tokenizer(), SamplingParams(logprobs=0))  # type: ignore[arg-type]
    assert processor._decode(1, []) == "a"
    assert processor._decode(3, [1, 2]) == "€", "a byte alone before it is the character's too"
    Tokenizer.texts |= {(2,): "b"}
    assert processor._decode(3, [1, 2]) == "€", "no text is shared with the token before it"
