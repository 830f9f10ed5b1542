"""Which settings and which model an architecture has, by the name that `config.json` gives it.

Mirrors `vllm/model_executor/models/registry.py`. The models are for numpy; torch tensors have a Llama alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mini_vllm.config.eagle import Eagle3LlamaConfig, EagleLlamaConfig
from mini_vllm.config.gemma3 import Gemma3Config
from mini_vllm.config.mistral import MistralConfig
from mini_vllm.config.model import LlamaConfig
from mini_vllm.config.moe import MixtralConfig
from mini_vllm.config.qwen import Qwen2Config, Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig
from mini_vllm.models.gemma3 import Gemma3ForCausalLM
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.models.llama_eagle import EagleLlamaForCausalLM
from mini_vllm.models.llama_eagle3 import Eagle3LlamaForCausalLM
from mini_vllm.models.mistral import MistralForCausalLM
from mini_vllm.models.mixtral import MixtralForCausalLM
from mini_vllm.models.qwen2 import Qwen2ForCausalLM
from mini_vllm.models.qwen2_moe import Qwen2MoeForCausalLM
from mini_vllm.models.qwen3 import Qwen3ForCausalLM
from mini_vllm.models.qwen3_moe import Qwen3MoeForCausalLM

MODELS: dict[str, type[LlamaForCausalLM]] = {
    "LlamaForCausalLM": LlamaForCausalLM,
    "MistralForCausalLM": MistralForCausalLM,
    "Gemma3ForCausalLM": Gemma3ForCausalLM,
    "Qwen2ForCausalLM": Qwen2ForCausalLM,
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
    "MixtralForCausalLM": MixtralForCausalLM,
    "Qwen2MoeForCausalLM": Qwen2MoeForCausalLM,
    "Qwen3MoeForCausalLM": Qwen3MoeForCausalLM,
}
CONFIGS: dict[str, type[LlamaConfig]] = {
    config.architecture: config
    for config in (
        LlamaConfig, MistralConfig, Gemma3Config, Qwen2Config, Qwen3Config, MixtralConfig, Qwen2MoeConfig,
        Qwen3MoeConfig,
    )
}  # fmt: skip

EAGLE_MODELS: dict[str, type[EagleLlamaForCausalLM]] = {
    "EagleLlamaForCausalLM": EagleLlamaForCausalLM,
    "Eagle3LlamaForCausalLM": Eagle3LlamaForCausalLM,
}
"""Heads, which work beside a target and never alone."""
EAGLE_CONFIGS: dict[str, type[EagleLlamaConfig]] = {
    "EagleLlamaForCausalLM": EagleLlamaConfig,
    "Eagle3LlamaForCausalLM": Eagle3LlamaConfig,
    "LlamaForCausalLMEagle3": Eagle3LlamaConfig,
}
"""By any of the names that the same head goes by."""


def read_config(raw: Mapping[str, Any]) -> LlamaConfig:
    """The settings in a `config.json`, by the first of its architectures that there is a model for.

    Raises CheckpointError if there is none, or if the file asks for what the model cannot do.
    """
    names = raw.get("architectures")
    known = (
        [n for n in names if isinstance(n, str) and n in CONFIGS] if isinstance(names, list) else []
    )
    return CONFIGS[known[0] if known else "LlamaForCausalLM"].from_dict(raw)
