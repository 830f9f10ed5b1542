"""SamplingParams: what it takes, what it refuses and how it says so; then the same of real vLLM."""

from __future__ import annotations

import copy
import logging
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from mini_vllm.sampling_params import (
    PARAMETERS,
    RequestOutputKind,
    SamplingParams,
    SamplingType,
    StructuredOutputsParams,
)
from mini_vllm.utils.surface import entries, is_harmless
from tests.engine.helpers.sampling.sampling_params_cases import (
    ASSERTED,
    BAD,
    EOS,
    GOOD,
    INF,
    NAN,
    STRICTER,
    VERIFY,
    VERIFY_STRICTER,
    case_name,
)


@pytest.mark.parametrize(("arguments", "after"), GOOD, ids=case_name)
def test_good_values(arguments: dict[str, Any], after: dict[str, Any]) -> None:
    params = SamplingParams(**arguments)
    for name, value in after.items():
        assert getattr(params, name) == value, name


@pytest.mark.parametrize(("arguments", "error", "words"), BAD + STRICTER, ids=case_name)
def test_bad_values(arguments: dict[str, Any], error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        SamplingParams(**arguments)
    assert caught.type is error
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("arguments", ASSERTED, ids=case_name)
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
        SamplingParams(*[getattr(SamplingParams(), name) for name in PARAMETERS[:18]])  # type: ignore[misc]


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


def test_a_rule_is_one_of_its_type_and_a_clone_has_its_own() -> None:
    rule = StructuredOutputsParams(regex="a+")
    params = SamplingParams(structured_outputs=rule)
    twin = params.clone()
    assert twin == params
    assert twin.structured_outputs is not None
    twin.structured_outputs._backend = "native"
    assert rule._backend is None
    assert pickle.loads(pickle.dumps(twin)) == twin
    assert SamplingParams().structured_outputs is None
    with pytest.raises(
        TypeError, match=r"structured_outputs must be StructuredOutputsParams, got {"
    ):
        SamplingParams(structured_outputs={"regex": "a+"})  # type: ignore[arg-type]
    from mini_vllm import StructuredOutputsParams as Exported

    assert Exported is StructuredOutputsParams


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


@pytest.mark.parametrize(("given", "after"), EOS)
def test_end_of_sequence_ids(given: tuple[Any, ...], after: tuple[Any, ...]) -> None:
    ignore_eos, stop_token_ids, listed, eos = given
    params = SamplingParams(ignore_eos=ignore_eos, stop_token_ids=stop_token_ids)
    params.update_from_generation_config({} if listed is None else {"eos_token_id": listed}, eos)
    assert (params.eos_token_id, params.stop_token_ids, params.all_stop_token_ids) == after


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

    @pytest.mark.parametrize(("arguments", "_after"), GOOD, ids=case_name)
    def test_good_values(self, arguments: dict[str, Any], _after: object) -> None:
        import vllm

        _same(SamplingParams(**arguments), vllm.SamplingParams(**arguments))

    @pytest.mark.parametrize(("arguments", "error", "_words"), BAD, ids=case_name)
    def test_bad_values(
        self, arguments: dict[str, Any], error: type[Exception], _words: object
    ) -> None:
        import vllm

        with pytest.raises(error):
            vllm.SamplingParams(**arguments)

    @pytest.mark.parametrize(("arguments", "_error", "_words"), STRICTER, ids=case_name)
    def test_vllm_takes_what_we_are_stricter_about(
        self, arguments: dict[str, Any], _error: object, _words: object
    ) -> None:
        import vllm

        assert vllm.SamplingParams(**arguments) is not None

    @pytest.mark.parametrize("arguments", ASSERTED, ids=case_name)
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
