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
        # All of the memory that a view lies in, so that the stand-in can tell whose it is.
        memory = leaf.untyped_storage()
        storage = torch._C._construct_storage_from_data_pointer(
            memory.data_ptr(), leaf.device, memory.nbytes()
        )
        empty = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
        return empty.set_(storage, leaf.storage_offset(), leaf.shape, leaf.stride())

    return tree_map(weak, output)
