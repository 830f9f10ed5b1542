"""Ranks that are processes of one machine speak through memory that they share.

In the place of `vllm/distributed/device_communicators/cpu_communicator.py:20 CpuCommunicator`, whose shared
memory is an operator of vLLM's in C++.

Each rank has a counter and two buffers. To exchange, it writes its array into one buffer, counts on, and
waits until all counters are as high; then all arrays lie there to be read. The next call takes the other
buffer, so nothing that is still read is written over: before a rank can write for the call after that, it has
seen all counters at the next one, which a rank reaches only when it is done with this one.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np

from mini_vllm.distributed.communicator import Array, Communicator, RankDiedError

BUFFER_BYTES = 2**22
"""Of a buffer. A larger array goes in pieces."""
_LINE = 64
_SPINS = 2_000
_NAP = 20e-6
_LOOK_AT_PARENT = 0.1


def allocate_shared_memory(context: BaseContext, world_size: int) -> Any:
    """Memory for `SharedMemoryCommunicator`, to be handed to each rank when its process is made. It has no
    name, so none of it outlives the processes."""
    head = _LINE * (world_size + 1)
    return context.RawArray(ctypes.c_byte, head + 2 * world_size * BUFFER_BYTES)


def stop_ranks(memory: Any) -> None:
    """Let no rank wait any longer: each that does raises RankDiedError."""
    memoryview(memory).cast("B").cast("q")[0] = 1


class SharedMemoryCommunicator(Communicator):
    """One rank's end.

    Args:
        rank, world_size: as `Communicator`.
        memory: of `allocate_shared_memory`, the same for all ranks.
    """

    def __init__(self, rank: int, world_size: int, memory: Any) -> None:
        super().__init__(rank, world_size)
        flat = memoryview(memory).cast("B")
        head = _LINE * (world_size + 1)
        self._words = flat[:head].cast(
            "q"
        )  # the stop flag, then a counter a rank, each on its line
        self._places = [_LINE // 8 * (1 + r) for r in range(world_size)]
        data = np.frombuffer(flat[head:], np.uint8)
        self._buffers = data.reshape(2, world_size, BUFFER_BYTES)
        self._calls = 0
        self._parent = os.getppid()
        self._fence_lock = threading.Lock()

    def exchange(self, array: Array) -> list[Array]:
        array = np.ascontiguousarray(array)
        flat = array.reshape(-1).view(np.uint8)
        if len(flat) <= BUFFER_BYTES:
            pieces = self._exchange_piece(flat)
        else:
            parts = [
                [piece.copy() for piece in self._exchange_piece(flat[at : at + BUFFER_BYTES])]
                for at in range(0, len(flat), BUFFER_BYTES)
            ]
            pieces = [np.concatenate(of_rank) for of_rank in zip(*parts, strict=True)]
        return [piece.view(array.dtype).reshape(array.shape) for piece in pieces]

    def _exchange_piece(self, flat: Array) -> list[Array]:
        """Every rank's bytes, where they lie: good until the next call but one."""
        buffer = self._buffers[self._calls % 2]
        self._calls += 1
        buffer[self.rank, : len(flat)] = flat
        self._fence()
        self._words[self._places[self.rank]] = self._calls
        for rank in range(self.world_size):
            self._wait_for(rank)
        self._fence()
        return [buffer[rank, : len(flat)] for rank in range(self.world_size)]

    def _fence(self) -> None:
        """Keep the processor from moving reads and writes from before to behind, or back: x86 does not, Arm
        does. What stands before the lock is let go stays before it is taken again."""
        for _ in range(2):
            with self._fence_lock:
                pass

    def _wait_for(self, rank: int) -> None:
        words, place, calls = self._words, self._places[rank], self._calls
        for _ in range(_SPINS):
            if words[place] >= calls:
                return
        look = time.monotonic() + _LOOK_AT_PARENT
        while words[place] < calls:
            if words[0]:
                raise RankDiedError(
                    f"rank {self.rank} waits for rank {rank}, and the ranks are to stop"
                )
            time.sleep(_NAP)
            if time.monotonic() > look:
                if os.getppid() != self._parent:
                    raise RankDiedError(f"rank {self.rank}: the process that made it is gone")
                look += _LOOK_AT_PARENT
