"""The capture: every operation is written down with its addresses, and none is run."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mini_vllm.gpu.standin.pool import Block, Handle, MemPool
from mini_vllm.gpu.standin.rules import FROM_PYTHON, TO_HOST, GraphError, named

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
        before: blocks of other graphs that were held when the capture began: it may read these.
        spared: those of them that were held to its end: it shares no memory with these.
        given_up: those of the others in which nothing of its own lies at the end.
        reads: blocks of other graphs that it reads, with their pool, and what they are.
        uses: memory outside of all pools: aliases by storage, and what it is.
    """

    number: int
    handle: Handle
    pool: MemPool
    kernels: list[Kernel] = field(default_factory=list)
    before: AbstractSet[Block] = frozenset()
    spared: AbstractSet[Block] = frozenset()
    given_up: list[Block] = field(default_factory=list)
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


class Kind(NamedTuple):
    """What an operation's schema says of it.

    Attributes:
        name: as `aten.mul.Tensor`.
        composite: it consists of others.
        view: it returns another shape on the same memory.
        allocates: it makes memory and computes nothing: no kernel.
        written: the arguments that it writes into.
        parameters: the names of all its arguments, in order.
    """

    name: str
    composite: bool
    view: bool
    allocates: bool
    written: list[Any]
    parameters: list[str]


@cache
def kind_of(func: Any) -> Kind:
    """Asked once for each operation."""
    name, schema = str(func), func._schema
    return Kind(
        name,
        torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), COMPOSITE.name),
        any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns),
        name.startswith(("aten.empty", "aten.new_empty")),
        [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write],
        [argument.name for argument in schema.arguments],
    )


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """The same tuples, lists and dicts with `function` of each tensor in its place."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, list | tuple):
        return type(tree)([map_tensors(function, each) for each in tree])
    if isinstance(tree, dict):
        return {name: map_tensors(function, each) for name, each in tree.items()}
    return tree


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
        # A block that was held all the time shares no memory with this graph. All others may: one that was
        # let go of in the meantime can be read, and what comes later may lie there.
        last = written_last(self.mine)
        self.recording.spared = frozenset(block for block in self.alive_before if block.alive)
        self.recording.given_up = [
            block
            for block in self.alive_before
            if not block.alive
            and not any(b.start < block.end and block.start < b.end for b in last)
        ]
        self.recording.before = frozenset(self.alive_before)
        self.pool.forget(set(self.mine) - set(last))
        return self.recording

    def abandon(self) -> None:
        """The capture broke off: nothing of it stays."""
        self.recording.release()
        self.pool.forget(self.mine)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kind = kind_of(func)
        self._refuse(func, kind.name, args, kwargs)
        if kind.composite:
            with self:  # the others are taken down
                return func._op_dk(COMPOSITE, *args, **kwargs)
        if kind.name == "aten.lift_fresh.default":  # the number of `x[mask] = 0`; no GPU sees it
            self.constants.add(args[0].untyped_storage().data_ptr())
            return args[0]
        if kind.view:
            return func(*args, **kwargs)
        recorded = Kernel(
            func, map_tensors(self._address, args), map_tensors(self._address, kwargs), []
        )
        if kind.written:
            self.recording.kernels.append(recorded)
            return _written_arguments(func, kind, args, kwargs)
        shapes = _result_of(func, args, kwargs)

        def new(like: Tensor) -> Tensor:
            made, block = self.pool.allocate(like, self.recording.number)
            self.mine.append(block)
            recorded.outputs.append(block.like(made))
            return made

        result = map_tensors(new, shapes)
        if recorded.outputs and not kind.allocates:
            self.recording.kernels.append(recorded)
        return result

    def _refuse(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
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


_results: dict[Any, Any] = {}
"""What operations return, as tensors without memory, by what they were given."""


def _result_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the result of an operation looks like, as tensors whose numbers mean nothing.

    The operation itself says it, run once on zeros where the capture has no numbers. That leaves no trace,
    and torch's other way, to run it on tensors without memory, takes seconds to load.
    """
    key = func, _signature(args), _signature(kwargs)
    if key not in _results:
        result = func(*map_tensors(_zeros, args), **map_tensors(_zeros, kwargs))
        _results[key] = map_tensors(
            lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta"), result
        )
    return _results[key]


def _signature(tree: Any) -> Any:
    """Arguments as something that can be compared: of tensors, what decides about shapes."""
    if isinstance(tree, Tensor):
        return tuple(tree.shape), tree.stride(), tree.dtype
    if isinstance(tree, list | tuple):
        return tuple(_signature(each) for each in tree)
    if isinstance(tree, dict):
        return tuple((name, _signature(each)) for name, each in tree.items())
    return type(tree), tree


def _zeros(tensor: Tensor) -> Tensor:
    """In place of a tensor of a pool, which has no numbers in a capture."""
    if MemPool.holding(tensor) is None:
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).zero_()


def _written_arguments(func: Any, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operation returns that writes into its arguments: those."""
    given = {**dict(zip(kind.parameters, args, strict=False)), **kwargs}
    by_alias = {frozenset(a.alias_info.before_set): given[a.name] for a in kind.written}
    returns = func._schema.returns
    results = [by_alias[frozenset(r.alias_info.before_set)] for r in returns if r.alias_info]
    if len(results) != len(returns):
        raise GraphError(
            "unregistered kernel", f"{func} writes into its arguments and returns more"
        )
    return results[0] if len(results) == 1 else tuple(results) or None


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

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
