"""Recording and replay: what a CUDA graph does, on numpy arrays.

Mirrors `vllm/compilation/cuda_graph.py:145 CUDAGraphWrapper` and, of CUDA, what stands behind it
(`torch.cuda.CUDAGraph`, its memory pool). A kernel here is a numpy function whose result goes into an array
that was there before, and every launch goes through a `LaunchCounter`. While that captures, a launch computes
nothing: it leaves behind the function, the arrays it was given and the array it would write to. A replay runs
these, on these very arrays, and is one launch. Nothing else of Python is looked at again, so binding a
name to another array after the capture changes nothing that a replay can see, as on a GPU.

Invariants, which the tests check by name:

- **one-launch**: a replay is one launch, whatever it holds.
- **by-address**: a replay reads and writes the arrays of the capture, with what is in them now.
- **nothing-computed**: a capture computes nothing; its outputs are NaN until the first replay.
- **next-replay**: the next replay of any graph of the pool may overwrite what this one has left.
- **start-up-only**: once capturing is closed, an unknown key is an error and no capture.

Left out: streams, kernels in parallel, warm-up runs (numpy has nothing to warm up; at the pin each size
is run once before it is captured), weak references to outputs.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mini_vllm.cudagraph.modes import BatchDescriptor, CUDAGraphMode

Array = NDArray[Any]
Values = dict[str, Array]
"""A step's arrays by name: its inputs, then what kernels have written."""


@dataclass(frozen=True)
class Kernel:
    """One function of the model, and where its arrays are found by name.

    Attributes:
        name: for instance `layers.0.qkv_proj`; what follows the last dot is its kind.
        function: from the inputs to float32 `[rows, width]`, or to fewer rows: the others stay as they
            were. One without an output writes into its inputs and returns None.
        inputs: names of the arrays that it gets.
        output: name of the array that it writes, which may be one of its inputs; None: none of its own.
        width: columns of the output; its rows are the tokens of the batch.
        splitting: stays outside of pieces (`vllm/config/compilation.py:500 CompilationConfig.splitting_ops`).
    """

    name: str
    function: Callable[..., Array | None]
    inputs: tuple[str, ...]
    output: str | None
    width: int = 0
    splitting: bool = False

    @property
    def kind(self) -> str:
        return self.name.rpartition(".")[2]


class Launch(NamedTuple):
    """A kernel that is started: from here on names mean nothing, there are only arrays."""

    kind: str
    function: Callable[..., Array | None]
    inputs: tuple[Array, ...]
    output: Array | None

    def run(self) -> None:
        result = self.function(*self.inputs)
        if self.output is not None and result is not None:
            self.output[: len(result)] = result


class LaunchCounter:
    """The door through which every launch goes, and where it is counted.

    Attributes:
        launches: launches since the last `reset`, a replay being one.
        by_kind: the same by kind of kernel; a replay is a `graph`.
        capturing_enabled: may anything still be captured? Set it to False when the start is over
            (`vllm/compilation/monitor.py:90 validate_cudagraph_capturing_enabled`).
    """

    def __init__(self) -> None:
        self.launches = 0
        self.by_kind: Counter[str] = Counter()
        self.capturing_enabled = True
        self._graph: Graph | None = None

    def reset(self) -> None:
        self.launches = 0
        self.by_kind.clear()

    def count(self, kind: str) -> None:
        self.launches += 1
        self.by_kind[kind] += 1

    def launch(self, launch: Launch) -> None:
        """Run it, and count it; or, while a graph is captured, write it down and do nothing else."""
        if self._graph is None:
            self.count(launch.kind)
            launch.run()
            return
        # What the function holds, its weights for instance, is an argument of the kernel as well: the copy
        # keeps these arrays, whatever the model's attribute is bound to later.
        self._graph.launches.append(launch._replace(function=copy.copy(launch.function)))

    @contextmanager
    def capture(self, graph: Graph) -> Iterator[None]:
        """Launches inside of `with` go into the graph (`torch.cuda.graph`).

        Raises RuntimeError where one graph is being captured already.
        """
        if self._graph is not None:
            raise RuntimeError("a graph is being captured already: one capture at a time")
        self._graph = graph
        try:
            yield
        finally:
            self._graph = None

    def replay(self, graph: Graph) -> None:
        """Run what was recorded, as one launch.

        Raises RuntimeError during a capture: a graph is no kernel, and cannot be recorded.
        """
        if self._graph is not None:
            raise RuntimeError("a replay inside of a capture: launch the kernels themselves")
        self.count("graph")
        for launch in graph.launches:
            launch.run()


@dataclass
class Graph:
    """A recording (`torch.cuda.CUDAGraph`): launches, each with the arrays that it had."""

    launches: list[Launch] = field(default_factory=list)


class GraphPool:
    """The memory of all graphs' outputs: one array a name, which smaller graphs use from the front.

    Upstream one pool serves all graphs, too
    (`vllm/compilation/cuda_graph.py:200 in CUDAGraphWrapper.__init__`). That is sound because no two graphs
    run at the same time, and it is why the largest is captured first: a smaller one fits into what is there,
    and a larger one would need memory of its own.

    Attributes:
        nbytes: bytes handed out, in all. What a graph has recorded is never given back.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._arrays: dict[str, Array] = {}

    def empty(self, name: str, rows: int, width: int) -> Array:
        """float32 `[rows, width]`; NaN where it is new, since nothing has been computed."""
        array = self._arrays.get(name)
        if array is None or len(array) < rows:
            array = self._arrays[name] = np.full((rows, width), np.nan, np.float32)
            self.nbytes += array.nbytes
        return array[:rows]


def fresh(name: str, rows: int, width: int) -> Array:
    """An output without a graph: new memory, each time."""
    return np.empty((rows, width), np.float32)


def run_kernels(
    kernels: Sequence[Kernel],
    values: Values,
    num_tokens: int,
    counter: LaunchCounter,
    empty: Callable[[str, int, int], Array] = fresh,
) -> None:
    """Launch one kernel after the other; each output goes into `values` under its name.

    Args:
        num_tokens: rows of every output, padding included.
        empty: where the outputs' memory comes from: `(name, rows, width)`.
    """
    for kernel in kernels:
        inputs = tuple(values[name] for name in kernel.inputs)
        if kernel.output is None:
            counter.launch(Launch(kernel.kind, kernel.function, inputs, None))
            continue
        output = empty(kernel.output, num_tokens, kernel.width)
        counter.launch(Launch(kernel.kind, kernel.function, inputs, output))
        values[kernel.output] = output


def inputs_of(kernels: Sequence[Kernel]) -> list[str]:
    """What the kernels read and have not written themselves before, each name once."""
    names: dict[str, None] = {}
    written: set[str] = set()
    for kernel in kernels:
        names.update(dict.fromkeys(name for name in kernel.inputs if name not in written))
        if kernel.output is not None:
            written.add(kernel.output)
    return list(names)


def address(array: Array) -> int:
    """Where its first number lies; torch's `data_ptr`."""
    return int(array.__array_interface__["data"][0])


@dataclass
class GraphEntry:
    """What is kept for one shape (`vllm/compilation/cuda_graph.py:128 CUDAGraphEntry`).

    Attributes:
        batch_descriptor: the shape.
        graph: the recording.
        outputs: the arrays that it writes, by name.
        input_addresses: where its inputs lay at the capture, by name.
    """

    batch_descriptor: BatchDescriptor
    graph: Graph
    outputs: Values
    input_addresses: dict[str, int]


class GraphRunner:
    """Kernels that are captured once for each shape, and replayed from then on.

    It is told how the step runs and in which shape, and trusts that: to choose is the dispatcher's work.
    Nor does it copy inputs anywhere. The caller has them in arrays that stay where they are.

    Args:
        kernels: the model, or a piece of it.
        runtime_mode: FULL or PIECEWISE. In a step of any other mode the kernels are launched one by one.
        counter: where the launches go.
        pool: where the outputs lie.
        check_addresses: hold the inputs of each replay against those of the capture. Upstream does so
            only for pieces, under `VLLM_LOGGING_LEVEL=DEBUG`; else the old place is read, without a word.

    Raises ValueError for a runtime mode that no graph has.
    Source: `vllm/compilation/cuda_graph.py:145 CUDAGraphWrapper`.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        runtime_mode: CUDAGraphMode,
        counter: LaunchCounter,
        pool: GraphPool,
        check_addresses: bool = True,
    ) -> None:
        if runtime_mode not in (CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL):
            raise ValueError(f"a graph's runtime mode is FULL or PIECEWISE, got {runtime_mode}")
        self.kernels = list(kernels)
        self.runtime_mode = runtime_mode
        self.counter = counter
        self.pool = pool
        self.check_addresses = check_addresses
        self.input_names = inputs_of(kernels)
        self.entries: dict[BatchDescriptor, GraphEntry] = {}

    def __call__(
        self, values: Values, runtime_mode: CUDAGraphMode, batch_descriptor: BatchDescriptor
    ) -> None:
        """Run a step; what the kernels write is in `values` afterwards.

        Args:
            values: the step's arrays by name, padded to the shape.
            runtime_mode: how the step runs.
            batch_descriptor: its shape.

        Raises RuntimeError for a shape that was not captured when that was still allowed, and for an
        input that is not where it was.
        """
        if runtime_mode is not self.runtime_mode:
            run_kernels(self.kernels, values, batch_descriptor.num_tokens, self.counter)
            return
        entry = self.entries.get(batch_descriptor)
        if entry is None:
            entry = self._capture(values, batch_descriptor)
        else:
            if self.check_addresses:
                self._check_addresses(entry, values)
            self.counter.replay(entry.graph)
        values.update(entry.outputs)

    def _capture(self, values: Values, batch_descriptor: BatchDescriptor) -> GraphEntry:
        if not self.counter.capturing_enabled:
            raise RuntimeError(
                f"{self.runtime_mode} has no graph for {batch_descriptor}, and capturing is closed: "
                "what was not captured at the start runs without a graph"
            )
        graph, inside = Graph(), dict(values)
        with self.counter.capture(graph):
            run_kernels(
                self.kernels, inside, batch_descriptor.num_tokens, self.counter, self.pool.empty
            )
        outputs = {k.output: inside[k.output] for k in self.kernels if k.output is not None}
        addresses = {name: address(values[name]) for name in self.input_names}
        entry = GraphEntry(batch_descriptor, graph, outputs, addresses)
        self.entries[batch_descriptor] = entry
        return entry

    def _check_addresses(self, entry: GraphEntry, values: Values) -> None:
        for name, there in entry.input_addresses.items():
            if address(values[name]) != there:
                raise RuntimeError(
                    f"{name!r} has moved since {entry.batch_descriptor} was captured: the replay would "
                    "read the old array. Copy into that one, and do not bind the name to another"
                )


class PiecewiseGraphRunner:
    """Kernels with graphs between those that must stay outside, which run each time as they are.

    An outside kernel runs on the step's own arrays, without padding where the caller has none. What it
    returns is copied to where the next piece was captured to read it.

    Args:
        kernels: the whole model; neighbours that are `splitting` stay together.
        counter, pool: as for `GraphRunner`.
        graph_runner: what runs a piece, `(kernels, runtime_mode, counter, pool)`.

    Source: `vllm/compilation/backends.py:548 split_graph`.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        counter: LaunchCounter,
        pool: GraphPool,
        graph_runner: Callable[..., GraphRunner] = GraphRunner,
    ) -> None:
        self.counter = counter
        self.pool = pool
        self.parts: list[GraphRunner | list[Kernel]] = []
        self._outside: dict[BatchDescriptor, Values] = {}
        for outside, group in groupby(kernels, key=lambda kernel: kernel.splitting):
            part = list(group)
            self.parts.append(
                part if outside else graph_runner(part, CUDAGraphMode.PIECEWISE, counter, pool)
            )

    @property
    def pieces(self) -> list[GraphRunner]:
        """The parts that have graphs."""
        return [part for part in self.parts if not isinstance(part, list)]

    def __call__(
        self, values: Values, runtime_mode: CUDAGraphMode, batch_descriptor: BatchDescriptor
    ) -> None:
        """As `GraphRunner.__call__`."""
        piecewise = runtime_mode is CUDAGraphMode.PIECEWISE
        kept = self._outside.setdefault(batch_descriptor, {}) if piecewise else {}

        def empty(name: str, rows: int, width: int) -> Array:
            """Where the next piece reads: chosen when the shape is captured, and the same from then on."""
            if name not in kept:
                kept[name] = (self.pool.empty if piecewise else fresh)(name, rows, width)
            return kept[name]

        for part in self.parts:
            if isinstance(part, list):
                run_kernels(part, values, batch_descriptor.num_tokens, self.counter, empty)
            else:
                part(values, runtime_mode, batch_descriptor)
