"""SamplingParams: what it takes, what it refuses and how it says so; then the same of real vLLM."""

from __future__ import annotations

import copy
import logging
import math
import pickle
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mini_vllm.sampling_params import (
    PARAMETERS,
    RequestOutputKind,
    SamplingParams,
    SamplingType,
)
from mini_vllm.surface import entries, is_harmless

NAN, INF = math.nan, math.inf

# (arguments, what some attributes are afterwards)
GOOD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"n": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 16, "stop": []}),
    (
        {},
        {"stop_token_ids": [], "seed": None, "logprobs": None, "skip_reading_prefix_cache": False},
    ),
    ({"n": 16384}, {"n": 16384}),
    ({"presence_penalty": -2, "frequency_penalty": 2}, {"presence_penalty": -2.0}),
    ({"repetition_penalty": 1e-3}, {"repetition_penalty": 1e-3}),
    ({"temperature": 0}, {"temperature": 0.0}),
    (
        {"temperature": 0, "top_p": 0.5, "top_k": 5, "min_p": 0.1},
        {"top_p": 1.0, "top_k": 0, "min_p": 0.0},
    ),
    ({"temperature": 1e-6, "n": 2, "top_p": 0.5}, {"temperature": 0.01, "top_p": 0.5}),
    ({"temperature": 1e-5}, {"temperature": 0.01}),
    ({"temperature": 0.0099}, {"temperature": 0.01}),
    ({"temperature": 0.01}, {"temperature": 0.01}),
    ({"temperature": 50}, {"temperature": 50.0}),
    ({"temperature": np.float32(0.5), "top_p": Fraction(1, 2)}, {"temperature": 0.5, "top_p": 0.5}),
    ({"top_p": 1e-9}, {"top_p": 1e-9}),
    ({"top_k": -1}, {"top_k": -1}),
    ({"top_k": 10**9}, {"top_k": 10**9}),
    ({"min_p": 1}, {"min_p": 1.0}),
    ({"seed": -1}, {"seed": None}),
    ({"seed": 0}, {"seed": 0}),
    ({"seed": -5}, {"seed": -5}),
    ({"seed": 2**64 - 1}, {"seed": 2**64 - 1}),
    ({"stop": "ab"}, {"stop": ["ab"], "output_text_buffer_length": 1}),
    ({"stop": ["a", "xyz"]}, {"stop": ["a", "xyz"], "output_text_buffer_length": 2}),
    ({"stop": "abc", "include_stop_str_in_output": True}, {"output_text_buffer_length": 0}),
    ({"stop": [], "detokenize": False}, {"stop": []}),
    ({"stop_token_ids": [5, 6]}, {"stop_token_ids": [5, 6], "all_stop_token_ids": {5, 6}}),
    ({"max_tokens": None, "min_tokens": 99}, {"max_tokens": None, "min_tokens": 99}),
    ({"max_tokens": 1, "min_tokens": 1}, {"max_tokens": 1}),
    ({"logprobs": True, "prompt_logprobs": False}, {"logprobs": 1, "prompt_logprobs": 0}),
    ({"logprobs": 0}, {"logprobs": 0}),
    ({"logprobs": -1}, {"logprobs": -1}),
    ({"prompt_logprobs": 0}, {"skip_reading_prefix_cache": True}),
    (
        {"prompt_logprobs": 2, "skip_reading_prefix_cache": False},
        {"skip_reading_prefix_cache": False},
    ),
    ({"logit_bias": {}}, {"logit_bias": {}}),
    ({"logit_bias": {5: 1000, 6: -INF}}, {"logit_bias": {5: 1000.0, 6: -INF}}),
    ({"allowed_token_ids": [1, 1]}, {"allowed_token_ids": [1, 1]}),
    ({"bad_words": None, "extra_args": None, "spaces_between_special_tokens": True}, {"n": 1}),
    ({"bad_words": []}, {"n": 1}),
]

# (arguments, the error, words of its message). Refused here and by vLLM.
BAD: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"n": 0}, ValueError, ["n must be at least 1", "got 0"]),
    ({"n": -3}, ValueError, ["got -3"]),
    ({"n": 1.0}, ValueError, ["n must be an integer", "1.0", "float"]),
    ({"n": "2"}, ValueError, ["'2'", "str"]),
    ({"n": 16385}, ValueError, ["16384", "16385", "VLLM_MAX_N_SEQUENCES"]),
    ({"n": 2, "temperature": 0}, ValueError, ["n must be 1", "greedy", "got 2"]),
    ({"presence_penalty": 2.1}, ValueError, ["presence_penalty", "[-2, 2]", "2.1"]),
    ({"presence_penalty": NAN}, ValueError, ["presence_penalty", "nan"]),
    ({"frequency_penalty": -2.5}, ValueError, ["frequency_penalty", "[-2, 2]", "-2.5"]),
    ({"frequency_penalty": INF}, ValueError, ["frequency_penalty", "inf"]),
    ({"repetition_penalty": 0}, ValueError, ["repetition_penalty", "above 0", "got 0.0"]),
    ({"repetition_penalty": -1}, ValueError, ["repetition_penalty", "-1.0"]),
    ({"temperature": -1}, ValueError, ["temperature", "negative", "-1.0"]),
    ({"temperature": -INF}, ValueError, ["temperature", "-inf"]),
    ({"temperature": "1"}, TypeError, ["temperature must be a number", "'1'", "str"]),
    ({"temperature": None}, TypeError, ["temperature", "None"]),
    ({"temperature": [1]}, TypeError, ["temperature", "[1]"]),
    ({"temperature": 1j}, TypeError, ["temperature", "complex"]),
    ({"top_p": 0}, ValueError, ["top_p must be in (0, 1]", "got 0.0"]),
    ({"top_p": 0.0, "temperature": 0}, ValueError, ["top_p"]),
    ({"top_p": 1.01}, ValueError, ["top_p", "1.01"]),
    ({"top_p": NAN}, ValueError, ["top_p", "nan"]),
    ({"top_p": "0.5"}, TypeError, ["top_p", "'0.5'"]),
    ({"top_k": -2}, ValueError, ["top_k", "0 (off) or at least 1", "-2"]),
    ({"top_k": 1.5}, TypeError, ["top_k must be an integer", "1.5"]),
    ({"top_k": "5"}, TypeError, ["top_k", "'5'"]),
    ({"top_k": np.int64(5)}, TypeError, ["top_k", "int64"]),
    ({"min_p": -0.1}, ValueError, ["min_p must be in [0, 1]", "-0.1"]),
    ({"min_p": 1.1}, ValueError, ["min_p", "1.1"]),
    ({"min_p": NAN}, ValueError, ["min_p", "nan"]),
    ({"stop": ""}, ValueError, ["stop", "empty string"]),
    ({"stop": ["a", ""]}, ValueError, ["stop", "['a', '']"]),
    ({"stop": 5}, TypeError, ["stop", "5", "list of strings"]),
    ({"stop": ["a", 3]}, TypeError, ["stop", "['a', 3]"]),
    ({"stop": "ab", "detokenize": False}, ValueError, ["stop=['ab']", "detokenize=True"]),
    ({"stop_token_ids": [1.0]}, ValueError, ["stop_token_ids", "[1.0]", "integers"]),
    ({"stop_token_ids": ["1"]}, ValueError, ["stop_token_ids", "['1']"]),
    ({"max_tokens": 0}, ValueError, ["max_tokens must be at least 1", "got 0"]),
    ({"max_tokens": "3"}, TypeError, ["max_tokens", "'3'"]),
    ({"min_tokens": -1}, ValueError, ["min_tokens", "-1"]),
    ({"min_tokens": 17}, ValueError, ["min_tokens", "max_tokens=16", "17"]),
    ({"min_tokens": None}, TypeError, ["min_tokens", "None"]),
    ({"logprobs": -2}, ValueError, ["logprobs", "-2"]),
    ({"logprobs": "1"}, TypeError, ["logprobs", "'1'"]),
    ({"prompt_logprobs": -2}, ValueError, ["prompt_logprobs", "-2"]),
    ({"best_of": 2}, TypeError, ["'best_of'", "It takes n, presence_penalty"]),
    ({"max_token": 3}, TypeError, ["'max_token'", "Did you mean 'max_tokens'"]),
    ({"temprature": 1}, TypeError, ["Did you mean 'temperature'"]),
]

# Refused here, while vLLM takes it: see the module's docstring.
STRICTER: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"temperature": NAN}, ValueError, ["temperature must be a finite number", "nan"]),
    ({"temperature": INF}, ValueError, ["temperature", "inf"]),
    ({"temperature": True}, TypeError, ["temperature", "True", "bool"]),
    ({"repetition_penalty": NAN}, ValueError, ["repetition_penalty", "nan"]),
    ({"repetition_penalty": INF}, ValueError, ["repetition_penalty", "inf"]),
    ({"repetition_penalty": 10**400}, ValueError, ["repetition_penalty", "finite"]),
    ({"n": True}, ValueError, ["n must be an integer", "True"]),
    ({"top_k": True}, TypeError, ["top_k", "True"]),
    ({"seed": "a"}, TypeError, ["seed must be an integer", "'a'"]),
    ({"seed": 1.5}, TypeError, ["seed", "1.5"]),
    ({"seed": 2**64}, ValueError, ["seed", str(2**64)]),
    ({"seed": -(2**63) - 1}, ValueError, ["seed", "-2**63"]),
    ({"max_tokens": 1.5}, TypeError, ["max_tokens", "1.5"]),
    ({"max_tokens": NAN}, TypeError, ["max_tokens", "nan"]),
    ({"min_tokens": 1.5}, TypeError, ["min_tokens", "1.5"]),
    ({"logprobs": 1.5}, TypeError, ["logprobs", "1.5"]),
    ({"logprobs": 1.0}, TypeError, ["logprobs", "1.0"]),
    ({"ignore_eos": "no"}, TypeError, ["ignore_eos must be True or False", "'no'"]),
    ({"ignore_eos": 1}, TypeError, ["ignore_eos", "1"]),
    ({"detokenize": None}, TypeError, ["detokenize", "None"]),
    ({"skip_special_tokens": 0}, TypeError, ["skip_special_tokens"]),
    ({"include_stop_str_in_output": "x"}, TypeError, ["include_stop_str_in_output"]),
    ({"skip_reading_prefix_cache": 1}, TypeError, ["skip_reading_prefix_cache"]),
    ({"output_kind": 0}, TypeError, ["output_kind", "RequestOutputKind", "0"]),
    ({"output_kind": "DELTA"}, TypeError, ["output_kind", "'DELTA'"]),
    ({"logit_bias": [1]}, TypeError, ["logit_bias", "[1]", "dict"]),
    ({"logit_bias": {"5": 1.0}}, TypeError, ["key of logit_bias", "'5'"]),
    ({"logit_bias": {5: "1"}}, TypeError, ["logit_bias[5]", "'1'"]),
    ({"logit_bias": {5: NAN}}, ValueError, ["logit_bias[5]", "nan"]),
    ({"logit_bias": {5: INF}}, ValueError, ["logit_bias[5]", "inf"]),
    ({"allowed_token_ids": (1,)}, TypeError, ["allowed_token_ids", "(1,)", "tuple"]),
    ({"allowed_token_ids": ["a"]}, ValueError, ["allowed_token_ids", "['a']"]),
    ({"stop_token_ids": [True]}, ValueError, ["stop_token_ids", "[True]"]),
    ({"bad_words": ["x"]}, ValueError, ["bad_words=['x']", "mini_vllm has not, because"]),
    (
        {"flat_logprobs": True},
        ValueError,
        ["flat_logprobs=True", "mini_vllm has not, because", "False"],
    ),
    (
        {"logprob_token_ids": [1]},
        ValueError,
        ["logprob_token_ids=[1]", "mini_vllm has not, because"],
    ),
    ({"spaces_between_special_tokens": False}, ValueError, ["spaces_between_special_tokens"]),
    ({"extra_args": {"a": 1}}, ValueError, ["extra_args"]),
    ({"thinking_token_budget": 5}, ValueError, ["thinking_token_budget=5"]),
]
# vLLM asserts here and we raise a TypeError: refused by both, with different types.
ASSERTED: list[dict[str, Any]] = [
    {"stop": ("a",)},
    {"stop_token_ids": (1, 2)},
    {"stop_token_ids": 5},
]


def _name(case: object) -> str | None:
    return repr(case) if isinstance(case, dict) else None


@pytest.mark.parametrize(("arguments", "after"), GOOD, ids=_name)
def test_good_values(arguments: dict[str, Any], after: dict[str, Any]) -> None:
    params = SamplingParams(**arguments)
    for name, value in after.items():
        assert getattr(params, name) == value, name


@pytest.mark.parametrize(("arguments", "error", "words"), BAD + STRICTER, ids=_name)
def test_bad_values(arguments: dict[str, Any], error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        SamplingParams(**arguments)
    assert caught.type is error
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("arguments", ASSERTED, ids=_name)
def test_sequences_must_be_lists(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(arguments))} must be a"):
        SamplingParams(**arguments)


def test_the_limit_for_n_moves_with_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MAX_N_SEQUENCES", "4")
    assert SamplingParams(n=4).n == 4
    with pytest.raises(ValueError, match=r"at most 4 .*got 5"):
        SamplingParams(n=5)


def test_a_raised_temperature_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="mini_vllm.sampling_params"):
        SamplingParams(temperature=0.005)
        assert "0.005" in caplog.text
        caplog.clear()
        SamplingParams(temperature=0)
        assert not caplog.text


def test_positions_end_where_vllm_has_a_field_more() -> None:
    assert SamplingParams(1, 0.0, 0.0, 1.0, 0.5).temperature == 0.5
    with pytest.raises(TypeError, match="positional"):
        SamplingParams(*[getattr(SamplingParams(), name) for name in PARAMETERS[:17]])  # type: ignore[misc]


def test_sampling_type() -> None:
    assert SamplingParams(temperature=0, seed=3).sampling_type is SamplingType.GREEDY
    assert SamplingParams(temperature=1e-7).sampling_type is SamplingType.RANDOM
    assert SamplingParams(seed=3).sampling_type is SamplingType.RANDOM_SEED


def test_a_clone_shares_nothing_that_changes() -> None:
    params = SamplingParams(
        stop=["a"], stop_token_ids=[1], logit_bias={2: 1.0}, allowed_token_ids=[1, 2], seed=7
    )
    params.update_from_generation_config({"eos_token_id": [2, 3]}, 2)
    twin = params.clone()
    assert twin == params
    twin.stop.append("b")
    twin.stop_token_ids.append(9)
    twin.logit_bias[3] = 1.0  # type: ignore[index]
    twin.allowed_token_ids.append(3)  # type: ignore[union-attr]
    twin.all_stop_token_ids.add(9)
    twin.max_tokens = 1
    assert params.stop == ["a"]
    assert params.stop_token_ids == [1, 3]
    assert params.logit_bias == {2: 1.0}
    assert params.allowed_token_ids == [1, 2]
    assert params.all_stop_token_ids == {1, 2, 3}
    assert params.max_tokens == 16
    assert twin != params


def test_the_callers_lists_stay_the_callers() -> None:
    stop, ids, bias = ["a"], [1], {1: 1.0}
    params = SamplingParams(stop=stop, stop_token_ids=ids, allowed_token_ids=ids, logit_bias=bias)
    stop.append("")
    ids.append(-1)
    bias[-1] = NAN
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (["a"], [1], {1: 1.0})
    assert params.allowed_token_ids == [1]


def test_equality_copies_and_repr() -> None:
    params = SamplingParams(temperature=0.5, stop="x", output_kind=RequestOutputKind.DELTA)
    assert params == SamplingParams(
        temperature=0.5, stop=["x"], output_kind=RequestOutputKind.DELTA
    )
    assert params != SamplingParams(temperature=0.5, stop="x")
    assert params != "SamplingParams"
    assert (
        copy.copy(params) == copy.deepcopy(params) == pickle.loads(pickle.dumps(params)) == params
    )
    assert "temperature=0.5" in repr(params)
    assert all(f"{name}=" in repr(params) for name in PARAMETERS)
    with pytest.raises(TypeError, match="unhashable"):
        hash(params)
    with pytest.raises(AttributeError):
        params.temprature = 1.0  # type: ignore[attr-defined]


# (ignore_eos, stop_token_ids, the generation config's eos_token_id, the tokenizer's) and, after,
# (eos_token_id, stop_token_ids, all_stop_token_ids)
EOS: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = [
    ((False, [], None, None), (None, [], set())),
    ((False, [], None, 2), (2, [], {2})),
    ((False, [7], 2, 2), (2, [7], {2, 7})),
    ((False, [7], [2, 3], 2), (2, [3, 7], {2, 3, 7})),
    ((False, [3], [2, 3], 2), (2, [3], {2, 3})),
    ((False, [], [2, 3], None), (None, [2, 3], {2, 3})),
    ((True, [7], [2, 3], 2), (None, [7], {2, 3, 7})),
    ((True, [], 5, 2), (None, [], {2, 5})),
    ((False, [], 0, 2), (2, [0], {0, 2})),
]


@pytest.mark.parametrize(("given", "after"), EOS)
def test_end_of_sequence_ids(given: tuple[Any, ...], after: tuple[Any, ...]) -> None:
    ignore_eos, stop_token_ids, listed, eos = given
    params = SamplingParams(ignore_eos=ignore_eos, stop_token_ids=stop_token_ids)
    params.update_from_generation_config({} if listed is None else {"eos_token_id": listed}, eos)
    assert (params.eos_token_id, params.stop_token_ids, params.all_stop_token_ids) == after


# (arguments, max_logprobs, words of the message or None where it passes); the vocabulary has 264.
VERIFY: list[tuple[dict[str, Any], int, list[str] | None]] = [
    ({}, 20, None),
    ({"logprobs": 20, "prompt_logprobs": 0}, 20, None),
    ({"logprobs": 21}, 20, ["logprobs=21", "20"]),
    ({"prompt_logprobs": 21}, 20, ["prompt_logprobs=21", "20"]),
    ({"logprobs": -1}, 20, ["logprobs=-1", "20", "264"]),
    ({"logprobs": -1}, -1, None),
    ({"logprobs": -1}, 264, None),
    ({"logprobs": 264}, -1, None),
    ({"logprobs": 1}, 0, ["logprobs=1"]),
    ({"logprobs": 0}, 0, None),
    ({"logit_bias": {0: 1.0, 263: 1.0}}, 20, None),
    ({"logit_bias": {264: 1.0, 5: 1.0, -1: 2.0}}, 20, ["logit_bias", "[264, -1]", "0 to 263"]),
    ({"allowed_token_ids": []}, 20, ["allowed_token_ids", "[]"]),
    ({"allowed_token_ids": [263]}, 20, None),
    ({"allowed_token_ids": [1, 264]}, 20, ["allowed_token_ids", "[264]", "0 to 263"]),
    ({"allowed_token_ids": [-1]}, 20, ["allowed_token_ids", "[-1]"]),
    ({"stop_token_ids": [0, 263]}, 20, None),
]


@pytest.mark.parametrize(("arguments", "max_logprobs", "words"), VERIFY)
def test_verify(arguments: dict[str, Any], max_logprobs: int, words: list[str] | None) -> None:
    params = SamplingParams(**arguments)
    if words is None:
        before = params.clone()
        params.verify(264, max_logprobs)
        assert params == before
        return
    with pytest.raises(ValueError) as caught:
        params.verify(264, max_logprobs)
    assert all(word in str(caught.value) for word in words), str(caught.value)


# What vLLM's own verify lets through, to fail in a step (the second one in torch.topk).
VERIFY_STRICTER: list[tuple[dict[str, Any], str]] = [
    ({"stop_token_ids": [264, 1, -1]}, r"stop_token_ids .*\[264, -1\].*0 to 263"),
    ({"logprobs": 265}, r"logprobs=265 .*264"),
]


@pytest.mark.parametrize(("arguments", "message"), VERIFY_STRICTER)
def test_verify_is_stricter_than_vllm(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**arguments).verify(264, max_logprobs=300)


# ---- the same of real vLLM ---------------------------------------------------------------------


def _same(ours: SamplingParams, theirs: Any) -> None:
    for name in (*PARAMETERS, "output_text_buffer_length", "all_stop_token_ids", "eos_token_id"):
        mine, real = getattr(ours, name), getattr(theirs, name)
        if name == "output_kind":
            mine, real = mine.name, real.name
        assert mine == real, (name, mine, real)
    assert ours.sampling_type.name == theirs.sampling_type.name


def _model(max_logprobs: int) -> Any:
    """What vLLM's checks read of a model configuration."""
    return SimpleNamespace(
        max_logprobs=max_logprobs, get_vocab_size=lambda: 264, logits_processors=None
    )


@pytest.mark.vllm
class TestAgainstVllm:
    def test_the_parameters_are_vllms(self) -> None:
        import msgspec
        import vllm

        fields = [f for f in msgspec.structs.fields(vllm.SamplingParams) if f.name[0] != "_"]
        names = [field.name for field in fields]
        left_out = entries("SamplingParams")
        assert [name for name in names if name not in left_out] == list(PARAMETERS)
        assert {name for name in names if name not in PARAMETERS} == set(left_out)
        for field in fields:
            if field.name in left_out:
                assert is_harmless("SamplingParams", field.name, field.default), field.name
        assert {k.name: k.value for k in vllm.sampling_params.RequestOutputKind} == {
            k.name: k.value for k in RequestOutputKind
        }

    @pytest.mark.parametrize(("arguments", "_after"), GOOD, ids=_name)
    def test_good_values(self, arguments: dict[str, Any], _after: object) -> None:
        import vllm

        _same(SamplingParams(**arguments), vllm.SamplingParams(**arguments))

    @pytest.mark.parametrize(("arguments", "error", "_words"), BAD, ids=_name)
    def test_bad_values(
        self, arguments: dict[str, Any], error: type[Exception], _words: object
    ) -> None:
        import vllm

        with pytest.raises(error):
            vllm.SamplingParams(**arguments)

    @pytest.mark.parametrize(("arguments", "_error", "_words"), STRICTER, ids=_name)
    def test_vllm_takes_what_we_are_stricter_about(
        self, arguments: dict[str, Any], _error: object, _words: object
    ) -> None:
        import vllm

        assert vllm.SamplingParams(**arguments) is not None

    @pytest.mark.parametrize("arguments", ASSERTED, ids=_name)
    def test_vllm_asserts_lists(self, arguments: dict[str, Any]) -> None:
        import vllm

        with pytest.raises(AssertionError):
            vllm.SamplingParams(**arguments)

    @pytest.mark.parametrize(("given", "_after"), EOS)
    def test_end_of_sequence_ids(self, given: tuple[Any, ...], _after: object) -> None:
        import vllm

        ignore_eos, stop_token_ids, listed, eos = given
        config = {} if listed is None else {"eos_token_id": listed}
        ours = SamplingParams(ignore_eos=ignore_eos, stop_token_ids=stop_token_ids)
        theirs = vllm.SamplingParams(ignore_eos=ignore_eos, stop_token_ids=stop_token_ids)
        ours.update_from_generation_config(config, eos)
        theirs.update_from_generation_config(config, eos)
        theirs.stop_token_ids.sort()
        _same(ours, theirs)

    @pytest.mark.parametrize(("arguments", "max_logprobs", "words"), VERIFY)
    def test_verify(
        self, arguments: dict[str, Any], max_logprobs: int, words: list[str] | None
    ) -> None:
        import vllm

        model = _model(max_logprobs)
        theirs = vllm.SamplingParams(**arguments)
        if words is None:
            theirs.verify(model, None, None, range(264))
            return
        with pytest.raises(ValueError):
            theirs.verify(model, None, None, range(264))

    @pytest.mark.parametrize(("arguments", "_message"), VERIFY_STRICTER)
    def test_vllm_verifies_less(self, arguments: dict[str, Any], _message: str) -> None:
        import vllm

        vllm.SamplingParams(**arguments).verify(_model(300), None, None, range(264))

    def test_whatever_passes_here_passes_there(self) -> None:
        """Random arguments, sound and unsound: ours never takes what vLLM refuses."""
        pytest.importorskip("hypothesis")
        import vllm
        from hypothesis import given, settings
        from hypothesis import strategies as st

        number = st.one_of(
            st.floats(-3, 3), st.integers(-3, 3), st.sampled_from([NAN, INF, 0.0, 1e-6, True, "1"])
        )
        count = st.one_of(st.none(), st.integers(-2, 30), st.sampled_from([True, 1.0, "1"]))
        flag = st.one_of(st.booleans(), st.sampled_from([0, 1, None]))
        token_ids = st.one_of(st.none(), st.lists(st.integers(-1, 300), max_size=3))
        strategies = dict.fromkeys(PARAMETERS, flag)
        strategies |= dict.fromkeys((*PARAMETERS[1:6], "min_p"), number)
        strategies |= dict.fromkeys(
            ("n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs"), count
        )
        strategies |= dict.fromkeys(("stop_token_ids", "allowed_token_ids"), token_ids)
        strategies["stop"] = st.one_of(
            st.none(), st.text(max_size=2), st.lists(st.text(max_size=2), max_size=2)
        )
        strategies["logit_bias"] = st.one_of(
            st.none(), st.dictionaries(st.integers(-1, 300), st.floats(-9, 9), max_size=2)
        )
        del strategies["output_kind"]
        took = 0

        # A few at a time: of many, one is nearly always unsound.
        few = st.lists(st.sampled_from(sorted(strategies)), max_size=4, unique=True)

        @settings(max_examples=300)
        @given(few.flatmap(lambda names: st.fixed_dictionaries({n: strategies[n] for n in names})))
        def check(arguments: dict[str, Any]) -> None:
            nonlocal took
            try:
                ours = SamplingParams(**arguments)
            except (TypeError, ValueError):
                return
            _same(ours, vllm.SamplingParams(**arguments))
            took += 1

        check()
        assert took > 60, "the strategies hardly ever build sound arguments"
