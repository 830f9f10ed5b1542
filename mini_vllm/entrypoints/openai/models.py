"""Which models the server has: the base under its names, and each adapter under its own.

Mirrors `vllm/entrypoints/openai/models/serving.py:76 OpenAIServingModels` and the router of
`vllm/entrypoints/serve/lora/`. As upstream an adapter can be loaded and unloaded while the server runs only
with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`, because a client then names a folder of the server's machine.

Different on purpose: an adapter that cannot be used is the client's error, 400, and names what is wrong with
it (upstream 500, unless there is no adapter at all: 404 there and here); and `load_inplace` reads the folder
once, where upstream keeps the flag and every step with the adapter reads it again
(`vllm/lora/worker_manager.py:281 in LRUCacheWorkerLoRAManager.add_adapter`). Left out: resolvers, which look
for an unknown name elsewhere; adapters for a kind of input.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.entrypoints.openai.errors import ApiError, bad_request
from mini_vllm.entrypoints.openai.protocol import RequestBody
from mini_vllm.entrypoints.openai.settings import ServerSettings
from mini_vllm.utils.untrusted import shorten_repr

if TYPE_CHECKING:
    from mini_vllm.lora.request import LoRARequest


def allows_runtime_updating() -> bool:
    """Whether clients may load adapters (`vllm/envs.py:109 VLLM_ALLOW_RUNTIME_LORA_UPDATING`)."""
    value = os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "0")
    return value.strip().lower() in ("1", "true")


def has_adapter(folder: str) -> bool:
    """Whether there is one at all, right or wrong. A path that the system cannot look up has none."""
    try:
        return (Path(folder) / "adapter_config.json").is_file()
    except OSError:
        return False


class LoadLoRAAdapterRequest(RequestBody):
    """The body of `POST /v1/load_lora_adapter`
    (`vllm/entrypoints/serve/lora/protocol.py:7 LoadLoRAAdapterRequest`)."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False
    is_3d_lora_weight: bool = False


class UnloadLoRAAdapterRequest(RequestBody):
    """The body of `POST /v1/unload_lora_adapter`; the id is not looked at, as upstream
    (`vllm/entrypoints/serve/lora/protocol.py:14 UnloadLoRAAdapterRequest`)."""

    lora_name: str
    lora_int_id: int | None = None


@dataclass(frozen=True)
class ModelCard:
    """One model of the list (`vllm/entrypoints/openai/engine/protocol.py:85 ModelCard`)."""

    id: str
    root: str
    parent: str | None = None
    max_model_len: int | None = None


class ServingModels:
    """The names that a request's `model` may have.

    Args:
        llm: the engine.
        settings: the server's; its `lora_modules` are loaded here.

    Attributes:
        lora_requests: adapters by name. Their weights are in the engine's memory, `max_cpu_loras` of
            them without a request; one that is no longer there is read again when it is asked for.

    Raises ValueError for an adapter that is not usable.
    """

    def __init__(self, llm: AsyncLLM, settings: ServerSettings) -> None:
        self.llm = llm
        self.settings = settings
        self.lora_requests: dict[str, LoRARequest] = {}
        self._ids = itertools.count(1)
        self._lock = asyncio.Lock()  # upstream one for each name that a client has ever written
        for module in settings.lora_modules:
            body = LoadLoRAAdapterRequest(
                lora_name=module.name,
                lora_path=module.path,
                is_3d_lora_weight=module.is_3d_lora_weight,
            )
            try:
                self._check_load(body)
                lora_request = self._request(body, module.base_model_name)
            except ApiError as error:
                raise ValueError(f"--lora-modules: {error.message}") from error
            llm.add_lora_soon(lora_request)
            self.lora_requests[module.name] = lora_request

    def check(self, model: str | None) -> None:
        """Raises ApiError 404 for a name that no model has."""
        if model and model not in self.settings.model_names and model not in self.lora_requests:
            name = shorten_repr(model)[1:-1]  # no quotes within the backticks
            raise ApiError(404, f"The model `{name}` does not exist.", "model")

    def find_lora(self, model: str | None) -> LoRARequest | None:
        """The adapter of this name; None: the base model
        (`vllm/entrypoints/openai/engine/serving.py:271 OpenAIServing._maybe_get_adapters`)."""
        if not model or model in self.settings.model_names:
            return None
        return self.lora_requests.get(model)

    def must_read(self, model: str | None) -> bool:
        """Whether a request for it has to wait for a file."""
        lora_request, loras = self.find_lora(model), self.llm.engine.input_processor.loras
        return lora_request is not None and loras is not None and not loras.holds(lora_request)

    def cards(self) -> Iterator[ModelCard]:
        """The base's names first, then the adapters
        (`vllm/entrypoints/openai/models/serving.py:142 OpenAIServingModels.show_available_models`)."""
        names, root = self.settings.model_names, str(self.settings.model)
        for name in names:
            yield ModelCard(name, root, None, self.llm.engine.config.max_model_len)
        for lora in list(self.lora_requests.values()):
            yield ModelCard(lora.lora_name, lora.lora_path, lora.base_model_name or names[0])

    async def load_lora_adapter(self, body: LoadLoRAAdapterRequest) -> str:
        """Load an adapter, or under a name that is taken, with `load_inplace`, another in its place. Returns
        the answer's text. Raises ApiError.
        Source: `vllm/entrypoints/openai/models/serving.py:160 OpenAIServingModels.load_lora_adapter`.
        """
        async with self._lock:
            self._check_load(body)
            lora_request = self._request(body, None)
            if not has_adapter(body.lora_path):
                raise ApiError(
                    404,
                    f"Loading lora {body.lora_name} failed: No adapter found for {body.lora_path}",
                )
            await self.llm.add_lora(lora_request)
            lora_request.load_inplace = False  # it has been
            self.lora_requests[body.lora_name] = lora_request
        return f"Success: LoRA adapter '{body.lora_name}' added successfully."

    async def unload_lora_adapter(self, body: UnloadLoRAAdapterRequest) -> str:
        """Take an adapter off the list. Requests under way go on with it; the engine forgets it as it forgets
        any that is not used. Returns the answer's text. Raises ApiError.
        Source: `vllm/entrypoints/openai/models/serving.py:208 OpenAIServingModels.unload_lora_adapter`.
        """
        name = body.lora_name
        async with self._lock:
            if not name:
                message = "'lora_name' needs to be provided to unload a LoRA adapter."
                raise ApiError(400, message, kind="InvalidUserInput")
            if name not in self.lora_requests:
                raise ApiError(404, f"The lora adapter '{name}' cannot be found.")
            del self.lora_requests[name]
        return f"Success: LoRA adapter '{name}' removed successfully."

    def _check_load(self, body: LoadLoRAAdapterRequest) -> None:
        """Also what upstream lets pass: a base model's name, under which no request would find it."""
        name, message = body.lora_name, None
        if not name or not body.lora_path:
            message = "Both 'lora_name' and 'lora_path' must be provided."
        elif name in self.settings.model_names:
            message = f"lora_name {shorten_repr(name)} is a name of the base model"
        elif not body.load_inplace and name in self.lora_requests:
            message = (
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in "
                "place, set 'load_inplace' to True."
            )
        elif not self.llm.engine.config.enable_lora:
            message = "LoRA is not enabled: start the server with --enable-lora"
        if message is not None:
            raise ApiError(400, message, kind="InvalidUserInput")

    def _request(self, body: LoadLoRAAdapterRequest, base_model_name: str | None) -> LoRARequest:
        from mini_vllm.lora.request import LoRARequest

        before = self.lora_requests.get(body.lora_name)
        number = next(self._ids) if before is None else before.lora_int_id
        known = base_model_name if base_model_name in self.settings.model_names else None
        try:
            return LoRARequest(
                body.lora_name,
                number,
                body.lora_path,
                known,
                load_inplace=body.load_inplace,
                is_3d_lora_weight=body.is_3d_lora_weight,
            )
        except ValueError as error:
            raise bad_request(str(error)) from error
