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


def read_safetensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """The tensors of one file, by name; float16 and bfloat16 are widened.

    Raises:
        CheckpointError: the file is truncated or corrupt, or a tensor has a dtype other than F32,
            F16 and BF16.
    """
    data = path.read_bytes()
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
    raise CheckpointError(f"{path}: tensor {name!r} has dtype {dtype}; supported: F32, F16, BF16")
