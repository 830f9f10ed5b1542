"""Quantised copies of the shipped tiny Llama, spelled as other libraries' files and older ones spell it.

Each layout says what real vLLM's CPU build makes of it and what `mini_vllm` does, as those in
`checkpoint_files.py`. `test_quantized_spellings.py` holds ours, `test_quantized_spellings_vllm.py` theirs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mini_vllm.compress.save import write_safetensors
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.layers.quantization.grid import QuantArgs
from mini_vllm.model_loader.safetensors_file import read_safetensors
from tests.engine.helpers.models.checkpoint_files import edit
from tests.engine.helpers.quantization.quantized_helpers import Case, cases, write_quantized

Answer = Literal["the same", "another", "refused"]
"""Our products and tokens; others; an error."""
CODES = {"float32": "F32", "int8": "I8", "int64": "I64", "uint8": "F8_E4M3"}
STATIC = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor", "dynamic": False}
ROWS = {"num_bits": 8, "symmetric": False, "strategy": "token", "dynamic": True}
"""Each row gets a scale and a zero point."""


@dataclass(frozen=True)
class Spelling:
    """A folder.

    Attributes:
        make: changes a copy of the model with int8 weights and activations.
        vllm: what real vLLM answers.
        words: of our refusal; empty: it loads.
    """

    make: Callable[[Path], None]
    vllm: Answer
    words: tuple[str, ...]


SPELLINGS: dict[str, Spelling] = {}


def spelling(
    vllm: Answer, *words: str
) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """Put a function into `SPELLINGS` under its name."""

    def add(make: Callable[[Path], None]) -> Callable[[Path], None]:
        SPELLINGS[make.__name__] = Spelling(make, vllm, words)
        return make

    return add


def make_folder(name: str, base: Path, folder: Path) -> Path:
    """A copy of `base`, which `write_base` made, at `folder` in the spelling of that name."""
    shutil.copytree(base, folder)
    SPELLINGS[name].make(folder)
    return folder


def write_base(folder: Path) -> Path:
    """The shipped model with weights of 7 bits in int8. So small their products do not saturate where vLLM's
    kernel adds two of them in 16 bits, and are right on any processor."""
    write_quantized(DEFAULT_MODEL, folder, cases(group=128)["w8a8"])

    def halve(tensors: dict[str, np.ndarray]) -> None:
        for name in [n for n in tensors if n.endswith("_proj.weight")]:
            tensors[name] = tensors[name] >> 1
            tensors[f"{name}_scale"] = tensors[f"{name}_scale"] * 2

    change_tensors(folder, halve)
    return folder


@cache
def fp8() -> Case:
    return Case("float-quantized", QuantArgs(8, "float", strategy="channel"))


def settings(folder: Path) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((folder / "config.json").read_text())["quantization_config"]
    return raw


def change(folder: Path, **changes: Any) -> None:
    edit(folder, quantization_config=settings(folder) | changes)


def change_group(folder: Path, **changes: Any) -> None:
    groups = settings(folder)["config_groups"]
    change(folder, config_groups={name: group | changes for name, group in groups.items()})


def change_tensors(folder: Path, to: Callable[[dict[str, np.ndarray]], None]) -> None:
    path = folder / "model.safetensors"
    tensors = read_safetensors(path, quantized=True)
    to(tensors)
    write_safetensors(path, {n: (CODES[str(a.dtype)], a) for n, a in tensors.items()})


def be_static(
    folder: Path, scale: float = 0.05, zero_point: int | None = None, shape: tuple[int, ...] = (1,)
) -> None:
    """One scale for the activations of each projection, in the file."""
    change_group(folder, input_activations=STATIC | {"symmetric": zero_point is None})

    def add(tensors: dict[str, np.ndarray]) -> None:
        for name in [n for n in tensors if n.endswith("_proj.weight")]:
            prefix = name.removesuffix("weight")
            tensors[f"{prefix}input_scale"] = np.full(shape, scale, np.float32)
            if zero_point is not None:
                tensors[f"{prefix}input_zero_point"] = np.full(shape, zero_point, np.int8)

    change_tensors(folder, add)


# Where the settings stand.


@spelling("the same")
def as_it_is(folder: Path) -> None:
    pass


@spelling("the same")
def compression_config(folder: Path) -> None:
    edit(folder, compression_config=settings(folder), quantization_config=None)


@spelling("refused", "compression_config.quant_method 'sparseml'")
def compression_config_of_sparseml(folder: Path) -> None:
    change(folder, quant_method="sparseml")
    compression_config(folder)


@spelling("refused", "dtype I8")
def compression_config_beside_an_empty_other(folder: Path) -> None:
    edit(folder, compression_config=settings(folder), quantization_config={})


@spelling("the same")
def with_an_underscore(folder: Path) -> None:
    change(folder, quant_method="compressed_tensors")


@spelling("the same")
def in_capitals(folder: Path) -> None:
    change(folder, quant_method="Compressed-Tensors")


@spelling("refused", "hf_quant_config.json", "'FP8'", "not supported")
def model_opts_file(folder: Path) -> None:
    edit(folder, quantization_config=None)
    told = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(told))


@spelling("the same")
def model_opts_file_of_floats(folder: Path) -> None:
    shutil.copyfile(DEFAULT_MODEL / "model.safetensors", folder / "model.safetensors")
    edit(folder, quantization_config=None)
    told = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": None}}
    (folder / "hf_quant_config.json").write_text(json.dumps(told))


# Sparsity.


@spelling("the same")
def dense_sparsity(folder: Path) -> None:
    sparsity = {"format": "dense", "global_sparsity": 0.12, "sparsity_structure": "unstructured"}
    change(folder, sparsity_config=sparsity | {"ignore": [], "targets": []})


@spelling("the same")
def dense_sparsity_without_targets(folder: Path) -> None:
    change(folder, sparsity_config={"format": "dense", "registry_requires_subclass": False})


@spelling("the same")
def empty_sparsity(folder: Path) -> None:
    change(folder, sparsity_config={})


@spelling("refused", "sparsity_config: targets ['Linear']")
def dense_sparsity_with_targets(folder: Path) -> None:
    change(folder, sparsity_config={"format": "dense", "targets": ["Linear"]})


@spelling("refused", "sparsity_config: targets ['Linear']")
def sparse_weights(folder: Path) -> None:
    change(folder, sparsity_config={"format": "sparse-24-bitmask", "targets": ["Linear"]})


@spelling("the same")
def sparse_once_and_not_quantised(folder: Path) -> None:
    """Floats, and settings without groups."""
    shutil.copyfile(DEFAULT_MODEL / "model.safetensors", folder / "model.safetensors")
    sparsity = {"format": "dense", "targets": []}
    told = {"quant_method": "compressed-tensors", "format": "dense", "sparsity_config": sparsity}
    edit(folder, quantization_config=told)


# Groups.


@spelling("the same")
def a_group_of_attention(folder: Path) -> None:
    groups = settings(folder)["config_groups"]
    kv = {"targets": ["LlamaAttention"], "weights": None, "input_activations": STATIC}
    change(folder, config_groups={**groups, "attention": kv})


@spelling("the same")
def naive(folder: Path) -> None:
    change(folder, format="naive-quantized")


@spelling("the same")
def a_format_of_its_own(folder: Path) -> None:
    change(folder, format="mixed-precision")
    change_group(folder, format="int-quantized")


@spelling("the same")
def ignore_by_pattern(folder: Path) -> None:
    change(folder, ignore=["re:.*lm_head", "re:model\\.embed_tokens"])


@spelling("the same")
def without_what_has_a_default(folder: Path) -> None:
    change_group(
        folder,
        weights={"strategy": "channel"},
        input_activations={"dynamic": True, "strategy": "token"},
    )


# Activations whose scale is in the file.


@spelling("the same")
def static_scales(folder: Path) -> None:
    be_static(folder)


@spelling("the same")
def static_scales_without_a_shape(folder: Path) -> None:
    be_static(folder, shape=())


@spelling("the same")
def static_scales_by_default(folder: Path) -> None:
    be_static(folder)
    change_group(folder, input_activations={"num_bits": 8})


@spelling("the same")
def static_scales_and_zero_points(folder: Path) -> None:
    be_static(folder, zero_point=-20)


@spelling("the same")
def a_static_scale_that_cuts(folder: Path) -> None:
    """Most numbers are beyond the last code."""
    be_static(folder, scale=0.002)


@spelling("another", "q_proj.input_scale and", "k_proj.input_scale must be equal")
def static_scales_that_differ(folder: Path) -> None:
    """Upstream keeps the one of q, k and v that it reads last."""
    be_static(folder)

    def differ(tensors: dict[str, np.ndarray]) -> None:
        for name in [n for n in tensors if n.endswith("k_proj.input_scale")]:
            tensors[name] = tensors[name] * 2

    change_tensors(folder, differ)


@spelling("another", "lacks tensor", "q_proj.input_scale")
def static_scales_that_are_missing(folder: Path) -> None:
    """Upstream computes with what the memory held."""
    change_group(folder, input_activations=STATIC)


@spelling("refused", "input_scale", "no place for")
def static_scales_that_nobody_asked_for(folder: Path) -> None:
    be_static(folder)
    change_group(folder, input_activations=STATIC | {"dynamic": True, "strategy": "token"})


@spelling("the same")
def zero_points_for_each_row(folder: Path) -> None:
    change_group(folder, input_activations=ROWS)


@spelling("refused")
def static_scales_in_fp8(folder: Path) -> None:
    """Its CPU build has no kernel for it; ours is held to the formula."""
    shutil.rmtree(folder)
    write_quantized(DEFAULT_MODEL, folder, fp8())
    be_static(folder)
    change_group(folder, input_activations=STATIC | {"type": "float"})
