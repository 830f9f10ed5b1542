"""`speculative_config`: what its keys lead to, and what is refused beside it."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from course.parity.tokens_run import run_worker
from mini_vllm import LLM, EngineArgs, SamplingParams
from mini_vllm.config.engine import EngineConfig
from mini_vllm.config.speculative import SpeculativeConfig, merge_shorthands
from mini_vllm.entrypoints.cli.flags import add_engine_flags, make_config

NGRAM: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 3}
FOLDER = {"num_speculative_tokens": 3, "model": "/models/small"}

# What is given, and the method that comes of it: None where it is refused.
METHODS_BY_NAME: list[tuple[dict[str, Any], str | None]] = [
    ({"method": "ngram"}, "ngram"),
    ({"method": "[ngram]"}, None),
    ({"model": "ngram"}, "ngram"),
    ({"model": "[ngram]"}, "ngram"),
    ({}, None),
    ({"method": "draft_model"}, None),
    ({"method": "eagle"}, None),
    ({"model": "/models/small"}, "draft_model"),
    ({"method": "draft_model", "model": "/models/small"}, "draft_model"),
    ({"method": "eagle", "model": "/models/small"}, "eagle"),
    ({"method": "eagle3", "model": "/models/small"}, "eagle3"),
    ({"model": "/models/EAGLE-small"}, "eagle"),
    ({"model": "/models/small-EAGLE3"}, "eagle3"),
    ({"method": "draft_model", "model": "/models/eagle-small"}, "eagle"),
    ({"method": "eagle", "model": "/models/eagle3-small"}, "eagle"),
    ({"model": "/models/small-eagle"}, "draft_model"),
    ({"method": "eagle", "model": "a.small.model"}, None),
    ({"method": "medusa", "model": "/models/small"}, None),
    ({"method": "nonsense", "model": "/models/small"}, None),
]


@pytest.mark.parametrize(("given", "method"), METHODS_BY_NAME)
def test_the_method_is_told_by_what_is_given(given: dict[str, Any], method: str | None) -> None:
    """By the model's name where the method says nothing, and sometimes where it does."""
    if method is None:
        with pytest.raises(ValueError, match="speculative_config: "):
            SpeculativeConfig.from_dict({"num_speculative_tokens": 3} | given)
    else:
        config = SpeculativeConfig.from_dict({"num_speculative_tokens": 3} | given)
        assert config.method == method


@pytest.mark.vllm
def test_vllm_takes_them_for_the_same_methods(tmp_path: Path) -> None:
    """With the shipped model under each of the names."""
    cases = [given for given, _ in METHODS_BY_NAME]
    found = run_worker("tests.engine.helpers.real_vllm.spec_methods", [], [str(tmp_path), cases])
    # vLLM goes on to these, which the miniature has not.
    beyond = {"a.small.model": "custom_class"}
    expected = [method or beyond.get(given.get("model", "")) for given, method in METHODS_BY_NAME]
    assert found == expected


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num_speculative_tokens": 0}, "num_speculative_tokens must be an integer from 1"),
        ({"num_speculative_tokens": None}, "num_speculative_tokens must be an integer from 1"),
        ({"num_speculative_tokens": 129}, "to 128, got 129"),
        ({"prompt_lookup_min": 0}, "prompt_lookup_min must be an integer from 1"),
        ({"prompt_lookup_min": 4, "prompt_lookup_max": 2}, r"\(4\) must not be above"),
        ({"draft_sample_method": "best"}, "'greedy' or 'probabilistic', got 'best'"),
        ({"rejection_sample_method": "typical"}, "'standard' or 'synthetic', got 'typical'"),
        ({"synthetic_acceptance_length": 2.0}, "only for rejection_sample_method 'synthetic'"),
        ({"rejection_sample_method": "synthetic"}, "needs exactly one of"),
        ({"model": 5}, "model must be a checkpoint folder, got 5"),
        ({"depth": 5}, "no argument 'depth'"),
    ],
)
def test_what_is_no_setting_is_refused(given: dict[str, Any], says: str) -> None:
    """Naming the field and the rule."""
    with pytest.raises(ValueError, match=says):
        EngineConfig(speculative_config=NGRAM | given)


@pytest.mark.parametrize(
    "rates", [[0.5, 0.6, 0.1], [0.5, 0.1], [1.5, 1, 1], 0.5, ["a", 0, 0], [0, 0, -1]]
)
def test_rates_that_cannot_be_are_refused(rates: Any) -> None:
    """Three, from 0 to 1, never rising."""
    spec = NGRAM | {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
    with pytest.raises(ValueError, match="must be 3 numbers from 0 to 1 that never rise"):
        EngineConfig(speculative_config=spec)


def test_an_acceptance_length_becomes_rates() -> None:
    """2.5 tokens a draft of three: one accepted always, a second every other time."""
    spec = NGRAM | {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5}
    config = EngineConfig(speculative_config=spec)
    assert config.speculation is not None
    assert config.speculation.synthetic_acceptance_rates == (1.0, 0.5, 0.0)
    assert dataclasses.replace(config, seed=1).speculation == config.speculation
    for length in (0.5, 4.5, "2", float("nan")):
        with pytest.raises(ValueError, match="synthetic_acceptance_length must be from 1 to 4"):
            EngineConfig(speculative_config=spec | {"synthetic_acceptance_length": length})


def test_ngrams_are_of_five_tokens_unless_one_end_is_given() -> None:
    """The other end is then the same."""
    ends = {
        (): (5, 5),
        (("prompt_lookup_min", 2),): (2, 2),
        (("prompt_lookup_max", 3),): (3, 3),
        (("prompt_lookup_min", 2), ("prompt_lookup_max", 4)): (2, 4),
    }
    for given, expected in ends.items():
        config = SpeculativeConfig.from_dict(NGRAM | dict(given))
        assert (config.prompt_lookup_min, config.prompt_lookup_max) == expected


# -- flags ----------------------------------------------------------------------------------------


def test_three_flags_are_short_for_keys() -> None:
    """And may not say what the JSON says already."""
    parser = argparse.ArgumentParser()
    add_engine_flags(parser)

    def read(*flags: str) -> SpeculativeConfig | None:
        return make_config(parser.parse_args(flags)).speculation

    whole = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2}'
    expected = SpeculativeConfig.from_dict(NGRAM | {"prompt_lookup_min": 2})
    assert read("-sc", whole) == read("--speculative-config", whole) == expected
    part = '{"prompt_lookup_min": 2}'
    assert read("--spec-method", "ngram", "--spec-tokens", "3", "-sc", part) == expected
    assert read("--spec-model", "/models/small", "--spec-tokens", "3") == (
        SpeculativeConfig.from_dict(FOLDER)
    )
    assert read() is None
    with pytest.raises(ValueError, match="--spec-method 'eagle': speculative_config has a method"):
        read("--spec-method", "eagle", "-sc", whole)


def test_engine_args_take_them_too() -> None:
    """By vLLM's names, as keywords and as flags."""
    spec = SpeculativeConfig.from_dict(NGRAM)
    by_keys = EngineArgs(spec_method="ngram", spec_tokens=3).create_engine_config()
    by_dict = EngineArgs(speculative_config=NGRAM).create_engine_config()
    by_object = EngineArgs(speculative_config=spec).create_engine_config()
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    args = parser.parse_args(["-sc", '{"method": "ngram"}', "--spec-tokens", "3"])
    by_flags = EngineArgs.from_cli_args(args).create_engine_config()
    assert by_keys == by_dict == by_object == by_flags
    assert by_keys.speculation == spec
    assert merge_shorthands(spec, None, None, None) is spec
    with pytest.raises(ValueError, match="--spec-tokens 4"):
        merge_shorthands(spec, None, None, 4)
    for wrong in ([1], "ngram", 3):
        with pytest.raises(ValueError, match="speculative_config must be a dictionary, got"):
            EngineConfig(speculative_config=wrong)  # type: ignore[arg-type]


# -- what does not go with it ---------------------------------------------------------------------


def test_ngrams_are_refused_beside_async_scheduling() -> None:
    """As in vLLM."""
    with pytest.raises(ValueError, match=r"async_scheduling .* got method 'ngram'"):
        EngineConfig(speculative_config=NGRAM, async_scheduling=True)
    assert EngineConfig(speculative_config=FOLDER, async_scheduling=True).speculation is not None


def test_min_p_and_logit_bias_are_refused_beside_drafts() -> None:
    """Of a request that samples; a greedy one has no min_p. Other requests go on."""
    llm = LLM(speculative_config=NGRAM)
    with pytest.raises(ValueError, match=r"min_p \(0.1\) is not supported with speculative"):
        llm.generate("a", SamplingParams(min_p=0.1, max_tokens=1))
    with pytest.raises(ValueError, match=r"logit_bias \({5: 1.0}\) is not supported with spec"):
        llm.generate("a", SamplingParams(logit_bias={5: 1.0}, temperature=0, max_tokens=1))
    llm.generate("a", SamplingParams(min_p=0.1, temperature=0, max_tokens=1))
    llm.generate("a", SamplingParams(min_p=1e-6, top_p=0.9, max_tokens=1))
    assert not llm.llm_engine.has_unfinished_requests()


@pytest.mark.vllm
def test_vllm_refuses_the_same_parameters() -> None:
    """Its own check, on each of them alone."""
    import vllm

    for given, refused in (
        ({"min_p": 0.1}, True),
        ({"min_p": 1e-6}, False),
        ({"min_p": 0.1, "temperature": 0}, False),
        ({"logit_bias": {5: 1.0}}, True),
        ({"logit_bias": {}}, False),
        ({"top_p": 0.5, "top_k": 3, "min_tokens": 2, "presence_penalty": 1.0}, False),
        ({"bad_words": ["x"], "allowed_token_ids": [5, 6]}, False),
    ):
        params = vllm.SamplingParams(**given)
        try:
            params._validate_spec_decode(object())  # any configuration: it is compared with None
        except ValueError:
            assert refused, given
        else:
            assert not refused, given
