"""Which settings and which model an architecture has, by the name that `config.json` gives it.

Mirrors `vllm/model_executor/models/registry.py`. The models are for numpy; torch tensors have a Llama alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mini_vllm.config.checks import CheckpointError
from mini_vllm.config.model import LlamaConfig
from mini_vllm.utils.lazy import LazyClasses
from mini_vllm.utils.untrusted import shorten_repr

MODELS: Mapping[str, Any] = LazyClasses(
    {
        "LlamaForCausalLM": "mini_vllm.models.llama.LlamaForCausalLM",
        "MistralForCausalLM": "mini_vllm.models.mistral.MistralForCausalLM",
        "Phi3ForCausalLM": "mini_vllm.models.phi3.Phi3ForCausalLM",
        "GemmaForCausalLM": "mini_vllm.models.gemma.GemmaForCausalLM",
        "Gemma2ForCausalLM": "mini_vllm.models.gemma2.Gemma2ForCausalLM",
        "Gemma3ForCausalLM": "mini_vllm.models.gemma3.Gemma3ForCausalLM",
        "Qwen2ForCausalLM": "mini_vllm.models.qwen2.Qwen2ForCausalLM",
        "Qwen3ForCausalLM": "mini_vllm.models.qwen3.Qwen3ForCausalLM",
        "MixtralForCausalLM": "mini_vllm.models.mixtral.MixtralForCausalLM",
        "Qwen2MoeForCausalLM": "mini_vllm.models.qwen2_moe.Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM": "mini_vllm.models.qwen3_moe.Qwen3MoeForCausalLM",
    }
)
"""By architecture, the model's class; `CONFIGS` has its settings'. Each is imported when it is asked for."""
CONFIGS: Mapping[str, Any] = LazyClasses(
    {
        "LlamaForCausalLM": "mini_vllm.config.model.LlamaConfig",
        "MistralForCausalLM": "mini_vllm.config.mistral.MistralConfig",
        "Phi3ForCausalLM": "mini_vllm.config.phi3.Phi3Config",
        "GemmaForCausalLM": "mini_vllm.config.gemma2.GemmaConfig",
        "Gemma2ForCausalLM": "mini_vllm.config.gemma2.Gemma2Config",
        "Gemma3ForCausalLM": "mini_vllm.config.gemma3.Gemma3Config",
        "Qwen2ForCausalLM": "mini_vllm.config.qwen.Qwen2Config",
        "Qwen3ForCausalLM": "mini_vllm.config.qwen.Qwen3Config",
        "MixtralForCausalLM": "mini_vllm.config.moe.MixtralConfig",
        "Qwen2MoeForCausalLM": "mini_vllm.config.qwen.Qwen2MoeConfig",
        "Qwen3MoeForCausalLM": "mini_vllm.config.qwen.Qwen3MoeConfig",
    }
)
LLAMA_OF_2023 = "LLaMAForCausalLM"
"""What the first converted checkpoints call a Llama."""
MODEL_TYPES: dict[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
"""By `model_type`, for files without `architectures`
(`vllm/transformers_utils/config.py:772 in get_config`)."""

EAGLE_MODELS: Mapping[str, Any] = LazyClasses(
    {
        "EagleLlamaForCausalLM": "mini_vllm.models.llama_eagle.EagleLlamaForCausalLM",
        "Eagle3LlamaForCausalLM": "mini_vllm.models.llama_eagle3.Eagle3LlamaForCausalLM",
    }
)
"""Heads, which work beside a target and never alone."""
EAGLE_CONFIGS: Mapping[str, Any] = LazyClasses(
    {
        "EagleLlamaForCausalLM": "mini_vllm.config.eagle.EagleLlamaConfig",
        "Eagle3LlamaForCausalLM": "mini_vllm.config.eagle.Eagle3LlamaConfig",
        "LlamaForCausalLMEagle3": "mini_vllm.config.eagle.Eagle3LlamaConfig",
    }
)
"""By any of the names that the same head goes by."""


def read_config(raw: Mapping[str, Any]) -> LlamaConfig:
    """The settings in a `config.json`, by the first of its architectures that there is a model for, or by its
    `model_type` where it names none.

    Raises CheckpointError if there is none, or if the file asks for what the model cannot do.
    """
    names = raw.get("architectures") or []
    if isinstance(names, list):
        names = ["LlamaForCausalLM" if name == LLAMA_OF_2023 else name for name in names]
        if not names:
            names = [_architecture_of(raw.get("model_type"))]
        raw = {**raw, "architectures": names}
    else:
        return LlamaConfig.from_dict(raw)  # which says what is wrong
    known = [n for n in raw["architectures"] if isinstance(n, str) and n in CONFIGS]
    config: LlamaConfig = CONFIGS[known[0] if known else "LlamaForCausalLM"].from_dict(raw)
    return config


def _architecture_of(model_type: Any) -> str:
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        raise CheckpointError(
            f"config.json has no architectures, and model_type {shorten_repr(model_type)} is not supported; "
            f"supported: {', '.join(MODEL_TYPES)}"
        )
    return MODEL_TYPES[model_type]
