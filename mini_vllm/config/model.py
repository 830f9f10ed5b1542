"""The settings of a Llama, as `config.json` gives them, checked.

The other files here have what other architectures add to them.

Stands apart from the checkpoint's reader because the model needs the settings and the reader needs
the model. Mirrors what vLLM takes from transformers' `LlamaConfig` through
`vllm/config/model.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar, Self

from mini_vllm.utils.outside import short


class CheckpointError(ValueError):
    """A folder that cannot be served; the message names the file, the value and the rule."""


SUPPORTED_ARCHITECTURES = (
    "LlamaForCausalLM", "MistralForCausalLM", "Gemma3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
    "MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM",
)  # fmt: skip
"""Each has a class of settings, in `models/registry.py`."""
SUPPORTED_DTYPES = ("float32", "float16", "bfloat16")
SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3")
_ROPE_KEYS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


MOST = 2**31 - 1
"""No size is more: ids and positions are int32."""
_FLOAT32_MAX = 3.4028234e38


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)
class LlamaConfig:
    """The fields of a Llama `config.json` that change the numbers, checked.

    A key that the file leaves out takes the default that Hugging Face's `LlamaConfig` gives it.

    Attributes:
        head_dim: size of one head; `hidden_size // num_attention_heads` where the file gives
            none.
        rope_type: `default`, `linear` or `llama3`.
        rope_scaling: the numbers that belong to `rope_type` (`factor`, ...); empty for
            `default`.
        dtype: type that the checkpoint was saved in. Arithmetic is float32 whatever it says.
        quantization_config: the object of that name, unread; `mini_vllm.layers.quantization.config` reads it.
        eos_token_ids: ids that end a text, from `generation_config.json` where it names any, else
            from `config.json`.
    """

    architecture: ClassVar[str] = "LlamaForCausalLM"

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
    rope_scaling: Mapping[str, float] = field(default_factory=_nothing)
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str = "float32"
    quantization_config: Mapping[str, Any] = field(default_factory=_nothing)
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def max_model_len(self) -> int:
        """Most tokens that a request may have. Linear scaling stretches the positions."""
        if self.rope_type == "linear":
            return int(self.max_position_embeddings * self.rope_scaling["factor"])
        return self.max_position_embeddings

    @property
    def sliding_windows(self) -> tuple[int | None, ...]:
        """For each layer, how many tokens a token attends to at most, itself among them; None: to all."""
        return (None,) * self.num_hidden_layers

    @property
    def norm_sizes(self) -> Mapping[str, int]:
        """The norms of a layer, by the name of their weight, and how many numbers that has."""
        names = ("input_layernorm", "post_attention_layernorm")
        return {f"{name}.weight": self.hidden_size for name in names}

    def layer_norm_sizes(self, layer: int) -> Mapping[str, int]:
        """Those of one layer."""
        return self.norm_sizes

    @property
    def qkv_input_size(self) -> int:
        """Numbers of a row that attention's first projections take."""
        return self.hidden_size

    @property
    def o_proj_bias(self) -> bool:
        """Whether attention's last projection has a bias; `attention_bias` says it of q, k and v."""
        return self.attention_bias

    def linears(self, layer: int) -> Iterator[tuple[str, int, int, bool]]:
        """The projections of a layer: name, numbers out, numbers in, and whether there is a bias."""
        hidden, bias = self.hidden_size, self.attention_bias
        q_size = self.num_attention_heads * self.head_dim
        kv_size = self.num_key_value_heads * self.head_dim
        yield "self_attn.q_proj", q_size, self.qkv_input_size, bias
        yield "self_attn.k_proj", kv_size, self.qkv_input_size, bias
        yield "self_attn.v_proj", kv_size, self.qkv_input_size, bias
        yield "self_attn.o_proj", hidden, q_size, self.o_proj_bias
        yield from self.mlp_linears(layer)

    def mlp_linears(self, layer: int) -> Iterator[tuple[str, int, int, bool]]:
        """Those of the layer's second half."""
        hidden, inner = self.hidden_size, self.intermediate_size
        yield "mlp.gate_proj", inner, hidden, self.mlp_bias
        yield "mlp.up_proj", inner, hidden, self.mlp_bias
        yield "mlp.down_proj", hidden, inner, self.mlp_bias

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type == "int" and (type(value) is not int or not 1 <= value <= MOST):
                raise CheckpointError(
                    f"{f.name} must be an integer of at least 1 and at most {MOST}, got "
                    f"{short(value)}"
                )
            if f.type == "float" and not _is_size(value):
                raise CheckpointError(
                    f"{f.name} must be a number above 0 that float32 holds, got {short(value)}"
                )
            if f.type == "bool" and type(value) is not bool:
                raise CheckpointError(f"{f.name} must be true or false, got {short(value)}")
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
            if not _is_size(value):
                raise CheckpointError(
                    f"rope type {self.rope_type!r} needs {key} above 0 in config.json, a number "
                    f"that float32 holds, got {short(value)}"
                )
        if not 1 <= self.max_model_len <= MOST:
            raise CheckpointError(
                f"max_position_embeddings ({self.max_position_embeddings}) times the rope factor "
                f"({self.rope_scaling['factor']}) must be at least 1 and at most {MOST}"
            )
        for token_id in (*self.eos_token_ids, self.bos_token_id):
            if token_id is not None and token_id >= self.vocab_size:
                name = "bos_token_id" if token_id == self.bos_token_id else "eos_token_id"
                raise CheckpointError(
                    f"{name} {short(token_id)} is outside the vocabulary of {self.vocab_size}"
                )

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Check and normalise the content of `config.json`.

        Raises:
            CheckpointError: an unsupported architecture, activation, rope type, dtype or sliding
                window, or a size that is no positive integer.
        """
        _check_supported(raw, cls.architecture)
        cls._check_kind(raw)
        values = cls._values(raw)
        values["eos_token_ids"] = as_ids(raw.get("eos_token_id"), "config.json")
        bos = values.get("bos_token_id")
        if bos is not None and (type(bos) is not int or bos < 0):
            raise CheckpointError(f"bos_token_id must be a token id or null, got {short(bos)}")
        return cls(**values)

    @classmethod
    def _check_kind(cls, raw: Mapping[str, Any]) -> None:
        """Refuse what this architecture may say and this model cannot do."""
        if raw.get("sliding_window"):
            raise CheckpointError(
                f"sliding_window {short(raw['sliding_window'])} is not supported: a Llama's attention "
                f"reads the whole context"
            )
        check_activation(raw, "hidden_act", ("silu", "swish"))

    @classmethod
    def _values(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        """What the file says, by field; not yet checked by `__post_init__`."""
        rope_theta, rope_type, rope_scaling = read_rope(raw, cls.rope_theta)
        values: dict[str, Any] = {
            f.name: raw[f.name] for f in fields(cls) if raw.get(f.name) is not None
        }
        values["dtype"] = raw.get("dtype") or raw.get("torch_dtype") or "float32"
        values["quantization_config"] = MappingProxyType(read_object(raw, "quantization_config"))
        heads = values.get("num_attention_heads", cls.num_attention_heads)
        hidden = values.get("hidden_size", cls.hidden_size)
        values.setdefault("num_key_value_heads", heads)
        if "head_dim" not in values:
            if type(heads) is not int or type(hidden) is not int or heads < 1 or hidden % heads:
                raise CheckpointError(
                    f"hidden_size ({short(hidden)}) must be a multiple of num_attention_heads "
                    f"({short(heads)}) where config.json gives no head_dim"
                )
            values["head_dim"] = hidden // heads
        values.update(rope_theta=rope_theta, rope_type=rope_type, rope_scaling=rope_scaling)
        return values


def _check_supported(raw: Mapping[str, Any], wanted: str) -> None:
    architectures = raw.get("architectures") or []
    supported = ", ".join(SUPPORTED_ARCHITECTURES)
    if not isinstance(architectures, list):
        raise CheckpointError(
            f"architectures must be a list of names, got {short(architectures)}; "
            f"supported: {supported}"
        )
    if wanted not in architectures:
        raise CheckpointError(
            f"architectures {short(architectures)} are not supported; supported: {supported}"
        )
    dtype = raw.get("dtype") or raw.get("torch_dtype") or "float32"
    if dtype not in SUPPORTED_DTYPES:
        raise CheckpointError(
            f"dtype {short(dtype)} is not supported; supported: {', '.join(SUPPORTED_DTYPES)}"
        )


def check_activation(raw: Mapping[str, Any], key: str, supported: tuple[str, ...]) -> None:
    """Raises CheckpointError unless the file names one of these there, or nothing."""
    if raw.get(key, supported[0]) not in supported:
        raise CheckpointError(
            f"{key} {short(raw[key])} is not supported; supported: {supported[0]}"
        )


def check_no(raw: Mapping[str, Any], keys: tuple[str, ...], architecture: str) -> None:
    """Raises CheckpointError if the file turns one of these on."""
    for key in keys:
        if raw.get(key):
            raise CheckpointError(f"{key} {short(raw[key])} is not supported for {architecture}")


def read_window(raw: Mapping[str, Any], default: int) -> int | None:
    """`sliding_window`: `default` where the file has none; null and 0 turn it off
    (`vllm/config/model.py:673 in ModelConfig.__post_init__`)."""
    window = raw.get("sliding_window", default)
    if window is None or (type(window) is int and window == 0):
        return None
    if type(window) is not int or not 1 <= window <= MOST:
        raise CheckpointError(
            f"sliding_window must be null or an integer of at least 1 and at most {MOST}, got "
            f"{short(window)}"
        )
    return window


def read_object(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The JSON object under `key`; an empty one where there is none or null."""
    value = raw.get(key)
    if value is not None and not isinstance(value, dict):
        raise CheckpointError(f"{key} must be an object or null, got {short(value)}")
    return value or {}


def _is_size(value: object) -> bool:
    """Whether it is a number above 0 that float32 holds: no NaN, no infinity, not true."""
    return type(value) in (int, float) and 0 < value <= _FLOAT32_MAX  # type: ignore[operator]


def read_rope(
    raw: Mapping[str, Any], default: float = LlamaConfig.rope_theta
) -> tuple[float, str, Mapping[str, float]]:
    """`(rope_theta, rope_type, scaling)` from either spelling; `default` where neither has a base.

    transformers 5 writes one dictionary `rope_parameters`; before, `rope_theta` stood at the
    top and `rope_scaling` held the rest, with `type` for `rope_type` in the oldest files.
    """
    rope = read_object(raw, "rope_parameters") or read_object(raw, "rope_scaling")
    if nested := [key for key, value in rope.items() if isinstance(value, dict)]:
        raise CheckpointError(
            f"rope_parameters for {short(nested[0])} alone are not supported: all layers of a "
            "Llama have the same"
        )
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in SUPPORTED_ROPE_TYPES:
        raise CheckpointError(
            f"rope type {short(rope_type)} is not supported; "
            f"supported: {', '.join(SUPPORTED_ROPE_TYPES)}"
        )
    partial = rope.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial not in (None, 1.0):
        raise CheckpointError(
            f"partial_rotary_factor {short(partial)} is not supported; supported: 1.0"
        )
    given = (rope.get("rope_theta"), raw.get("rope_theta"))
    theta = next((value for value in given if value is not None), default)
    scaling = {key: rope[key] for key in _ROPE_KEYS[rope_type] if key in rope}
    return theta, rope_type, MappingProxyType(scaling)


def as_ids(value: Any, source: str) -> tuple[int, ...]:
    """`eos_token_id` as every file spells it: absent, one id, or a list of ids."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(i) is int and i >= 0 for i in ids):
        raise CheckpointError(
            f"eos_token_id in {source} must be an id or a list of ids, got {short(value)}"
        )
    return tuple(ids)
