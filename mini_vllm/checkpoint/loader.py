"""A Hugging Face Llama checkpoint folder: ``config.json`` and ``*.safetensors`` to numpy arrays.

Mirrors vLLM's default loader (``vllm/model_executor/model_loader/default_loader.py``) and the
weight names of ``vllm/model_executor/models/llama.py:436 LlamaModel.load_weights``. Left out:
quantised weights, pickled ``.bin`` weights, downloads from a hub.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.checkpoint.safetensors_file import CheckpointError, read_safetensors

if TYPE_CHECKING:
    from mini_vllm.llama import AttentionBackend, LlamaForCausalLM

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM",)
SUPPORTED_DTYPES = ("float32", "float16", "bfloat16")
SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3")
_ROPE_KEYS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def _no_scaling() -> Mapping[str, float]:
    return MappingProxyType({})


@dataclass(frozen=True)
class LlamaConfig:
    """The fields of a Llama ``config.json`` that change the numbers, checked.

    A key that the file leaves out takes the default that Hugging Face's ``LlamaConfig`` gives it.

    Attributes:
        head_dim: size of one head; ``hidden_size // num_attention_heads`` where the file gives
            none.
        rope_type: ``default``, ``linear`` or ``llama3``.
        rope_scaling: the numbers that belong to `rope_type` (``factor``, ...); empty for
            ``default``.
        dtype: type that the checkpoint was saved in. Arithmetic is float32 whatever it says.
        eos_token_ids: ids that end a text, from ``generation_config.json`` where it names any, else
            from ``config.json``.
    """

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int = 32
    head_dim: int = 128
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_type: str = "default"
    rope_scaling: Mapping[str, float] = field(default_factory=_no_scaling)
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str = "float32"
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def max_model_len(self) -> int:
        """Most tokens that a request may have. Linear scaling stretches the positions."""
        if self.rope_type == "linear":
            return int(self.max_position_embeddings * self.rope_scaling["factor"])
        return self.max_position_embeddings

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type == "int" and (type(value) is not int or value < 1):
                raise CheckpointError(f"{f.name} must be an integer of at least 1, got {value!r}")
            if f.type == "float" and not (type(value) in (int, float) and value > 0):
                raise CheckpointError(f"{f.name} must be a number above 0, got {value!r}")
            if f.type == "bool" and type(value) is not bool:
                raise CheckpointError(f"{f.name} must be true or false, got {value!r}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise CheckpointError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.head_dim % 2:
            raise CheckpointError(
                f"head_dim must be even for rotary embeddings, got {self.head_dim}"
            )
        for key in _ROPE_KEYS[self.rope_type]:
            value = self.rope_scaling.get(key)
            if type(value) not in (int, float) or not value > 0:  # type: ignore[operator]
                raise CheckpointError(
                    f"rope type {self.rope_type!r} needs {key} above 0 in config.json, got "
                    f"{value!r}"
                )

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> LlamaConfig:
        """Check and normalise the content of ``config.json``.

        Raises:
            CheckpointError: an unsupported architecture, activation, rope type, dtype, quantisation
                or sliding window, or a size that is no positive integer.
        """
        _check_supported(raw)
        rope_theta, rope_type, rope_scaling = _rope(raw)
        values: dict[str, Any] = {
            f.name: raw[f.name] for f in fields(cls) if raw.get(f.name) is not None
        }
        values["dtype"] = raw.get("dtype") or raw.get("torch_dtype") or "float32"
        heads = values.get("num_attention_heads", cls.num_attention_heads)
        hidden = values.get("hidden_size", cls.hidden_size)
        values.setdefault("num_key_value_heads", heads)
        if "head_dim" not in values:
            if type(heads) is not int or type(hidden) is not int or heads < 1 or hidden % heads:
                raise CheckpointError(
                    f"hidden_size ({hidden!r}) must be a multiple of num_attention_heads "
                    f"({heads!r}) where config.json gives no head_dim"
                )
            values["head_dim"] = hidden // heads
        values["eos_token_ids"] = _as_ids(raw.get("eos_token_id"), "config.json")
        values.update(rope_theta=rope_theta, rope_type=rope_type, rope_scaling=rope_scaling)
        return cls(**values)


def _check_supported(raw: Mapping[str, Any]) -> None:
    architectures = raw.get("architectures") or []
    if not any(name in SUPPORTED_ARCHITECTURES for name in architectures):
        raise CheckpointError(
            f"architectures {architectures!r} are not supported; "
            f"supported: {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise CheckpointError(
            f"the checkpoint is quantised (quant_method {method!r}); "
            f"only weights in {', '.join(SUPPORTED_DTYPES)} are supported"
        )
    dtype = raw.get("dtype") or raw.get("torch_dtype") or "float32"
    if dtype not in SUPPORTED_DTYPES:
        raise CheckpointError(
            f"dtype {dtype!r} is not supported; supported: {', '.join(SUPPORTED_DTYPES)}"
        )
    if raw.get("sliding_window"):
        raise CheckpointError(
            f"sliding_window {raw['sliding_window']!r} is not supported: attention reads the whole "
            f"context"
        )
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise CheckpointError(f"hidden_act {raw['hidden_act']!r} is not supported; supported: silu")


def _rope(raw: Mapping[str, Any]) -> tuple[float, str, Mapping[str, float]]:
    """``(rope_theta, rope_type, scaling)`` from either spelling.

    transformers 5 writes one dictionary ``rope_parameters``; before, ``rope_theta`` stood at the
    top and ``rope_scaling`` held the rest, with ``type`` for ``rope_type`` in the oldest files.
    """
    rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in SUPPORTED_ROPE_TYPES:
        raise CheckpointError(
            f"rope type {rope_type!r} is not supported; "
            f"supported: {', '.join(SUPPORTED_ROPE_TYPES)}"
        )
    partial = rope.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial not in (None, 1.0):
        raise CheckpointError(f"partial_rotary_factor {partial!r} is not supported; supported: 1.0")
    theta = rope.get("rope_theta", raw.get("rope_theta", LlamaConfig.rope_theta))
    scaling = {key: rope[key] for key in _ROPE_KEYS[rope_type] if key in rope}
    return theta, rope_type, MappingProxyType(scaling)


def _as_ids(value: Any, source: str) -> tuple[int, ...]:
    """``eos_token_id`` as every file spells it: absent, one id, or a list of ids."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(i) is int and i >= 0 for i in ids):
        raise CheckpointError(
            f"eos_token_id in {source} must be an id or a list of ids, got {value!r}"
        )
    return tuple(ids)


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
            _as_ids(eos, "generation_config.json")
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
    from mini_vllm.llama import LlamaForCausalLM

    config = load_config(folder)
    weights = load_weights(folder)
    try:
        check_weights(config, weights)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    return LlamaForCausalLM(config, weights, attention)
