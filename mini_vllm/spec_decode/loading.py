"""Drafters from their checkpoints.

What `vllm/v1/spec_decode/llm_base_proposer.py:1184 SpecDecodeBaseProposer.load_model` does: a draft model is
read like any model; an EAGLE head takes embedding and LM head from the model where its checkpoint has none.
"""

from __future__ import annotations

from mini_vllm.config.model import LlamaConfig
from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.core.kv_cache_groups import block_bytes
from mini_vllm.model_loader import (
    find_model,
    load_config,
    load_model,
)
from mini_vllm.models.interfaces_base import ModelForTextGeneration
from mini_vllm.models.llama import LlamaForCausalLM


def load_drafter(spec: SpeculativeConfig, target: ModelForTextGeneration) -> LlamaForCausalLM:
    """The draft model, or the head, in `spec.model`.

    Raises CheckpointError where the folder holds none that can be run.
    """
    assert spec.model is not None and spec.method is not None
    if spec.uses_draft_model():
        return load_model(find_model(spec.model))
    from mini_vllm.model_loader.drafter import load_eagle

    return load_eagle(find_model(spec.model), spec.method, target)


def drafter_config(spec: SpeculativeConfig | None) -> LlamaConfig | None:
    """The settings of a drafter that has a model; None for n-grams, without speculation, and where there is
    no such folder: then `EngineParts` brings the drafter, or `load_drafter` says what is wrong."""
    if spec is None or spec.model is None or spec.method is None or spec.method == "ngram":
        return None
    folder = find_model(spec.model)
    if not folder.is_dir():
        return None
    if spec.use_eagle():
        from mini_vllm.model_loader.drafter import load_eagle_config

        return load_eagle_config(folder, spec.method)
    return load_config(folder)


def drafter_block_bytes(
    spec: SpeculativeConfig | None, block_size: int, kv_cache_dtype: str
) -> int:
    """Bytes that the drafter's layers add to a block of the KV cache; 0 for a drafter that has none."""
    config = drafter_config(spec)
    return 0 if config is None else block_bytes(config, block_size, kv_cache_dtype)
