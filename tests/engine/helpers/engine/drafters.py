"""Drafters for the tests: models and heads of random weights, from always right to hardly ever."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from mini_vllm.config.eagle import Eagle3LlamaConfig, EagleLlamaConfig
from mini_vllm.config.engine import EngineConfig
from mini_vllm.core.stats import SpecDecodingStats
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.parts import EngineParts
from mini_vllm.model_loader import expected_tensors
from mini_vllm.model_loader.drafter import expected_eagle_tensors
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.models.llama_eagle import EagleLlamaForCausalLM
from mini_vllm.models.llama_eagle3 import Eagle3LlamaForCausalLM
from mini_vllm.spec_decode.draft_model import DraftModelProposer
from mini_vllm.spec_decode.eagle import EagleProposer
from tests.engine.helpers.engine.engine_helpers import SMALL, random_model
from tests.engine.helpers.engine.workloads import make_engine

MakeDrafter = Callable[[EngineConfig, LlamaForCausalLM], Any]


def noisy_model(noise: float) -> LlamaForCausalLM:
    """`random_model()` with noise on its weights: it often says what that says."""
    rng = np.random.default_rng(5)
    right = np.random.default_rng(0)
    weights = {}
    for name, shape in expected_tensors(SMALL).items():
        norm = name.endswith("norm.weight")
        weight = np.ones(shape) if norm else right.normal(0, 0.5, shape)
        weights[name] = (weight + noise * rng.normal(0, 0.5, shape)).astype(np.float32)
    return LlamaForCausalLM(SMALL, weights)


def random_head(method: str, target: LlamaForCausalLM) -> EagleLlamaForCausalLM:
    """A head of random weights for a small model: it is right by chance."""
    rng = np.random.default_rng(9)
    settings = {field.name: getattr(SMALL, field.name) for field in dataclasses.fields(SMALL)}
    settings |= {"num_hidden_layers": 1, "tie_word_embeddings": False}
    config: EagleLlamaConfig
    if method == "eagle":
        config, cls = EagleLlamaConfig(**settings), EagleLlamaForCausalLM
    else:
        layers = (0, 1, 2)
        config = Eagle3LlamaConfig(**settings, draft_vocab_size=40, aux_hidden_state_layers=layers)
        target.aux_hidden_state_layers, cls = layers, Eagle3LlamaForCausalLM
    weights: dict[str, Any] = {
        name: (rng.normal(0, 0.3, parameter.shape) + ("norm" in name)).astype(np.float32)
        for name, parameter in expected_eagle_tensors(config)
        if not parameter.optional
    }
    if method == "eagle3":
        weights["d2t"] = np.sort(rng.permutation(64)[:40]) - np.arange(40)
    return cls(config, weights, target)


def drafter(kind: str) -> MakeDrafter | None:
    """For `EngineParts.drafter`; `kind` is a key of `KINDS`."""
    if kind == "ngram":
        return None
    if kind in ("eagle", "eagle3"):
        return lambda config, model: EagleProposer(config, model, random_head(kind, model))
    noise = {"itself": 0.0, "noisy": 0.02, "other": 2.0}[kind]
    return lambda config, model: DraftModelProposer(config, model, noisy_model(noise))


KINDS = {
    "ngram": "ngram",
    "itself": "draft_model",
    "noisy": "draft_model",
    "other": "draft_model",
    "eagle": "eagle",
    "eagle3": "eagle3",
}
"""Drafters by name, with their method."""


def speculative_config(kind: str, k: int = 3, **more: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"method": KINDS[kind], "num_speculative_tokens": k, **more}
    if kind == "ngram":
        return config | {"prompt_lookup_min": 1, "prompt_lookup_max": 3}
    return config | {"model": "given by the test"}


def drafting_parts(kind: str) -> EngineParts:
    make = drafter(kind)
    return EngineParts() if make is None else EngineParts(drafter=make)


def drafting_engine(kind: str, k: int = 3, **settings: Any) -> LLMEngine:
    """An engine over `random_model()` that drafts. `spec` of the settings goes into the
    `speculative_config`; the budget has room for the draft model's rows."""
    spec = speculative_config(kind, k, **settings.pop("spec", {}))
    if "max_num_batched_tokens" in settings and spec["method"] == "draft_model":
        settings["max_num_batched_tokens"] += settings.get("max_num_seqs", 8)
    return make_engine(drafting_parts(kind), speculative_config=spec, **settings)


def count_drafts(engine: LLMEngine) -> SpecDecodingStats:
    """Counts the drafts of all steps from now on."""
    spec = engine.config.speculation
    assert spec is not None
    total = SpecDecodingStats(spec.num_spec_tokens)

    def observe(record: Any) -> None:
        if record.scheduler_stats.spec_decoding_stats is not None:
            total.add(record.scheduler_stats.spec_decoding_stats)

    engine.engine_core.step_observers.append(observe)
    return total


__all__ = [
    "KINDS", "count_drafts", "drafter", "drafting_engine", "drafting_parts", "noisy_model",
    "random_head", "random_model", "speculative_config",
]  # fmt: skip
