"""Bad input: an error that names the value and the rule, and nobody else notices.

`REQUESTS` is the table of what a request can get wrong. Each line says the error and what its message
must name, and whether real vLLM refuses the same (`vllm`): True, or a word on why it does not.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from course.parity.tokens_run import run_worker
from mini_vllm import LLM, LLMEngine, RequestOutput, SamplingParams
from tests.engine.helpers.engine.engine_helpers import make_engine
from tests.engine.helpers.engine.text_helpers import (
    BOS,
    WIDE,
    check_no_leak,
    finish,
    free_blocks,
    greedy,
    ids_of,
    text_engine,
    write_checkpoint,
)


@dataclass(frozen=True)
class Bad:
    """A request that must be refused. `says` are parts of the message, all of them required."""

    name: str
    says: tuple[str, ...]
    prompt: Any = "Hello"
    params: dict[str, Any] = field(default_factory=dict)
    error: type[Exception] = ValueError
    vllm: bool | str = True


LONG = 256  # `max_position_embeddings` of the model used here

REQUESTS = [
    # prompts
    Bad("empty text", ("cannot be empty", "''"), "", vllm="<bos> alone is a prompt for it"),
    Bad("no token ids", ("cannot be empty",), {"prompt_token_ids": []}),
    Bad("an empty list", ("cannot be empty",), []),
    Bad("too long", ("300", "256", "longer"), [9] * 300),
    Bad("too long by one", ("257", "256", "longer"), [9] * 257),
    Bad("as long as the model", ("256", "at least 1"), [9] * 256),
    Bad("too long a text", ("301", "256", "longer"), "x" * 300),
    Bad("id of the vocabulary's size", ("264", "263"), [9, 264], vllm="it is off by one here"),
    Bad("id outside the vocabulary", ("5000", "vocabulary"), [9, 5000]),
    Bad("negative id", ("-1", "vocabulary"), [9, -1], vllm="it looks at the largest id only"),
    Bad("a float for an id", ("1.5", "integers"), [9, 1.5], error=TypeError),
    Bad("a bool for an id", ("True", "integers"), [9, True], error=TypeError, vllm="bool is int"),
    Bad("a string for an id", ("'9'", "integers"), [9, "9"], error=TypeError),
    Bad("None", ("neither",), {"prompt": None}),
    Bad("a number", ("int",), {"prompt": 5}, error=TypeError),
    Bad("an empty dict", ("neither", "prompt_token_ids"), {}),
    Bad("a mistyped key", ("promt",), {"promt": "Hello"}),
    Bad("an empty salt", ("cache_salt", "''"), {"prompt": "Hello", "cache_salt": ""},
        vllm="only its server looks at it"),
    Bad("a salt that is no text", ("cache_salt", "5"), {"prompt": "Hello", "cache_salt": 5},
        vllm="only its server looks at it"),
    # parameters
    Bad("temperature", ("temperature", "-1"), params={"temperature": -1}),
    Bad("temperature nan", ("temperature", "nan"), params={"temperature": math.nan}, vllm="unseen"),
    Bad("temperature inf", ("temperature", "inf"), params={"temperature": math.inf}, vllm="unseen"),
    Bad("temperature text", ("temperature", "'hot'"), params={"temperature": "hot"}, error=TypeError),
    Bad("top_p 0", ("top_p", "0", "1"), params={"top_p": 0}),
    Bad("top_p above 1", ("top_p", "1.1"), params={"top_p": 1.1}),
    Bad("top_p nan", ("top_p", "nan"), params={"top_p": math.nan}),
    Bad("top_k", ("top_k", "-2"), params={"top_k": -2}),
    Bad("top_k 1.5", ("top_k", "1.5"), params={"top_k": 1.5}, error=TypeError),
    Bad("min_p", ("min_p", "-0.1"), params={"min_p": -0.1}),
    Bad("max_tokens 0", ("max_tokens", "0", "1"), params={"max_tokens": 0}),
    Bad("max_tokens -5", ("max_tokens", "-5"), params={"max_tokens": -5}),
    Bad("max_tokens 1.5", ("max_tokens", "1.5"), params={"max_tokens": 1.5}, error=TypeError,
        vllm="it goes on to 2 tokens"),
    Bad("min_tokens", ("min_tokens", "9", "max_tokens", "4"),
        params={"min_tokens": 9, "max_tokens": 4}),
    Bad("min_tokens -1", ("min_tokens", "-1"), params={"min_tokens": -1}),
    Bad("n 0", ("n must", "0"), params={"n": 0}),
    Bad("n -1", ("n must", "-1"), params={"n": -1}),
    Bad("n 1.5", ("n must", "1.5"), params={"n": 1.5}),
    Bad("n greedy", ("n must", "2", "greedy"), params={"n": 2, "temperature": 0}),
    Bad("n too many", ("n must", "20000", "16384"), params={"n": 20000}),
    Bad("presence_penalty", ("presence_penalty", "3"), params={"presence_penalty": 3}),
    Bad("frequency_penalty", ("frequency_penalty", "-3"), params={"frequency_penalty": -3}),
    Bad("repetition_penalty", ("repetition_penalty", "0"), params={"repetition_penalty": 0}),
    Bad("empty stop", ("stop", "empty"), params={"stop": ""}),
    Bad("stop of numbers", ("stop", "5"), params={"stop": [5]}, error=TypeError, vllm="later"),
    Bad("stop without text", ("stop", "detokenize"), params={"stop": "x", "detokenize": False}),
    Bad("stop id outside", ("stop_token_ids", "5000"), params={"stop_token_ids": [5000]},
        vllm="unseen, unless min_tokens bars it"),
    Bad("stop id text", ("stop_token_ids", "'x'"), params={"stop_token_ids": ["x"]}),
    Bad("logit_bias outside", ("logit_bias", "264"), params={"logit_bias": {264: 1.0}}),
    Bad("logit_bias negative id", ("logit_bias", "-1"), params={"logit_bias": {-1: 1.0}}),
    Bad("no token allowed", ("allowed_token_ids", "[]"), params={"allowed_token_ids": []}),
    Bad("allowed outside", ("allowed_token_ids", "999"), params={"allowed_token_ids": [999]}),
    Bad("logprobs 21", ("logprobs", "21", "20"), params={"logprobs": 21}),
    Bad("logprobs all", ("logprobs", "-1", "20"), params={"logprobs": -1}),
    Bad("prompt_logprobs -2", ("prompt_logprobs", "-2"), params={"prompt_logprobs": -2}),
    Bad("seed text", ("seed", "'a'"), params={"seed": "a"}, error=TypeError, vllm="later"),
    Bad("mistyped name", ("temprature", "temperature"), params={"temprature": 1}, error=TypeError),
    Bad("unknown name", ("beams",), params={"beams": 4}, error=TypeError),
    Bad("left out", ("flat_logprobs",), params={"flat_logprobs": True}, vllm="it has this one"),
    Bad("a bad word of spaces", ("bad_words", "'  '"), params={"bad_words": ["  "]}, vllm="IndexError"),
]  # fmt: skip
BY_NAME = [pytest.param(bad, id=bad.name) for bad in REQUESTS]


def check_message(bad: Bad, error: BaseException) -> None:
    assert isinstance(error, bad.error), f"{type(error).__name__}: {error}"
    for part in bad.says:
        assert part in str(error), f"the message does not name {part!r}: {error}"


@pytest.fixture(scope="module")
def alone() -> list[RequestOutput]:
    """Three good requests in an engine that sees nothing bad."""
    engine = text_engine(num_gpu_blocks=40)
    add_good(engine)
    done = finish(engine)
    return [done[name] for name in ("good 0", "good 1", "good 2")]


def add_good(engine: LLMEngine, only: tuple[int, ...] = (0, 1, 2)) -> None:
    for i in only:
        params = greedy(4 + i, ignore_eos=True, logprobs=1)
        engine.add_request(f"good {i}", "the same beginning, " * 2 + f"end {i}", params)


@pytest.mark.parametrize("bad", BY_NAME)
def test_a_bad_request_is_named_and_the_others_go_on(bad: Bad, alone: list[RequestOutput]) -> None:
    engine = text_engine(num_gpu_blocks=40)
    add_good(engine, (0, 1))
    for _ in range(3):
        engine.step()
    free = free_blocks(engine)
    with pytest.raises((TypeError, ValueError)) as caught:
        engine.add_request("bad", bad.prompt, SamplingParams(**bad.params))
    check_message(bad, caught.value)
    assert free_blocks(engine) == free
    assert engine.get_num_unfinished_requests() == 2
    add_good(engine, (2,))
    done = finish(engine)
    check_same(done, alone)
    check_no_leak(engine)


def check_same(done: dict[str, RequestOutput], alone: list[RequestOutput]) -> None:
    """Same tokens, same ends, same log probabilities but for the order of float additions."""
    for i, expected in enumerate(alone):
        if f"good {i}" not in done:
            continue
        one, other = done[f"good {i}"].outputs[0], expected.outputs[0]
        assert (one.token_ids, one.text) == (other.token_ids, other.text), f"good {i} was harmed"
        assert one.finish_reason == other.finish_reason
        assert one.cumulative_logprob == pytest.approx(other.cumulative_logprob, abs=1e-3)


@pytest.mark.parametrize("bad", BY_NAME)
def test_generate_refuses_it_and_can_be_called_again(bad: Bad, shared_llm: LLM) -> None:
    good = [{"prompt": "good"}, {"prompt_token_ids": [BOS, 70]}]
    with pytest.raises((TypeError, ValueError)) as caught:
        shared_llm.generate([*good, bad.prompt], SamplingParams(**bad.params), use_tqdm=False)
    check_message(bad, caught.value)
    check_no_leak(shared_llm.llm_engine)


@pytest.fixture(scope="module")
def shared_llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(write_checkpoint(tmp_path_factory.mktemp("bad")), num_gpu_blocks=40, max_num_seqs=8)


# -- ids ------------------------------------------------------------------------------------------


def test_duplicate_id(alone: list[RequestOutput]) -> None:
    engine = text_engine(num_gpu_blocks=40)
    add_good(engine)
    for _ in range(3):
        with pytest.raises(ValueError, match="'good 1' is already in use"):
            engine.add_request("good 1", "another prompt", greedy(5))
        engine.step()
    check_same(finish(engine), alone)
    check_no_leak(engine)


def test_duplicate_id_of_a_request_with_children() -> None:
    engine = text_engine(num_gpu_blocks=40)
    many = SamplingParams(n=2, temperature=1, seed=1, max_tokens=5)
    engine.add_request("a", "Hello", many)
    for params in (many, greedy(5)):
        with pytest.raises(ValueError, match="'a' is already in use"):
            engine.add_request("a", "Hello", params)
    assert len(finish(engine)) == 1
    check_no_leak(engine)


def test_an_id_that_looks_like_a_childs_changes_nothing_when_refused() -> None:
    """Child 1 of "x" would be "1_x". Where that is taken, "x" is refused whole or runs whole."""
    engine = text_engine(num_gpu_blocks=40)
    engine.add_request("1_x", "Hello", greedy(5, ignore_eos=True))
    before = engine.get_num_unfinished_requests()
    try:
        engine.add_request("x", "Hello", SamplingParams(n=2, temperature=1, seed=1, max_tokens=5))
    except ValueError:
        assert engine.get_num_unfinished_requests() == before, "half of it was added"
        assert not engine.output_processor.has_request("x")
    finish(engine)
    check_no_leak(engine)


def test_abort_of_an_unknown_id(alone: list[RequestOutput]) -> None:
    engine = text_engine(num_gpu_blocks=40)
    add_good(engine)
    engine.step()
    with pytest.raises(ValueError, match="'nobody' is not known"):
        engine.abort_request("nobody")
    with pytest.raises(ValueError, match="'nobody' is not known"):
        engine.abort_request(["good 0", "nobody", "good 2"])
    assert engine.get_num_unfinished_requests() == 1, "the known ones are aborted all the same"
    done = finish(engine)
    assert list(done) == ["good 1"]
    check_same(done, alone)
    with pytest.raises(ValueError, match="'good 1' is not known"):
        engine.abort_request("good 1")
    check_no_leak(engine)


@pytest.mark.parametrize("request_id", ["", None, 7])
def test_an_id_is_a_string_with_something_in_it(request_id: Any) -> None:
    engine = text_engine(num_gpu_blocks=40)
    with pytest.raises(TypeError, match="request_id"):
        engine.add_request(request_id, "Hello", greedy(5))
    check_no_leak(engine)


@pytest.mark.parametrize("priority", ["high", 1.5, None, True])
def test_priority_is_an_integer(priority: Any) -> None:
    engine = text_engine(num_gpu_blocks=40, scheduling_policy="priority")
    with pytest.raises(TypeError, match="priority"):
        engine.add_request("a", "Hello", greedy(5), priority=priority)
    check_no_leak(engine)


@pytest.mark.parametrize("params", [None, {}, "greedy", 5])
def test_parameters_are_sampling_params(params: Any) -> None:
    engine = text_engine(num_gpu_blocks=40)
    with pytest.raises(TypeError, match="SamplingParams"):
        engine.add_request("a", "Hello", params)
    check_no_leak(engine)


def test_text_needs_a_tokenizer() -> None:
    engine = make_engine(num_gpu_blocks=20)
    with pytest.raises(ValueError, match="no tokenizer"):
        engine.add_request("a", "Hello", greedy(5))
    with pytest.raises(ValueError, match=r"stop strings \['x'\]"):
        engine.add_request("a", [5, 6], greedy(5, stop="x"))
    check_no_leak(engine)


# -- a pool too small -----------------------------------------------------------------------------


@pytest.mark.parametrize("caching", [False, True])
def test_a_request_that_could_never_run_is_refused(caching: bool) -> None:
    """At the pin vLLM takes it and waits for ever (vllm-project/vllm issue 35541)."""
    settings = {"block_size": 4, "num_gpu_blocks": 6, "enable_prefix_caching": caching}
    ids = ids_of("abcdefgh")
    engine = text_engine(**settings)
    engine.add_request("good", ids, greedy(12, ignore_eos=True))
    engine.step()
    for name, prompt, max_tokens in (("long", ids * 3, 4), ("greedy", ids, 14)):
        with pytest.raises(ValueError) as caught:
            engine.add_request(name, prompt, greedy(max_tokens))
        message = str(caught.value)
        assert "KV blocks of 4 tokens" in message
        assert "the pool has 5" in message
        assert f"max_tokens {max_tokens}" in message
        assert f"prompt {len(prompt)}" in message
    done = finish(engine)
    assert len(done["good"].outputs[0].token_ids) == 12
    check_no_leak(engine)


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
def test_the_largest_request_that_is_taken_runs_to_its_end(block_size: int) -> None:
    """The rule is exact: one token less than what is refused finishes, alone in the pool."""
    ids = ids_of("abcdefg")
    engine = text_engine(block_size=block_size, num_gpu_blocks=1 + 20 // block_size or 2)
    most = 0
    for max_tokens in range(1, 40):
        try:
            engine.add_request("probe", ids, greedy(max_tokens, ignore_eos=True))
        except ValueError:
            break
        engine.abort_request("probe")
        most = max_tokens
    if not most:
        pytest.skip("the pool does not even hold the prompt")
    engine.add_request("a", ids, greedy(most, ignore_eos=True))
    assert len(finish(engine)["a"].outputs[0].token_ids) == most
    check_no_leak(engine)


# -- what vLLM says to the same ---------------------------------------------------------------------


@pytest.mark.vllm
def test_vllm_refuses_the_same(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model", WIDE, scale=0.15, max_position_embeddings=LONG)
    table = [bad for bad in REQUESTS if bad.vllm is True]
    assert len(table) > 35
    calls = [
        {
            "prompts": [{"prompt_token_ids": bad.prompt}]
            if isinstance(bad.prompt, list)
            else bad.prompt,
            "params": bad.params,
        }
        for bad in table
    ]
    good = {"prompts": "good", "params": {"temperature": 0, "max_tokens": 4}}
    settings = {"num_gpu_blocks_override": 40, "max_num_seqs": 8, "block_size": 16}
    job = {"model": str(model), "settings": settings, "calls": [good, *calls, good]}
    first, *answers, last = run_worker("tests.engine.helpers.real_vllm.same_script", ["vllm"], job)
    assert first[0]["outputs"] == last[0]["outputs"]
    taken = [b.name for b, a in zip(table, answers, strict=True) if not isinstance(a, dict)]
    assert not taken, f"vLLM takes what the table says it refuses: {taken}"
    other = [
        f"{bad.name}: {bad.error.__name__} here, {answer['error']} there: {answer['message']:.100}"
        for bad, answer in zip(table, answers, strict=True)
        if answer["error"] not in (bad.error.__name__, "VLLMValidationError", "BadRequestError")
    ]
    print(json.dumps(other, indent=1))


def test_numpy_ids_are_ids() -> None:
    engine = text_engine(num_gpu_blocks=40)
    engine.add_request("a", np.array([1, 70, 71]), greedy(3, ignore_eos=True))
    engine.add_request("b", [np.int64(1), np.int32(70), 71], greedy(3, ignore_eos=True))
    done = finish(engine)
    assert done["a"].outputs[0] == done["b"].outputs[0]
    assert all(type(token_id) is int for token_id in done["a"].prompt_token_ids)
