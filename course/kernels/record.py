"""Watch a kernel in Triton's interpreter: who touched which address, in which line, in which order.

The interpreter runs the programs of a launch one after another, so a kernel whose programs disturb each
other may still come out right. `Recorder` writes every load, store and atomic down, keeps those that leave
their tensor from being done, and can run the programs in another order, since a GPU promises none.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import numpy as np
import torch
import triton.runtime.interpreter as interpreter

from course.kernels.memory import Array, Region, memory_of, nearest, sort_out

Program = tuple[int, int, int]
ORDERS = ("first to last", "last to first", "shuffled")


@dataclass(frozen=True)
class Access:
    """The lanes of one load, store or atomic that lie in one tensor."""

    kind: str  # "load", "store", "atomic"
    program: int  # its number in the launch's grid
    line: int  # in the kernel's file
    region: Region
    addresses: Array  # of the active lanes, each once: a warp fetches what its lanes share once
    size: int  # bytes of one element
    orders: bool = False  # an atomic that makes what its program did before visible to later ones
    scalar: bool = False  # of a single pointer: one thread stores, all load


@dataclass(frozen=True)
class Outside:
    """An access that leaves every tensor. It was not done."""

    kind: str
    program: Program
    line: int
    where: str
    distance: int  # in bytes, from the nearest tensor
    lanes: int


@dataclass(frozen=True)
class Clash:
    """Two accesses of one program to one address, by two of its threads, with no barrier between."""

    program: int
    first: tuple[str, int]  # kind and line
    second: tuple[str, int]
    where: str


class Threads:
    """Which thread of a program touches what, since the program's last barrier.

    Lane i of two tiles of one shape belongs to one thread, if each thread has a lane. Of smaller tiles one
    thread stores a number and several load it.
    """

    def __init__(self, count: int = 128) -> None:
        self._count = count
        self._program = -1
        self._done: list[tuple[Access, Array, Array, tuple[int, ...]]] = []

    def wait(self) -> None:
        """A barrier."""
        self._done.clear()

    def touch(self, access: Access, every: Array, active: Array) -> Iterator[Clash]:
        """Note an access to the pointers `every` in the lanes `active`; yield what it clashes with."""
        if access.program != self._program:
            self._program = access.program
            self._done.clear()
        if access.orders:
            self._done.clear()  # what comes back of it goes to all threads, behind a barrier
        if access.kind == "atomic":
            return
        lanes = np.flatnonzero(active)
        addresses = every.ravel()[lanes]
        addresses, at = np.unique(addresses, return_index=True)
        lanes = lanes[at]
        for other, theirs, their_lanes, shape in self._done:
            loads = (access.kind == "load") + (other.kind == "load")
            if loads == 2 or other.region.name != access.region.name:
                continue
            both, mine, its = np.intersect1d(addresses, theirs, True, return_indices=True)
            if shape == every.shape and (not loads or every.size >= self._count):
                both = both[lanes[mine] != their_lanes[its]]
            if both.size:
                where = access.region.label(int(both[0]))
                first, second = (other.kind, other.line), (access.kind, access.line)
                yield Clash(access.program, first, second, where)
                break
        self._done.append((access, addresses, lanes, every.shape))


@dataclass
class Launch:
    """One kernel, started once."""

    name: str
    file: str
    regions: list[Region]
    grid: Program = (1, 1, 1)
    accesses: list[Access] = field(default_factory=list)
    outside: list[Outside] = field(default_factory=list)
    bare: set[int] = field(default_factory=set)  # lines of masked float loads that name no `other`
    # By program: how many accesses of the launch came before each of its barriers
    barriers: dict[int, list[int]] = field(default_factory=dict)
    clashes: list[Clash] = field(default_factory=list)  # between threads of one program

    def program(self, number: int) -> Program:
        _, ny, nz = self.grid
        return number // (ny * nz), number // nz % ny, number % nz


class Recorder:
    """Records every launch inside of `with Recorder(...).watching():`.

    `inputs` are the tensors that the kernel is called with, by name. `around`, if given, is called when a
    launch begins and when it ends.
    """

    def __init__(
        self,
        inputs: dict[str, Any],
        order: str = ORDERS[0],
        around: Callable[[], None] | None = None,
    ) -> None:
        self._around = around or (lambda: None)
        # What the latest launch that stored there left in a tensor of the file's own, by its memory's address
        self.left: dict[int, torch.Tensor] = {}
        self.launches: list[Launch] = []
        self.overwritten: list[str] = []  # inputs that were not the same afterwards
        self._order = order
        self._permuted: list[int] = []
        self._threads = Threads()
        self._given = [
            Region.of(name, value, given=True)
            for name, value in inputs.items()
            if isinstance(value, torch.Tensor)
        ]
        self._known = {
            value.untyped_storage().data_ptr()
            for value in inputs.values()
            if isinstance(value, torch.Tensor)
        }

    @property
    def accesses(self) -> Iterator[Access]:
        return (access for launch in self.launches for access in launch.accesses)

    @contextmanager
    def watching(self) -> Iterator[Recorder]:
        """Put our own functions over the interpreter's, and take them away again."""
        builder, function = interpreter.InterpreterBuilder, interpreter.InterpretedFunction
        mine = {
            (builder, "set_grid_idx"): self._set_grid_idx,
            (builder, "create_masked_load"): self._load,
            (builder, "create_masked_store"): self._store,
            (builder, "create_atomic_rmw"): self._atomic_rmw,
            (builder, "create_atomic_cas"): self._atomic_cas,
            (builder, "create_barrier"): self._barrier,
            (function, "run"): self._run,
        }
        before = {place: getattr(*place) for place in mine}
        for (owner, name), make in mine.items():
            setattr(owner, name, make(before[owner, name]))
        try:
            with np.errstate(all="ignore"):
                yield self
        finally:
            for (owner, name), original in before.items():
                setattr(owner, name, original)

    # -- a launch ---------------------------------------------------------------------------------

    def _run(self, original: Any) -> Any:
        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            named = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
            regions = list(self._given)
            for name, value in named.items():
                if isinstance(value, torch.Tensor) and not self._is_known(value):
                    regions.append(Region.of(name, value, given=False))
            code = kernel.fn.__code__
            self.launches.append(Launch(kernel.fn.__name__, code.co_filename, regions))
            self._permuted = []
            self._threads = Threads(32 * int(kwargs.get("num_warps") or 4))
            self._around()
            try:
                return original(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            finally:
                self._around()
                self._leave(named)

        return run

    def _leave(self, named: dict[str, Any]) -> None:
        """Keep what the launch has stored to."""
        stored = {a.region.name for a in self.launches[-1].accesses if a.kind != "load"}
        for name in stored & named.keys():
            tensor = named[name]
            if isinstance(tensor, torch.Tensor) and not self._is_known(tensor):
                memory = memory_of(tensor)
                self.left[memory.data_ptr()] = memory.clone()

    def lasts(self, got: torch.Tensor) -> bool:
        """Whether `got` is still what the kernels left there."""
        memory = memory_of(got)
        left = self.left.get(memory.data_ptr())
        if left is None or left.shape != memory.shape:
            return False
        where = got.storage_offset(), got.shape, got.stride()

        def seen(bytes_: torch.Tensor) -> torch.Tensor:
            there = bytes_.view(got.dtype).as_strided(where[1], where[2], where[0])
            return there.contiguous().view(torch.uint8)

        return bool(torch.equal(seen(left), seen(memory)))

    def _is_known(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._known

    def _set_grid_idx(self, original: Any) -> Any:
        def set_grid_idx(builder: Any, x: int, y: int, z: int) -> None:
            launch = self.launches[-1]
            if not self._permuted:
                launch.grid = builder.grid_dim
                count = launch.grid[0] * launch.grid[1] * launch.grid[2]
                self._permuted = list(range(count))
                if self._order == "last to first":
                    self._permuted.reverse()
                elif self._order == "shuffled":
                    random.Random(0).shuffle(self._permuted)
            _, ny, nz = launch.grid
            original(builder, *launch.program(self._permuted[(x * ny + y) * nz + z]))

        return set_grid_idx

    # -- accesses ---------------------------------------------------------------------------------

    def _note(
        self, builder: Any, kind: str, pointers: Any, mask: Array, orders: bool = False
    ) -> Array:
        """Write an access down; returns the mask of the lanes that stay inside of their tensor."""
        launch = self.launches[-1]
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        every = np.asarray(pointers.data).astype(np.int64)
        active = np.broadcast_to(np.asarray(mask, dtype=bool), every.shape)
        addresses = np.unique(every[active])
        x, y, z = builder.grid_idx
        number = (x * launch.grid[1] + y) * launch.grid[2] + z
        line = _line(launch.file)
        for region, held in sort_out(launch.regions, addresses, size):
            if region is not None:
                access = Access(
                    kind, number, line, region, addresses[held], size, orders, not every.shape
                )
                launch.accesses.append(access)
                if not region.given:
                    launch.clashes += self._threads.touch(access, every, active)
                continue
            lost = addresses[held]
            near, far = nearest(launch.regions, int(lost[0]))
            where = near.label(int(lost[0]))
            launch.outside.append(Outside(kind, (x, y, z), line, where, far, len(lost)))
            active = active & ~np.isin(every, lost)
        return active

    def _barrier(self, original: Any) -> Any:
        def barrier(builder: Any) -> Any:
            launch = self.launches[-1]
            x, y, z = builder.grid_idx
            number = (x * launch.grid[1] + y) * launch.grid[2] + z
            launch.barriers.setdefault(number, []).append(len(launch.accesses))
            self._threads.wait()
            return original(builder)

        return barrier

    def _load(self, original: Any) -> Any:
        def load(builder: Any, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
            inside = self._note(builder, "load", pointers, mask.data)
            if other is None and not np.all(mask.data):
                other = self._anything(pointers)
            return original(builder, pointers, _boolean(inside), other, *rest)

        return load

    def _anything(self, pointers: Any) -> Any:
        """What lanes hold that are masked off without `other=`: on a GPU, whatever was there before."""
        kind = pointers.get_element_ty()
        dtype = interpreter._get_np_dtype(kind)
        if not kind.is_floating():
            return interpreter.TensorHandle(np.full(pointers.data.shape, 1, dtype), kind)
        launch = self.launches[-1]
        launch.bare.add(_line(launch.file))
        bits = np.full(pointers.data.shape, -1, f"i{np.dtype(dtype).itemsize}")  # a NaN
        return interpreter.TensorHandle(bits.view(dtype), kind)

    def _store(self, original: Any) -> Any:
        def store(builder: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            inside = self._note(builder, "store", pointers, mask.data)
            return original(builder, pointers, value, _boolean(inside), *rest)

        return store

    def _atomic_rmw(self, original: Any) -> Any:
        def atomic(builder: Any, op: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            orders = rest[0] != interpreter._ir.MEM_SEMANTIC.RELAXED
            inside = self._note(builder, "atomic", pointers, mask.data, orders)
            return original(builder, op, pointers, value, _boolean(inside), *rest)

        return atomic

    def _atomic_cas(self, original: Any) -> Any:
        def cas(builder: Any, pointers: Any, old: Any, new: Any, sem: Any, *rest: Any) -> Any:
            every = np.ones_like(pointers.data, dtype=bool)
            orders = sem != interpreter._ir.MEM_SEMANTIC.RELAXED
            if not self._note(builder, "atomic", pointers, every, orders).all():
                raise IndexError("an atomic_cas leaves its tensor")
            return original(builder, pointers, old, new, sem, *rest)

        return cas


def lighten() -> None:
    """Spare the interpreter what changes nothing here, half of its time. For good: there is no way back.

    And let it run with numpy from 2.4 on, which a rented GPU's machine may have.
    """
    # Bounds that it computes for every sum and product of integers, and looks at with debug=True only.
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    # Copying every tensor back from the CPU: they are there.
    interpreter.GridExecutor._restore_args_dev = lambda *args: None

    # Preparing the whole language for each call of a jitted function by another, `tl.sum` for instance:
    # once a launch and module is enough.
    prepared: set[int] = set()
    run = interpreter.InterpretedFunction.run

    def launch(function: Any, *args: Any, **kwargs: Any) -> Any:
        prepared.clear()
        return run(function, *args, **kwargs)

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        module = id(function.fn.__globals__)
        if module not in prepared:
            prepared.add(module)
            interpreter._patch_lang(function.fn)
        return function.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.run = launch
    interpreter.InterpretedFunction.__call__ = call

    # A loop's bound is an array of one number, from which numpy 2.4 makes no integer by itself.
    patch = interpreter._patch_lang_tensor

    def patch_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_tensor


def _boolean(mask: Array) -> Any:
    return interpreter.TensorHandle(np.array(mask, dtype=bool), interpreter.tl.int1)


def _line(file: str) -> int:
    """The line of `file` that is being run, 0 if none is."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame.f_lineno if frame is not None else 0
