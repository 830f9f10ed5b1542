"""`mini_vllm.cudagraph.graph`: what is recorded, what a replay sees, and what it does not."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from mini_vllm.cudagraph import (
    BatchDescriptor,
    CUDAGraphMode,
    Graph,
    GraphPool,
    GraphRunner,
    Kernel,
    Launch,
    LaunchCounter,
    PiecewiseGraphRunner,
)
from mini_vllm.layers.layernorm import RMSNorm

FULL, PIECEWISE, NONE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE

# x, doubled, then squared outside of graphs, then one more: (2 x)^2 + 1, over registers that are reused.
KERNELS = [
    Kernel("double", lambda x: 2 * x, ("x",), "y", 3),
    Kernel("copy", lambda y: y, ("y",), "z", 3),
    Kernel("square", lambda z: z * z, ("z",), "y", 3, splitting=True),
    Kernel("more", lambda y: y + 1, ("y",), "y", 3),
]


def rows(n: int, value: float = 1.0) -> Any:
    return np.full((n, 3), value, np.float32)


def runner(mode: CUDAGraphMode = FULL, **options: Any) -> Any:
    """A runner of KERNELS, its counter and its pool."""
    counter, pool = LaunchCounter(), GraphPool()
    if mode is PIECEWISE:
        return PiecewiseGraphRunner(KERNELS, counter, pool, **options), counter, pool
    return GraphRunner(KERNELS, mode, counter, pool, **options), counter, pool


def shape(n: int) -> BatchDescriptor:
    return BatchDescriptor(n)


@pytest.mark.parametrize("mode", [FULL, PIECEWISE])
def test_by_address(mode: CUDAGraphMode) -> None:
    """A replay works with what is in the captured arrays now."""
    run, _, _ = runner(mode)
    x = rows(2)
    run({"x": x}, mode, shape(2))
    for value in (3.0, 5.0):
        x[:] = value
        values = {"x": x}
        run(values, mode, shape(2))
        assert (values["y"] == (2 * value) ** 2 + 1).all(), value


def test_rebinding_gives_the_old_result() -> None:
    """Nobody is told, unless the addresses are checked; with the check it is an error with its name."""
    run, _, _ = runner(check_addresses=False)
    run({"x": rows(2, 1.0)}, FULL, shape(2))
    values = {"x": rows(2, 7.0)}
    run(values, FULL, shape(2))
    assert (values["y"] == 5.0).all(), "the replay must read the array of the capture"

    run, counter, _ = runner()
    run({"x": rows(2)}, FULL, shape(2))
    counter.reset()
    with pytest.raises(RuntimeError, match=r"'x' has moved since BatchDescriptor\(num_tokens=2,"):
        run({"x": rows(2, 7.0)}, FULL, shape(2))
    assert counter.launches == 0, "it must be refused before anything runs"


def test_weights_are_arguments_too() -> None:
    """Bound to another array after the capture they change nothing; written in place they do."""
    norm = RMSNorm(np.ones(3, np.float32), 0.0)
    counter, pool = LaunchCounter(), GraphPool()
    run = GraphRunner([Kernel("norm", norm, ("x",), "y", 3)], FULL, counter, pool)
    values = {"x": rows(1)}
    run(values, FULL, shape(1))
    captured = norm.weight
    norm.weight = np.full(3, 9.0, np.float32)
    run(values, FULL, shape(1))
    assert values["y"].tolist() == [[1.0, 1.0, 1.0]]
    captured[:] = 4.0
    run(values, FULL, shape(1))
    assert values["y"].tolist() == [[4.0, 4.0, 4.0]]


@pytest.mark.parametrize("mode", [FULL, PIECEWISE])
def test_nothing_computed(mode: CUDAGraphMode) -> None:
    """A capture writes kernels down; what it would have computed is NaN until a replay."""
    run, counter, _ = runner(mode)
    values = {"x": rows(2)}
    run(values, mode, shape(2))
    assert np.isnan(values["y"]).all()
    # Outside kernels run in the capturing pass as well, on whatever is there.
    assert counter.by_kind == ({} if mode is FULL else {"square": 1})


@pytest.mark.parametrize(
    ("mode", "by_kind"),
    [
        (NONE, {"double": 1, "copy": 1, "square": 1, "more": 1}),
        (PIECEWISE, {"graph": 2, "square": 1}),
        (FULL, {"graph": 1}),
    ],
)
def test_one_launch(mode: CUDAGraphMode, by_kind: dict[str, int]) -> None:
    run, counter, _ = runner(PIECEWISE if mode is NONE else mode)
    x = rows(2, 2.0)
    for _ in range(3):  # the first captures
        counter.reset()
        run(values := {"x": x}, mode, shape(2))
    assert counter.by_kind == by_kind
    assert counter.launches == sum(by_kind.values())
    assert (values["y"] == 17.0).all()


def test_another_mode_passes_through() -> None:
    """A runner of pieces in a step that is FULL or NONE launches kernel by kernel, and captures nothing."""
    for own, other in ((FULL, PIECEWISE), (FULL, NONE), (PIECEWISE, FULL), (PIECEWISE, NONE)):
        run, counter, pool = runner(own)
        values = {"x": rows(4)}
        run(values, other, shape(4))
        assert counter.launches == 4, (own, other)
        assert (values["y"] == 5.0).all()
        assert pool.nbytes == 0, "no graph, so no memory of graphs"
        counter.capturing_enabled = False
        run({"x": rows(5)}, other, shape(5))  # and no question whether that is allowed


def test_start_up_only() -> None:
    run, counter, _ = runner()
    run({"x": rows(2)}, FULL, shape(2))
    counter.capturing_enabled = False
    with pytest.raises(
        RuntimeError, match=r"FULL has no graph for .*num_tokens=3.*capturing is closed"
    ):
        run({"x": rows(3)}, FULL, shape(3))
    assert list(run.entries) == [shape(2)], "a refused key must leave nothing behind"
    # The same count of tokens in another shape is another key.
    with pytest.raises(RuntimeError, match="num_reqs=2"):
        run({"x": rows(2)}, FULL, BatchDescriptor(2, 2))


def test_next_replay() -> None:
    """Two graphs of one pool write to the same memory: a kept output is the next step's."""
    run, _, _ = runner()
    x = rows(4)
    for n in (4, 2):
        run({"x": x[:n]}, FULL, shape(n))
    run(values := {"x": x[:4]}, FULL, shape(4))
    kept = values["y"]
    assert (kept == 5.0).all()
    x[:] = 2.0
    run({"x": x[:2]}, FULL, shape(2))
    assert kept[:, 0].tolist() == [17.0, 17.0, 5.0, 5.0]


@pytest.mark.parametrize("mode", [FULL, PIECEWISE])
def test_the_largest_first_takes_the_least_memory(mode: CUDAGraphMode) -> None:
    """And the order changes nothing else."""
    nbytes = []
    for sizes in ((8, 4, 2), (2, 4, 8)):
        run, _, pool = runner(mode)
        x = rows(8, 2.0)
        for n in sizes:
            run({"x": x[:n]}, mode, shape(n))
        nbytes.append(pool.nbytes)
        for n in (2, 8, 4):
            run(values := {"x": x[:n]}, mode, shape(n))
            assert values["y"].shape == (n, 3)
            assert (values["y"] == 17.0).all()
    two_registers = 2 * 3 * 4
    assert nbytes == [8 * two_registers, (2 + 4 + 8) * two_registers]


def test_a_shorter_result_leaves_the_other_rows() -> None:
    """So attention, which computes no rows of padding, leaves there what was there."""
    run = GraphRunner(
        [Kernel("part", lambda x: x[:1], ("x",), "y", 3)], FULL, LaunchCounter(), GraphPool()
    )
    values = {"x": rows(2)}
    run(values, FULL, shape(2))
    run(values, FULL, shape(2))
    assert values["y"][0].tolist() == [1, 1, 1]
    assert np.isnan(values["y"][1]).all()


def test_pieces_are_what_lies_between() -> None:
    counter, pool = LaunchCounter(), GraphPool()
    names = "a|bc||d"  # a bar is an outside kernel
    kernels = [Kernel(n, np.negative, ("x",), "x", 3, splitting=n == "|") for n in names]
    run = PiecewiseGraphRunner(kernels, counter, pool)
    assert [[k.name for k in p.kernels] for p in run.pieces] == [["a"], ["b", "c"], ["d"]]
    assert len(run.parts) == 5, "neighbours that stay outside stay together"
    assert all(piece.runtime_mode is PIECEWISE for piece in run.pieces)


def test_what_cannot_be() -> None:
    counter = LaunchCounter()
    with pytest.raises(ValueError, match="FULL or PIECEWISE, got NONE"):
        GraphRunner(KERNELS, NONE, counter, GraphPool())
    graph = Graph()
    launch = Launch("kernel", np.negative, (rows(1),), rows(1))
    with counter.capture(graph):
        counter.launch(launch)
        with pytest.raises(RuntimeError, match="one capture at a time"), counter.capture(Graph()):
            pass
        with pytest.raises(RuntimeError, match="a replay inside of a capture"):
            counter.replay(graph)
    assert [recorded.kind for recorded in graph.launches] == ["kernel"]
    with pytest.raises(ZeroDivisionError), counter.capture(graph):
        raise ZeroDivisionError
    counter.launch(launch)
    assert counter.by_kind == {"kernel": 1}, "a capture that fails must end"


def test_an_input_is_what_is_read_before_it_is_written() -> None:
    run, _, _ = runner()
    assert run.input_names == ["x"]
    pieces = [Kernel("a", np.add, ("p", "q"), "p", 3), Kernel("b", np.add, ("p", "r"), "s", 3)]
    assert GraphRunner(pieces, FULL, LaunchCounter(), GraphPool()).input_names == ["p", "q", "r"]


def test_a_part_of_ones_own_runs_the_pieces() -> None:
    made: list[tuple[int, CUDAGraphMode]] = []

    def mine(kernels: Any, mode: CUDAGraphMode, *others: Any) -> GraphRunner:
        made.append((len(kernels), mode))
        return GraphRunner(kernels, mode, *others)

    run, _, _ = runner(PIECEWISE, graph_runner=partial(mine))
    assert made == [(2, PIECEWISE), (1, PIECEWISE)]
    assert len(run.pieces) == 2
