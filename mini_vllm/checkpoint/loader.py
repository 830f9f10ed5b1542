"""A Hugging Face Llama checkpoint folder: ``config.json`` and ``*.safetensors`` to numpy arrays.

Mirrors vLLM's default loader (``vllm/model_executor/model_loader/default_loader.py``) and the
weight names of ``vllm/model_executor/models/llama.py:436 LlamaModel.load_weights``. Left out:
quantised weights, pickled ``.bin`` weights, downloads from a hub.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.checkpoint.safetensors_file import read_safetensors
from mini_vllm.llama import AttentionBackend, LlamaForCausalLM
from mini_vllm.llama_config import CheckpointError, LlamaConfig, as_ids


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from `path`; `CheckpointError` names the file if it is anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


def load_config(folder: str | Path) -> LlamaConfig:
    """Read and check ``config.json`` and, for the ids that end a text, ``generation_config.json``.

    Raises:
        CheckpointError: `folder` does not exist, is no checkpoint, or its model is not supported.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"model folder {str(folder)!r} does not exist or is no folder")
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(
            f"model folder {str(folder)!r} is no checkpoint: it has no config.json"
        )
    raw = read_json(path)
    generation = folder / "generation_config.json"
    if generation.is_file():
        # vLLM adds these ids to the tokenizer's own as ids that stop a request. Where there is a
        # generation config, config.json is not asked.
        eos = read_json(generation).get("eos_token_id")
        if eos is not None:
            as_ids(eos, "generation_config.json")
        raw["eos_token_id"] = eos
    try:
        return LlamaConfig.from_dict(raw)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


_SAMPLING_DEFAULTS = {
    "repetition_penalty": "repetition_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "max_new_tokens": "max_tokens",
}


def load_default_sampling_params(folder: str | Path) -> dict[str, Any]:
    """What ``generation_config.json`` says of sampling, by `SamplingParams`' names; often nothing.

    Source: `vllm/config/model.py:1465 ModelConfig.get_diff_sampling_param`.
    """
    path = Path(folder) / "generation_config.json"
    raw = read_json(path) if path.is_file() else {}
    return {
        ours: raw[theirs]
        for theirs, ours in _SAMPLING_DEFAULTS.items()
        if raw.get(theirs) is not None
    }


def load_weights(folder: str | Path) -> dict[str, NDArray[np.float32]]:
    """Every tensor of the checkpoint, by name, as float32.

    float16 and bfloat16 are widened.

    Raises:
        CheckpointError: no ``*.safetensors``, a shard that is missing, truncated or corrupt, a
            tensor that the index names and the shard lacks, or a dtype that is not supported.
    """
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if single.is_file():
        return read_safetensors(single)
    if not index.is_file():
        others = sorted(p.name for p in folder.glob("*.bin")) + sorted(
            p.name for p in folder.glob("*.pt")
        )
        hint = f" ({', '.join(others)} are pickles, which are not supported)" if others else ""
        raise CheckpointError(
            f"{folder} has neither model.safetensors nor model.safetensors.index.json{hint}"
        )
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} must map tensor names to files under weight_map")
    weights: dict[str, NDArray[np.float32]] = {}
    for name in sorted(set(weight_map.values())):
        shard = folder / name
        if Path(name).name != name or not shard.is_file():
            raise CheckpointError(f"{index} names the shard {name!r}, which is not in the folder")
        tensors = read_safetensors(shard)
        for tensor in (t for t, file in weight_map.items() if file == name):
            if tensor not in tensors:
                raise CheckpointError(f"{index} places tensor {tensor!r} in {name}, which lacks it")
            weights[tensor] = tensors[tensor]
    return weights


def expected_tensors(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint of this configuration must hold."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size = config.num_attention_heads * config.head_dim
    kv_size = config.num_key_value_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (q_size, hidden, config.attention_bias),
        "self_attn.k_proj": (kv_size, hidden, config.attention_bias),
        "self_attn.v_proj": (kv_size, hidden, config.attention_bias),
        "self_attn.o_proj": (hidden, q_size, config.attention_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for i in range(config.num_hidden_layers):
        prefix = f"model.layers.{i}."
        for name, (out, inp, bias) in linears.items():
            shapes[f"{prefix}{name}.weight"] = (out, inp)
            if bias:
                shapes[f"{prefix}{name}.bias"] = (out,)
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def check_weights(config: LlamaConfig, weights: Mapping[str, NDArray[np.float32]]) -> None:
    """Every expected tensor is there, in its shape, and nothing is there that would be ignored.

    Skipped as vLLM skips them
    (``vllm/model_executor/models/llama.py:448 in LlamaModel.load_weights``): rotary tables saved by
    old versions, and ``lm_head.weight`` where the head is tied to the embedding.
    """
    shapes = expected_tensors(config)
    for name, shape in shapes.items():
        if name not in weights:
            raise CheckpointError(f"the checkpoint lacks tensor {name!r} of shape {shape}")
        if weights[name].shape != shape:
            raise CheckpointError(
                f"tensor {name!r} has shape {weights[name].shape}, config.json asks for {shape}"
            )
    unused = sorted(n for n in weights.keys() - shapes.keys() if "rotary_emb." not in n)
    if config.tie_word_embeddings and "lm_head.weight" in unused:
        unused.remove("lm_head.weight")
    if unused:
        raise CheckpointError(
            f"the checkpoint holds {len(unused)} tensors that this model has no place for, "
            f"first {unused[0]!r}: its config.json may miss attention_bias, mlp_bias or a layer"
        )


def load_model(folder: str | Path, attention: AttentionBackend | None = None) -> LlamaForCausalLM:
    """Read the checkpoint in `folder` and build the model, with `attention` as its backend.

    Raises:
        CheckpointError: see `load_config`, `load_weights` and `check_weights`.
    """
    config = load_config(folder)
    weights = load_weights(folder)
    try:
        check_weights(config, weights)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    return LlamaForCausalLM(config, weights, attention)
