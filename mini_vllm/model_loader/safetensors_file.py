"""A `*.safetensors` file as float32 arrays, and where weights are quantised as integers too.

The `safetensors` package reads and checks the file. Its numpy front end has no bfloat16, so the raw
bytes that it hands out are turned into arrays here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from mini_vllm.config.model import CheckpointError
from mini_vllm.utils.memory import machine_memory
from mini_vllm.utils.outside import short

FLOATS = ("F32", "F16", "BF16")
INTEGERS = {"I8": "<i1", "U8": "<u1", "I32": "<i4", "I64": "<i8", "F8_E4M3": "<u1", "BOOL": "?"}
"""What quantised weights, their zero points and orders are stored as, of FP8 the bytes; and the maps
between the vocabularies of an EAGLE-3 head and its target."""


def read_safetensors(path: Path, quantized: bool = False) -> dict[str, NDArray[Any]]:
    """The tensors of one file, by name; float16 and bfloat16 are widened.

    Args:
        quantized: whether integers and FP8 are read, too. They stay as they are: FP8 as uint8, its bytes.

    Raises:
        CheckpointError: the file cannot be read, is longer than the machine's memory, truncated or
            corrupt, or a tensor has a dtype that is not read.
    """
    try:
        size, there = path.stat().st_size, machine_memory()
        if size > there:
            raise CheckpointError(f"{path} has {size} bytes, and there are {there} bytes of memory")
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    try:
        entries = deserialize(data)
    except SafetensorError as error:
        raise CheckpointError(
            f"{path} ({len(data)} bytes) is truncated or corrupt: {error}"
        ) from error
    return {
        name: _as_array(path, name, entry["dtype"], entry["data"], quantized).reshape(
            entry["shape"]
        )
        for name, entry in entries
    }


def _as_array(path: Path, name: str, dtype: str, raw: bytes, quantized: bool) -> NDArray[Any]:
    if dtype == "F32":
        return np.frombuffer(raw, "<f4")
    if dtype == "F16":
        return np.frombuffer(raw, "<f2").astype(np.float32)
    if dtype == "BF16":  # the upper half of a float32: shift it up, fill with zeros
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    if quantized and dtype in INTEGERS:
        return np.frombuffer(raw, INTEGERS[dtype])
    supported = ", ".join((*FLOATS, *INTEGERS) if quantized else FLOATS)
    raise CheckpointError(f"{path}: tensor {short(name)} has dtype {dtype}; supported: {supported}")
