"""How the front end speaks to the core: requests go out, outputs come back, and nothing else is touched.

Mirrors `vllm/v1/engine/core_client.py`. Upstream the core usually runs in a process of its own, and a
client sends messages over a socket; here there is the client for a core in this process, and for several
engines that of `dp_client.py`. Left out: utility calls such as sleep.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mini_vllm.core.request import EngineCoreRequest
from mini_vllm.core.sched.output import EngineCoreOutput
from mini_vllm.engine.core import EngineCore

if TYPE_CHECKING:
    from mini_vllm.lora.request import LoadedLoRARequest


class EngineCoreClient(ABC):
    """What the front end asks of the core (`vllm/v1/engine/core_client.py:70 EngineCoreClient`).

    Attributes:
        engine_core: the core, or of several what is known of them.
    """

    engine_core: Any

    @abstractmethod
    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a request. Raises ValueError, and has then changed nothing, for one that the KV cache could
        never hold."""

    @abstractmethod
    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """End requests at once and free their blocks."""

    @abstractmethod
    def get_output(self) -> list[EngineCoreOutput]:
        """The outputs of the next step. Raises EngineDeadError if an earlier one failed."""

    def interrupt(self) -> None:  # noqa: B027
        """Let `get_output` wait no longer; called by another thread. A core in this process waits for
        nothing."""

    @abstractmethod
    def drain(self) -> None:
        """Let the worker come to rest: no request waits for what is in flight."""

    @abstractmethod
    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """As `EngineCore.reset_prefix_cache`."""

    def add_lora(self, lora_request: LoadedLoRARequest) -> bool:
        """As `EngineCore.add_lora`, and True. Adapters cross no border between processes: `config/lora.py`
        refuses what would need that."""
        raise AssertionError("several engines have no adapters")

    def list_loras(self) -> set[int]:
        """As `EngineCore.list_loras`."""
        return set()


class InprocClient(EngineCoreClient):
    """The core in this process, which steps when it is asked for outputs
    (`vllm/v1/engine/core_client.py:275 InprocClient`)."""

    engine_core: EngineCore

    def __init__(self, engine_core: EngineCore) -> None:
        self.engine_core = engine_core

    def add_request(self, request: EngineCoreRequest) -> None:
        self.engine_core.add_request(self.engine_core.preprocess_add_request(request))

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        self.engine_core.abort_requests(request_ids)

    def get_output(self) -> list[EngineCoreOutput]:
        return self.engine_core.step_fn()

    def drain(self) -> None:
        while self.engine_core.batch_queue:
            self.engine_core.step_fn()

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        return self.engine_core.reset_prefix_cache(reset_running_requests, reset_connector)

    def add_lora(self, lora_request: LoadedLoRARequest) -> bool:
        self.engine_core.add_lora(lora_request)
        return True

    def list_loras(self) -> set[int]:
        return self.engine_core.list_loras()
