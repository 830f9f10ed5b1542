"""The front end of several engines: starts them, shares the requests out, and takes in what they give.

Mirrors `vllm/v1/engine/core_client.py:1349 DPLBAsyncMPClient`, and for engines that step together what
`vllm/v1/engine/coordinator.py:144 DPCoordinatorProc` does in a process of its own, so that several front ends
may be told: here there is one.

An engine that dies takes all with it, as upstream
(`vllm/v1/engine/core_client.py:673 MPClient.start_engine_core_monitor`): its requests are lost, and the error
that every client gets names it.

Left out: another's load balancer, engines on other machines, more or fewer engines while they run.
"""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.core.request import EngineCoreRequest, Request, RequestStatus
from mini_vllm.core.sched.output import EngineCoreOutput
from mini_vllm.engine.build import make_kv_cache_manager
from mini_vllm.engine.core_client import EngineCoreClient
from mini_vllm.engine.core_proc import EngineCoreOutputs, EngineCounts
from mini_vllm.engine.engines import Engines
from mini_vllm.engine.parts import EngineParts
from mini_vllm.engine.ranks import ModelOnRanks
from mini_vllm.engine.step_record import StepRecord

WAITING_WEIGHT = 4
"""A waiting request weighs as much as four that run."""


class DPLBClient(EngineCoreClient):
    """Balances between the engines.

    Args:
        model: says which checkpoint, and whether the engines must step together.
        config: of each engine.
        parts: each engine makes its own, so they must be picklable.

    Attributes:
        engine_core: what is known here of the cores.
        lb_engines: for each engine, requests that wait and that run, as it last told, and one more that waits
            for each that was sent since. At the pin only engines that step together tell; the others' only
            grow, so these get requests in turn (mended by vllm-project/vllm pull request 49204).
        reqs_in_flight: the engine that a request went to, and how many calls that had been sent then: what it
            told before is another's news, of that id.

    Raises ValueError for parts that cannot go to the engines, and what making an engine has raised.
    """

    def __init__(self, model: ModelOnRanks, config: ResolvedConfig, parts: EngineParts) -> None:
        check_parts(parts, config)
        size = config.data_parallel_size
        self.engine_core = RemoteCores(config)
        self.lb_engines = [[0, 0] for _ in range(size)]
        self.reqs_in_flight: dict[str, tuple[int, int]] = {}
        self.in_step = model.has_experts
        self.current_wave = 0
        self.engines_running = False
        # It never schedules: it refuses what the engines would refuse, before they are asked.
        self._gate = parts.make_scheduler(config, make_kv_cache_manager(model, config, parts))
        self._lock = threading.Lock()  # around what the listening thread changes, too
        self._news: SimpleQueue[tuple[int, EngineCoreOutputs] | None] = SimpleQueue()
        self._answers: dict[int, Future[Any]] = {}
        self._call_ids = itertools.count()
        weak = weakref.WeakMethod(self._take)
        fail = weakref.WeakMethod(self._fail)
        self._engines = Engines(
            model.folder, config, parts, self.in_step,
            lambda *word: _call(weak, *word), lambda error: _call(fail, error),
        )  # fmt: skip
        self.engine_core.end = weakref.finalize(self, self._engines.end)

    @property
    def pids(self) -> list[int]:
        """The engines' processes."""
        return self._engines.pids

    @property
    def rank_pids(self) -> list[list[int]]:
        """The processes of each engine's ranks, where these are processes of their own."""
        return self._engines.rank_pids

    # -- requests ---------------------------------------------------------------------------------

    def add_request(self, request: EngineCoreRequest) -> None:
        """As `EngineCoreClient.add_request`."""
        self._check(request)
        with self._lock:
            chosen = self.get_core_engine_for_request()
            sent = self._engines.send(chosen, "add_request", request, self.current_wave)
            self.reqs_in_flight[request.request_id] = chosen, sent
            if self.in_step and not self.engines_running:
                self._start_wave(self.current_wave, chosen)

    def _check(self, request: EngineCoreRequest) -> None:
        gate = self._gate
        gate.add_request(Request.from_engine_core_request(request, None))
        gate.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
        gate.finished_req_ids.clear()

    def get_core_engine_for_request(self) -> int:
        """The engine with the least score; of equal ones the first
        (`vllm/v1/engine/core_client.py:1382 DPLBAsyncMPClient.get_core_engine_for_request`)."""
        scores = [waiting * WAITING_WEIGHT + running for waiting, running in self.lb_engines]
        chosen = scores.index(min(scores))
        self.lb_engines[chosen][0] += 1
        return chosen

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """As `EngineCoreClient.abort_requests`."""
        by_engine: dict[int, list[str]] = {}
        for request_id in request_ids:
            if request_id in self.reqs_in_flight:
                engine, _ = self.reqs_in_flight.pop(request_id)
                by_engine.setdefault(engine, []).append(request_id)
        for engine, ids in by_engine.items():
            self._engines.send(engine, "abort_requests", ids)

    def get_output(self) -> list[EngineCoreOutput]:
        """What the engines have given since the last call; waits while there is nothing, unless no request is
        in flight. Raises the error that ended an engine."""
        told = [] if not self.reqs_in_flight else [self._news.get()]
        while True:
            try:
                told.append(self._news.get_nowait())
            except Empty:
                break
        if self.engine_core.error is not None:
            raise self.engine_core.error
        outputs: list[EngineCoreOutput] = []
        for word in told:
            if word is not None:
                outputs += self._take_outputs(*word)
        return outputs

    def _take_outputs(self, engine: int, news: EngineCoreOutputs) -> list[EngineCoreOutput]:
        outputs = []
        for output in news.outputs:
            its_engine, sent = self.reqs_in_flight.get(output.request_id, (None, 0))
            if its_engine == engine and sent <= news.num_calls:
                outputs.append(output)
                if output.finish_reason is not None:
                    del self.reqs_in_flight[output.request_id]
        if news.record is not None:
            for observer in self.engine_core.step_observers:
                observer(news.record)
        return outputs

    def interrupt(self) -> None:
        """As `EngineCoreClient.interrupt`."""
        self._news.put(None)

    def drain(self) -> None:
        """Nothing to do: each engine comes to rest by itself."""

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Each engine does. Returns what the first says, as upstream."""
        answers = self.call_utility("reset_prefix_cache", reset_running_requests, reset_connector)
        return bool(answers[0])

    def call_utility(self, method: str, *args: Any) -> list[Any]:
        """Have each engine call a method of `EngineCoreProc`; their answers
        (`vllm/v1/engine/core_client.py:1412 DPLBAsyncMPClient.call_utility_async`).

        Raises the error that ended an engine.
        """
        futures = []
        for engine in range(len(self.lb_engines)):
            call_id, future = next(self._call_ids), Future[Any]()
            with self._lock:
                if self.engine_core.error is not None:
                    raise self.engine_core.error
                self._answers[call_id] = future
            futures.append(future)
            self._engines.send(engine, "call_utility", call_id, method, args)
        return [future.result() for future in futures]

    # -- called by the thread that listens --------------------------------------------------------

    def _take(self, engine: int, kind: str, content: Any) -> None:
        """A word of an engine's."""
        if kind == "outputs":
            self.engine_core.counts[engine] = content.counts  # at once: maybe no step follows
            self._news.put((engine, content))
            return
        with self._lock:
            if kind == "answer":
                call_id, answer = content
                self._answers.pop(call_id).set_result(answer)
            elif kind == "counts":
                self.lb_engines[engine] = list(content)
            elif kind == "wave_complete" and self.current_wave <= content:
                self.current_wave, self.engines_running = content + 1, False
            elif kind == "start_wave" and (
                content > self.current_wave
                or (content == self.current_wave and not self.engines_running)
            ):
                self._start_wave(content, engine)

    def _start_wave(self, wave: int, but_for: int) -> None:
        """Let the other engines run with the one that has a request
        (`vllm/v1/engine/coordinator.py:443 DPCoordinatorProc._send_start_wave`)."""
        self.current_wave, self.engines_running = wave, True
        for engine in range(len(self.lb_engines)):
            if engine != but_for:
                self._engines.send(engine, "start_wave", wave)

    def _fail(self, error: BaseException) -> None:
        """An engine has ended, and the others with it."""
        with self._lock:
            self.engine_core.error = error
            answers, self._answers = self._answers, {}
        for future in answers.values():
            future.set_exception(error)
        self._news.put(None)
        for observer in self.engine_core.failure_observers:
            observer()


def _call(weak: weakref.WeakMethod[Any], *args: Any) -> None:
    method = weak()
    if method is not None:
        method(*args)


def check_parts(parts: EngineParts, config: ResolvedConfig) -> None:
    """Raises ValueError, naming it, for a part that cannot go to the engines' processes."""
    size = config.data_parallel_size
    if parts.kv_event_publisher is not None:
        raise ValueError(
            f"parts.kv_event_publisher does not go with data_parallel_size {size}: each engine would call "
            "a copy of it, in its own process"
        )
    for field in dataclasses.fields(parts):
        part = getattr(parts, field.name)
        try:
            pickle.dumps(part)
        except Exception as error:
            raise ValueError(
                f"parts.{field.name} ({part!r}) cannot be sent to the engines of data_parallel_size {size}: "
                f"they must be able to import it ({error})"
            ) from error


class RemoteCores:
    """What the front end knows of cores in other processes: an `EngineCore`'s numbers, summed up, and who is
    to be told.

    Attributes:
        counts: of each engine, as it last told.
        step_observers, failure_observers, error: as an `EngineCore`'s. A record comes from any engine.
        scheduler, kv_cache_manager: this, for their numbers.
        end: ends the engines.
    """

    def __init__(self, config: ResolvedConfig) -> None:
        self.config = config
        self.counts = [EngineCounts()] * config.data_parallel_size
        self.step_observers: list[Callable[[StepRecord], None]] = []
        self.failure_observers: list[Callable[[], None]] = []
        self.error: BaseException | None = None
        self.scheduler = self.kv_cache_manager = self
        self.end: Callable[[], object] = lambda: None

    def shutdown(self) -> None:
        """End all engines. Nothing is left of them when it returns."""
        self.end()

    def _sum(self, name: str) -> int:
        return sum(getattr(of_engine, name) for of_engine in self.counts)

    @property
    def num_steps(self) -> int:
        return self._sum("num_steps")

    @property
    def num_preemptions(self) -> int:
        return self._sum("num_preemptions")

    @property
    def running(self) -> range:
        return range(self._sum("num_running_reqs"))

    @property
    def waiting(self) -> range:
        return range(self._sum("num_waiting_reqs"))

    @property
    def skipped_waiting(self) -> range:
        return range(self._sum("num_skipped_waiting_reqs"))

    def get_num_waiting_requests(self) -> int:
        return len(self.waiting) + len(self.skipped_waiting)

    @property
    def usage(self) -> float:
        """Share of all engines' blocks that are held."""
        return sum(of_engine.kv_cache_usage for of_engine in self.counts) / len(self.counts)
