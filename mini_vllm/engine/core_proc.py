"""The process of one engine among several: a core, and the loop between it and the front end.

Mirrors `vllm/v1/engine/core.py:835 EngineCoreProc`. Words go through a pipe, where upstream has sockets. A
single engine has no process of its own here (`engine_thread.py`).

Left out: threads that read and write while a step is computed, pausing, other machines.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.core.request import EngineCoreRequest
from mini_vllm.core.sched.output import EngineCoreOutput, ModelRunnerOutput
from mini_vllm.distributed.parallel_state import EnginePlace
from mini_vllm.distributed.shm_communicator import SharedMemoryCommunicator, stop_ranks
from mini_vllm.engine.core import EngineCore
from mini_vllm.engine.in_step import Alone, InStep, StepRule
from mini_vllm.engine.parts import EngineParts
from mini_vllm.engine.ranks import ModelOnRanks
from mini_vllm.engine.step_record import StepRecord
from mini_vllm.model_loader import get_model
from mini_vllm.tokenizer import Tokenizer
from mini_vllm.utils.threads import count_cores, limit_threads


@dataclass(frozen=True)
class EngineSpec:
    """What an engine is made of.

    Attributes:
        folder: the checkpoint.
        config: the same for all engines.
        rank: which of `config.data_parallel_size` it is.
        memory, rank_memories: where engines step together, what they share, and what their ranks do, by
            their place in the engine; None: each steps alone.
    """

    folder: Path
    config: ResolvedConfig
    parts: EngineParts
    rank: int
    memory: Any = None
    rank_memories: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """An engine's numbers, for a caller that watches it from outside."""

    num_steps: int = 0
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_skipped_waiting_reqs: int = 0
    num_preemptions: int = 0
    kv_cache_usage: float = 0.0


@dataclass(slots=True)
class EngineCoreOutputs:
    """What an engine tells the front end after a step, or after requests came and went without one
    (`vllm/v1/engine/__init__.py:213 EngineCoreOutputs`).

    Attributes:
        num_calls: what the front end has said up to then.
        record: the step's; what the model gave is left out of it. None: there was no step.
    """

    num_calls: int
    outputs: list[EngineCoreOutput]
    record: StepRecord | None
    counts: EngineCounts


class Channel:
    """The engine's end of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self._lock = threading.Lock()

    def tell(self, kind: str, content: Any) -> None:
        """Send a word; nothing happens where the front end is gone."""
        with suppress(OSError), self._lock:
            self.pipe.send((kind, content))

    def tell_error(self, error: BaseException) -> None:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # its constructor asks for more than its text
            error = RuntimeError(repr(error))
        self.tell("dead", error)


def run_engine_core(spec: EngineSpec, pipe: Connection) -> None:
    """The process's main function (`vllm/v1/engine/core.py:1093 EngineCoreProc.run_engine_core`). Its first
    word is `ready`, with the processes of its ranks, or `dead`, with the reason."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the front end's to act on
    signal.signal(signal.SIGTERM, _end)
    limit_threads(max(1, count_cores() // spec.config.data_parallel_size))
    channel = Channel(pipe)
    core: EngineCore | None = None
    try:
        core = make_engine_core(spec)
        threading.Thread(target=_end_with_parent, args=(spec, core), daemon=True).start()
        channel.tell("ready", getattr(core.model_executor, "pids", []))
        EngineCoreProc(core, channel, spec).run_busy_loop()
    except BaseException as error:
        channel.tell_error(error)
    finally:
        if core is not None:
            core.shutdown()


def _end(*_: Any) -> NoReturn:
    raise SystemExit


def make_engine_core(spec: EngineSpec) -> EngineCore:
    """The core of one engine. Raises as its parts do."""
    config = spec.config
    tokenizer = partial(Tokenizer.from_folder, spec.folder)
    if spec.rank_memories is not None:
        # Those that step together have their ranks in processes, be it one.
        config = dataclasses.replace(config, distributed_executor_backend="mp")
    if not config.has_processes:
        model = get_model(spec.folder, config.attention, spec.parts.attention)
        return EngineCore(model, config, spec.parts, tokenizer)
    on_ranks = ModelOnRanks(spec.folder, config)
    if spec.rank_memories is not None:
        on_ranks.place = EnginePlace(spec.rank, config.data_parallel_size, spec.rank_memories)
    return EngineCore(on_ranks, config, spec.parts, tokenizer)


def _end_with_parent(spec: EngineSpec, core: EngineCore) -> None:
    """The front end's process has ended without a word: leave nothing of this engine behind."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    for memory in [spec.memory, *(spec.rank_memories or [])]:
        if memory is not None:
            stop_ranks(memory)
    core.shutdown()
    os._exit(1)


class EngineCoreProc:
    """The loop: what the front end says, a step, what came of it.

    Args:
        core: the engine's.
        channel: to and from the front end.
        spec: says whether other engines step with it.
    """

    def __init__(self, core: EngineCore, channel: Channel, spec: EngineSpec) -> None:
        self.core = core
        self.channel = channel
        self.in_step: StepRule = Alone()
        if spec.memory is not None:
            engines = SharedMemoryCommunicator(
                spec.rank, spec.config.data_parallel_size, spec.memory
            )
            self.in_step = InStep(core, engines, channel.tell)
        self._records: list[StepRecord] = []  # of the turn under way: one at most
        self._num_calls = 0
        core.step_observers.append(self._take_record)
        core.failure_observers.append(self._tell_failure)

    def run_busy_loop(self) -> None:
        """Until the process is told to end, or the front end is gone
        (`vllm/v1/engine/core.py:1193 EngineCoreProc.run_busy_loop`)."""
        while self._process_input():
            self.in_step.after_step(self._step())

    def _has_work(self) -> bool:
        core = self.core
        return (
            self.in_step.engines_running
            or core.scheduler.has_unfinished_requests()
            or bool(core.batch_queue)
        )

    def _process_input(self) -> bool:
        """Take in what has come, and wait where there is nothing to do. False: the front end is gone."""
        pipe, came = self.channel.pipe, False
        while not self._has_work() or pipe.poll():
            try:
                call = pipe.recv()
            except (EOFError, OSError):
                return False
            self._num_calls += 1
            method, args = call
            getattr(self, method)(*args)
            came = True
            if not self._has_work():  # no step will tell
                self._tell_outputs([])
        if came:
            self._tell_outputs([])
        return True

    def _step(self) -> bool:
        """A turn of the core. Returns whether the model has run."""
        self._records.clear()
        outputs = self.core.step_fn()
        for record in self._records:
            self._tell_outputs(outputs, record)
        return any(r.scheduler_output.total_num_scheduled_tokens for r in self._records)

    def _take_record(self, record: StepRecord) -> None:
        nothing = ModelRunnerOutput([], {}, [])
        self._records.append(dataclasses.replace(record, model_runner_output=nothing))

    def _tell_failure(self) -> None:
        """A rank has ended, maybe while nothing was asked of it."""
        if self.core.error is not None:
            self.channel.tell_error(self.core.error)

    def _tell_outputs(
        self, outputs: list[EngineCoreOutput], record: StepRecord | None = None
    ) -> None:
        core, scheduler = self.core, self.core.scheduler
        counts = EngineCounts(
            core.num_steps, len(scheduler.running), len(scheduler.waiting),
            len(scheduler.skipped_waiting), scheduler.num_preemptions, core.kv_cache_manager.usage,
        )  # fmt: skip
        self.channel.tell("outputs", EngineCoreOutputs(self._num_calls, outputs, record, counts))

    # -- what the front end says ------------------------------------------------------------------

    def add_request(self, request: EngineCoreRequest, wave: int) -> None:
        """Queue a request. One that the core refuses after all ends at once."""
        try:
            self.core.add_request(self.core.preprocess_add_request(request))
        except ValueError:
            self._tell_outputs([EngineCoreOutput(request.request_id, [], "abort")])
        else:
            self.in_step.add_request(wave)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        self.core.abort_requests(request_ids)

    def start_wave(self, wave: int) -> None:
        self.in_step.start_wave(wave)

    def call_utility(self, call_id: int, method: str, args: tuple[Any, ...]) -> None:
        """Call a method and answer with what it returns."""
        self.channel.tell("answer", (call_id, getattr(self, method)(*args)))

    def reset_prefix_cache(self, reset_running_requests: bool, reset_connector: bool) -> bool:
        return self.core.reset_prefix_cache(reset_running_requests, reset_connector)

    def get_ledgers(self) -> Any:
        """What each rank of this engine has said."""
        return self.core.model_executor.collective_rpc("get_ledgers")

    def get_step_counts(self) -> tuple[int, int, int]:
        """Steps, dummy batches, and how often the engines asked each other whether to go on."""
        return self.core.num_steps, self.in_step.num_dummy_batches, self.in_step.num_syncs
