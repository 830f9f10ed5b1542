"""A product in pieces is the product, in whichever thread a piece is computed."""

from __future__ import annotations

import os
import threading
import time
import warnings

import numpy as np
import pytest

from mini_vllm.layers.linear import Linear
from mini_vllm.layers.quantization.base import NoQuantizationConfig
from mini_vllm.utils import threads
from mini_vllm.utils.blas import blas_threads, get_blas_threads
from mini_vllm.utils.threads import in_pieces, shared_products
from tests.engine.helpers.patience import PATIENCE

WIDE = 4 * threads.PIECE
"""Weights enough for four pieces."""


@pytest.fixture(autouse=True)
def no_chosen_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    if get_blas_threads() is None:
        pytest.skip("numpy uses a BLAS other than OpenBLAS")
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


def pieces(columns: int, weights: int, rows: int, count: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    with shared_products(count):
        in_pieces(lambda start, stop: found.append((start, stop)), columns, weights, rows)
    return sorted(found)


@pytest.mark.parametrize("columns", [4, 32, 100, 1000, 49_152])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_column_is_computed_once(columns: int, count: int) -> None:
    found = pieces(columns, WIDE, 1, count)
    assert len(found) <= count
    assert [i for start, stop in found for i in range(start, stop)] == list(range(columns))


def test_small_products_stay_whole() -> None:
    assert len(pieces(1000, 2 * threads.PIECE - 1, 1, 2)) == 1
    assert len(pieces(1000, 2 * threads.PIECE, 1, 2)) == 2
    # With several rows BLAS copies the weights first, so smaller ones are worth it.
    assert len(pieces(1000, threads.PIECE, 4, 2)) == 2
    assert len(pieces(128, 128 * 768, 64, 2)) == 1  # the shipped model's


def test_outside_of_the_block_and_beside_a_chosen_number_nothing_is_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[tuple[int, int]] = []
    in_pieces(lambda start, stop: found.append((start, stop)), 1000, WIDE, 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert found == pieces(1000, WIDE, 1, 2) == [(0, 1000)]


def make_linear(inputs: int, outputs: int) -> tuple[Linear, np.ndarray]:
    weight = np.random.default_rng(0).standard_normal((outputs, inputs), np.float32)
    return Linear(
        {"p.weight": weight}, inputs, {"p": outputs}, False, NoQuantizationConfig()
    ), weight


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("outputs", [3000, 3008])
def test_a_linear_in_pieces_is_the_product(rows: int, outputs: int) -> None:
    linear, weight = make_linear(600, outputs)
    x = np.random.default_rng(1).standard_normal((rows, 600), np.float32)
    with shared_products(2):
        mine = linear(x)
    assert mine.flags.c_contiguous
    np.testing.assert_allclose(mine, x.astype(np.float64) @ weight.T, rtol=1e-4, atol=1e-3)


def test_helpers_that_never_run_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads._Helpers, "call", lambda *args: None)
    assert len(pieces(1000, WIDE, 1, 4)) == 4


def test_two_callers_get_their_own_products() -> None:
    linear, _ = make_linear(600, 3000)
    rng = np.random.default_rng(2)
    inputs = [rng.standard_normal((2, 600), np.float32) for _ in range(2)]
    with shared_products(2):
        want = [linear(x) for x in inputs]
    got: list[list[np.ndarray]] = [[], []]

    def call(mine: int) -> None:
        for _ in range(50):
            with shared_products(2):
                got[mine].append(linear(inputs[mine]))

    callers = [threading.Thread(target=call, args=(i,)) for i in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    found: list[tuple[int, int]] = []
    in_pieces(lambda start, stop: found.append((start, stop)), 1000, WIDE, 1)
    assert found == [(0, 1000)], "blocks that overlap in two threads leave nothing behind"
    for mine in range(2):
        assert len(got[mine]) == 50
        for y in got[mine]:  # the same shapes in the same pieces
            np.testing.assert_array_equal(y, want[mine])


def test_blas_has_one_thread_until_the_last_caller_has_left() -> None:
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with shared_products(2):
            entered.set()
            assert leave.wait(PATIENCE)

    with blas_threads(2):
        other = threading.Thread(target=stay)
        with shared_products(2):
            other.start()
            assert entered.wait(PATIENCE)
        assert get_blas_threads() == 1, "the first one in leaves first"
        leave.set()
        other.join()
        assert get_blas_threads() == 2


def test_what_a_piece_raises_reaches_the_caller() -> None:
    def fail(start: int, stop: int) -> None:
        if start:
            raise ZeroDivisionError(f"piece {start}")

    for _ in range(20):  # met by the caller or by a helper
        with pytest.raises(ZeroDivisionError, match="piece 512"), shared_products(2):
            in_pieces(fail, 1000, WIDE, 1)
    assert len(pieces(1000, WIDE, 1, 2)) == 2  # and the helpers live on


def test_an_overflow_in_a_helper_says_nothing() -> None:
    started = threading.Event()

    def overflow(start: int, stop: int) -> None:
        if start == 0:  # the thread that has this one waits until another has the other
            assert started.wait(PATIENCE)
        else:
            started.set()
            if threading.current_thread() is not threading.main_thread():
                np.float32(3e38) * np.float32(3e38)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            started.clear()
            with shared_products(2), np.errstate(over="ignore"):
                in_pieces(overflow, 1000, WIDE, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_shares_with_helpers_of_its_own() -> None:
    assert len(pieces(1000, WIDE, 1, 2)) == 2  # helpers are running
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CPython's, that this process has threads
        child = os.fork()
    if child == 0:
        names: set[str] = set()

        def slow(start: int, stop: int) -> None:
            names.add(threading.current_thread().name)
            time.sleep(0.001)

        deadline = time.monotonic() + PATIENCE
        while len(names) < 2 and time.monotonic() < deadline:
            with shared_products(2):
                in_pieces(slow, 1000, WIDE, 1)
        os._exit(0 if len(names) == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
