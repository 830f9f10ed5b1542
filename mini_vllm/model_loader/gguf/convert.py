"""From a GGUF file to a checkpoint folder, written once and moved into place when it is whole."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.config.checks import CheckpointError
from mini_vllm.model_loader.gguf.config import make_config
from mini_vllm.model_loader.gguf.tokenizer import make_tokenizer, make_tokenizer_config
from mini_vllm.utils.extras import how_to_get
from mini_vllm.utils.untrusted import MOST_OF_POINTER, describe_lfs_pointer, shorten_repr

VERSION = 1
"""Of what is written: a folder of another version is made again."""
_KEPT = ("F32", "F16", "BF16")
"""Types that stay; safetensors has the same names for them."""
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_OF_A_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d{1,9})\.(\w+)\.(weight|bias)")

Note = Callable[[str], None]


def rename(name: str) -> str:
    """A tensor's name in a checkpoint folder. Raises CheckpointError for one that no dense model has."""
    if name in _TOP:
        return _TOP[name]
    match = _BLOCK.fullmatch(name)
    if match is None or match[2] not in _OF_A_LAYER:
        raise CheckpointError(
            f"the GGUF file holds a tensor {shorten_repr(name)}, which no model here has"
        )
    return f"model.layers.{match[1]}.{_OF_A_LAYER[match[2]]}.{match[3]}"


def restore_rows(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of a Llama's q or k in the order of Hugging Face's files.

    llama.cpp turns neighbours, numbers 2i and 2i + 1 of a head, and its files have their rows in that order;
    Hugging Face turns i and i + D / 2.

    Args:
        weight: `[heads * D, ...]`.
    """
    split = weight.reshape(heads, -1, 2, *weight.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(weight.shape))


def _open(path: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise CheckpointError(
            f"{path} is a GGUF file, and reading one needs the package gguf: {how_to_get('gguf')}"
        ) from error
    try:
        with path.open("rb") as file:
            pointer = describe_lfs_pointer(file.read(MOST_OF_POINTER))
        if not pointer:
            return GGUFReader(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError) as error:
        raise CheckpointError(f"{path} is no GGUF file, or is cut off: {error}") from error
    raise CheckpointError(f"{path} is {pointer}")


def _describe(tensor: Any) -> tuple[str, tuple[int, ...]]:
    """The type and shape that a tensor of the GGUF file is written with."""
    kind = tensor.tensor_type.name
    return kind if kind in _KEPT else "F32", tuple(int(n) for n in reversed(tensor.shape))


def _floats(tensor: Any) -> NDArray[Any]:
    """A tensor's numbers, of 16 bits where it has those, bfloat16 as its bits; others as float32."""
    from gguf.quants import dequantize

    _, shape = _describe(tensor)
    if tensor.tensor_type.name == "BF16":
        data = tensor.data.view("<u2")
    elif tensor.tensor_type.name in _KEPT:
        data = tensor.data
    else:
        try:
            data = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        except NotImplementedError as error:
            raise CheckpointError(
                f"tensor {shorten_repr(tensor.name)} is of type {tensor.tensor_type.name}, which the "
                "package gguf "
                "cannot dequantise"
            ) from error
    array: NDArray[Any] = data.reshape(shape)
    return array


def _write_safetensors(path: Path, tensors: list[Any], permuted: dict[str, int]) -> None:
    """All tensors, one after the other; no more than one of them is in memory.

    Args:
        permuted: heads of the projections whose rows llama.cpp has reordered, by a part of their name.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in tensors:
        code, shape = _describe(tensor)
        size = math.prod(shape) * (4 if code == "F32" else 2)
        header[rename(tensor.name)] = {
            "dtype": code,
            "shape": shape,
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            data = _floats(tensor)
            for part, heads in permuted.items():
                if part in tensor.name:
                    data = restore_rows(data, heads)
            file.write(np.ascontiguousarray(data).data)
        file.flush()
        os.fsync(file.fileno())


def convert(
    path: Path,
    folder: Path,
    note: Note = lambda text: None,
    more: Mapping[str, str] | None = None,
) -> None:
    """Write what the GGUF file at `path` holds as a checkpoint into `folder`, which must not exist.

    Weights of 16 and 32 bits stay as they are; others become float32. Nothing stands at `folder` before all
    of it is there.

    Args:
        note: told what is done, in words for the user.
        more: texts to lay beside, by the name of their file.

    Raises CheckpointError: `gguf` is not installed, no GGUF file, a model, tensor or vocabulary that is not
    supported, or no room on the disk.
    """
    reader = _open(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    factors = tensors.pop("rope_freqs.weight", None)
    try:
        config = make_config(
            fields,
            None if factors is None else _floats(factors),
            tied="output.weight" not in tensors,
        )
        texts = {
            "config.json": config,
            "tokenizer.json": make_tokenizer(fields),
            "tokenizer_config.json": make_tokenizer_config(fields),
            "generation_config.json": _generation_config(fields),
        }
        needed = sum(
            math.prod(shape) * (4 if code == "F32" else 2)
            for code, shape in map(_describe, tensors.values())
        )
        folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder.parent).free
        if free < needed + 2**20:
            raise CheckpointError(
                f"the converted model takes {needed / 2**20:,.0f} MiB, and {folder.parent} has "
                f"{free / 2**20:,.0f} MiB free (another place: MINI_VLLM_CACHE)"
            )
        note(f"converting {path.name} into {folder}, once ({needed / 2**20:,.0f} MiB)")
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)  # of a conversion that was killed
        partial.mkdir()
        try:
            for name, content in texts.items():
                (partial / name).write_text(
                    json.dumps(content, ensure_ascii=False), encoding="utf-8"
                )
            for name, text in (more or {}).items():
                (partial / name).write_text(text, encoding="utf-8")
            permuted = {}
            if fields["general.architecture"] == "llama":
                permuted[".attn_q."] = config["num_attention_heads"]
                permuted[".attn_k."] = config["num_key_value_heads"]
            _write_safetensors(partial / "model.safetensors", list(tensors.values()), permuted)
            partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written: {error.strerror or error}") from error


def _generation_config(fields: dict[str, Any]) -> dict[str, Any]:
    """The ids that end a text: the end of a text, and of a turn where that is another."""
    names = ("eos", "eot", "eom")
    found = [fields.get(f"tokenizer.ggml.{name}_token_id") for name in names]
    ids = list(dict.fromkeys(int(token_id) for token_id in found if token_id is not None))
    return {"eos_token_id": ids[0] if len(ids) == 1 else ids} if ids else {}
