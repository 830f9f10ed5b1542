"""Which linear method the layers of a checkpoint have: its `quantization_config`, read and checked.

Mirrors `vllm/model_executor/layers/quantization/__init__.py` (the registry) and the config classes beside
it. What no method here can compute is refused, with the value and with what would be admitted. Left out:
a method that somebody asks for and that overrides the file's; all of upstream's names but three.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mini_vllm.config.model import CheckpointError
from mini_vllm.layers.quantization.base import LinearMethod, QuantizationConfig
from mini_vllm.layers.quantization.linear import (
    AWQLinearMethod,
    Fp8LinearMethod,
    GPTQLinearMethod,
    UnquantizedLinearMethod,
    W8A8Int8LinearMethod,
    WNA16LinearMethod,
)
from mini_vllm.utils.outside import short

Object = Mapping[str, Any]


def _get(raw: Object, keys: tuple[str, ...], kinds: tuple[type, ...], where: str) -> Any:
    """The value under the first of `keys` that is there. Raises CheckpointError for none, or another kind."""
    for key in keys:
        if key in raw:
            value = raw[key]
            if type(value) not in kinds:
                names = " or ".join(kind.__name__ for kind in kinds)
                raise CheckpointError(f"{where}{key} must be {names}, got {short(value)}")
            return value
    raise CheckpointError(f"{where}{' or '.join(keys)} is missing")


def _admit(name: str, value: object, *admitted: object) -> None:
    if not any(type(value) is type(each) and value == each for each in admitted):
        raise CheckpointError(
            f"{name} {short(value)} is not supported; supported: {', '.join(map(str, admitted))}"
        )


def _group_size(raw: Object, keys: tuple[str, ...], where: str) -> int:
    size: int = _get(raw, keys, (int,), where)
    if size != -1 and size < 1:
        raise CheckpointError(
            f"{where}group_size must be at least 1, or -1 for all of a row, got {short(size)}"
        )
    return size


def _names(raw: Object, key: str, where: str) -> tuple[str, ...]:
    """A list of texts, possibly absent or null."""
    value = raw.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise CheckpointError(f"{where}{key} must be a list of names, got {short(value)}")
    return tuple(value)


@dataclass(frozen=True)
class AWQConfig(QuantizationConfig):
    """A checkpoint of AutoAWQ's (`vllm/model_executor/layers/quantization/awq.py:34 AWQConfig`).

    Attributes:
        modules_to_not_convert: a projection whose name contains one of them is not quantised.
    """

    method: AWQLinearMethod
    modules_to_not_convert: tuple[str, ...]

    @classmethod
    def from_config(cls, config: Object) -> AWQConfig:
        where = "quantization_config of 'awq': "
        bits = _get(config, ("w_bit", "bits"), (int,), where)
        _admit(f"{where}bits", bits, 4)
        _admit(f"{where}zero_point", _get(config, ("zero_point",), (bool,), where), True)
        version = config.get("version", "gemm")
        _admit(f"{where}version", version.lower() if isinstance(version, str) else version, "gemm")
        size = _group_size(config, ("q_group_size", "group_size"), where)
        _admit(f"{where}lm_head", config.get("lm_head", False), False)
        return cls(
            AWQLinearMethod(bits, size, symmetric=False),
            _names(config, "modules_to_not_convert", where),
        )

    def get_quant_method(self, name: str) -> LinearMethod:
        if any(part in name for part in self.modules_to_not_convert):
            return UnquantizedLinearMethod()
        return self.method


@dataclass(frozen=True)
class GPTQConfig(QuantizationConfig):
    """A checkpoint of AutoGPTQ's or GPTQModel's
    (`vllm/model_executor/layers/quantization/auto_gptq.py:95 AutoGPTQConfig`)."""

    method: GPTQLinearMethod

    @classmethod
    def from_config(cls, config: Object) -> GPTQConfig:
        where = "quantization_config of 'gptq': "
        bits = _get(config, ("bits",), (int,), where)
        _admit(f"{where}bits", bits, 4, 8)
        _admit(f"{where}sym", _get(config, ("sym",), (bool,), where), True)
        size = _group_size(config, ("group_size",), where)
        desc_act = _get(config, ("desc_act",), (bool,), where)
        _admit(f"{where}lm_head", config.get("lm_head", False), False)
        _admit(
            f"{where}checkpoint_format", config.get("checkpoint_format", "gptq"), "gptq", "gptq_v2"
        )
        if config.get("dynamic"):
            raise CheckpointError(
                f"{where}dynamic {short(config['dynamic'])} is not supported: all layers have the same bits"
            )
        # With one group in a row there is no order to keep.
        return cls(GPTQLinearMethod(bits, size, has_g_idx=desc_act and size != -1))

    def get_quant_method(self, name: str) -> LinearMethod:
        return self.method


@dataclass(frozen=True)
class CompressedTensorsConfig(QuantizationConfig):
    """A checkpoint of llm-compressor's: `CompressedTensorsConfig` in
    `vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py`.

    Attributes:
        targets: by what a group of settings is for, in the file's order: a name, `re:` and a pattern, or the
            name of a kind of layer, of which there is one here, `Linear`.
        ignore: names and patterns that stay unquantised.
        kv_cache_dtype: `fp8` where there is a `kv_cache_scheme`, whose scales lie among the tensors.
    """

    targets: Mapping[str, LinearMethod]
    ignore: tuple[str, ...]
    kv_cache_dtype: str = "auto"

    @classmethod
    def from_config(cls, config: Object) -> CompressedTensorsConfig:
        where = "quantization_config of 'compressed-tensors': "
        for key in ("transform_config", "sparsity_config"):
            if config.get(key):
                raise CheckpointError(f"{where}{key} {short(config[key])} is not supported")
        groups = _get(config, ("config_groups",), (dict,), where)
        targets: dict[str, LinearMethod] = {}
        for label, group in groups.items():
            at = f"{where}{short(label)}: "
            if not isinstance(group, dict):
                raise CheckpointError(f"{at}must be an object, got {short(group)}")
            method = _scheme(group, group.get("format") or config.get("format"), at)
            targets |= dict.fromkeys(_names(group, "targets", at), method)
        kv_cache_dtype = _kv_cache_dtype(config.get("kv_cache_scheme"), f"{where}kv_cache_scheme: ")
        quantization = cls(targets, _names(config, "ignore", where), kv_cache_dtype)
        for pattern in (*quantization.ignore, *targets):
            _check_pattern(pattern, where)
        if quantization._find("lm_head", "") is not None:
            raise CheckpointError(f"{where}lm_head cannot be quantised here: put it under ignore")
        return quantization

    def get_quant_method(self, name: str) -> LinearMethod:
        return self._find(name, "Linear") or UnquantizedLinearMethod()

    def _find(self, name: str, kind: str) -> LinearMethod | None:
        """The method of the first target that fits: by name before by kind, as upstream looks
        (`vllm/model_executor/layers/quantization/compressed_tensors/utils.py:113 find_matched_target`)."""
        if any(_fits(name, pattern) for pattern in self.ignore):
            return None
        for target, method in self.targets.items():
            if _fits(name, target):
                return method
        return self.targets.get(kind)


def _kv_cache_dtype(scheme: object, where: str) -> str:
    """Such a file turns a cache in E4M3 on, with one scale for K and one for V in each layer
    (`vllm/model_executor/layers/attention/attention.py:238 in Attention.__init__`)."""
    if scheme is None:
        return "auto"
    if not isinstance(scheme, dict):
        raise CheckpointError(f"{where}must be an object or null, got {short(scheme)}")
    _admit(f"{where}type", scheme.get("type"), "float")
    _admit(f"{where}num_bits", scheme.get("num_bits"), 8)
    _admit(f"{where}strategy", scheme.get("strategy"), "tensor")
    _admit(f"{where}symmetric", scheme.get("symmetric", True), True)
    _admit(f"{where}dynamic", scheme.get("dynamic", False), False)
    return "fp8"


def _check_pattern(text: str, where: str) -> None:
    """Raise CheckpointError for `re:` and what is no pattern; any other text is a name."""
    if not text.startswith("re:"):
        return
    try:
        re.compile(text.removeprefix("re:"))
    except (re.error, RecursionError) as error:
        raise CheckpointError(f"{where}{short(text)} is no pattern: {error}") from None


def _fits(name: str, target: str) -> bool:
    if target.startswith("re:"):
        return re.match(target[3:], name) is not None
    return name == target


def _scheme(group: Object, form: object, where: str) -> LinearMethod:
    """The method for a group's weights and activations: `_get_scheme_from_parts` in
    `vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py`.

    Raises CheckpointError where no method here computes what they say.
    """
    weights = _get(group, ("weights",), (dict,), where)
    at = f"{where}weights: "
    bits = _get(weights, ("num_bits",), (int,), at)
    symmetric = weights.get("symmetric", True)
    kind, strategy = weights.get("type", "int"), weights.get("strategy")
    size = weights.get("group_size")
    if strategy is None:
        strategy = "tensor" if size is None else "channel" if size == -1 else "group"
    _admit(f"{at}dynamic", weights.get("dynamic", False), False)
    _admit(f"{at}symmetric", symmetric, True, False)
    _admit(f"{at}type", kind, "int", "float")
    activations = group.get("input_activations")
    if activations is not None and not isinstance(activations, dict):
        raise CheckpointError(
            f"{where}input_activations must be an object or null, got {short(activations)}"
        )
    if group.get("output_activations"):
        raise CheckpointError(f"{where}output_activations are not supported")
    if form == "pack-quantized" and kind == "int" and activations is None:
        _admit(f"{at}num_bits", bits, 4, 8)
        _admit(f"{at}strategy", strategy, "channel", "group")
        size = -1 if strategy == "channel" else _group_size(weights, ("group_size",), at)
        order = weights.get("actorder")
        _admit(f"{at}actorder", order, None, "weight", "static", "group", "dynamic")
        return WNA16LinearMethod(bits, size, symmetric, order in ("group", "dynamic"))
    formats = {"int": "int-quantized", "float": "float-quantized"}
    if form not in (formats[kind], "naive-quantized") or (kind == "int" and activations is None):
        raise CheckpointError(
            f"{where}format {short(form)} for {bits}-bit {kind} weights and activations "
            f"{short(activations)} is not supported; supported: pack-quantized int weights alone, "
            "int-quantized int8 weights and activations, float-quantized FP8 weights with or without "
            "activations"
        )
    _admit(f"{at}num_bits", bits, 8)
    _admit(f"{at}symmetric", symmetric, True)
    _admit(f"{at}strategy", strategy, "channel", "tensor")
    if activations is not None:
        _check_activations(activations, kind, f"{where}input_activations: ")
    if kind == "int":
        return W8A8Int8LinearMethod(strategy)
    return Fp8LinearMethod(strategy, quantize_activations=activations is not None)


def _check_activations(raw: Object, kind: str, where: str) -> None:
    """Activations must get their scales row by row, when they are there."""
    _admit(f"{where}num_bits", raw.get("num_bits"), 8)
    _admit(f"{where}type", raw.get("type", "int"), kind)
    _admit(f"{where}symmetric", raw.get("symmetric", True), True)
    _admit(f"{where}dynamic", raw.get("dynamic", False), True)
    _admit(f"{where}strategy", raw.get("strategy"), "token")


@dataclass(frozen=True)
class NoQuantizationConfig(QuantizationConfig):
    """Nothing is quantised."""

    @classmethod
    def from_config(cls, config: Object) -> NoQuantizationConfig:
        return cls()

    def get_quant_method(self, name: str) -> LinearMethod:
        return UnquantizedLinearMethod()


@dataclass(frozen=True)
class OnlineQuantizationConfig(QuantizationConfig):
    """A checkpoint of floats whose layers are quantised while it is loaded; the head stays as it is
    (`vllm/model_executor/layers/quantization/online/base.py:69 OnlineQuantizationConfig`).

    Attributes:
        method: of every layer's linears; its `create_weights` asks for the float weight.
    """

    method: LinearMethod

    @classmethod
    def from_config(cls, config: Object) -> OnlineQuantizationConfig:
        raise CheckpointError("no file asks to be quantised while it is loaded")

    def get_quant_method(self, name: str) -> LinearMethod:
        return UnquantizedLinearMethod() if name == "lm_head" else self.method


METHODS: dict[str, type[QuantizationConfig]] = {
    "awq": AWQConfig,
    "compressed-tensors": CompressedTensorsConfig,
    "gptq": GPTQConfig,
}
"""By `quant_method`, the configs that are read
(`vllm/model_executor/layers/quantization/__init__.py:109 get_quantization_config`)."""


def get_quantization_config(raw: Object) -> QuantizationConfig:
    """The config of a checkpoint from its `quantization_config`; an empty one means nothing is quantised.

    Raises CheckpointError for a method that is not known, and for what its config refuses.
    """
    if not raw:
        return NoQuantizationConfig()
    name = raw.get("quant_method", "unknown")
    config_cls = METHODS.get(name) if isinstance(name, str) else None
    if config_cls is None:
        raise CheckpointError(
            f"the checkpoint is quantised (quantization_config.quant_method {short(name)}); "
            f"supported: {', '.join(METHODS)}, or weights in float32, float16, bfloat16"
        )
    return config_cls.from_config(raw)
