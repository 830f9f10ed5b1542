"""Ranks that are threads of one process: to see what they say, without making processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from mini_vllm.distributed.communicator import Array, Communicator, RankDiedError

Result = TypeVar("Result")


class ThreadCommunicator(Communicator):
    """One thread's end of `run_ranks`."""

    def __init__(self, rank: int, board: list[Any], barrier: threading.Barrier) -> None:
        super().__init__(rank, len(board))
        self._board = board
        self._barrier = barrier

    def exchange(self, array: Array) -> list[Array]:
        self._board[self.rank] = array
        self._wait()
        arrays: list[Array] = list(self._board)
        self._wait()  # before one of them writes again
        return arrays

    def _wait(self) -> None:
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError as error:
            raise RankDiedError(f"rank {self.rank} waits for one that has ended") from error


def run_ranks(rank_main: Callable[[Communicator], Result], world_size: int) -> list[Result]:
    """Call `rank_main` in a thread for each rank; what each has returned, by rank.

    Raises what the first of them has raised.
    """
    board: list[Any] = [None] * world_size
    barrier = threading.Barrier(world_size)
    results: dict[int, Result] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = rank_main(ThreadCommunicator(rank, board, barrier))
        except BaseException as error:
            errors.append(error)
        barrier.abort() if errors else None

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(world_size)]
