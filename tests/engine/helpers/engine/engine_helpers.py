"""What many tests need: a small random model that differs in every weight, and a way to run it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from mini_vllm.config.engine import EngineConfig
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.parts import DEFAULT_PARTS, EngineParts
from mini_vllm.model_loader import LlamaConfig, expected_tensors
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.sampling_params import SamplingParams

SMALL = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=256,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    eos_token_ids=(2,),
)


def random_model(
    seed: int = 0,
    config: LlamaConfig = SMALL,
    parts: EngineParts = DEFAULT_PARTS,
    model_cls: Callable[..., LlamaForCausalLM] = LlamaForCausalLM,
) -> LlamaForCausalLM:
    """A model with random weights, large enough that every token of the context sways the logits."""
    rng = np.random.default_rng(seed)
    weights = {
        name: (
            np.ones(shape, np.float32)
            if name.endswith("norm.weight")
            else rng.normal(0, 0.5, shape).astype(np.float32)
        )
        for name, shape in expected_tensors(config).items()
    }
    return model_cls(config, weights, parts.attention() if parts.attention else None)


def run(
    engine: LLMEngine, prompts: Sequence[Sequence[int]], params: SamplingParams, check: bool = False
) -> list[list[int]]:
    """Run prompts together to the end; the output tokens of each, in order."""
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), list(prompt), params)
    tokens: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens[output.request_id] = list(output.outputs[0].token_ids)
        if check:
            engine.engine_core.kv_cache_manager.check_invariants()
    return [tokens[str(number)] for number in range(len(prompts))]


def engine_over_random_model(config: EngineConfig, parts: EngineParts) -> LLMEngine:
    """An engine of these parts; the model is made with the attention among them."""
    others = dataclasses.replace(parts, attention=None)
    return LLMEngine(random_model(parts=parts), config, parts=others)


def make_engine(
    model: LlamaForCausalLM | None = None, parts: EngineParts = DEFAULT_PARTS, **settings: object
) -> LLMEngine:
    """An engine over `model` (default: `random_model()`) with these `EngineConfig` settings."""
    config = EngineConfig(**settings)  # type: ignore[arg-type]
    if model is None:
        return engine_over_random_model(config, parts)
    return LLMEngine(model, config, parts=parts)
