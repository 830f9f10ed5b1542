"""A checkpoint made smaller: which method rounds its linear layers how, and in which layout it is saved.

vLLM itself has no such code. It reads checkpoints that llm-compressor, GPTQModel or AutoAWQ have made;
the methods here are theirs, on numpy. Embedding, norms and `lm_head` are not quantised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mini_vllm.compress.awq import awq
from mini_vllm.compress.calibrate import LayerInput, calibrate
from mini_vllm.compress.evaluate import CALIBRATION, load_documents
from mini_vllm.compress.gptq import gptq
from mini_vllm.compress.save import Format, check_new_folder, save_quantized
from mini_vllm.compress.smoothquant import smooth
from mini_vllm.layers.quantization.grid import (
    LARGEST,
    QuantArgs,
    QuantizedWeight,
    check_group_size,
    round_to_nearest,
)
from mini_vllm.model_loader import (
    CheckpointError,
    LlamaConfig,
    check_weights,
    expected_tensors,
    find_model,
    load_config,
    load_weights,
)
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.utils.threads import shared_products
from mini_vllm.utils.untrusted import shorten_repr

Array = NDArray[np.float32]
Weights = Mapping[str, Array]
Inputs = Mapping[str, LayerInput]

DEFAULT_GROUP_SIZE = 128


@dataclass(frozen=True)
class Method:
    """One way to quantise a checkpoint."""

    name: str
    fmt: Format
    args: QuantArgs
    """Of the weights; the dtype of the scales is filled in for the checkpoint."""
    calibrated: bool
    """It looks at texts first."""


_INT4 = QuantArgs(4, strategy="group", group_size=DEFAULT_GROUP_SIZE)
_UINT4 = replace(_INT4, symmetric=False)
_INT8 = QuantArgs(8, strategy="channel")
_FP8 = QuantArgs(8, "float", strategy="channel")

METHODS = {
    method.name: method
    for method in (
        Method("int8", "pack-quantized", _INT8, calibrated=False),
        Method("int4", "pack-quantized", _INT4, calibrated=False),
        Method("gptq", "gptq", _INT4, calibrated=True),
        Method("awq", "awq", _UINT4, calibrated=True),
        Method("w8a8", "int-quantized", _INT8, calibrated=False),
        Method("smoothquant-w8a8", "int-quantized", _INT8, calibrated=True),
        Method("fp8", "float-quantized", _FP8, calibrated=False),
    )
}


def find_method(name: str, group_size: int | None = None) -> Method:
    """The method of this name, its group size filled in.

    Args:
        name: a key of `METHODS`, for those that have groups also with `-gN` behind it: `int4-g128`.
        group_size: weights that share a scale; -1 for a whole row. 128 where neither says anything.

    Raises:
        ValueError: no such method, a group size for a method that has none, or two that differ.
    """
    match = re.fullmatch(r"(.+)-g(\d{1,9})", name)
    base, in_name = (match[1], int(match[2])) if match else (name, None)
    if base not in METHODS:
        raise ValueError(
            f"method must be one of {', '.join(METHODS)} (or int4-g64, say), got {shorten_repr(name)}"
        )
    method = METHODS[base]
    if in_name is not None and group_size is not None and in_name != group_size:
        raise ValueError(f"method {name} and group size {group_size} disagree: give one of the two")
    size = group_size if group_size is not None else in_name
    if size is None:
        return method
    if method.args.group_size is None:
        raise ValueError(
            f"method {base} has one scale for each row, so it takes no group size, got {size}"
        )
    if size == -1:
        return replace(method, args=replace(method.args, strategy="channel", group_size=None))
    return replace(method, args=replace(method.args, group_size=size))


def _with_scale_dtype(args: QuantArgs, fmt: Format, dtype: str) -> QuantArgs:
    """Weight-only scales take 16 bits, as there may be many; those of W8A8 stay float32, as in vLLM."""
    if fmt in ("int-quantized", "float-quantized"):
        return args
    if fmt == "pack-quantized" and dtype == "bfloat16":
        return replace(args, scale_dtype="bfloat16")
    return replace(args, scale_dtype="float16")


@dataclass(frozen=True)
class Summary:
    """What `quantize_checkpoint` has made."""

    method: Method
    layers: int
    """Linear layers, as the checkpoint names them."""
    weights: int
    """Numbers in them."""
    bytes_before: int
    """Of these layers, in the dtype that config.json names."""
    bytes_after: int
    """The same layers: codes, scales, zero points and what else the layout has."""
    rest_bytes: int
    """Of all other tensors, in that dtype. They are not quantised; AWQ and SmoothQuant change norms."""

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.bytes_after / self.weights


def linear_names(config: LlamaConfig) -> list[str]:
    """The linear layers of the decoder, by name in the checkpoint without `.weight`."""
    ending = "_proj.weight"
    return [n.removesuffix(".weight") for n in expected_tensors(config) if n.endswith(ending)]


def _check_groups(config: LlamaConfig, args: QuantArgs) -> None:
    """Raise ValueError, with a layer's name, where the group size does not divide its inputs."""
    if args.group_size is None:
        return
    # All decoder layers are alike, and a false config.json may name any number of them.
    config = replace(config, num_hidden_layers=1)
    shapes = expected_tensors(config)
    for name in linear_names(config):
        try:
            check_group_size(shapes[f"{name}.weight"][1], args.group_size)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


def _check_range(name: str, weight: Array, args: QuantArgs) -> None:
    """Raise ValueError where a weight is so large that its scale has no place in its dtype.

    The grid would end before it, because such a scale is cut off (`stored_as`).
    """
    dtype = args.scale_dtype or "float32"
    most = LARGEST[dtype] * (args.maximum - args.minimum) / 2
    largest = float(np.abs(weight).max())
    if largest > most:
        raise ValueError(
            f"{name}.weight holds a number of magnitude {largest:.7g}; with {args.num_bits} bits and "
            f"scales in {dtype} it must be at most {most:.7g}"
        )


def quantize_weights(
    config: LlamaConfig, weights: Weights, method: Method, inputs: Inputs | None = None
) -> tuple[dict[str, QuantizedWeight], dict[str, Array]]:
    """The linear layers as codes, and all other tensors.

    Args:
        weights: every tensor of the model by name, float32; not changed.
        inputs: of `calibrate`; only a method that is calibrated needs it.

    Returns:
        Layers by name without `.weight`, and the rest by full name. AWQ and SmoothQuant change norms, too.

    Raises ValueError where a calibrated method gets no inputs, or a weight is too large for
    the dtype of its scale.
    """
    args = _with_scale_dtype(method.args, method.fmt, config.dtype)
    for name in linear_names(config):
        _check_range(name, weights[f"{name}.weight"], args)
    if method.calibrated and inputs is None:
        raise ValueError(f"method {method.name} needs the inputs of the layers: see calibrate")
    if method.name == "awq" and inputs is not None:
        weights = awq(config, weights, inputs, args).weights
    if method.name == "smoothquant-w8a8" and inputs is not None:
        weights = smooth(config, weights, inputs)
    layers = {}
    for name in linear_names(config):
        weight = weights[f"{name}.weight"]
        if method.name == "gptq" and inputs is not None:
            layers[name] = gptq(weight, inputs[name].hessian, args)
        else:
            layers[name] = round_to_nearest(weight, args)
    linears = {f"{name}.weight" for name in layers}
    return layers, {n: weights[n] for n in expected_tensors(config) if n not in linears}


def quantize_checkpoint(
    folder: str | Path,
    out: str | Path,
    method: str,
    group_size: int | None = None,
    calibration: str | Path | None = None,
) -> Summary:
    """Write to `out` what `method` makes of the checkpoint in `folder`. All weights pass through memory.

    Args:
        folder: an unquantised Llama checkpoint.
        out: a new or an empty folder.
        method, group_size: see `find_method`.
        calibration: JSON list of texts for a method that is calibrated; the shipped ones otherwise.

    Raises:
        ValueError: (`CheckpointError` for a bad checkpoint) by value and rule; `out` is then as it was.
    """
    chosen = find_method(method, group_size)
    if calibration is not None and not chosen.calibrated:
        raise ValueError(f"method {chosen.name} looks at no text, so it takes no calibration file")
    folder, out = find_model(folder), Path(out)
    config = load_config(folder)
    if config.architecture != "LlamaForCausalLM":
        raise ValueError(
            f"{shorten_repr(str(folder), 300)} is a {config.architecture}: only a LlamaForCausalLM can "
            "be quantised"
        )
    if config.quantization_config:
        raise ValueError(
            f"{shorten_repr(str(folder), 300)} is quantised already: its config.json has a "
            "quantization_config"
        )
    _check_groups(config, chosen.args)
    check_new_folder(out)  # what follows may take long
    weights = load_weights(folder)
    try:
        check_weights(config, weights)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    inputs = None
    with shared_products():
        if chosen.calibrated:
            texts = CALIBRATION if calibration is None else Path(calibration)
            documents = load_documents(texts, folder)
            try:
                inputs = calibrate(LlamaForCausalLM(config, weights), documents)
            except ValueError as error:
                raise ValueError(f"{texts}: {error}") from error
        layers, rest = quantize_weights(config, weights, chosen, inputs)
    written = save_quantized(folder, out, layers, rest, chosen.fmt)
    width = 4 if config.dtype == "float32" else 2
    count = sum(weight.codes.size for weight in layers.values())
    rest_bytes = width * sum(values.size for values in rest.values())
    return Summary(chosen, len(layers), count, width * count, written - rest_bytes, rest_bytes)
