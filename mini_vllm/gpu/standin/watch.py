"""Reads of what a graph has not computed, or of what another graph has written over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mini_vllm.gpu.standin.pool import Block, MemPool
from mini_vllm.gpu.standin.rules import TO_HOST, GraphError, named, tensors_of, watched


def unreadable(block: Block, why: str, reader: str) -> GraphError:
    """The error for a read of `block`; `why` is `MemPool.unreadable`'s."""
    rule = "overwritten" if why.startswith("overwritten") else "not yet computed"
    return GraphError(rule, f"{reader}, which graph {block.graph} makes: {why}")


class _Watch(TorchDispatchMode):
    """Refuses operations outside of graphs on numbers that no replay has written, or that are gone."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else torch loads its compiler, which takes seconds, to keep it off this class."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        views = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        if watched() and not views:
            for tensor in tensors_of((args, kwargs)):
                check_readable(tensor, str(func))
        return func(*args, **(kwargs or {}))


class _WatchHost(TorchFunctionMode):
    """The same for what brings numbers to the host without an operation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in TO_HOST and watched():
            check_readable(args[0], f"Tensor.{name}")
        return func(*args, **(kwargs or {}))


def check_readable(tensor: Tensor, reader: str = "somebody") -> None:
    """Raise GraphError if the tensor's memory is a graph's and its numbers must not be read now."""
    found = MemPool.holding(tensor) if tensor.device.type == "cpu" else None
    if found is not None and (why := found[0].unreadable(found[1])):
        raise unreadable(found[1], why, f"{reader} reads {named(tensor)}")


@contextmanager
def watch() -> Iterator[None]:
    """Within the `with` block, raise where a graph's memory is read and its numbers are not there."""
    with _Watch(), _WatchHost():
        yield
