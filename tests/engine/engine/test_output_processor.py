"""From token ids to outputs: output kinds, stop conditions, logprobs, parallel samples, aborts.

The model's weights are random, so its text is arbitrary bytes: what a stop string or a stream must
get right is tried on broken characters too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mini_vllm import EngineConfig, LLMEngine, RequestOutput, RequestOutputKind, SamplingParams
from tests.engine.helpers.engine.engine_helpers import random_model
from tests.engine.helpers.engine.text_helpers import (
    EOS,
    PROMPT,
    byte_tokenizer,
    check_no_leak,
    final,
    finish,
    greedy,
    ids_of,
    outputs_of,
    spelled,
    text_engine,
)

CUMULATIVE, DELTA, FINAL = (
    RequestOutputKind.CUMULATIVE,
    RequestOutputKind.DELTA,
    RequestOutputKind.FINAL_ONLY,
)


def test_spelled_says_what_it_is_told() -> None:
    output = final(greedy(40, **spelled("abcdefg"))).outputs[0]
    assert output.text == "abcdefg"
    assert output.token_ids == [*ids_of("abcdefg"), EOS]


# -- output kinds ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [None, ["no such text", "neither this"]])
def test_output_kinds_tell_the_same_story(stop: list[str] | None) -> None:
    params: dict[str, Any] = {"stop": stop, "ignore_eos": True, "logprobs": 2}
    # Logprobs are compared with ==, so the three runs must be one computation. With prefix caching the second
    # and third would find their prompt, and multiply matrices of another shape, which round differently.
    engine = text_engine(num_gpu_blocks=64, enable_prefix_caching=False)
    runs = {
        kind: outputs_of(engine, PROMPT, greedy(48, output_kind=kind, **params))
        for kind in (CUMULATIVE, DELTA, FINAL)
    }
    (last,) = runs[FINAL]
    whole = last.outputs[0]
    assert len(whole.token_ids) == 48
    assert len(runs[CUMULATIVE]) == len(runs[DELTA]) == 48
    assert runs[CUMULATIVE][-1].outputs[0] == whole

    before = ""
    for count, output in enumerate(runs[CUMULATIVE], 1):
        one = output.outputs[0]
        assert one.token_ids == whole.token_ids[:count]
        assert one.text.startswith(before), "cumulative text took back what it had shown"
        assert output.finished == (count == 48) == (one.finish_reason is not None)
        before = one.text

    deltas = [output.outputs[0] for output in runs[DELTA]]
    assert "".join(d.text for d in deltas) == whole.text
    assert [t for d in deltas for t in d.token_ids] == whole.token_ids
    assert [p for d in deltas for p in d.logprobs or ()] == whole.logprobs
    assert deltas[-1].cumulative_logprob == whole.cumulative_logprob


def test_an_output_once_given_does_not_change() -> None:
    engine = text_engine(num_gpu_blocks=64)
    given: list[tuple[RequestOutput, list[int], int]] = []
    params = greedy(20, ignore_eos=True, logprobs=1, output_kind=CUMULATIVE)
    for output in engine.stream(PROMPT, params):
        one = output.outputs[0]
        given.append((output, list(one.token_ids), len(one.logprobs or ())))
    for output, token_ids, num_logprobs in given:
        assert output.outputs[0].token_ids == token_ids
        assert len(output.outputs[0].logprobs or ()) == num_logprobs


def test_prompt_logprobs_come_once_in_deltas() -> None:
    params = greedy(6, ignore_eos=True, prompt_logprobs=1, output_kind=DELTA)
    outputs = outputs_of(text_engine(num_gpu_blocks=64), PROMPT, params)
    assert outputs[0].prompt_logprobs is not None
    assert len(outputs[0].prompt_logprobs) == len(outputs[0].prompt_token_ids)
    assert all(output.prompt_logprobs == [] for output in outputs[1:])


# -- ends -----------------------------------------------------------------------------------------


def test_eos_ends_and_stays_out_of_the_text() -> None:
    output = final(greedy(40, **spelled("abc"), skip_special_tokens=False)).outputs[0]
    assert (output.text, output.finish_reason, output.stop_reason) == ("abc", "stop", None)
    assert output.token_ids[-1] == EOS


def test_eos_text_is_kept_if_asked_for() -> None:
    params = greedy(
        40, **spelled("abc"), skip_special_tokens=False, include_stop_str_in_output=True
    )
    assert final(params).outputs[0].text == "abc<eos>"


def test_ignore_eos_goes_on() -> None:
    output = final(greedy(12, logit_bias={EOS: 1e6}, ignore_eos=True)).outputs[0]
    assert output.token_ids == [EOS] * 12
    assert (output.text, output.finish_reason) == ("", "length")


def test_min_tokens_bars_eos_and_stop_tokens_until_then() -> None:
    params = greedy(30, logit_bias={EOS: 1e6, 70: 5e5}, stop_token_ids=[70], min_tokens=9)
    output = final(params).outputs[0]
    assert output.token_ids.index(EOS) == 9
    assert 70 not in output.token_ids
    assert output.finish_reason == "stop"


def test_stop_token_id_ends_and_is_named() -> None:
    stop = ids_of("d")[0]
    output = final(greedy(40, **spelled("abcdefg"), stop_token_ids=[stop])).outputs[0]
    assert (output.text, output.finish_reason, output.stop_reason) == ("abc", "stop", stop)
    assert output.token_ids == ids_of("abcd")
    kept = greedy(40, **spelled("abcdefg"), stop_token_ids=[stop], include_stop_str_in_output=True)
    assert final(kept).outputs[0].text == "abcd"


def test_max_tokens_and_max_model_len_end_with_length() -> None:
    output = final(greedy(7, ignore_eos=True)).outputs[0]
    assert (len(output.token_ids), output.finish_reason, output.stop_reason) == (7, "length", None)
    for max_tokens in (None, 1000):
        capped = final(greedy(max_tokens, ignore_eos=True), max_model_len=40)  # type: ignore[arg-type]
        one = capped.outputs[0]
        assert len(capped.prompt_token_ids) + len(one.token_ids) == 40
        assert one.finish_reason == "length"


# -- stop strings ---------------------------------------------------------------------------------

TEXT = "abcdefghijkl"


@pytest.mark.parametrize(
    ("stop", "text", "hit"),
    [
        ("e", "abcd", "e"),
        ("efg", "abcd", "efg"),
        (["zz", "gh"], "abcdef", "gh"),
        (["ghi", "def"], "abc", "def"),  # the one completed first
        (["e", "bcde"], "abcd", "e"),  # both at once: the first in the list
        (["bcde", "e"], "a", "bcde"),
        ("abc", "", "abc"),
        ("xyz", TEXT, None),
    ],
)
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("kind", [CUMULATIVE, DELTA, FINAL])
def test_stop_strings(
    stop: Any, text: str, hit: str | None, include: bool, kind: RequestOutputKind
) -> None:
    params = greedy(
        40, **spelled(TEXT), stop=stop, include_stop_str_in_output=include, output_kind=kind
    )
    outputs = outputs_of(text_engine(num_gpu_blocks=64), PROMPT, params)
    last = outputs[-1].outputs[0]
    shown = [output.outputs[0].text for output in outputs]
    expected = text + hit if include and hit else text
    assert ("".join(shown) if kind is DELTA else shown[-1]) == expected
    assert last.stop_reason == hit
    assert last.finish_reason == "stop"
    if kind is not DELTA and hit is not None:
        stopped = text + hit
        assert last.token_ids == ids_of(stopped), "the tokens are not cut, only the text is"
    if not include:
        for partial in shown:
            assert hit is None or hit not in partial


def test_text_that_may_begin_a_stop_string_is_held_back() -> None:
    params = greedy(40, **spelled(TEXT), stop=["efgX", "lm"], output_kind=CUMULATIVE)
    outputs = outputs_of(text_engine(num_gpu_blocks=64), PROMPT, params)
    shown = [output.outputs[0].text for output in outputs]
    # The longest stop string has 4 characters: the last 3 wait until they cannot begin it.
    assert shown[:-1] == [TEXT[: max(0, n - 3)] for n in range(1, len(outputs))]
    assert shown[-1] == TEXT


@pytest.mark.parametrize("min_tokens", [0, 4, 6, 7])
def test_stop_strings_wait_for_min_tokens(min_tokens: int) -> None:
    params = greedy(40, **spelled(TEXT), stop=["cd", "ij"], min_tokens=min_tokens)
    output = final(params).outputs[0]
    # "cd" is complete with token 4. It counts if more than min_tokens tokens are there by then.
    assert output.stop_reason == ("cd" if min_tokens < 4 else "ij")
    assert output.text == ("ab" if min_tokens < 4 else "abcdefgh")


def test_stop_string_inside_a_multi_byte_text() -> None:
    text = "aé€b"  # distinct bytes, so `spelled` can force them
    params = greedy(40, **spelled(text + "c"), stop=["€b"], output_kind=DELTA)
    outputs = outputs_of(text_engine(num_gpu_blocks=64), PROMPT, params)
    assert "".join(o.outputs[0].text for o in outputs) == "aé"
    assert outputs[-1].outputs[0].stop_reason == "€b"


def test_stop_string_in_random_bytes() -> None:
    """Any slice of the text as the stop string: the text ends before its first occurrence."""
    engine = text_engine(num_gpu_blocks=64)
    (whole,) = outputs_of(engine, PROMPT, greedy(60, ignore_eos=True, output_kind=FINAL))
    text = whole.outputs[0].text
    rng = np.random.default_rng(0)
    for _ in range(12):
        start = int(rng.integers(0, len(text) - 6))
        stop = text[start : start + int(rng.integers(1, 6))]
        params = greedy(60, ignore_eos=True, stop=stop, output_kind=DELTA)
        outputs = outputs_of(engine, PROMPT, params)
        assert "".join(o.outputs[0].text for o in outputs) == text[: text.index(stop)]
        assert outputs[-1].outputs[0].stop_reason == stop


def test_a_stop_string_frees_the_request_in_the_core_and_leaves_the_others() -> None:
    alone = final(greedy(30, ignore_eos=True), prompt="another prompt").outputs[0]
    engine = text_engine(num_gpu_blocks=64)
    engine.add_request("stops", PROMPT, greedy(40, **spelled(TEXT), stop="cd"))
    engine.add_request("goes on", "another prompt", greedy(30, ignore_eos=True))
    done = finish(engine)
    check_no_leak(engine)
    assert done["stops"].outputs[0].text == "ab"
    assert done["goes on"].outputs[0] == alone


# -- n --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [CUMULATIVE, DELTA, FINAL])
def test_n_children_by_index_each_with_its_own_seed(kind: RequestOutputKind) -> None:
    prompt = PROMPT * 3
    params = SamplingParams(n=3, temperature=1.5, seed=5, max_tokens=20, ignore_eos=True)
    params.output_kind = kind
    outputs = outputs_of(text_engine(num_gpu_blocks=64), prompt, params)
    texts = dict.fromkeys(range(3), "")
    for output in outputs:
        for one in output.outputs:
            texts[one.index] = texts[one.index] + one.text if kind is DELTA else one.text
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert {output.request_id for output in outputs} == {"0"}, "children show their own ids"
    if kind is FINAL:
        assert [one.index for one in outputs[0].outputs] == [0, 1, 2]
    assert len(set(texts.values())) == 3, "each child draws from a stream of its own"
    for index in range(3):
        single = SamplingParams(temperature=1.5, seed=5 + index, max_tokens=20, ignore_eos=True)
        assert final(single, prompt).outputs[0].text == texts[index]


def test_n_children_share_the_prompts_full_blocks() -> None:
    engine = text_engine(num_gpu_blocks=64, block_size=4, max_num_batched_tokens=40, max_num_seqs=8)
    params = SamplingParams(n=3, temperature=1, seed=1, max_tokens=8, ignore_eos=True)
    engine.add_request("p", list(range(10, 31)), params)  # 21 tokens: 5 full blocks of 4
    engine.step()
    tables = [engine.engine_core.kv_cache_manager.get_block_ids(f"{i}_p")[0] for i in range(3)]
    assert tables[0][:5] == tables[1][:5] == tables[2][:5], "full prompt blocks are shared"
    assert len({table[5] for table in tables}) == 3, "each has its own tail block"
    finish(engine)
    check_no_leak(engine)


def test_without_a_seed_children_differ_too() -> None:
    params = SamplingParams(n=4, temperature=2.0, max_tokens=12, ignore_eos=True)
    params.output_kind = FINAL
    assert len({tuple(one.token_ids) for one in final(params).outputs}) == 4


def test_abort_of_a_parent_ends_all_children() -> None:
    engine = text_engine(num_gpu_blocks=64)
    params = SamplingParams(n=3, temperature=1, seed=1, max_tokens=30, ignore_eos=True)
    engine.add_request("p", PROMPT, params)
    for _ in range(4):
        engine.step()
    assert engine.get_num_unfinished_requests() == 3
    engine.abort_request("p")
    check_no_leak(engine)


# -- abort ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_abort_frees_at_once_and_spares_the_others(steps: int) -> None:
    params = greedy(25, ignore_eos=True)
    alone = final(params, "the other").outputs[0]
    engine = text_engine(num_gpu_blocks=64, max_num_batched_tokens=16, max_num_seqs=8)
    engine.add_request("gone", PROMPT * 4, params)
    engine.add_request("stays", "the other", params)
    for _ in range(steps):
        engine.step()
    engine.abort_request("gone")
    engine.engine_core.kv_cache_manager.check_invariants()
    done = finish(engine)
    check_no_leak(engine)
    assert set(done) == {"stays"}, "an aborted request gives no further output"
    assert done["stays"].outputs[0] == alone


def test_an_id_may_be_used_again_once_it_is_free() -> None:
    engine = text_engine(num_gpu_blocks=64)
    params = greedy(10, ignore_eos=True)
    expected = final(params).outputs[0].token_ids
    engine.add_request("a", "something else", params)
    engine.step()
    engine.abort_request("a")
    engine.add_request("a", PROMPT, params)
    assert finish(engine)["a"].outputs[0].token_ids == expected
    engine.add_request("a", PROMPT, params)
    assert finish(engine)["a"].outputs[0].token_ids == expected
    check_no_leak(engine)


def test_leaving_a_stream_aborts_it() -> None:
    engine = text_engine(num_gpu_blocks=64)
    for _ in engine.stream(PROMPT, greedy(30, ignore_eos=True)):
        break
    check_no_leak(engine)


# -- text -----------------------------------------------------------------------------------------


def test_without_text_there_is_no_text() -> None:
    params = greedy(5, detokenize=False, ignore_eos=True, logprobs=1)
    one = final(params).outputs[0]
    assert one.text == ""
    assert len(one.token_ids) == 5
    assert all(e.decoded_token is None for p in one.logprobs or () for e in p.values())


def test_an_engine_without_a_tokenizer_serves_token_ids() -> None:
    engine = LLMEngine(random_model(), EngineConfig(num_gpu_blocks=32))
    engine.add_request("a", [5, 6, 7], greedy(5, ignore_eos=True, logprobs=1))
    output = finish(engine)["a"]
    assert output.prompt is None
    assert output.outputs[0].text == ""
    assert len(output.outputs[0].token_ids) == 5


def test_the_prompt_is_given_back_as_the_model_saw_it() -> None:
    output = final(greedy(2))
    assert output.prompt == PROMPT
    assert output.prompt_token_ids == byte_tokenizer().encode(PROMPT)
    assert final(greedy(2), {"prompt_token_ids": [1, 9]}).prompt is None
