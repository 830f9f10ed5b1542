"""A `*.safetensors` file as float32 arrays.

The `safetensors` package reads and checks the file. Its numpy front end has no bfloat16, so the raw
bytes that it hands out are turned into arrays here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from mini_vllm.llama_config import CheckpointError
from mini_vllm.memory import machine_memory
from mini_vllm.outside import short


def read_safetensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """The tensors of one file, by name; float16 and bfloat16 are widened.

    Raises:
        CheckpointError: the file cannot be read, is longer than the machine's memory, truncated or
            corrupt, or a tensor has a dtype other than F32, F16 and BF16.
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
        name: _as_float32(path, name, entry["dtype"], entry["data"]).reshape(entry["shape"])
        for name, entry in entries
    }


def _as_float32(path: Path, name: str, dtype: str, raw: bytes) -> NDArray[np.float32]:
    if dtype == "F32":
        return np.frombuffer(raw, "<f4")
    if dtype == "F16":
        return np.frombuffer(raw, "<f2").astype(np.float32)
    if dtype == "BF16":  # the upper half of a float32: shift it up, fill with zeros
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    raise CheckpointError(
        f"{path}: tensor {short(name)} has dtype {dtype}; supported: F32, F16, BF16"
    )
