"""Where the points of a sweep are computed: on processes of this machine, or as tasks of Ray.

Both give a function its tasks, as many at once as there are workers, and hand on each answer when it is
there. A worker that dies is made good: its task is given to another, up to `MOST_TRIES` times, because a
task that takes all the memory would kill every worker it meets.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

MOST_TRIES = 4
"""As many as Ray gives a task (`max_retries=3`)."""
STORE_BYTES = 100 * 2**20
"""For what tasks hand on to each other, in a cluster that is started here: rows are small."""

Function = Callable[[Any], str]
"""Computes a task. It must be a function of a module: workers import it."""
Answer = tuple[int, str | None]
"""A task's number, and what came of it; None if every worker that it was given to died."""
Note = Callable[[int, str], None]
"""Told of a task whose worker died, and of what."""


class _Worker:
    """A process that computes one task at a time."""

    def __init__(self, function: Function) -> None:
        # Spawned, as on Windows: a fork would inherit threads' locks without the threads.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(function, theirs), daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe ends when the process does


def _serve(function: Function, pipe: Connection) -> None:
    """The main function of a worker's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the sweep's to act on
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return  # the sweep is over
        pipe.send(function(task))


def _end_with_parent() -> None:
    """A point can take hours, in which nothing is read from the pipe."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def run_on_processes(
    function: Function, tasks: Sequence[Any], jobs: int, note: Note
) -> Generator[Answer, None, None]:
    """Compute the tasks on `jobs` processes. None is left when this ends, or is closed.

    A task that raises kills its worker: catch what can be wrong with it in `function`.
    """
    todo = deque(range(len(tasks)))
    tries = [0] * len(tasks)
    idle: list[_Worker] = []
    busy: dict[Any, tuple[_Worker, int]] = {}  # by the pipe
    try:
        while todo or busy:
            while todo and len(busy) < jobs:
                worker = idle.pop() if idle else _Worker(function)
                index = todo.popleft()
                busy[worker.pipe] = worker, index
                tries[index] += 1
                try:
                    worker.pipe.send(tasks[index])
                except OSError:  # it died while it was idle, and reading says so too
                    continue
            for pipe in wait(list(busy)):
                worker, index = busy.pop(pipe)
                try:
                    answer = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.process.join()
                    note(index, _describe(worker.process.exitcode))
                    if tries[index] < MOST_TRIES:
                        todo.appendleft(index)
                    else:
                        yield index, None
                else:
                    idle.append(worker)
                    yield index, answer
    finally:
        for worker in [*idle, *(worker for worker, _ in busy.values())]:
            worker.process.terminate()
            worker.process.join()
            worker.pipe.close()


def _describe(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"killed by signal {-exitcode}"
    return f"ended with status {exitcode}"


def run_on_ray(
    function: Function, tasks: Sequence[Any], jobs: int | None, address: str | None
) -> Generator[Answer, None, None]:
    """Compute the tasks on a Ray cluster, which gives a task whose worker or node died to another.

    Args:
        jobs: most tasks that are given to Ray at once, and the processors of a cluster that is started
            here; None: all of them, and all of those.
        address: of a cluster, as `ray.init` takes it, "local" for a new one on this machine; None: the one
            that RAY_ADDRESS or `ray start` says, else a new one. A new one ends with this.

    Raises ConnectionError where there is no cluster at the address.
    """
    if not tasks:
        return
    # Neither is for a sweep: reports to Ray's authors, and, under `uv run`, an environment for each worker.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    import ray
    from ray import exceptions

    def connect(address: str, **settings: Any) -> None:
        ray.init(address, log_to_driver=False, logging_level="error", **settings)

    new = {"num_cpus": jobs, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    if address == "local":
        connect("local", **new)
    else:
        try:
            connect(address or "auto")
        except ConnectionError:
            if address is not None or "RAY_ADDRESS" in os.environ:
                raise
            connect("local", **new)
    died = exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.OutOfMemoryError
    try:
        remote = ray.remote(max_retries=MOST_TRIES - 1)(function)
        todo = deque(range(len(tasks)))
        pending: dict[Any, int] = {}
        while todo or pending:
            while todo and len(pending) < (jobs or len(tasks)):
                index = todo.popleft()
                pending[remote.remote(tasks[index])] = index
            for ref in ray.wait(list(pending))[0]:
                index = pending.pop(ref)
                try:
                    answer = ray.get(ref)
                except died:
                    answer = None
                yield index, answer
    finally:
        ray.shutdown()
