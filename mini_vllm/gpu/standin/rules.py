"""What a GPU asks of a capture and of a replay, and the error that names the rule.

The rules are those of https://docs.nvidia.com/dl-cuda-graph/cuda-graph-basics/constraints.html.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

RULES = {
    "host sync": "the host asks for a number that the device has not computed yet",
    "data-dependent shape": "a shape depends on a value, so it would change from replay to replay",
    "data from Python": "a tensor is made from Python's or numpy's data, which must be copied from the host",
    "moved memory": "a tensor that a graph reads or writes has another address than at capture",
    "freed memory": "nobody holds a tensor that a graph reads or writes",
    "unregistered kernel": "an operation does not say what it writes and returns",
    "one capture at a time": "a capture began inside of a capture, or a replay did",
    "not captured": "a graph is replayed that holds no recording",
    "captured twice": "a graph that holds a recording is captured again",
    "not yet computed": "numbers are read that no replay has written",
    "overwritten": "numbers are read that another graph of the pool has written over",
}


class GraphError(RuntimeError):
    """Something that a GPU refuses, or with which it would corrupt a result. `rule` is a key of `RULES`."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail} ({RULES[rule]}; {_where()})")
        self.rule = rule


def _where() -> str:
    """File and line of the code that called torch: the first frame outside of torch and of this package."""
    here = Path(__file__).parent
    inside = (str(Path(torch.__file__).parent), str(here), str(here.with_name("graph_standin.py")))
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"


_thread = threading.local()


def capturing() -> bool:
    """Whether this thread is in a capture."""
    return bool(getattr(_thread, "capturing", False))


def set_capturing(yes: bool) -> None:
    """Say so."""
    _thread.capturing = yes


@contextmanager
def replaying() -> Iterator[None]:
    """A replay is going on: what it reads is its own affair."""
    _thread.replaying = True
    try:
        yield
    finally:
        _thread.replaying = False


def watched() -> bool:
    """Whether this thread's operations are a user's own, outside of graphs."""
    return not capturing() and not getattr(_thread, "replaying", False)


def tensors_of(tree: Any) -> list[Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def named(tensor: Tensor) -> str:
    """A tensor in a message."""
    return f"a tensor of {[*tensor.shape]}, {str(tensor.dtype).removeprefix('torch.')}"


TO_HOST = {
    "item", "tolist", "cpu", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__",
    "__complex__", "__repr__", "__str__", "__format__", "__contains__", "__reduce_ex__", "is_nonzero",
}  # fmt: skip
FROM_PYTHON = {"tensor", "as_tensor", "asarray", "from_numpy", "frombuffer", "new_tensor"}
