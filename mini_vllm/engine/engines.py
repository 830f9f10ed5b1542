"""Processes of engines, and the thread that listens to them.

Mirrors `vllm/v1/engine/utils.py:104 CoreEngineProcManager`.
"""

from __future__ import annotations

import atexit
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.distributed.communicator import RankDiedError
from mini_vllm.distributed.shm_communicator import allocate_shared_memory, stop_ranks
from mini_vllm.engine.core_proc import EngineSpec, run_engine_core
from mini_vllm.engine.parts import EngineParts
from mini_vllm.executor.multiproc_executor import describe_exit

SECONDS_TO_END = 1.0
"""What an engine gets to end by itself, when it is told to."""


class Engines:
    """Starts the engines and ends them. Knows no client, so that one which is no longer used can go.

    Args:
        in_step: they step together, and share memory.
        take: called with each word: engine, kind, content.
        fail: called once, with the error that ended an engine, when all have ended.

    Attributes:
        rank_pids: the processes of each engine's ranks.

    Raises what making an engine has raised.
    """

    def __init__(
        self,
        folder: str | Path,
        config: ResolvedConfig,
        parts: EngineParts,
        in_step: bool,
        take: Callable[[int, str, Any], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        # Spawned: a fork would inherit threads' locks without the threads.
        context = multiprocessing.get_context("spawn")
        size = config.data_parallel_size
        memory, rank_memories = None, None
        if in_step:
            memory = allocate_shared_memory(context, size)
            places = range(config.tensor_parallel_size)
            rank_memories = [allocate_shared_memory(context, size) for _ in places]
        self._memories = [] if memory is None else [memory, *(rank_memories or [])]
        self._take, self._fail = take, fail
        self._ending = False
        self._end_lock = threading.Lock()
        self._pipes: list[Connection] = []
        self._send_lock = threading.Lock()
        self._num_sent = [0] * size
        self.processes: list[BaseProcess] = []
        self.rank_pids: list[list[int]] = [[] for _ in range(size)]
        # An engine may have processes of its own, so it is no daemon. The interpreter would wait for it at
        # its end, so it is told to go before; what is registered last comes first.
        atexit.register(self.end)
        try:
            for rank in range(size):
                mine, theirs = context.Pipe()
                spec = EngineSpec(Path(folder), config, parts, rank, memory, rank_memories)
                process = context.Process(
                    target=run_engine_core,
                    args=(spec, theirs),
                    name=f"mini-vllm-engine-{rank}",
                    daemon=False,
                )
                self._pipes.append(mine)
                process.start()
                self.processes.append(process)
                theirs.close()
            self._wait_until_ready()
        except BaseException:
            self.end()
            raise
        self._thread = threading.Thread(target=self._listen, name="mini-vllm-engines", daemon=True)
        self._thread.start()

    @property
    def pids(self) -> list[int]:
        return [process.pid or 0 for process in self.processes]

    def send(self, engine: int, method: str, *args: Any) -> int:
        """Have an engine call a method of its `EngineCoreProc`, between two steps. Returns how many calls it
        has been sent."""
        message = bytes(ForkingPickler.dumps((method, args)))
        with self._send_lock:
            self._num_sent[engine] += 1
            with suppress(OSError):  # where it is gone, `_listen` will say so
                self._pipes[engine].send_bytes(message)
            return self._num_sent[engine]

    def _wait_until_ready(self) -> None:
        for rank, pipe in enumerate(self._pipes):
            kind, content = self._receive(rank, pipe)
            if kind == "dead":
                raise content
            self.rank_pids[rank] = content

    def _receive(self, rank: int, pipe: Connection) -> tuple[str, Any]:
        """An engine's next word; where it is gone, `dead` and the reason."""
        process = self.processes[rank]
        try:
            kind, content = pipe.recv()
        except (EOFError, OSError):
            process.join(SECONDS_TO_END)
            kind = "dead"
            content = RankDiedError(
                f"engine {rank} (process {process.pid}) {describe_exit(process.exitcode)}"
            )
        else:
            if kind == "dead" and isinstance(content, RankDiedError):
                content = RankDiedError(f"engine {rank} (process {process.pid}): {content}")
        return kind, content

    def _listen(self) -> None:
        """Pass on what the engines say, until one of them ends."""
        ranks = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        while True:
            for pipe in wait(list(ranks)):
                assert isinstance(pipe, Connection)
                rank = ranks[pipe]
                kind, content = self._receive(rank, pipe)
                if kind != "dead":
                    self._take(rank, kind, content)
                    continue
                if not self._ending:
                    self._end_processes()
                    self._fail(content)
                return

    def end(self) -> None:
        """End all engines. Nothing is left of them when it returns."""
        self._ending = True
        atexit.unregister(self.end)
        self._end_processes()
        thread = getattr(self, "_thread", None)
        if thread is not None and threading.current_thread() is not thread:
            thread.join()
        for pipe in self._pipes:
            pipe.close()

    def _end_processes(self) -> None:
        with self._end_lock:
            for process in self.processes:
                process.terminate()  # a word through the pipe might wait for an engine that does not read
            for memory in self._memories:
                stop_ranks(memory)
            deadline = time.monotonic() + SECONDS_TO_END
            for process in self.processes:
                process.join(max(0.0, deadline - time.monotonic()))
            for process in self.processes:
                if process.exitcode is None:
                    process.kill()
                    process.join()
            # The ranks of an engine that was killed see that it is gone, and end, unless they hang.
            for pid in itertools.chain(*self.rank_pids):
                _end_rank(pid)


def _end_rank(pid: int) -> None:
    """Wait until a process that is no child of this one is gone, or kill it and wait again."""
    with suppress(ProcessLookupError):
        for number in (0, signal.SIGKILL):
            os.kill(pid, number)
            deadline = time.monotonic() + SECONDS_TO_END
            while time.monotonic() < deadline:
                os.kill(pid, 0)
                time.sleep(0.002)
