"""Lab 05-01: the counter, the recording, one graph for a shape, and graphs between what stays outside."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in
from mini_vllm.cudagraph import BatchDescriptor, Graph, GraphPool, Kernel, Launch

support = load_support(__file__)
FULL, PIECEWISE, NONE = support.FULL, support.PIECEWISE, support.NONE
rows, shape = support.rows, support.shape
BOTH = pytest.mark.parametrize("mode", [FULL, PIECEWISE], ids=str)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """The predictions hold: launches, what a replay reads, what a night costs, and the order of captures."""
    got = lab.predictions()
    layers, sizes = 30, (1, 2, 4, 8)
    eager, pieces = 12 * layers + 3, layers + 1 + 2 * layers
    want = {
        "launches of a step": (
            [eager, pieces, 1],
            "kernels, pieces and what is between, one graph",
        ),
        "y after each line": ([30, 30, 40], "a replay reads the array of the capture as it is now"),
        "launches for 100 tokens": (
            [100 * eager, eager + 99],
            "the prompt's step gives the first token, 99 decodes the others",
        ),
        "bytes of the pool": (
            [max(sizes) * 400, sum(sizes) * 400],
            "what is there serves any smaller size, and is never given back",
        ),
    }
    assert got.keys() == want.keys(), f"the names are {sorted(want)}, yours {sorted(got)}"
    for name, (numbers, why) in want.items():
        wrong = wrong_in(got[name], numbers)
        assert not wrong, f"{name}: {wrong}; think of this: {why}"


# ---- launches ------------------------------------------------------------------------------------


def test_eager_pays_one_launch_per_kernel(lab: ModuleType) -> None:
    """Without graphs every kernel runs at once and is counted under its kind."""
    counter = lab.LaunchCounter()
    assert (counter.launches, counter.capturing_enabled) == (0, True), (
        "a new counter has counted nothing"
    )
    for step in (1, 2):
        values = {"x": rows(3, 2.0)}
        lab.run_kernels(support.KERNELS, values, 3, counter)
        assert (values["y"] == support.right(2.0)).all(), (
            f"y is {values['y'][0, 0]}, not {support.right(2.0)}"
        )
        assert counter.launches == 5 * step, (
            f"five kernels, {step} times: {5 * step} launches, not {counter.launches}"
        )
    kinds = {"double": 2, "copy": 2, "square": 2, "more": 2, "triple": 2}
    assert counter.by_kind == kinds, f"by_kind is {dict(counter.by_kind)}, not {kinds}"


def test_kernels_get_what_stands_there_now(lab: ModuleType) -> None:
    """`run_kernels` finds inputs by name at each kernel's turn, and gets output memory from `empty`."""
    asked: list[tuple[str, int, int]] = []

    def empty(name: str, n: int, width: int) -> Any:
        asked.append((name, n, width))
        return np.zeros((n, width), np.float32)

    log: list[float] = []
    kernels = [
        Kernel("a", lambda x: x + 1, ("x",), "x", 2),
        Kernel("b", lambda x: log.append(float(x[0, 0])), ("x",), None),
        Kernel("c", lambda table, x: x[:1, :1], ("table", "x"), "w", 1),
    ]
    x, counter = rows(3), lab.LaunchCounter()
    values = {"x": x, "table": rows(8)}
    lab.run_kernels(kernels, values, 3, counter, empty)
    assert log == [2.0], f"b reads x when a has written it, so it sees 2.0 once; it saw {log}"
    assert asked == [("x", 3, 2), ("w", 3, 1)], (
        f"memory is wanted for a's and for c's output, a row for each token of the step whatever the inputs "
        f"have: ('x', 3, 2) and ('w', 3, 1); you asked for {asked}"
    )
    assert counter.launches == 3, (
        f"b has no output and is launched through the counter as well: 3 launches, not {counter.launches}"
    )
    assert (x == 1).all(), (
        "a's output has memory of its own; the array that came in was written over"
    )
    assert values.keys() == {"x", "table", "w"}, (
        f"values holds {sorted(values)}: x and w were written, and table was there"
    )
    assert values["w"].tolist() == [[2], [0], [0]], (
        f"c returns one row of three; the others stay as they were, not {values['w'].tolist()}"
    )


def test_a_capture_writes_down_and_does_nothing(lab: ModuleType) -> None:
    """A launch during a capture is recorded, changes no array and counts as nothing."""
    counter, graph = lab.LaunchCounter(), Graph()
    x, y = rows(1, 2.0), rows(1, 0.0)
    first, second = Launch("a", np.negative, (x,), y), Launch("b", np.square, (y,), y)
    with counter.capture(graph):
        counter.launch(first)
        counter.launch(second)
    assert (y == 0).all(), f"nothing is computed during a capture; y became {y.tolist()}"
    assert counter.launches == 0, f"a recorded launch is none yet; {counter.launches} were counted"
    assert [launch.kind for launch in graph.launches] == ["a", "b"], (
        f"the graph holds the launches a and b in order, not {[each.kind for each in graph.launches]}"
    )
    assert graph.launches[0].inputs[0] is x, "the very array is recorded, not a copy of it"
    assert graph.launches[1].output is y, "the very array is recorded, not a copy of it"
    counter.launch(first)
    assert counter.by_kind == {"a": 1}, "behind the capture a launch is a launch again"


def test_a_replay_is_one_launch(lab: ModuleType) -> None:
    """A replay is one launch, however many kernels it holds, and runs them in the order of the capture."""
    counter, graph = lab.LaunchCounter(), Graph()
    x, y = rows(1, 3.0), rows(1, 0.0)
    with counter.capture(graph):
        counter.launch(Launch("a", lambda x: x + 1, (x,), y))
        counter.launch(Launch("b", lambda y: y * 10, (y,), y))
    for time in (1, 2):
        counter.replay(graph)
        assert y[0, 0] == 40, f"(3 + 1) * 10 is 40, whatever was in y; the replay left {y[0, 0]}"
        assert counter.launches == time, (
            f"after {time} of 2 replays there are {time} launches, not {counter.launches}"
        )
    assert counter.by_kind == {"graph": 2}, (
        f"replays count as 'graph'; by_kind is {dict(counter.by_kind)}"
    )
    assert len(graph.launches) == 2, (
        f"a replay adds nothing to the graph; it holds {len(graph.launches)} now"
    )


def test_one_capture_at_a_time(lab: ModuleType) -> None:
    """Inside a capture there is no other capture and no replay, and a capture that fails is finished."""
    counter, graph = lab.LaunchCounter(), Graph()

    def capture_again() -> None:
        with counter.capture(Graph()):
            pass

    with counter.capture(graph):
        assert support.told(support.caught(capture_again)), (
            "a capture inside of a capture: RuntimeError"
        )
        counter.launch(Launch("a", np.negative, (rows(1),), rows(1)))
        assert len(graph.launches) == 1, (
            "the inner capture was refused, and with it the outer one has ended: it misses a launch"
        )
        assert support.told(support.caught(counter.replay, graph)), (
            "a replay inside of a capture: RuntimeError, since a graph is no kernel"
        )
        counter.launch(Launch("b", np.negative, (rows(1),), rows(1)))
    assert len(graph.launches) == 2, "the replay that was refused has ended the capture"
    with pytest.raises(ZeroDivisionError), counter.capture(graph):
        raise ZeroDivisionError
    counter.launch(Launch("c", np.negative, (rows(1),), rows(1)))
    assert counter.launches == 1, "the capture ended by an error, and still it swallows launches"


# ---- one graph a shape ---------------------------------------------------------------------------


@BOTH
def test_capture_then_replay_is_one_launch(lab: ModuleType, mode: Any) -> None:
    """A shape is captured the first time, then replayed: one launch for the whole model, or one per piece."""
    run, counter = support.runner(lab, mode)
    x = rows(4)
    run({"x": x}, mode, shape(4))
    for _ in range(3):
        values = {"x": x}
        got = support.launches_of(counter, run, values, mode, shape(4))
        want = 1 if mode is FULL else 3
        assert got == want, (
            f"launches in a step of a known shape, mode {mode}: {want}, not {got}. A shape is captured once, "
            "and replayed from then on; a replay is one launch"
        )
        assert "y" in values, (
            f"a replay's outputs are to be in values by name; it holds {sorted(values)}"
        )
        assert (values["y"] == support.right(1.0)).all(), f"y is {values['y'][0, 0]}, not 15"


@BOTH
def test_a_capture_computes_nothing(lab: ModuleType, mode: Any) -> None:
    """After a capture the outputs exist but hold what was in the pool's memory: NaN if it is new."""
    run, counter = support.runner(lab, mode)
    values = {"x": rows(4)}
    launches = support.launches_of(counter, run, values, mode, shape(4))
    outside = 0 if mode is FULL else 1
    assert launches == outside, (
        f"a step that captures launches what is outside of graphs, {outside}, and records the rest; "
        f"{launches} were counted"
    )
    assert "y" in values, "who captures needs the outputs too: the next piece reads them"
    assert np.isnan(values["y"]).all(), f"nothing was computed yet, and y holds {values['y'][0, 0]}"


@BOTH
def test_static_buffer_reflects_new_input(lab: ModuleType, mode: Any) -> None:
    """A replay works with the new numbers at the old address."""
    run, _ = support.runner(lab, mode)
    x = rows(2)
    run({"x": x}, mode, shape(2))
    for number in (1.0, 5.0, 2.0):
        x[:] = number
        values = {"x": x}
        run(values, mode, shape(2))
        want = support.right(number)
        assert (values["y"] == want).all(), (
            f"x holds {number} now, so y is {want}; yours is {values['y'][0, 0]}"
            + (", the one before" if values["y"][0, 0] in map(support.right, (1.0, 5.0)) else "")
        )


def test_nothing_else_is_looked_at(lab: ModuleType) -> None:
    """A replay runs what was recorded, even if the list of kernels has changed since."""
    run, _ = support.runner(lab, FULL)
    x = rows(2, 2.0)
    run({"x": x}, FULL, shape(2))
    run.kernels.clear()
    values = {"x": x, "y": rows(2), "z": rows(2)}
    run(values, FULL, shape(2))
    assert (values["y"] == support.right(2.0)).all(), (
        f"y is {values['y'][0, 0]}, not 51: the kernels' list was emptied behind the capture, and a "
        "recording does not ask Python again"
    )


def test_an_input_that_moved_is_refused(lab: ModuleType) -> None:
    """An input that was bound to another array is an error, raised before anything runs."""
    kernels = [Kernel("add", np.add, ("ids", "places"), "sum", 2)]
    run, counter = support.runner(lab, FULL, kernels)
    a, b = rows(2), rows(2)
    run({"ids": a, "places": b}, FULL, shape(2))
    for moved in ("ids", "places"):
        values = {"ids": a, "places": b} | {moved: rows(2, 7.0)}
        before = counter.launches
        error = support.caught(run, values, FULL, shape(2))
        launches = counter.launches - before
        total = f"a sum of {values['sum'][0, 0]}" if "sum" in values else "no sum"
        assert support.told(error, moved), (
            f"{moved} is another array than at the capture, and the replay would read the old one: a "
            f"RuntimeError that names {moved!r}, not {error!r}, {launches} launches and {total}"
        )
        assert launches == 0, "the addresses are compared before the replay"
    again = np.ones((8, 2), np.float32)
    run({"ids": again[:4], "places": again[4:]}, FULL, shape(4))
    for ids in (again[0:][:4], again[:3]):
        error = support.caught(run, {"ids": ids, "places": again[4:]}, FULL, shape(4))
        assert error is None, (
            f"another view, of {len(ids)} rows, of the same place is no other place; got {error!r}"
        )
    run, _ = support.runner(lab, FULL, [Kernel("more", lambda ids: ids + 1, ("ids",), "ids", 2)])
    run({"ids": a}, FULL, shape(2))
    error = support.caught(run, {"ids": a}, FULL, shape(2))
    assert error is None, (
        "the kernel reads ids and writes its result elsewhere, under the same name; what it reads lies "
        f"where it lay. Got {error!r}"
    )


def test_outputs_are_the_graphs_own(lab: ModuleType) -> None:
    """A replay's result is in the graph's memory, so the next replay of any size overwrites it."""
    run, _ = support.runner(lab, FULL)
    x = rows(4)
    for n in (4, 2):
        run({"x": x[:n]}, FULL, shape(n))
    values = {"x": x, "y": rows(4, 7.0)}
    run(values, FULL, shape(4))
    kept = values["y"]
    assert (kept == support.right(1.0)).all(), (
        f"the step's own result is {kept[0, 0]}, not 15 (7 is what stood under y before the step)"
    )
    assert "z" in values, (
        f"z was written as well as y, though the last kernel is y's; values has {sorted(values)}"
    )
    x[:] = 2.0
    smaller = {"x": x[:2]}
    run(smaller, FULL, shape(2))
    assert kept[:, 0].tolist() == [51, 51, 15, 15], (
        "outputs are arrays of the pool, and the smaller graph's are the first rows of the larger one's: "
        f"after its replay the old y must be [51, 51, 15, 15], and is {kept[:, 0].tolist()}"
    )
    assert smaller["y"].shape == (2, 2), f"its own has the shape (2, 2), not {smaller['y'].shape}"


def test_the_key_is_the_whole_shape(lab: ModuleType) -> None:
    """Four tokens of four requests, of two, and of an unnamed number are three different graphs."""
    run, counter = support.runner(lab, FULL)
    x = rows(4)
    keys = [
        BatchDescriptor(4, 4, True),
        BatchDescriptor(4, 4),
        BatchDescriptor(4, 2),
        BatchDescriptor(4),
    ]
    for number, key in enumerate(keys, 1):
        launches = support.launches_of(counter, run, {"x": x}, FULL, key)
        assert (len(run.entries), launches) == (number, 0), (
            f"{key} is a shape that was not captured yet, though {number - 1} of 4 tokens were; there are "
            f"{len(run.entries)} entries, and {launches} launches"
        )
    assert set(run.entries) == set(keys), (
        f"entries are kept by descriptor; the keys are {list(run.entries)}"
    )


def test_new_shapes_at_the_start_only(lab: ModuleType) -> None:
    """Once capturing is closed, an unknown shape is an error and leaves nothing behind."""
    run, counter = support.runner(lab, FULL)
    known = {"x": rows(2)}
    run(dict(known), FULL, shape(2))
    counter.capturing_enabled = False
    error = support.caught(run, {"x": rows(3)}, FULL, shape(3))
    assert support.told(error, "num_tokens=3"), (
        "a capture takes time and memory that nobody has in the middle of serving: a RuntimeError with the "
        f"shape in it, not {error!r} and {counter.launches} launches"
    )
    assert len(run.entries) == 1, f"what was refused left an entry: {list(run.entries)}"
    assert support.told(support.caught(run, {"x": rows(3)}, FULL, shape(3))), (
        "asked again, it must be refused again"
    )
    error = support.caught(run, known, FULL, shape(2))
    assert error is None, (
        f"a shape that was captured at the start is replayed ever after; got {error!r}"
    )


@BOTH
def test_another_mode_passes_through(lab: ModuleType, mode: Any) -> None:
    """A step in another mode than the runner's runs kernel by kernel, without a graph or a check."""
    pool = GraphPool()
    run, counter = support.runner(lab, mode, pool=pool)
    counter.capturing_enabled = False
    for other in (PIECEWISE if mode is FULL else FULL, NONE):
        seen = []
        for n in (2, 3):
            values = {"x": rows(n, 2.0)}
            error = support.caught(run, values, other, shape(n))
            assert error is None, (
                f"a runner of {mode} in a step of {other} captures nothing; got {error!r}"
            )
            assert (values["y"] == support.right(2.0)).all(), f"y is {values['y'][0, 0]}, not 51"
            seen.append(values["y"])
        assert counter.by_kind["graph"] == 0, f"a runner of {mode} replayed in a step of {other}"
        assert (seen[0] == support.right(2.0)).all(), (
            "without a graph an output is the step's own memory"
        )
        assert pool.nbytes == 0, (
            f"a runner of {mode} in a step of {other} took memory of the pool, where the next replay "
            "writes; a step without a graph takes fresh memory"
        )
    assert counter.launches == 20, (
        f"four steps of five kernels are 20 launches, not {counter.launches}"
    )


def test_graphs_win_when_launches_dominate(lab: ModuleType) -> None:
    """A hundred steps of five kernels are 500 launches, but 100 in one graph and 300 in pieces."""
    for mode, want in ((NONE, 500), (FULL, 100), (PIECEWISE, 300)):
        run, counter = support.runner(lab, mode if mode else FULL)
        x = rows(1)
        if mode:
            run({"x": x}, mode, shape(1))  # at the start
        before = counter.launches
        for _ in range(100):
            run({"x": x}, mode, shape(1))
        got = counter.launches - before
        assert got == want, f"100 steps in mode {mode} are {want} launches, not {got}"
