"""A `*.safetensors` file: which tensors it holds, and each of them as an array when it is asked for.

The `safetensors` package checks the file's header. Its numpy front end has no bfloat16, and it hands out a
copy of the bytes, so a tensor is read here: a piece at a time, straight into the array that the model keeps.
A model then needs its weights' float32 once, and never the file beside them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from mini_vllm.config.checks import CheckpointError
from mini_vllm.utils.memory import machine_memory
from mini_vllm.utils.untrusted import MOST_OF_POINTER, describe_lfs_pointer, shorten_repr

FLOATS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
INTEGERS = {"I8": "<i1", "U8": "<u1", "I32": "<i4", "I64": "<i8", "F8_E4M3": "<u1", "BOOL": "?"}
"""What quantised weights, their zero points and orders are stored as, of FP8 the bytes; and the maps
between the vocabularies of an EAGLE-3 head and its target."""
PIECE = 1 << 21
"""Numbers of 16 bits that are widened together: 4 MB, which stay in a cache on the way."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that still lies in its file.

    Attributes:
        code: its type, as the file spells it.
        start: of its first byte in the file.
    """

    path: Path
    name: str
    code: str
    shape: tuple[int, ...]
    start: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the array that `read` gives: floats are widened to float32, FP8 comes as its bytes."""
        return np.dtype("<f4" if self.code in FLOATS else INTEGERS[self.code])

    @property
    def nbytes(self) -> int:
        """Bytes of the array that `read` gives."""
        return math.prod(self.shape) * self.dtype.itemsize

    def pieces(self) -> Iterator[NDArray[Any]]:
        """What `read` gives, flat, in pieces of at most `PIECE` numbers. Raises as `read`."""
        stored = np.dtype(FLOATS.get(self.code) or INTEGERS[self.code])
        size = math.prod(self.shape)
        for done in range(0, size, PIECE):
            try:
                piece = np.fromfile(
                    self.path,
                    stored,
                    min(PIECE, size - done),
                    offset=self.start + done * stored.itemsize,
                )
            except OSError as error:
                raise CheckpointError(f"{self.path} cannot be read: {error.strerror}") from error
            if self.code in ("F16", "BF16"):
                wide = np.empty(len(piece), np.float32)
                _widen(piece, self.code, wide)
                piece = wide
            yield piece

    def read(self) -> NDArray[Any]:
        """The tensor as a new array.

        Raises CheckpointError where the file cannot be read, or has become shorter.
        """
        stored = np.dtype(FLOATS.get(self.code) or INTEGERS[self.code])
        size = math.prod(self.shape)
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                if self.code in ("F32", *INTEGERS):
                    array = np.fromfile(file, stored, size)
                    got = len(array)
                else:
                    array, got = np.empty(size, np.float32), 0
                    while got < size:
                        piece = np.fromfile(file, stored, min(PIECE, size - got))
                        if not len(piece):
                            break
                        _widen(piece, self.code, array[got : got + len(piece)])
                        got += len(piece)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error.strerror}") from error
        if got != size:
            raise CheckpointError(
                f"{self.path} ends after {got} of the {size} numbers of tensor {shorten_repr(self.name)}"
            )
        return array.reshape(self.shape)


def _widen(piece: NDArray[Any], code: str, into: NDArray[np.float32]) -> None:
    """16-bit floats as float32."""
    if code == "F16":
        into[:] = piece
        return
    bits = into.view(np.uint32)  # a bfloat16 is the upper half of a float32
    bits[:] = piece
    bits <<= np.uint32(16)


@dataclass(frozen=True)
class Header:
    """What a file says of itself.

    Attributes:
        entries: by a tensor's name its `dtype`, `shape` and `data_offsets`.
        start: of the first tensor's bytes in the file.
    """

    entries: Mapping[str, Any]
    start: int


def read_header(path: Path) -> Header:
    """The file's header, checked against its length.

    Raises:
        CheckpointError: the file cannot be read, is longer than the machine's memory, truncated or corrupt, a
            folder, or stands for one that was not downloaded.
    """
    if path.exists() and not path.is_file():  # reading a pipe or a device may have no end
        raise CheckpointError(f"{path} is {'a folder' if path.is_dir() else 'no file'}")
    try:
        size, there = path.stat().st_size, machine_memory()
        if size > there:
            raise CheckpointError(f"{path} has {size} bytes, and there are {there} bytes of memory")
        with path.open("rb") as file:
            first = file.read(MOST_OF_POINTER)
            if pointer := describe_lfs_pointer(first):
                raise CheckpointError(f"{path} is {pointer}")
            length = int.from_bytes(first[:8], "little")
            with safe_open(path, framework="numpy"):
                pass  # it checks header, offsets and length
            file.seek(8)
            header = json.loads(file.read(length))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise CheckpointError(f"{path} ({size} bytes) is truncated or corrupt: {error}") from error
    header.pop("__metadata__", None)
    return Header(header, 8 + length)


def open_safetensors(path: Path, quantized: bool = False) -> dict[str, StoredTensor]:
    """What the file holds, by name. Of the tensors nothing is read.

    Args:
        quantized: whether integers and FP8 are taken, too. They stay as they are: FP8 as uint8, its bytes.

    Raises:
        CheckpointError: see `read_header`; or a tensor has a dtype that is not read.
    """
    header = read_header(path)
    known = {**FLOATS, **INTEGERS} if quantized else FLOATS
    tensors = {}
    for name, entry in header.entries.items():
        if entry["dtype"] not in known:
            raise CheckpointError(
                f"{path}: tensor {shorten_repr(name)} has dtype {entry['dtype']}; supported: "
                f"{', '.join(known)}"
            )
        start = header.start + entry["data_offsets"][0]
        tensors[name] = StoredTensor(path, name, entry["dtype"], tuple(entry["shape"]), start)
    return tensors


def equal_tensors(a: StoredTensor | NDArray[Any], b: StoredTensor | NDArray[Any]) -> bool:
    """Whether two tensors are of one shape and hold the same numbers; of a stored one no more than a piece is
    in memory at a time. Raises CheckpointError as `StoredTensor.read`."""
    if a.shape != b.shape:
        return False
    if isinstance(a, StoredTensor) and isinstance(b, StoredTensor):
        return all(map(np.array_equal, a.pieces(), b.pieces()))
    return np.array_equal(_as_array(a), _as_array(b))


def _as_array(tensor: StoredTensor | NDArray[Any]) -> NDArray[Any]:
    return tensor.read() if isinstance(tensor, StoredTensor) else tensor


def read_safetensors(path: Path, quantized: bool = False) -> dict[str, NDArray[Any]]:
    """The tensors of one file, by name, all of them read. Raises as `open_safetensors`."""
    return {name: tensor.read() for name, tensor in open_safetensors(path, quantized).items()}
