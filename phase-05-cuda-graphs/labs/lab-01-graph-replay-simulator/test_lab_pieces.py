"""Lab 05-01: graphs between what stays outside."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from mini_vllm.cudagraph import GraphPool, Kernel

support = load_support(__file__)
PIECEWISE = support.PIECEWISE
rows, shape = support.rows, support.shape


def test_the_outside_is_alive(lab: ModuleType) -> None:
    """A kernel outside the pieces runs in every step, with that step's arrays and Python."""
    calls: list[float] = []

    def attend(y: Any, lens: Any) -> Any:
        calls.append(float(lens.sum()))
        return y[: len(lens)] + lens[:, None]

    kernels = [
        Kernel("before", lambda x: 2 * x, ("x",), "y", 2),
        Kernel("attend", attend, ("y", "lens"), "z", 2, splitting=True),
        Kernel("behind", lambda z: z + 1, ("z",), "z", 2),
    ]
    run, counter = support.runner(lab, PIECEWISE, kernels)
    x = rows(4)
    run({"x": x, "lens": np.zeros(0, np.float32)}, PIECEWISE, shape(4))
    calls.clear()
    for lens in ([5.0, 6.0, 7.0], [8.0], [1.0, 2.0, 3.0, 4.0]):
        values = {
            "x": x,
            "lens": np.array(lens, np.float32),
        }  # new arrays, as long as this step needs them
        error = support.caught(run, values, PIECEWISE, shape(4))
        assert error is None, (
            f"what only outside kernels read may move and change its length; got {error!r}"
        )
        got = values["z"][: len(lens), 0].tolist()
        want = [3.0 + each for each in lens]
        assert got == want, (
            f"lens is {lens} in this step, so z begins with {want}; yours is {got}. The next piece "
            "was captured on one array: what an outside kernel returns must be copied there"
        )
    assert calls == [18.0, 8.0, 10.0], (
        f"attend runs once a step, on that step's lens; it saw {calls}"
    )
    assert counter.by_kind["graph"] == 6, (
        f"two pieces, three steps: 6 replays, not {counter.by_kind['graph']}"
    )


@pytest.mark.parametrize("sizes", [(8, 4, 2), (2, 4, 8)], ids=["largest-first", "smallest-first"])
def test_any_order_of_captures(lab: ModuleType, sizes: tuple[int, ...]) -> None:
    """Pieces of several sizes work side by side, whichever was captured first."""
    run, _ = support.runner(lab, PIECEWISE)
    x = rows(8)
    for n in sizes:
        run({"x": x[:n]}, PIECEWISE, shape(n))
    for n, number in ((8, 2.0), (2, 3.0), (4, 1.0), (2, 2.0), (8, 3.0)):
        x[:] = number
        values = {"x": x[:n]}
        error = support.caught(run, values, PIECEWISE, shape(n))
        assert error is None, (
            f"size {n}, captured in the order {sizes}: {error!r}. An outside kernel's output must "
            "lie where it lay when this size was captured, though the pool has grown since"
        )
        assert (values["y"] == support.right(number)).all(), (
            f"size {n}, captured in the order {sizes}: y is {values['y'][0, 0]}, not {support.right(number)}"
        )


def test_pieces_share_the_pool(lab: ModuleType) -> None:
    """If the largest is captured first, all sizes and parts together take only the largest's memory."""
    pool = GraphPool()
    kernels = [
        Kernel("before", lambda x: 2 * x, ("x",), "y", 2),
        Kernel("outside", lambda y: y * y, ("y",), "w", 2, splitting=True),
        Kernel("behind", lambda w: w + 1, ("w",), "z", 2),
    ]
    run, _ = support.runner(lab, PIECEWISE, kernels, pool)
    x = rows(8)
    for n in (8, 4, 2, 1):
        run({"x": x[:n]}, PIECEWISE, shape(n))
    want = 3 * 8 * 2 * 4
    assert pool.nbytes == want, (
        f"y and z of the pieces and w of the kernel outside, each 8 rows of 2 numbers of 4 bytes: {want} "
        f"bytes. The pool has handed out {pool.nbytes}"
    )
