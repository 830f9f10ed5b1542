"""A ``*.safetensors`` file as numpy arrays.

The file is read here and not by the ``safetensors`` package: that package's numpy front end has no
bfloat16, and checking every offset against the size of the file turns a cut-off download into a
sentence that says so.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_ITEM_SIZE = {"F32": 4, "F16": 2, "BF16": 2}
_MAX_HEADER = 100_000_000  # the limit of the format


class CheckpointError(ValueError):
    """A folder that cannot be served; the message names the file, the value and the rule."""


def read_safetensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """Tensors of one file. Layout: 8 bytes little-endian length, JSON header, then the data.

    Raises:
        CheckpointError: the file is truncated, its header is not what the format asks for, or a
            tensor has a dtype other than F32, F16 and BF16.
    """
    size = path.stat().st_size
    if size < 8:
        raise CheckpointError(
            f"{path} is truncated: {size} bytes, a safetensors file has at least 8"
        )
    data = np.memmap(path, np.uint8, mode="r")
    header_size = int.from_bytes(data[:8].tobytes(), "little")
    if header_size > min(size - 8, _MAX_HEADER):
        raise CheckpointError(
            f"{path} is truncated or corrupt: its header claims {header_size} bytes, the file has "
            f"{size}"
        )
    try:
        header = json.loads(data[8 : 8 + header_size].tobytes().decode("utf-8"))
        entries = {
            name: (entry["dtype"], tuple(entry["shape"]), tuple(entry["data_offsets"]))
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is corrupt: its header cannot be parsed ({error})"
        ) from error
    body = data[8 + header_size :]
    return {name: _tensor(path, name, body, *entry) for name, entry in entries.items()}


def _tensor(
    path: Path,
    name: str,
    body: NDArray[np.uint8],
    dtype: str,
    shape: tuple[int, ...],
    span: tuple[int, ...],
) -> NDArray[np.float32]:
    if dtype not in _ITEM_SIZE:
        raise CheckpointError(
            f"{path}: tensor {name!r} has dtype {dtype}; supported: {', '.join(_ITEM_SIZE)}"
        )
    if len(span) != 2 or not all(type(v) is int and v >= 0 for v in (*shape, *span)):
        raise CheckpointError(f"{path} is corrupt: tensor {name!r} has shape {shape}, bytes {span}")
    start, end = span
    if end > body.size:
        raise CheckpointError(
            f"{path} is truncated: tensor {name!r} ends at byte {end} of the data, the file holds "
            f"{body.size}"
        )
    need = math.prod(shape) * _ITEM_SIZE[dtype]
    if end - start != need:
        raise CheckpointError(
            f"{path} is corrupt: tensor {name!r} of shape {shape} and dtype {dtype} needs {need} "
            f"bytes, its offsets span {end - start}"
        )
    raw = body[start:end]
    if dtype == "F32":
        # Writers align the data; where one did not, BLAS needs a copy that is.
        aligned = np.asarray(raw) if raw.ctypes.data % 4 == 0 else raw.copy()
        return aligned.view("<f4").reshape(shape)
    if dtype == "F16":
        return raw.copy().view("<f2").astype(np.float32).reshape(shape)
    # bfloat16 is the upper half of a float32: shift it up, fill with zeros.
    return (raw.copy().view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
