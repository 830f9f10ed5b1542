"""Lab 05-01: launches, recordings, and the two runners that replay them. Reference solution.

Outputs are float32 `[rows, width]`, with a row for each token of the batch. `Kernel`, `Launch`, `Graph`,
`GraphEntry`, `GraphPool`, `address` and `fresh` are the engine's, and are described in the README.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from mini_vllm.cudagraph import (
    BatchDescriptor,
    CUDAGraphMode,
    Graph,
    GraphEntry,
    GraphPool,
    Kernel,
    Launch,
)
from mini_vllm.cudagraph.graph import Array, Values, address, fresh

# ---- before you write anything -------------------------------------------------------------------


def predictions() -> dict[str, list[float]]:
    """Your answers to the README's four questions, under its names."""
    return {
        "launches of a step": [363, 91, 1],
        "y after each line": [30, 30, 40],
        "launches for 100 tokens": [36300, 462],
        "bytes of the pool": [3200, 6000],
    }


# ---- launches ------------------------------------------------------------------------------------


class LaunchCounter:
    """Counts launches: every launch goes through it.

    Attributes:
        launches: launches up to now, a replay being one.
        by_kind: the same by the launch's `kind`; a replay counts as a `"graph"`.
        capturing_enabled: whether anything new may be captured. True at first; the engine sets it to False
            once everything is captured.
    """

    def __init__(self) -> None:
        self.launches = 0
        self.by_kind: Counter[str] = Counter()
        self.capturing_enabled = True
        self._graph: Graph | None = None  # what is being captured

    def launch(self, launch: Launch) -> None:
        """Count the launch and run it; during a capture, only append it to the graph's launches."""
        if self._graph is not None:
            self._graph.launches.append(launch)
            return
        self._count(launch.kind)
        launch.run()

    @contextmanager
    def capture(self, graph: Graph) -> Iterator[None]:
        """Until the `with` ends, even with an error, launches go into `graph`.

        Raises RuntimeError if a graph is being captured already.
        """
        if self._graph is not None:
            raise RuntimeError("one capture at a time")
        self._graph = graph
        try:
            yield
        finally:
            self._graph = None

    def replay(self, graph: Graph) -> None:
        """Run everything that the graph holds, in its order. That counts as one launch.

        Raises RuntimeError during a capture.
        """
        if self._graph is not None:
            raise RuntimeError("a replay cannot be captured")
        self._count("graph")
        for launch in graph.launches:
            launch.run()

    def _count(self, kind: str) -> None:
        self.launches += 1
        self.by_kind[kind] += 1


def run_kernels(
    kernels: Sequence[Kernel],
    values: Values,
    num_tokens: int,
    counter: Any,
    empty: Callable[[str, int, int], Array] = fresh,
) -> None:
    """Launch the kernels in order, through the counter.

    A kernel's inputs are looked up in `values` by name when its turn comes. A kernel with an output gets
    memory for it from `empty(name, num_tokens, width)`; afterwards `values` holds the output under its
    name, in place of any older array. A kernel without an output is launched with None.
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
    """The names that kernels read before any kernel has written them, each once, in order."""
    names: list[str] = []
    written: set[str | None] = set()
    for kernel in kernels:
        for name in kernel.inputs:
            if name not in written and name not in names:
                names.append(name)
        written.add(kernel.output)
    return names


# ---- the whole in one graph ----------------------------------------------------------------------


class GraphRunner:
    """Kernels that are captured once per shape, and replayed from then on.

    Args:
        kernels: what to run, a whole model or a piece of one.
        runtime_mode: FULL or PIECEWISE; steps of another mode use no graph of this runner.
        counter: a `LaunchCounter`.
        pool: the memory for the graphs' outputs.

    Attributes:
        entries: what was captured, by shape.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        runtime_mode: CUDAGraphMode,
        counter: Any,
        pool: GraphPool,
    ) -> None:
        self.kernels = list(kernels)
        self.runtime_mode = runtime_mode
        self.counter = counter
        self.pool = pool
        self.entries: dict[BatchDescriptor, GraphEntry] = {}

    def __call__(
        self, values: Values, runtime_mode: CUDAGraphMode, batch_descriptor: BatchDescriptor
    ) -> None:
        """Run a step; afterwards `values` also holds what the kernels have written, by name.

        In any mode but its own the runner launches the kernels one by one, into fresh memory. In its own mode
        it captures an unknown shape and replays a known one. In both cases the outputs in `values` are the
        graph's own arrays.

        Raises RuntimeError, before anything runs:
            with the shape in its message, if the shape would have to be captured and the counter's
                `capturing_enabled` is False;
            with the input's name, if an input of a replay is not at the address of the capture.
        """
        if runtime_mode is not self.runtime_mode:
            run_kernels(self.kernels, values, batch_descriptor.num_tokens, self.counter)
            return
        entry = self.entries.get(batch_descriptor)
        if entry is None:
            entry = self.entries[batch_descriptor] = self._capture(values, batch_descriptor)
        else:
            for name, there in entry.input_addresses.items():
                if address(values[name]) != there:
                    raise RuntimeError(f"{name} has moved since {batch_descriptor} was captured")
            self.counter.replay(entry.graph)
        values.update(entry.outputs)

    def _capture(self, values: Values, batch_descriptor: BatchDescriptor) -> GraphEntry:
        """A new entry: the recording, its outputs (from the pool), and where its inputs lie."""
        if not self.counter.capturing_enabled:
            raise RuntimeError(f"{batch_descriptor} was not captured at the start")
        graph, written = Graph(), dict(values)
        with self.counter.capture(graph):
            run_kernels(
                self.kernels, written, batch_descriptor.num_tokens, self.counter, self.pool.empty
            )
        outputs = {k.output: written[k.output] for k in self.kernels if k.output is not None}
        addresses = {name: address(values[name]) for name in inputs_of(self.kernels)}
        return GraphEntry(batch_descriptor, graph, outputs, addresses)


# ---- graphs between what stays outside -----------------------------------------------------------


class PiecewiseGraphRunner:
    """Graphs for the kernels between those that are `splitting`, which are launched each time.

    Args:
        kernels: the whole model.
        counter: a `LaunchCounter`.
        pool: the memory for outputs, those of outside kernels too.

    Attributes:
        parts: in order, a `GraphRunner` of mode PIECEWISE for each run of kernels that are not splitting,
            and a list for each run of those that are.
    """

    def __init__(self, kernels: Sequence[Kernel], counter: Any, pool: GraphPool) -> None:
        """Cut the list into parts; a run of neighbours of one kind is one part."""
        self.counter = counter
        self.pool = pool
        self.parts: list[GraphRunner | list[Kernel]] = []
        for splitting, group in groupby(kernels, key=lambda kernel: kernel.splitting):
            part = list(group)
            self.parts.append(
                part if splitting else GraphRunner(part, CUDAGraphMode.PIECEWISE, counter, pool)
            )
        # For each shape: where what outside kernels write lies, by name.
        self._outside: dict[BatchDescriptor, Values] = {}

    def __call__(
        self, values: Values, runtime_mode: CUDAGraphMode, batch_descriptor: BatchDescriptor
    ) -> None:
        """Run a step, part after part.

        In a PIECEWISE step an outside kernel writes into memory of the pool, chosen when the shape is first
        seen and the same for this shape from then on. In any other mode every kernel is launched by
        itself, into fresh memory.
        """
        piecewise = runtime_mode is CUDAGraphMode.PIECEWISE
        kept = self._outside.setdefault(batch_descriptor, {}) if piecewise else {}

        def empty(name: str, rows: int, width: int) -> Array:
            if not piecewise:
                return fresh(name, rows, width)
            if name not in kept:
                kept[name] = self.pool.empty(name, rows, width)
            return kept[name]

        for part in self.parts:
            if isinstance(part, list):
                run_kernels(part, values, batch_descriptor.num_tokens, self.counter, empty)
            else:
                part(values, runtime_mode, batch_descriptor)
