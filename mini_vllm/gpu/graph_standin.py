"""What `torch.cuda` has for graphs, on a CPU: it records and replays, and refuses what a GPU cannot do.

`graphs_for(device)` gives `torch.cuda` for a GPU and this module for a CPU. Both have `CUDAGraph`, `graph`,
`graph_pool_handle`, `is_current_stream_capturing` and `synchronize`, so the code that captures a model is
the same, and the device is the only difference:

    graphs = graphs_for(model.device)
    recorded = graphs.CUDAGraph()
    with graphs.graph(recorded, pool=pool):
        output = model(static_input)          # nothing is computed: `output` holds NaN
    static_input.copy_(numbers)
    recorded.replay()                         # now `output` holds the result

A capture writes each operation down with the addresses of its tensors and runs none. A replay runs exactly
these, on these addresses, and looks at no Python again. Where a GPU would go on with wrong numbers, the
stand-in raises `GraphError`, whose `rule` says which of `RULES` was broken.

It sees what goes through torch's dispatcher, and what `Tensor`'s methods bring to the host. A kernel that is
started past the dispatcher must be registered as an operation (`ops.py`), as vLLM registers its own. What
it cannot see: all memory is the host's, so `.to("cpu")` and a copy from memory that is not page-locked
look like copies on the device; there are no streams; and how long anything takes says nothing of a GPU.

The rules are those of https://docs.nvidia.com/dl-cuda-graph/cuda-graph-basics/constraints.html.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from mini_vllm.gpu.graph_pool import Block, Handle, MemPool

RULES = {
    "host sync": "the host asks for a number that the device has not computed yet",
    "data-dependent shape": "a shape depends on a value, so it would change from replay to replay",
    "data from Python": "a tensor is made from Python's or numpy's data, which must be copied from the host",
    "moved memory": "a tensor that a graph reads or writes has another address than at capture",
    "freed memory": "nobody holds a tensor that a graph reads or writes",
    "unregistered kernel": "an operation says neither what it writes nor what its result looks like",
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
    """File and line of whoever called torch: the first frame outside of torch and of this file."""
    inside = (str(Path(torch.__file__).parent), __file__)
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"


def graphs_for(device: torch.device | str) -> Any:
    """`torch.cuda` for a GPU, this module for a CPU."""
    return torch.cuda if torch.device(device).type == "cuda" else sys.modules[__name__]


_thread = threading.local()
_numbers = itertools.count(1)


def is_current_stream_capturing() -> bool:
    """Whether this thread is in a capture."""
    return getattr(_thread, "capture", None) is not None


def graph_pool_handle() -> Handle:
    """A name for a pool that several graphs may share."""
    return MemPool.new_handle()


def synchronize(device: Any = None) -> None:
    """On a GPU: wait for the device. Raises GraphError in a capture, else does nothing."""
    if is_current_stream_capturing():
        raise GraphError("host sync", "synchronize() in a capture")


@dataclass
class _Kernel:
    """One recorded operation. `args` and `kwargs` hold tensors on the addresses of the capture;
    `outputs` are those that a functional operation's results go to."""

    func: Any
    args: Any
    kwargs: Any
    outputs: list[Tensor]


@dataclass
class _Outside:
    """Memory that graphs use and do not own: weights, caches, static buffers."""

    storage: Any
    start: int
    aliases: int = 0

    def freed(self) -> bool:
        """Whether only this module still refers to it: `storage` is one reference, aliases are the others."""
        uses: int = torch._C._storage_Use_Count(self.storage._cdata)
        return uses <= self.aliases + 1


_outside: dict[
    int, _Outside
] = {}  # of all graphs, by storage: another graph's use is not the user's


class CUDAGraph:
    """A recording, made by `graph` and run by `replay`. As `torch.cuda.CUDAGraph`."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.number = next(_numbers)
        self.kernels: list[_Kernel] = []
        self.recorded = False
        self._pool: MemPool | None = None
        self._handle: Handle | None = None
        self._blocks: list[Block] = []
        self._spared: list[Block] = []
        self._reads: list[tuple[Block, str]] = []
        self._uses: dict[int, tuple[int, str]] = {}  # storage -> aliases, and what it is
        self._end = weakref.finalize(self, _forget, self._uses)

    @property
    def num_kernels(self) -> int:
        """Operations that a GPU would start a kernel for."""
        return sum(not _allocates_only(kernel.func) for kernel in self.kernels)

    def pool(self) -> Handle:
        """The name of its pool, to share it."""
        if self._handle is None:
            raise GraphError("not captured", f"graph {self.number} has no pool yet")
        return self._handle

    def reset(self) -> None:
        """Forget the recording. The graph can be captured again."""
        _forget(self._uses)
        self.kernels, self._spared, self._reads = [], [], []
        if self._pool is not None:
            mine = {id(block) for block in self._blocks}
            self._pool.blocks = [b for b in self._pool.blocks if b.alive or id(b) not in mine]
        self._blocks = []
        self.recorded, self._pool, self._handle = False, None, None

    def replay(self) -> None:
        """Run what was recorded. Raises GraphError where a GPU would read or write something else."""
        if is_current_stream_capturing():
            raise GraphError("one capture at a time", f"replay of graph {self.number} in a capture")
        if not self.recorded or self._pool is None:
            raise GraphError("not captured", f"graph {self.number}")
        for key, (_, what) in self._uses.items():
            held = _outside[key]
            if held.freed():
                raise GraphError("freed memory", f"graph {self.number} was captured on {what}")
            if held.storage.data_ptr() != held.start:
                raise GraphError("moved memory", f"graph {self.number} was captured on {what}")
        for block, what in self._reads:
            if block.unreadable:
                raise _unreadable(block, f"graph {self.number} reads {what}")
        self._pool.poison(self._spared)
        spared = {id(block) for block in self._spared}
        for block in self._pool.blocks:
            if id(block) not in spared and not block.unreadable:
                block.unreadable = f"overwritten by the replay of graph {self.number}"
        with torch.inference_mode():
            for i, kernel in enumerate(self.kernels):
                try:
                    result = kernel.func(*kernel.args, **kernel.kwargs)
                except Exception as error:
                    error.add_note(
                        f"in the replay of graph {self.number}, operation {i}, {kernel.func}"
                    )
                    raise
                for output, new in zip(
                    kernel.outputs, _tensors(result), strict=kernel.outputs != []
                ):
                    output.copy_(new)
        for block in self._blocks:
            block.unreadable = ""


def _unreadable(block: Block, reader: str) -> GraphError:
    rule = "overwritten" if block.unreadable.startswith("overwritten") else "not yet computed"
    return GraphError(rule, f"{reader}, which graph {block.graph} makes: {block.unreadable}")


def _forget(uses: dict[int, tuple[int, str]]) -> None:
    """Give up a graph's references to memory that is not its own."""
    for key, (aliases, _) in uses.items():
        held = _outside[key]
        held.aliases -= aliases
        if not held.aliases:
            del _outside[key]
    uses.clear()


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _named(tensor: Tensor) -> str:
    return f"a tensor of {[*tensor.shape]}, {str(tensor.dtype).removeprefix('torch.')}"


def _allocates_only(func: Any) -> bool:
    return str(func).startswith("aten.empty") or str(func).startswith("aten.new_empty")


class graph:  # noqa: N801 (torch's name)
    """Capture what is called in the `with` block. As `torch.cuda.graph`.

    Args:
        cuda_graph: a `CUDAGraph` that holds no recording.
        pool: a name from `graph_pool_handle` or `CUDAGraph.pool`; None: a pool of its own.
        stream, capture_error_mode: for a GPU; not looked at.
    """

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Handle | None = None,
        stream: Any = None,
        capture_error_mode: str = "global",
    ) -> None:
        self.cuda_graph = cuda_graph
        self._handle = MemPool.new_handle() if pool is None else pool
        self._modes = ExitStack()

    def __enter__(self) -> None:
        if is_current_stream_capturing():
            raise GraphError("one capture at a time", "a capture began inside of another")
        if self.cuda_graph.recorded:
            raise GraphError(
                "captured twice", f"graph {self.cuda_graph.number}: reset() it, or make another"
            )
        capture = _Capture(self.cuda_graph, self._handle)
        _thread.capture = self._capture = capture
        self._modes.enter_context(capture)
        self._modes.enter_context(_HostCalls(capture))

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._modes.close()
        _thread.capture = None
        if kind is None:
            self._capture.finish()
        else:
            self._capture.abandon()


class _Capture(TorchDispatchMode):
    """Takes every operation down and runs none of them."""

    def __init__(self, owner: CUDAGraph, handle: Handle) -> None:
        super().__init__()
        self.owner, self.handle = owner, handle
        self.pool = MemPool.of(handle)
        self.kernels: list[_Kernel] = []
        self.alive_before = [b for b in self.pool.blocks if b.alive]
        self.mine: list[Block] = []
        self.addresses: dict[int, tuple[Block, Tensor]] = {}  # by start, of this capture
        self.reads: dict[int, tuple[Block, str]] = {}
        self.constants: set[int] = set()  # a recording keeps these itself
        self.scalar = False  # a Python number is being assigned to an item

    def finish(self) -> None:
        owner, pool = self.owner, self.pool
        owner.kernels, owner.recorded = self.kernels, True
        owner._pool, owner._handle = pool, self.handle
        owner._blocks = [block for block in self.mine if block.alive]
        # Whoever was alive all the time shares no memory with this graph. All others may.
        owner._spared = [block for block in self.alive_before if block.alive]
        owner._reads = list(self.reads.values())
        gone = {id(block) for block in self.mine if not block.alive}
        pool.blocks = [block for block in pool.blocks if id(block) not in gone]

    def abandon(self) -> None:
        _forget(self.owner._uses)
        mine = {id(block) for block in self.mine}
        self.pool.blocks = [b for b in self.pool.blocks if b.alive or id(b) not in mine]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        self._refuse(func, args, kwargs)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:  # made of others: those are taken down
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
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
            raise GraphError("data from Python", _named(args[0]))
        if name.startswith(("aten.set_", "aten.resize_")):
            raise GraphError("moved memory", f"{name} in a capture")
        if name.startswith(("aten.index.", "aten.index_put")):
            masks = [
                i for i in args[1] if isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8)
            ]
            filled = "index_put" in name and args[2].dim() == 0 and self.scalar
            if masks and not filled:
                raise GraphError("data-dependent shape", f"{name} with a mask, {_named(masks[0])}")
        elif torch.Tag.dynamic_output_shape in func.tags:
            raise GraphError("data-dependent shape", name)

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Write a functional operation down; its results are new tensors, full of NaN."""
        try:
            shapes = func(*_as_meta(args), **_as_meta(kwargs) | _meta_device(func, kwargs))
        except NotImplementedError as error:
            raise GraphError(
                "unregistered kernel", f"{func} has no meta or fake version"
            ) from error
        kernel = _Kernel(func, self._addresses(args), self._addresses(kwargs), [])

        def new(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            made, block, address = self.pool.allocate(
                leaf.shape, leaf.stride(), leaf.dtype, self.owner.number
            )
            self.mine.append(block)
            self.addresses[block.start] = (block, address)
            kernel.outputs.append(address)
            return made

        result = tree_map(new, shapes)
        if kernel.outputs:
            if _allocates_only(func):
                kernel.outputs = []
            else:
                self.kernels.append(kernel)
        return result

    def _record_write(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[Any]
    ) -> Any:
        """Write an operation down that writes into tensors it is given, and return those."""
        self.kernels.append(_Kernel(func, self._addresses(args), self._addresses(kwargs), []))
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

    def _address(self, tensor: Tensor) -> Tensor:
        """The same shape on the same bytes, which keeps nothing of the user's alive."""
        shape, stride = tuple(tensor.shape), tensor.stride()
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        if start in self.constants:
            return tensor
        if start in self.addresses and self.addresses[start][0].alive:
            base = self.addresses[start][1]
        else:
            block = self.pool.block_at(start)
            if block is None:
                for pool in MemPool.everywhere():
                    block = block or pool.block_at(start)
            if block is not None:
                self.reads.setdefault(id(block), (block, _named(tensor)))
            self._use(storage, tensor)
            return tensor.detach()
        base = torch.as_strided(base, (base.untyped_storage().nbytes() // base.itemsize,), (1,), 0)
        return torch.as_strided(base.view(tensor.dtype), shape, stride, tensor.storage_offset())

    def _use(self, storage: Any, tensor: Tensor) -> None:
        key = int(storage._cdata)
        held = _outside.setdefault(key, _Outside(storage, storage.data_ptr()))
        held.aliases += 1
        aliases, what = self.owner._uses.get(key, (0, _named(tensor)))
        self.owner._uses[key] = (aliases + 1, what)


def _as_meta(tree: Any) -> Any:
    """Tensors without memory in place of tensors, to ask an operation what its result would look like."""
    return tree_map(
        lambda leaf: (
            torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")
            if isinstance(leaf, Tensor)
            else leaf
        ),
        tree,
    )


def _meta_device(func: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """`device="meta"` for an operation that takes a device: without tensors nothing else would say so."""
    takes = any(argument.name == "device" for argument in func._schema.arguments)
    return {"device": torch.device("meta")} if takes else {}


_TO_HOST = {
    "item", "tolist", "cpu", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__",
    "__complex__", "__repr__", "__str__", "__format__", "__contains__", "__reduce_ex__", "is_nonzero",
}  # fmt: skip
_FROM_PYTHON = {"tensor", "as_tensor", "asarray", "from_numpy", "frombuffer", "new_tensor"}


class _HostCalls(TorchFunctionMode):
    """Refuses what brings numbers to the host, or from it, before it reaches an operation."""

    def __init__(self, capture: _Capture) -> None:
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
        if name in _TO_HOST:
            raise GraphError("host sync", f"Tensor.{name} in a capture")
        if name == "pin_memory":
            raise GraphError("host sync", "pin_memory: page-locking waits for the device")
        if name in _FROM_PYTHON and not (args and isinstance(args[0], Tensor)):
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


class _Watch(TorchDispatchMode):
    """Refuses operations outside of graphs on numbers that no replay has written, or that are gone."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        views = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        if not is_current_stream_capturing() and not views:
            for tensor in _tensors((args, kwargs)):
                check_readable(tensor, str(func))
        return func(*args, **(kwargs or {}))


class _WatchHost(TorchFunctionMode):
    """The same for what brings numbers to the host without an operation."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _TO_HOST and not is_current_stream_capturing():
            check_readable(args[0], f"Tensor.{name}")
        return func(*args, **(kwargs or {}))


def check_readable(tensor: Tensor, reader: str = "somebody") -> None:
    """Raise GraphError if the tensor's memory is a graph's and its numbers must not be read now."""
    for pool in MemPool.everywhere():
        block = pool.block_at(tensor.data_ptr()) if tensor.device.type == "cpu" else None
        if block is not None and block.unreadable:
            raise _unreadable(block, f"{reader} reads {_named(tensor)}")


@contextmanager
def watch() -> Iterator[None]:
    """Within the `with` block, raise where a graph's memory is read and its numbers are not there."""
    with _Watch(), _WatchHost():
        yield
