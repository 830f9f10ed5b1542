"""The checkpoint of an EAGLE head, read, checked and tied to its target.

Mirrors `load_weights` of `vllm/model_executor/models/llama_eagle.py` and `llama_eagle3.py`. A draft model is
a model like any other: `load_model` reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from mini_vllm.attention.backend import Array, AttentionBackend
from mini_vllm.config.checks import CheckpointError
from mini_vllm.config.eagle import EagleLlamaConfig, name_eagle_architecture
from mini_vllm.layers.quantization.base import Parameter
from mini_vllm.model_loader.loader import (
    check_weights,
    load_weights,
    require_checkpoint,
    tensors_of_layers,
)
from mini_vllm.model_loader.weight_utils import read_json, with_quantization_config
from mini_vllm.models.interfaces_base import ModelForTextGeneration
from mini_vllm.models.llama_eagle import EagleLlamaForCausalLM
from mini_vllm.models.registry import EAGLE_CONFIGS, EAGLE_MODELS
from mini_vllm.utils.untrusted import shorten_repr


def load_eagle_config(folder: str | Path, method: str) -> EagleLlamaConfig:
    """Read and check the head's `config.json`; `method` is `eagle` or `eagle3`.

    Raises CheckpointError: `folder` is no checkpoint, or of no head that this method has.
    """
    folder = Path(folder)
    path = require_checkpoint(folder)
    raw, _ = with_quantization_config(folder, read_json(path))
    given = raw.get("architectures")
    names = [n for n in given if isinstance(n, str)] if isinstance(given, list) else []
    name = name_eagle_architecture(names[0], method) if names else ""
    if name not in EAGLE_CONFIGS or ("3" in EAGLE_CONFIGS[name].architecture) != (
        method == "eagle3"
    ):
        raise CheckpointError(
            f"{path}: architectures {shorten_repr(given)} are of no head for method {method!r}; supported: "
            f"{', '.join(EAGLE_CONFIGS)}"
        )
    cls = EAGLE_CONFIGS[name]
    try:
        config: EagleLlamaConfig = cls.from_dict(raw | {"architectures": [cls.architecture]})
        return config
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def expected_eagle_tensors(config: EagleLlamaConfig) -> Iterator[tuple[str, Parameter]]:
    """Name and shape of every tensor that the head has; optional ones the target can lend."""
    yield from tensors_of_layers(config)
    for name, shape, optional in config.other_tensors():
        yield name, Parameter(shape, optional=optional)


def _rename(weights: Mapping[str, Array]) -> dict[str, Array]:
    """By vLLM's names. `t2d` says the same as `d2t`, which is an id's distance, and is not read."""
    renamed = {}
    for name, weight in weights.items():
        if name == "d2t" or name.startswith("lm_head"):
            renamed[name] = weight
        elif name != "t2d":
            renamed["model." + name.replace("midlayer.", "layers.0.")] = weight
    return renamed


def _check_draft_vocabulary(config: EagleLlamaConfig, d2t: Array) -> None:
    size = getattr(config, "draft_vocab_size", 0)
    ids = np.arange(size) + d2t if d2t.shape == (size,) and d2t.dtype == np.int64 else None
    if (
        ids is None
        or len(set(ids.tolist())) < size
        or ids.min() < 0
        or ids.max() >= config.vocab_size
    ):
        raise CheckpointError(
            f"d2t must lead from each of {size} draft tokens to another id below vocab_size "
            f"({config.vocab_size})"
        )


def load_eagle(
    folder: str | Path,
    method: str,
    target: ModelForTextGeneration,
    attention: AttentionBackend | None = None,
) -> EagleLlamaForCausalLM:
    """The head in `folder`, with the embedding and the LM head of `target` where it has none of its own.

    For EAGLE-3, `target` is told which hidden states to give
    (`vllm/v1/worker/gpu_model_runner.py:5204 GPUModelRunner._setup_eagle3_aux_hidden_state_outputs`).

    Raises CheckpointError: see `load_eagle_config`; a tensor is missing, misshapen or too many, or the head
    is of another size than the target.
    """
    config = load_eagle_config(folder, method)
    quantized = bool(config.quantization_config) or method == "eagle3"
    weights = _rename(load_weights(folder, quantized))
    try:
        for name in ("hidden_size", "vocab_size"):
            own, theirs = getattr(config, name), getattr(target.config, name)
            if own != theirs:
                raise CheckpointError(f"{name} is {own}, and the target's is {theirs}")
        d2t = weights.pop("d2t", None)
        check_weights(config, weights, expected_eagle_tensors(config))
        if d2t is not None:
            _check_draft_vocabulary(config, d2t)
            weights["d2t"] = d2t
        if method == "eagle3":
            _ask_for_hidden_states(config, target)
        cls = EAGLE_MODELS[config.architecture]
        head: EagleLlamaForCausalLM = cls(config, weights, target, attention)
        return head
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from error


def _ask_for_hidden_states(config: EagleLlamaConfig, target: ModelForTextGeneration) -> None:
    layers = getattr(config, "aux_hidden_state_layers", ())
    layers = layers or target.get_eagle3_default_aux_hidden_state_layers()
    wanted, there = getattr(config, "num_aux_hidden_states", 3), target.config.num_hidden_layers
    if len({i for i in layers if 0 <= i <= there}) != wanted:
        raise CheckpointError(
            f"the head reads {wanted} hidden states, and of layers {layers} a target of {there} layers "
            f"gives others: name {wanted} in eagle_aux_hidden_state_layer_ids"
        )
    target.aux_hidden_state_layers = layers
