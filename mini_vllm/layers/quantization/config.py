"""Which linear method the layers of a checkpoint have: its `quantization_config`, read and checked.

Mirrors the config classes of `vllm/model_executor/layers/quantization/`; the registry that names them is
`__init__.py`, there as here. What no method here can compute is refused, with the value and with what
would be admitted. Left out: a method that is asked for and overrides the file's; all of
upstream's names but three.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mini_vllm.config.checks import CheckpointError
from mini_vllm.layers.quantization.base import (
    LinearMethod,
    QuantizationConfig,
    UnquantizedLinearMethod,
)
from mini_vllm.layers.quantization.linear import (
    AWQLinearMethod,
    GPTQLinearMethod,
    WNA16LinearMethod,
)
from mini_vllm.layers.quantization.scaled import Fp8LinearMethod, W8A8Int8LinearMethod
from mini_vllm.utils.untrusted import shorten_repr

Object = Mapping[str, Any]


def _get(raw: Object, keys: tuple[str, ...], kinds: tuple[type, ...], where: str) -> Any:
    """The value under the first of `keys` that is there. Raises CheckpointError for none, or another kind."""
    for key in keys:
        if key in raw:
            value = raw[key]
            if type(value) not in kinds:
                names = " or ".join(kind.__name__ for kind in kinds)
                raise CheckpointError(f"{where}{key} must be {names}, got {shorten_repr(value)}")
            return value
    raise CheckpointError(f"{where}{' or '.join(keys)} is missing")


def _admit(name: str, value: object, *admitted: object) -> None:
    if not any(type(value) is type(each) and value == each for each in admitted):
        raise CheckpointError(
            f"{name} {shorten_repr(value)} is not supported; supported: {', '.join(map(str, admitted))}"
        )


def _group_size(raw: Object, keys: tuple[str, ...], where: str) -> int:
    size: int = _get(raw, keys, (int,), where)
    if size != -1 and size < 1:
        raise CheckpointError(
            f"{where}group_size must be at least 1, or -1 for all of a row, got {shorten_repr(size)}"
        )
    return size


def _names(raw: Object, key: str, where: str) -> tuple[str, ...]:
    """A list of texts, possibly absent or null."""
    value = raw.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise CheckpointError(f"{where}{key} must be a list of names, got {shorten_repr(value)}")
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
                f"{where}dynamic {shorten_repr(config['dynamic'])} is not supported: all layers have the "
                "same bits"
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
        if config.get("transform_config"):
            raise CheckpointError(
                f"{where}transform_config {shorten_repr(config['transform_config'])} is not supported"
            )
        _check_sparsity(config.get("sparsity_config"), f"{where}sparsity_config: ")
        # Without groups nothing is quantised: a file of a model that was made sparse, and is stored densely.
        groups = _get({"config_groups": {}, **config}, ("config_groups",), (dict,), where)
        targets: dict[str, LinearMethod] = {}
        for label, group in groups.items():
            at = f"{where}{shorten_repr(label)}: "
            if not isinstance(group, dict):
                raise CheckpointError(f"{at}must be an object, got {shorten_repr(group)}")
            names = _names(group, "targets", at)
            if len(names) == 1 and names[0].endswith("Attention"):
                continue  # upstream skips it: `kv_cache_scheme` says how K and V are kept
            method = _scheme(group, group.get("format") or config.get("format"), at)
            targets |= dict.fromkeys(names, method)
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


def _check_sparsity(sparsity: object, where: str) -> None:
    """Sparse weights that are stored densely are weights like others. Upstream, too, takes what names no
    target."""
    if not sparsity:
        return
    if not isinstance(sparsity, dict):
        raise CheckpointError(f"{where}must be an object or null, got {shorten_repr(sparsity)}")
    if sparsity.get("targets"):
        raise CheckpointError(
            f"{where}targets {shorten_repr(sparsity['targets'])} are not supported, and vLLM has given "
            "them up, "
            "too: a sparse model must be stored densely, and name none"
        )


def _kv_cache_dtype(scheme: object, where: str) -> str:
    """Such a file turns a cache in E4M3 on, with one scale for K and one for V in each layer
    (`vllm/model_executor/layers/attention/attention.py:238 in Attention.__init__`)."""
    if scheme is None:
        return "auto"
    if not isinstance(scheme, dict):
        raise CheckpointError(f"{where}must be an object or null, got {shorten_repr(scheme)}")
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
        raise CheckpointError(f"{where}{shorten_repr(text)} is no pattern: {error}") from None


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
    bits = _get({"num_bits": 8, **weights}, ("num_bits",), (int,), at)
    symmetric = weights.get("symmetric", True)
    kind, strategy, size = weights.get("type", "int"), _strategy(weights), weights.get("group_size")
    _admit(f"{at}dynamic", weights.get("dynamic", False), False)
    _admit(f"{at}symmetric", symmetric, True, False)
    _admit(f"{at}type", kind, "int", "float")
    activations = group.get("input_activations")
    if activations is not None and not isinstance(activations, dict):
        raise CheckpointError(
            f"{where}input_activations must be an object or null, got {shorten_repr(activations)}"
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
            f"{where}format {shorten_repr(form)} for {bits}-bit {kind} weights and activations "
            f"{shorten_repr(activations)} is not supported; supported: pack-quantized int weights alone, "
            "int-quantized int8 weights and activations, float-quantized FP8 weights with or without "
            "activations"
        )
    _admit(f"{at}num_bits", bits, 8)
    _admit(f"{at}symmetric", symmetric, True)
    _admit(f"{at}strategy", strategy, "channel", "tensor")
    if activations is None:
        return Fp8LinearMethod(strategy, quantize_activations=False)
    static, input_symmetric = _read_activations(activations, kind, f"{where}input_activations: ")
    if kind == "int":
        return W8A8Int8LinearMethod(strategy, static, input_symmetric)
    return Fp8LinearMethod(strategy, is_static_input_scheme=static)


def _strategy(raw: Object) -> Any:
    """What shares a scale, where the file leaves it out."""
    size, strategy = raw.get("group_size"), raw.get("strategy")
    if strategy is None:
        return "tensor" if size is None else "channel" if size == -1 else "group"
    return strategy


def _read_activations(raw: Object, kind: str, where: str) -> tuple[bool, bool]:
    """Whether the activations' scale is in the file, and whether their code 0 stands for 0.

    Raises CheckpointError: scales row by row are made when the row is there, one for all rows is not.
    """
    _admit(f"{where}num_bits", raw.get("num_bits", 8), 8)
    _admit(f"{where}type", raw.get("type", "int"), kind)
    dynamic, symmetric = raw.get("dynamic", False), raw.get("symmetric", True)
    _admit(f"{where}dynamic", dynamic, True, False)
    # In FP8 the strategy of what is scaled row by row is not asked for upstream, either.
    if not (kind == "float" and dynamic):
        strategy = "token" if dynamic else "tensor"
        _admit(f"{where}strategy with dynamic {dynamic}", _strategy(raw), strategy)
    _admit(f"{where}symmetric", symmetric, True, *([False] if kind == "int" else []))
    return not dynamic, symmetric


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
