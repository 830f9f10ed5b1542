"""The settings of a Llama, as `config.json` gives them, checked.

The other files here have what other architectures add to them.

Stands apart from the checkpoint's reader because the model needs the settings and the reader needs
the model. Mirrors what vLLM takes from transformers' `LlamaConfig` through
`vllm/config/model.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

from mini_vllm.config.checks import (
    MOST,
    CheckpointError,
    as_ids,
    check_activation,
    check_no,
    is_size,
    read_object,
    read_window,
)
from mini_vllm.config.rope import check_rope, read_rope, stretch
from mini_vllm.utils.untrusted import shorten_repr

__all__ = ["CheckpointError", "LlamaConfig"]

SUPPORTED_ARCHITECTURES = (
    "LlamaForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM", "GemmaForCausalLM", "Gemma2ForCausalLM",
    "Gemma3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MixtralForCausalLM", "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
)  # fmt: skip
"""Each has a class of settings, in `models/registry.py`."""
SUPPORTED_DTYPES = ("float32", "float16", "bfloat16")
_LENGTHS = (
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)


def _no_fields() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)
class LlamaConfig:
    """The fields of a Llama `config.json` that change the numbers, checked.

    A key that the file leaves out takes the default that Hugging Face's `LlamaConfig` gives it.

    Attributes:
        head_dim: size of one head; `hidden_size // num_attention_heads` where the file gives
            none.
        original_max_position_embeddings: the length before `longrope`, where the file says it at its top.
        longest: the longest text that a field other than `max_position_embeddings` names; None: none does.
        rope_type: one of `SUPPORTED_ROPE_TYPES` of `config/rope.py`.
        rope_scaling: what belongs to `rope_type` (`factor`, ...); empty for `default`.
        partial_rotary_factor: how much of a head is turned, from its front.
        sliding_window: a token attends to so many tokens at most, itself among them; None: to all.
        dtype: type that the checkpoint was saved in. Arithmetic is float32 whatever it says.
        quantization_config: the object of that name, unread; `mini_vllm.layers.quantization.config` reads it.
        eos_token_ids: ids that end a text, from `generation_config.json` where it names any, else
            from `config.json`. An id outside the vocabulary, which no text can hold, is left out.
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
    longest: int | None = None
    original_max_position_embeddings: int | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_type: str = "default"
    rope_scaling: Mapping[str, Any] = field(default_factory=_no_fields)
    partial_rotary_factor: float = 1.0
    sliding_window: int | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str = "float32"
    quantization_config: Mapping[str, Any] = field(default_factory=_no_fields)
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def max_model_len(self) -> int:
        """Most tokens that a request may have."""
        longest = self.max_position_embeddings if self.longest is None else self.longest
        return int(stretch(self.rope_type, self.rope_scaling, longest))

    @property
    def default_max_model_len(self) -> int:
        """Where the engine is not told: with `longrope` the length before it, for which its other factors are
        (`vllm/config/model.py:2119 _get_and_verify_max_len`)."""
        original = self.original_max_position_embeddings
        if self.rope_type == "longrope" and original is not None:
            return original
        return self.max_model_len

    @property
    def rotary_dim(self) -> int:
        """Numbers of a head that are turned."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def sliding_windows(self) -> tuple[int | None, ...]:
        """`sliding_window` of each layer."""
        return (self.sliding_window,) * self.num_hidden_layers

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
        for name, size in self.qkv_sizes.items():
            yield f"self_attn.{name}", size, self.qkv_input_size, bias
        q_size = self.num_attention_heads * self.head_dim
        yield "self_attn.o_proj", hidden, q_size, self.o_proj_bias
        yield from self.mlp_linears(layer)

    @property
    def qkv_sizes(self) -> Mapping[str, int]:
        """Attention's first projections as the checkpoint has them, and the numbers that each gives."""
        q_size = self.num_attention_heads * self.head_dim
        kv_size = self.num_key_value_heads * self.head_dim
        return {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}

    def gate_up_sizes(self, inner: int) -> Mapping[str, int]:
        """The MLP's first projections, likewise; gate and up give `inner` numbers each."""
        return {"gate_proj": inner, "up_proj": inner}

    def mlp_linears(self, layer: int) -> Iterator[tuple[str, int, int, bool]]:
        """Those of the layer's second half."""
        hidden, inner = self.hidden_size, self.intermediate_size
        for name, size in self.gate_up_sizes(inner).items():
            yield f"mlp.{name}", size, hidden, self.mlp_bias
        yield "mlp.down_proj", hidden, inner, self.mlp_bias

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type == "int" and (type(value) is not int or not 1 <= value <= MOST):
                raise CheckpointError(
                    f"{f.name} must be an integer of at least 1 and at most {MOST}, got "
                    f"{shorten_repr(value)}"
                )
            if f.type == "float" and not is_size(value):
                raise CheckpointError(
                    f"{f.name} must be a number above 0 that float32 holds, got {shorten_repr(value)}"
                )
            if f.type == "bool" and type(value) is not bool:
                raise CheckpointError(f"{f.name} must be true or false, got {shorten_repr(value)}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise CheckpointError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.head_dim % 2:
            raise CheckpointError(
                f"head_dim must be even for rotary embeddings, got {self.head_dim}"
            )
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            raise CheckpointError(
                f"partial_rotary_factor ({self.partial_rotary_factor}) must leave an even number of a head's "
                f"{self.head_dim} to be turned, got {self.rotary_dim}"
            )
        if self.rope_type == "yarn" and self.rope_theta <= 1:
            raise CheckpointError(
                f"rope_theta must be above 1 for rope type 'yarn', got {self.rope_theta}"
            )
        check_rope(self.rope_type, self.rope_scaling, self.rotary_dim, self.max_position_embeddings)
        if not 1 <= self.max_model_len <= MOST:
            raise CheckpointError(
                f"max_position_embeddings ({self.max_position_embeddings}) and rope type {self.rope_type!r} "
                f"{dict(self.rope_scaling)} give texts of {self.max_model_len} tokens: it must be at least 1 "
                f"and at most {MOST}"
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
        if bos is not None and type(bos) is not int:
            raise CheckpointError(
                f"bos_token_id must be a token id or null, got {shorten_repr(bos)}"
            )
        config = cls(**values)
        ids = range(config.vocab_size)
        return replace(
            config,
            bos_token_id=bos if bos in ids else None,
            eos_token_ids=tuple(i for i in config.eos_token_ids if i in ids),
        )

    @classmethod
    def _check_kind(cls, raw: Mapping[str, Any]) -> None:
        """Refuse what this architecture may say and this model cannot do."""
        check_activation(raw, "hidden_act", ("silu", "swish"))
        check_layers_alike(raw)
        unsupported = ("attention_chunk_size", "dual_chunk_attention_config", "qk_norm")
        check_no(raw, unsupported, cls.architecture)
        for key, usual in (("is_causal", True), ("logit_scale", 1.0)):
            if raw.get(key, usual) not in (None, usual):
                raise CheckpointError(
                    f"{key} {shorten_repr(raw[key])} is not supported for {cls.architecture}; supported: "
                    f"{usual}"
                )
        if raw.get("qkv_bias") is not None and raw["qkv_bias"] != _has_bias(raw):
            raise CheckpointError(
                f"qkv_bias {shorten_repr(raw['qkv_bias'])} is not supported: all of attention's "
                "projections have a "
                "bias, or none has (attention_bias)"
            )

    @classmethod
    def _values(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        """What the file says, by field; not yet checked by `__post_init__`."""
        values: dict[str, Any] = {
            f.name: raw[f.name] for f in fields(cls) if raw.get(f.name) is not None
        }
        if raw.get("bias"):
            values["attention_bias"] = True
        values["dtype"] = raw.get("dtype") or raw.get("torch_dtype") or "float32"
        values["quantization_config"] = MappingProxyType(read_object(raw, "quantization_config"))
        heads = values.get("num_attention_heads", cls.num_attention_heads)
        hidden = values.get("hidden_size", cls.hidden_size)
        values.setdefault("num_key_value_heads", heads)
        if "head_dim" not in values:
            if type(heads) is not int or type(hidden) is not int or heads < 1 or hidden % heads:
                raise CheckpointError(
                    f"hidden_size ({shorten_repr(hidden)}) must be a multiple of num_attention_heads "
                    f"({shorten_repr(heads)}) where config.json gives no head_dim"
                )
            values["head_dim"] = hidden // heads
        values |= read_rope(raw, cls.rope_theta)
        values["sliding_window"] = read_window(raw, cls.sliding_window or 0)
        values["longest"] = _read_longest(
            raw, values.get("max_position_embeddings", cls.max_position_embeddings)
        )
        return values


def _has_bias(raw: Mapping[str, Any]) -> bool:
    return bool(raw.get("attention_bias") or raw.get("bias"))


def _read_longest(raw: Mapping[str, Any], max_position_embeddings: Any) -> int | None:
    """The least of the names that a length goes by, but `model_max_length` before all
    (`vllm/transformers_utils/model_arch_config_convertor.py:278 in ModelArchConfigConvertorBase`)."""
    found = {key: raw[key] for key in (*_LENGTHS, "model_max_length") if raw.get(key) is not None}
    for key, value in found.items():
        if type(value) is not int or not 1 <= value <= MOST:
            raise CheckpointError(
                f"{key} must be an integer of at least 1 and at most {MOST}, got {shorten_repr(value)}"
            )
    if not found or type(max_position_embeddings) is not int:
        return None
    longest: int = found.get("model_max_length", min(max_position_embeddings, *found.values()))
    return longest


def check_layers_alike(raw: Mapping[str, Any]) -> None:
    """Raises CheckpointError where `layer_types` gives some layers a window and others none."""
    types = raw.get("layer_types") or []
    if not isinstance(types, list) or len(set(map(str, types))) > 1:
        raise CheckpointError(
            f"layer_types {shorten_repr(types)} are not supported: all layers of this model must be of "
            "one type"
        )


def _check_supported(raw: Mapping[str, Any], wanted: str) -> None:
    architectures = raw.get("architectures") or []
    supported = ", ".join(SUPPORTED_ARCHITECTURES)
    if not isinstance(architectures, list):
        raise CheckpointError(
            f"architectures must be a list of names, got {shorten_repr(architectures)}; "
            f"supported: {supported}"
        )
    if architectures and wanted not in architectures:
        raise CheckpointError(
            f"architectures {shorten_repr(architectures)} are not supported; supported: {supported}"
        )
    dtype = raw.get("dtype") or raw.get("torch_dtype") or "float32"
    if dtype not in SUPPORTED_DTYPES:
        raise CheckpointError(
            f"dtype {shorten_repr(dtype)} is not supported; supported: {', '.join(SUPPORTED_DTYPES)}"
        )
