"""The fields of a GGUF file that become `config.json`.

Left out: mixtures of experts, and every architecture but Llama (which Mistral's files call themselves, too),
Qwen 2 and Qwen 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mini_vllm.config.checks import CheckpointError
from mini_vllm.utils.untrusted import shorten_repr

Fields = Mapping[str, Any]

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""By `general.architecture`."""

_SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
_LLAMA3_BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


def need(fields: Fields, name: str) -> Any:
    """The value of a field. Raises CheckpointError where the file has none."""
    if name not in fields:
        raise CheckpointError(f"the GGUF file lacks {name}")
    return fields[name]


def plain_float(value: float) -> float:
    """The shortest decimal number that is the same float32: the file says 9.999999747378752e-06 for 1e-05."""
    return float(str(np.float32(value)))


def make_config(fields: Fields, rope_factors: np.ndarray | None, tied: bool) -> dict[str, Any]:
    """The content of `config.json`.

    Args:
        fields: the file's, by name.
        rope_factors: float32 `[head_dim / 2]`, by which each frequency is divided; None where the file has
            no tensor `rope_freqs.weight`.
        tied: the head is the embedding.

    Raises CheckpointError: another architecture, a field is missing, or RoPE is scaled in another way.
    """
    kind = need(fields, "general.architecture")
    if kind not in ARCHITECTURES:
        raise CheckpointError(
            f"general.architecture {shorten_repr(kind)} is not supported; supported: "
            f"{', '.join(ARCHITECTURES)}"
        )
    if fields.get(f"{kind}.expert_count"):
        raise CheckpointError(
            f"{kind}.expert_count {fields[f'{kind}.expert_count']} is not supported: mixtures of experts "
            "are read as safetensors only"
        )
    config: dict[str, Any] = {
        ours: int(need(fields, f"{kind}.{theirs}")) for theirs, ours in _SIZES.items()
    }
    heads = config["num_attention_heads"]
    head_dim = int(fields.get(f"{kind}.attention.key_length", config["hidden_size"] // heads))
    turned = int(fields.get(f"{kind}.rope.dimension_count", head_dim))
    if turned != head_dim:
        raise CheckpointError(
            f"{kind}.rope.dimension_count {turned} is not supported: all {head_dim} numbers of a head turn"
        )
    config |= {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "num_key_value_heads": int(fields.get(f"{kind}.attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": plain_float(need(fields, f"{kind}.attention.layer_norm_rms_epsilon")),
        "vocab_size": len(need(fields, "tokenizer.ggml.tokens")),
        "rope_theta": plain_float(fields.get(f"{kind}.rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(fields, kind, rope_factors),
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
    }
    for ours, theirs in (
        ("bos_token_id", "bos"),
        ("eos_token_id", "eos"),
        ("pad_token_id", "padding"),
    ):
        if (token := fields.get(f"tokenizer.ggml.{theirs}_token_id")) is not None:
            config[ours] = int(token)
    return config


def _rope_scaling(fields: Fields, kind: str, factors: np.ndarray | None) -> dict[str, Any] | None:
    """`rope_scaling`; None where nothing is scaled."""
    scaling = fields.get(f"{kind}.rope.scaling.type", "none")
    if scaling == "linear":
        return {
            "rope_type": "linear",
            "factor": plain_float(need(fields, f"{kind}.rope.scaling.factor")),
        }
    if scaling != "none":
        raise CheckpointError(
            f"{kind}.rope.scaling.type {shorten_repr(scaling)} is not supported; supported: none, linear"
        )
    if factors is None:
        return None
    # Llama 3's scaling comes as its result, a factor for each frequency. All files published so far have
    # the same bands and the same original length; what comes out of them must be what the file holds.
    theta = np.float32(fields.get(f"{kind}.rope.freq_base", 10000.0))
    dim = 2 * len(factors)
    inv_freq = 1 / theta ** (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))
    factor, original = float(factors.max()), 8192
    low, high = _LLAMA3_BANDS["low_freq_factor"], _LLAMA3_BANDS["high_freq_factor"]
    turns = original * inv_freq / (2 * np.pi)
    blend = np.clip((turns - low) / (high - low), 0, 1)
    if not np.allclose(1 / (blend + (1 - blend) / factor), factors, rtol=1e-4):
        raise CheckpointError(
            "rope_freqs.weight holds other factors than Llama 3's scaling of a context of 8,192 tokens"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        **_LLAMA3_BANDS,
        "original_max_position_embeddings": original,
    }
