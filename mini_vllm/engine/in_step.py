"""Engines that must step together, since each has only some of the experts.

Mirrors what `vllm/v1/engine/core.py:1651 DPEngineCoreProc` adds to an engine of its own. Where one of them
has tokens, all must come to the exchange in every layer that has experts: one without requests runs a dummy
batch. Having none is then no reason to stop, and no engine sees the others' requests. So every 32 steps all
of them add up whether they have unfinished ones. If none has, they stop, and a wave is over. The next begins
for all of them with the next request.

Left out: pausing, and engines that come and go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from mini_vllm.distributed.communicator import Communicator
from mini_vllm.engine.core import EngineCore

STEPS_BETWEEN_SYNCS = 32
"""(`vllm/v1/engine/core.py:1877 DPEngineCoreProc._has_global_unfinished_reqs`)"""

Tell = Callable[[str, Any], None]
"""Sends the front end a word of this kind, and what goes with it."""


class StepRule(Protocol):
    """What an engine's loop asks about the others.

    Attributes:
        engines_running: step, requests or not.
        num_dummy_batches, num_syncs: since start.
    """

    engines_running: bool
    num_dummy_batches: int
    num_syncs: int

    def add_request(self, wave: int) -> None:
        """A request has come, which the front end sent in this wave."""
        ...

    def start_wave(self, wave: int) -> None:
        """Another engine has a request."""
        ...

    def after_step(self, executed: bool) -> None:
        """A turn of the loop is over, in which the model has run or not."""
        ...


class Alone:
    """An engine that needs no other: of a dense model, all of it is here."""

    engines_running = False
    num_dummy_batches = num_syncs = 0

    def add_request(self, wave: int) -> None:
        pass

    def start_wave(self, wave: int) -> None:
        pass

    def after_step(self, executed: bool) -> None:
        pass


class InStep:
    """An engine that steps when the others do.

    Args:
        core: the engine's.
        communicator: of the engines, apart from that of their ranks.
        tell: reaches the front end.
    """

    def __init__(self, core: EngineCore, communicator: Communicator, tell: Tell) -> None:
        self.core = core
        self.communicator = communicator
        self.tell = tell
        self.engines_running = False
        self.current_wave = 0
        self.step_counter = 0
        self.num_dummy_batches = self.num_syncs = 0
        self._last_counts = (0, 0)

    def add_request(self, wave: int) -> None:
        """Source: `vllm/v1/engine/core.py:1739 DPEngineCoreProc.add_request`."""
        self.publish_request_counts()
        if wave > self.current_wave:
            self.current_wave = wave
        elif wave < self.current_wave and not self.engines_running:
            # It was sent when that wave was about to end: the others have stopped, and do not know of it.
            self.engines_running = True
            self.tell("start_wave", self.current_wave)

    def start_wave(self, wave: int) -> None:
        if wave >= self.current_wave:
            self.current_wave = wave
            self.engines_running = True

    def after_step(self, executed: bool) -> None:
        """Source: `vllm/v1/engine/core.py:1819 DPEngineCoreProc.run_busy_loop`."""
        self.publish_request_counts()
        unfinished = self.core.scheduler.has_unfinished_requests()
        if not executed:
            if not unfinished and not self.engines_running:
                return
            self.core.model_executor.execute_dummy_batch()
            self.num_dummy_batches += 1
        self.engines_running = self._has_global_unfinished_reqs(unfinished)
        if not self.engines_running:
            if self.communicator.rank == 0:
                self.tell("wave_complete", self.current_wave)
            self.current_wave += 1
            self.step_counter = 0

    def _has_global_unfinished_reqs(self, unfinished: bool) -> bool:
        self.step_counter += 1
        if self.step_counter % STEPS_BETWEEN_SYNCS:
            return True
        self.num_syncs += 1
        return bool(self.communicator.all_reduce(np.array([unfinished], np.int32))[0])

    def publish_request_counts(self) -> None:
        """Tell the front end's balancer, if they are others than before. Only engines in step do, at the pin
        (`vllm/v1/engine/core.py:1806 DPEngineCoreProc._maybe_publish_request_counts`)."""
        scheduler = self.core.scheduler
        counts = (scheduler.get_num_waiting_requests(), len(scheduler.running))
        if counts != self._last_counts:
            self._last_counts = counts
            self.tell("counts", counts)
