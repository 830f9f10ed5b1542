"""Ranks that are threads of one process: to see what they say to each other, without making processes.

Nothing upstream is like it: there a rank is always a process. A lab and tests run ranks so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from mini_vllm.distributed.communicator import Array, Communicator, RankDiedError

Result = TypeVar("Result")


class Meeting:
    """Where the threads meet: each puts down an array, and none leaves before all have."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._changed = threading.Condition()
        self._brought: dict[int, Array] = {}
        self._round = 0
        self._result: list[Array] = []
        self._ended = False

    def exchange(self, rank: int, array: Array) -> list[Array]:
        with self._changed:
            here = self._round
            self._brought[rank] = array
            if len(self._brought) == self.world_size:
                # It stays until the next round is complete: by then all have taken it.
                self._result = [self._brought[each] for each in range(self.world_size)]
                self._brought = {}
                self._round += 1
                self._changed.notify_all()
            else:
                self._changed.wait_for(lambda: self._round > here or self._ended)
                if self._round == here:
                    raise RankDiedError(f"rank {rank} waits for one that has ended")
            return list(self._result)

    def leave(self) -> None:
        """A rank has ended, and no round that is not complete will be."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class ThreadCommunicator(Communicator):
    """One thread's end of `run_ranks`."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        super().__init__(rank, meeting.world_size)
        self._meeting = meeting

    def exchange(self, array: Array) -> list[Array]:
        arrays = self._meeting.exchange(self.rank, array)
        if len({one.shape for one in arrays}) > 1:
            shapes = ", ".join(f"rank {rank} {one.shape}" for rank, one in enumerate(arrays))
            raise ValueError(f"the ranks bring arrays of different shapes: {shapes}")
        return arrays


def run_ranks(rank_main: Callable[[Communicator], Result], world_size: int) -> list[Result]:
    """Call `rank_main` in a thread for each rank; what each has returned, by rank.

    Raises what the first of them has raised; RankDiedError where one waits for another that has returned.
    """
    meeting = Meeting(world_size)
    results: dict[int, Result] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = rank_main(ThreadCommunicator(rank, meeting))
        except BaseException as error:
            errors.append(error)
        meeting.leave()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(world_size)]
