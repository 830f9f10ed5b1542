"""The capture: every operation is written down with its addresses, and none is run."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from mini_vllm.gpu.graph_standin.pool import Block, Handle, MemPool
from mini_vllm.gpu.graph_standin.rules import FROM_PYTHON, TO_HOST, GraphError, named

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
"""What an operation is registered under that consists of others."""
_numbers = itertools.count(1)


@dataclass
class Kernel:
    """One recorded operation. `args` and `kwargs` hold tensors on the addresses of the capture;
    `outputs` are those that a functional operation's results go to."""

    func: Any
    args: Any
    kwargs: Any
    outputs: list[Tensor]


@dataclass
class Outside:
    """Memory that graphs use and do not own: weights, caches, static buffers."""

    storage: Any
    start: int
    aliases: int = 0

    def freed(self) -> bool:
        """Whether only this module still refers to it: `storage` is one reference, aliases are the others."""
        uses: int = torch._C._storage_Use_Count(self.storage._cdata)
        return uses <= self.aliases + 1


outside: dict[int, Outside] = {}
"""Of all graphs, by storage, because another graph's use is not the user's."""


@dataclass
class Recording:
    """What a capture leaves behind.

    Attributes:
        number: in messages.
        handle, pool: where its memory comes from.
        kernels: what to run, in order.
        spared: blocks of other graphs that were held all the time: it shares no memory with these.
        reads: blocks of other graphs that it reads, with their pool, and what they are.
        uses: memory outside of all pools: aliases by storage, and what it is.
    """

    number: int
    handle: Handle
    pool: MemPool
    kernels: list[Kernel] = field(default_factory=list)
    spared: AbstractSet[Block] = frozenset()
    reads: dict[Block, tuple[MemPool, str]] = field(default_factory=dict)
    uses: dict[int, tuple[int, str]] = field(default_factory=dict)

    def release(self) -> None:
        """Give up the references to memory that is not its own."""
        for key, (aliases, _) in self.uses.items():
            held = outside[key]
            held.aliases -= aliases
            if not held.aliases:
                del outside[key]
        self.uses.clear()


def allocates_only(func: Any) -> bool:
    """Whether an operation makes memory and computes nothing: no kernel."""
    return str(func).startswith("aten.empty") or str(func).startswith("aten.new_empty")


class Capture(TorchDispatchMode):
    """Takes every operation down and runs none of them."""

    def __init__(self, handle: Handle) -> None:
        super().__init__()
        self.recording = Recording(next(_numbers), handle, MemPool.of(handle))
        self.pool = self.recording.pool
        self.alive_before = [block for block in self.pool.blocks if block.alive]
        self.mine: list[Block] = []
        self.constants: set[int] = set()  # a recording keeps these itself
        self.scalar = False  # a Python number is being assigned to an item

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else torch loads its compiler, which takes seconds, to keep it off this class."""
        return False

    def finish(self) -> Recording:
        """The recording; nothing is added to it any more."""
        # Whoever was alive all the time shares no memory with this graph. All others may.
        self.recording.spared = frozenset(block for block in self.alive_before if block.alive)
        self.pool.forget(set(self.mine) - set(written_last(self.mine)))
        return self.recording

    def abandon(self) -> None:
        """The capture broke off: nothing of it stays."""
        self.recording.release()
        self.pool.forget(self.mine)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        self._refuse(func, args, kwargs)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), COMPOSITE.name):
            with self:  # made of others: those are taken down
                return func._op_dk(COMPOSITE, *args, **kwargs)
        if str(func) == "aten.lift_fresh.default":  # the number of `x[mask] = 0`; no GPU sees it
            self.constants.add(args[0].untyped_storage().data_ptr())
            return args[0]
        returns = func._schema.returns
        if any(r.alias_info is not None and not r.alias_info.is_write for r in returns):
            return func(*args, **kwargs)  # a view: another shape on the same address
        written = [a for a in func._schema.arguments if a.alias_info and a.alias_info.is_write]
        if written:
            return self._record_write(func, args, kwargs, written)
        return self._record(func, args, kwargs)

    def _refuse(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = str(func)
        if torch.Tag.data_dependent_output in func.tags:
            raise GraphError("host sync", name)
        if kwargs.get("pin_memory"):
            raise GraphError(
                "host sync", f"{name} with pin_memory: page-locking waits for the device"
            )
        if name == "aten.lift_fresh.default" and not self.scalar:
            raise GraphError("data from Python", named(args[0]))
        if name.startswith(("aten.set_", "aten.resize_")):
            raise GraphError("moved memory", f"{name} in a capture")
        if name.startswith(("aten.index.", "aten.index_put")):
            masks = [
                i for i in args[1] if isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8)
            ]
            filled = "index_put" in name and args[2].dim() == 0 and self.scalar
            if masks and not filled:
                raise GraphError("data-dependent shape", f"{name} with a mask, {named(masks[0])}")
        elif torch.Tag.dynamic_output_shape in func.tags:
            raise GraphError("data-dependent shape", name)

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Write a functional operation down; its results are new tensors, full of NaN.

        What they look like says the operation itself, run on zeros where the capture has no numbers. That
        leaves no trace, and torch's other way, tensors without memory, takes seconds to load.
        """
        shapes = func(*self._zeros(args), **self._zeros(kwargs))
        kernel = Kernel(func, self._addresses(args), self._addresses(kwargs), [])

        def new(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            made, block = self.pool.allocate(leaf, self.recording.number)
            self.mine.append(block)
            kernel.outputs.append(block.like(made))
            return made

        result = tree_map(new, shapes)
        if kernel.outputs and not allocates_only(func):
            self.recording.kernels.append(kernel)
        return result

    def _record_write(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[Any]
    ) -> Any:
        """Write an operation down that writes into tensors it is given, and return those."""
        self.recording.kernels.append(
            Kernel(func, self._addresses(args), self._addresses(kwargs), [])
        )
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        by_alias = {frozenset(a.alias_info.before_set): given[a.name] for a in written}
        results = [
            by_alias[frozenset(r.alias_info.before_set)]
            for r in func._schema.returns
            if r.alias_info
        ]
        if len(results) != len(func._schema.returns):
            raise GraphError(
                "unregistered kernel", f"{func} writes into its arguments and returns more"
            )
        return results[0] if len(results) == 1 else tuple(results) or None

    def _addresses(self, tree: Any) -> Any:
        return tree_map(
            lambda leaf: self._address(leaf) if isinstance(leaf, Tensor) else leaf, tree
        )

    def _zeros(self, tree: Any) -> Any:
        def zeros(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or MemPool.holding(leaf) is None:
                return leaf
            return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype).zero_()

        return tree_map(zeros, tree)

    def _address(self, tensor: Tensor) -> Tensor:
        """The same shape on the same bytes, which keeps nothing of the user's alive."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self.constants:
            return tensor
        found = MemPool.holding(tensor) if tensor.numel() else None
        if found is None:
            key = int(storage._cdata)
            outside.setdefault(key, Outside(storage, storage.data_ptr())).aliases += 1
            aliases, what = self.recording.uses.get(key, (0, named(tensor)))
            self.recording.uses[key] = (aliases + 1, what)
            return tensor.detach()
        pool, block = found
        if block.graph != self.recording.number:
            if not block.alive:
                raise GraphError("freed memory", f"{named(tensor)}, made by graph {block.graph}")
            self.recording.reads.setdefault(block, (pool, named(tensor)))
        return block.like(tensor)


def written_last(blocks: list[Block]) -> list[Block]:
    """Of the blocks of one capture, in order, those whose memory no later one has taken."""
    taken: list[tuple[int, int]] = []  # disjoint, in order
    last = []
    for block in reversed(blocks):
        at = bisect.bisect(taken, (block.start, block.end))
        before = at > 0 and taken[at - 1][1] > block.start
        behind = at < len(taken) and taken[at][0] < block.end
        if not before and not behind:
            last.append(block)
            taken.insert(at, (block.start, block.end))
    return last


class HostCalls(TorchFunctionMode):
    """Refuses what brings numbers to the host, or from it, before it reaches an operation."""

    def __init__(self, capture: Capture) -> None:
        super().__init__()
        self.capture = capture

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in TO_HOST:
            raise GraphError("host sync", f"Tensor.{name} in a capture")
        if name == "pin_memory":
            raise GraphError("host sync", "pin_memory: page-locking waits for the device")
        if name in FROM_PYTHON and not (args and isinstance(args[0], Tensor)):
            raise GraphError("data from Python", f"{name}() in a capture")
        if name in ("__getitem__", "__setitem__"):
            for part in args[1] if isinstance(args[1], tuple) else (args[1],):
                if isinstance(part, list | np.ndarray | range):
                    kind = type(part).__name__
                    raise GraphError("data from Python", f"an index that is a {kind}")
            if name == "__setitem__" and isinstance(args[2], int | float):
                self.capture.scalar = True
                try:
                    return func(*args, **(kwargs or {}))
                finally:
                    self.capture.scalar = False
        return func(*args, **(kwargs or {}))
