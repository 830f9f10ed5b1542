"""Large products, and attention, on all cores, by threads of ours.

OpenBLAS has threads of its own, but they wait in a loop, and each product waits until all of them have run.
Where other processes want the cores that is ruinous: beside two of them, on two cores, a model of 135 million
weights made 1.8 tokens a second with two threads of OpenBLAS and 11.6 with one. Here the work is cut into
pieces, and each thread takes the next one when it is free, the caller's too. A helper that the system does
not run is not waited for: the caller then computes all of the pieces.

vLLM's CPU backend leaves this to OpenMP, whose threads it binds to cores, one to a physical core
(`vllm/utils/ompmultiprocessing.py:122 OMPProcessManager._parse_omp_threads_bind_env`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue

import numpy as np

from mini_vllm.utils.blas import blas_threads, get_blas_threads, has_chosen_threads

Piece = Callable[[int], object]
"""Computes the piece with this number. What it writes to, no other piece may touch."""
Columns = Callable[[int, int], object]
"""Computes the columns from one number up to another, and touches no other column."""

MOST_THREADS = 4
PIECE = 3 * 2**18
"""Weights in a piece at least. With fewer, waking a helper takes longer than it saves (30 to 100 us)."""


class _Job:
    """Some work in pieces. Each thread that calls `work` takes pieces until none is left."""

    def __init__(self, compute: Piece, count: int) -> None:
        self._compute = compute
        self._take = iter(range(count)).__next__  # one thread at a time: the GIL is held meanwhile
        self._left = count
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._finished = threading.Lock()
        self._finished.acquire()

    def work(self) -> None:
        while True:
            try:
                piece = self._take()
            except StopIteration:
                return
            try:
                self._compute(piece)
            except BaseException as error:  # raised in the caller, also where a helper met it
                self._error = error
            with self._lock:
                self._left -= 1
                if not self._left:
                    self._finished.release()

    def wait(self) -> None:
        """Until all pieces are computed. Raises what computing one has raised."""
        self._finished.acquire()
        if self._error is not None:
            raise self._error


class _Helpers:
    """Threads that work on whatever is in the queue. They start with the first job."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._count = 0
        self._lock = threading.Lock()

    def call(self, job: _Job, count: int) -> None:
        with self._lock:
            while self._count < count:
                self._count += 1
                name = f"mini-vllm-product-{self._count}"
                threading.Thread(target=self._loop, name=name, daemon=True).start()
        for _ in range(count):
            self._jobs.put(job)

    # What overflows is the caller's affair, whose errstate does not reach a thread.
    @np.errstate(all="ignore")
    def _loop(self) -> None:
        while True:
            self._jobs.get().work()


class _OneBlasThread:
    """BLAS has one thread from when the first thread enters until the last one has left.

    The number is the process's. If each block put back what it had found, the first that ends would give BLAS
    all of its threads while another is still going on, whose products would then be rounded in another order.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._limit = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._limit.enter_context(blas_threads(1))
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limit.close()


class _Allowed(threading.local):
    """How many threads the work of this thread may use. What a helper starts stays in the helper."""

    count = 1


_helpers = _Helpers()
_allowed = _Allowed()
_one_blas_thread = _OneBlasThread()


def _forget_threads() -> None:
    global _helpers, _one_blas_thread
    _helpers = _Helpers()
    _one_blas_thread = _OneBlasThread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)  # a child has none of its parent's threads


def count_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def limit_threads(count: int) -> None:
    """From now on, no more than `count` threads in this process: it has its cores with others."""
    global MOST_THREADS
    MOST_THREADS = min(MOST_THREADS, count)


@contextmanager
def shared_products(count: int | None = None) -> Iterator[None]:
    """Until the block ends, BLAS has one thread, and `share` uses `count` for the work of this thread: by
    default as many as there are cores, up to `MOST_THREADS`.

    Changes nothing where the user has chosen a number of BLAS threads, or where there is no BLAS that can
    be told one (Accelerate).
    """
    if has_chosen_threads() or get_blas_threads() is None:
        yield
        return
    before = _allowed.count
    with _one_blas_thread:
        _allowed.count = min(count_cores(), MOST_THREADS) if count is None else count
        try:
            yield
        finally:
            _allowed.count = before


def share(compute: Piece, count: int, alone: bool = False) -> None:
    """Call `compute` for the pieces 0 to `count` - 1, several at a time inside `shared_products`.

    Args:
        alone: the pieces are too small for helpers, so this thread computes all of them.

    Raises whatever `compute` raises.
    """
    helpers = 0 if alone else min(_allowed.count, count) - 1
    if helpers < 1:
        for piece in range(count):
            compute(piece)
        return
    job = _Job(compute, count)
    _helpers.call(job, helpers)
    job.work()
    job.wait()


def in_pieces(compute: Columns, columns: int, weights: int, rows: int) -> None:
    """Call `compute` for all `columns` of a product, in one piece or in several at the same time.

    Args:
        compute: the columns from one number up to another.
        columns: of the result.
        weights: numbers that the product reads, all columns together.
        rows: of the result. One row needs each weight once, several copy them first, which takes five times
            as long.

    Raises whatever `compute` raises.
    """
    count = min(_allowed.count, weights * (1 if rows == 1 else 5) // PIECE)
    if count < 2:
        compute(0, columns)
        return
    width = -(-columns // (count * 32)) * 32  # whole vectors of every processor
    share(lambda i: compute(i * width, min((i + 1) * width, columns)), -(-columns // width))
