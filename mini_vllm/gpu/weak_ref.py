"""Tensors that do not keep their memory: what is remembered of a graph's output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


def weak_ref_tensors(output: Any) -> Any:
    """The same tensors on the same memory, which do not keep it
    (`vllm/utils/torch_utils.py:763 weak_ref_tensors`).

    The pool may then give the memory to the next graph that is captured. So the result is good from a replay
    to the next one, of any graph in the pool.
    """

    def weak(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        size = 1 + sum((n - 1) * s for n, s in zip(leaf.shape, leaf.stride(), strict=True))
        storage = torch._C._construct_storage_from_data_pointer(
            leaf.data_ptr(), leaf.device, size * leaf.itemsize
        )
        empty = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
        return empty.set_(storage, 0, leaf.shape, leaf.stride())

    return tree_map(weak, output)
