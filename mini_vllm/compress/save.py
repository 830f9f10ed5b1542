"""A quantised checkpoint as vLLM reads it: five layouts of one linear layer, and the config that names them.

Each layout mirrors what a class in `vllm/model_executor/layers/quantization/` asks for by name:

    pack-quantized    CompressedTensorsWNA16     weight_packed, weight_scale, weight_shape;
                                                 with a zero point weight_zero_point
    int-quantized     CompressedTensorsW8A8Int8  weight in int8, weight_scale
    float-quantized   CompressedTensorsW8A8Fp8   weight in FP8 E4M3, weight_scale
    gptq              AutoGPTQLinearMethod       qweight, qzeros, scales, g_idx
    awq               AWQLinearMethod            qweight, qzeros, scales

All tensors go into one file, and all layers are stored alike. Left out: several files for a large model,
layers that differ, FP4.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mini_vllm.layers.quantization.grid import (
    LARGEST,
    QuantArgs,
    QuantizedWeight,
    bfloat16_bits,
    stored_as,
)
from mini_vllm.layers.quantization.pack import pack_awq, pack_int32
from mini_vllm.model_loader import expected_tensors, load_config, read_json
from mini_vllm.utils.untrusted import shorten_repr

Array = NDArray[Any]
Format = Literal["pack-quantized", "int-quantized", "float-quantized", "awq", "gptq"]
Tensors = dict[str, tuple[str, Array]]
"""By name: the dtype as a safetensors file writes it, and an array of as many bytes."""

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)
"""What else of a checkpoint goes along, where it is there."""


# -- tensors and files ----------------------------------------------------------------------------

_NUMPY = {"F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I8": "i1", "F8_E4M3": "u1"}
_SAFETENSORS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def _float_tensor(name: str, values: Array, dtype: str) -> tuple[str, Array]:
    """float32 numbers in the dtype of a checkpoint; refused where one would become infinite."""
    numbers = np.asarray(values, np.float32)
    largest = LARGEST[dtype]
    if numbers.size and float(np.abs(numbers).max()) > largest:
        worst = numbers.reshape(-1)[int(np.abs(numbers).argmax())]
        raise ValueError(f"tensor {name!r} holds {worst}, and {dtype} ends at {largest:.7g}")
    if dtype == "bfloat16":
        return "BF16", bfloat16_bits(numbers)
    return _SAFETENSORS[dtype], numbers.astype(_NUMPY[_SAFETENSORS[dtype]])


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """Write a `*.safetensors` file: the header's length, the header in JSON, the tensors' bytes.

    By hand, because numpy has neither bfloat16 nor FP8, so the package's numpy front end has not either.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, array) in tensors.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors begin at a multiple of 8
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def check_new_folder(out: Path) -> None:
    """Raise ValueError unless `out` can be made, or is an empty folder whose place another can take."""
    shown = shorten_repr(str(out), 300)
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise ValueError(f"{shown} exists and is not an empty folder; nothing is overwritten")
    if out.exists() and (out.samefile(".") or os.path.ismount(out)):
        raise ValueError(
            f"{shown} is the current folder or a mount point, whose place no other folder can take: "
            "name a folder inside of it"
        )
    parent = next(each for each in out.absolute().parents if each.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ValueError(
            f"{shown} cannot be made: {shorten_repr(str(parent), 300)} must be a folder that one may write to"
        )


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A folder to write into that becomes `out` in one step if all goes well, and vanishes otherwise.

    Raises ValueError: see `check_new_folder`.
    """
    check_new_folder(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name[:100]}.", dir=out.parent))
    try:
        yield partial
        # A temporary folder is its owner's alone; a folder that mkdir makes follows the umask.
        probe = partial / "probe"
        probe.mkdir()
        partial.chmod(probe.stat().st_mode & 0o777)
        probe.rmdir()
        if out.exists():
            out.rmdir()
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


# -- one layer ------------------------------------------------------------------------------------


def _unsigned(weight: QuantizedWeight) -> Array:
    """Codes as packed words hold them: a symmetric one with 2^(bits - 1) added."""
    return weight.codes + (1 << (weight.args.num_bits - 1) if weight.args.symmetric else 0)


def _scales(name: str, weight: QuantizedWeight) -> tuple[str, Array]:
    """Scales in their dtype, [out, groups]; refused if the file would hold other numbers."""
    dtype = weight.args.scale_dtype or "float32"
    if not np.array_equal(stored_as(weight.scale, dtype), weight.scale):
        raise ValueError(
            f"{name}: its scales are no {dtype} numbers, so its codes were chosen for other scales"
        )
    rows = weight.shape[0]
    return _float_tensor(name, np.broadcast_to(weight.scale, (rows, weight.scale.shape[1])), dtype)


def _pack_quantized(name: str, weight: QuantizedWeight) -> Tensors:
    bits = weight.args.num_bits
    tensors: Tensors = {
        "weight_packed": ("I32", pack_int32(_unsigned(weight), bits, axis=1)),
        "weight_scale": _scales(name, weight),
        "weight_shape": ("I64", np.array(weight.shape, "<i8")),
    }
    if weight.zero_point is not None:
        tensors["weight_zero_point"] = ("I32", pack_int32(weight.zero_point, bits, axis=0))
    if weight.g_idx is not None:
        tensors["weight_g_idx"] = ("I32", weight.g_idx.astype("<i4"))
    return tensors


def _int_quantized(name: str, weight: QuantizedWeight) -> Tensors:
    return {
        "weight": ("I8", weight.codes.astype(np.int8)),
        "weight_scale": _scales(name, weight),
    }


def _float_quantized(name: str, weight: QuantizedWeight) -> Tensors:
    return {
        "weight": ("F8_E4M3", weight.codes.astype(np.uint8)),
        "weight_scale": _scales(name, weight),
    }


def _gptq(name: str, weight: QuantizedWeight) -> Tensors:
    bits = weight.args.num_bits
    dtype, scales = _scales(name, weight)
    columns, groups = weight.shape[1], weight.scale.shape[1]
    # Readers of this format add 1 to the zero point, so 8 is written as 7.
    zeros = np.full(scales.T.shape, (1 << (bits - 1)) - 1)
    g_idx = weight.g_idx if weight.g_idx is not None else np.arange(columns) // (columns // groups)
    return {
        "qweight": ("I32", pack_int32(_unsigned(weight).T, bits, axis=0)),
        "qzeros": ("I32", pack_int32(zeros, bits, axis=1)),
        "scales": (dtype, scales.T),
        "g_idx": ("I32", g_idx.astype("<i4")),
    }


def _awq(name: str, weight: QuantizedWeight) -> Tensors:
    assert weight.zero_point is not None
    dtype, scales = _scales(name, weight)
    return {
        "qweight": ("I32", pack_awq(weight.codes.T)),
        "qzeros": ("I32", pack_awq(weight.zero_point.T)),
        "scales": (dtype, scales.T),
    }


_WRITERS: dict[str, Callable[[str, QuantizedWeight], Tensors]] = {
    "pack-quantized": _pack_quantized,
    "int-quantized": _int_quantized,
    "float-quantized": _float_quantized,
    "gptq": _gptq,
    "awq": _awq,
}


def _check_layer(name: str, weight: QuantizedWeight, fmt: str) -> None:
    """Refuse a layer that the layout cannot hold."""
    args, (rows, columns) = weight.args, weight.shape
    kind = (
        f"{args.num_bits}-bit {args.type}, symmetric {args.symmetric}, strategy {args.strategy!r}"
    )
    by_row = args.strategy in ("channel", "group")
    rules: dict[str, tuple[bool, str]] = {
        "pack-quantized": (
            args.type == "int" and args.num_bits in (4, 8) and by_row,
            "4-bit or 8-bit int, strategy 'channel' or 'group'",
        ),
        "int-quantized": (
            args.type == "int" and args.num_bits == 8 and args.symmetric
            and args.strategy == "channel",
            "8-bit int, symmetric True, strategy 'channel'",
        ),
        "float-quantized": (
            args.type == "float" and args.strategy == "channel",
            "8-bit float, strategy 'channel'",
        ),
        "gptq": (
            args.type == "int" and args.num_bits in (4, 8) and args.symmetric and by_row,
            "4-bit or 8-bit int, symmetric True, strategy 'channel' or 'group'",
        ),
        "awq": (
            args.type == "int" and args.num_bits == 4 and not args.symmetric and by_row,
            "4-bit int, symmetric False, strategy 'channel' or 'group'",
        ),
    }  # fmt: skip
    fits, rule = rules[fmt]
    if not fits:
        raise ValueError(f"{name}: format {fmt!r} holds {rule}; got {kind}")
    if fmt in ("gptq", "awq") and args.scale_dtype != "float16":
        raise ValueError(
            f"{name}: format {fmt!r} holds scales in float16, got scale_dtype {args.scale_dtype!r}"
        )
    if weight.g_idx is not None and fmt not in ("gptq", "pack-quantized"):
        raise ValueError(f"{name}: format {fmt!r} has no place for a g_idx")
    for axis, size, packed in (
        ("inputs", columns, fmt in ("pack-quantized", "gptq")),
        ("outputs", rows, fmt in ("gptq", "awq") or weight.zero_point is not None),
    ):
        if packed and size * args.num_bits % 32 != 0:
            raise ValueError(
                f"{name}: its {size} {axis} must be a multiple of {32 // args.num_bits}, as many as "
                f"a word of 32 bits holds, got {size}"
            )


# -- the checkpoint -------------------------------------------------------------------------------


def _args_json(args: QuantArgs) -> dict[str, Any]:
    return {
        "num_bits": args.num_bits,
        "type": args.type,
        "symmetric": args.symmetric,
        "strategy": args.strategy,
        "group_size": args.group_size,
        "dynamic": args.dynamic,
    }


def quantization_config(fmt: Format, args: QuantArgs, desc_act: bool = False) -> dict[str, Any]:
    """What `config.json` says under `quantization_config`, which is all that vLLM chooses a method by.

    Args:
        args: of the weights. Activations of int-quantized and float-quantized are rounded at run time,
            a scale a token.
        desc_act: columns are not in the order of their groups (GPTQ's "activation order").

    Read by `CompressedTensorsConfig.from_config`, `AutoGPTQConfig.from_config`, `AWQConfig.from_config`.
    """
    if fmt in ("awq", "gptq"):
        config: dict[str, Any] = {
            "quant_method": fmt,
            "bits": args.num_bits,
            "group_size": -1 if args.group_size is None else args.group_size,
        }
        if fmt == "awq":
            return config | {"zero_point": True, "version": "gemm", "modules_to_not_convert": None}
        return config | {
            "desc_act": desc_act,
            "sym": True,
            "lm_head": False,
            "checkpoint_format": "gptq",
            "pack_dtype": "int32",
        }
    weights = _args_json(args)
    if desc_act:
        weights["actorder"] = "group"
    activations = None
    if fmt != "pack-quantized":
        activations = _args_json(QuantArgs(8, args.type, strategy="token", dynamic=True))
    return {
        "quant_method": "compressed-tensors",
        "format": fmt,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": activations,
                "output_activations": None,
            }
        },
    }


def save_quantized(
    folder: str | Path,
    out: str | Path,
    layers: Mapping[str, QuantizedWeight],
    rest: Mapping[str, Array],
    fmt: Format,
) -> int:
    """Write the checkpoint `out`: the configuration and tokenizer of `folder`, and these tensors.

    Args:
        folder: the checkpoint that was quantised; it is only read.
        layers: by name in the checkpoint without `.weight`, such as `model.layers.0.mlp.up_proj`; all of one
            kind (`QuantArgs`).
        rest: all other tensors by full name, float32; stored in the dtype that `config.json` names.
        fmt: the layout.

    Returns:
        Bytes of all tensors written.

    Raises:
        ValueError: `out` is no new or empty folder, a layer does not fit the layout, or the tensors are
            not exactly those of the model. Nothing is written then.
    """
    folder, out = Path(folder), Path(out)
    if fmt not in _WRITERS:
        raise ValueError(f"format must be one of {', '.join(_WRITERS)}, got {shorten_repr(fmt)}")
    config = load_config(folder)
    if not layers:
        raise ValueError("there is no layer to quantise")
    there = {f"{name}.weight": weight.shape for name, weight in layers.items()}
    there |= {name: values.shape for name, values in rest.items()}
    expected = expected_tensors(config)
    for name in sorted(expected.keys() | there.keys()):
        if expected.get(name) != there.get(name):
            raise ValueError(
                f"tensor {name!r}: config.json asks for shape {expected.get(name)}, got "
                f"{there.get(name)}"
            )
    first = next(iter(layers.values()))
    tensors: Tensors = {}
    for name, weight in layers.items():
        if weight.args != first.args or (weight.g_idx is None) != (first.g_idx is None):
            raise ValueError(
                f"{name}: all layers must be stored alike: {first.args}, got {weight.args}"
            )
        _check_layer(name, weight, fmt)
        for part, tensor in _WRITERS[fmt](name, weight).items():
            tensors[f"{name}.{part}"] = tensor
    for name, values in rest.items():
        tensors[name] = _float_tensor(name, values, config.dtype)
    raw = read_json(folder / "config.json")
    raw["quantization_config"] = quantization_config(fmt, first.args, first.g_idx is not None)
    with whole_folder(out) as partial:
        for file in FILES:
            if (folder / file).is_file():
                shutil.copyfile(folder / file, partial / file)
        (partial / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
        write_safetensors(partial / "model.safetensors", dict(sorted(tensors.items())))
    return sum(array.nbytes for _, array in tensors.values())
