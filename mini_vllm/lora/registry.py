"""The adapters that are loaded: each read once, before the request that asks for it is queued.

Upstream the worker reads an adapter in the middle of a step
(`vllm/lora/worker_manager.py:99 WorkerLoRAManager._load_adapter`), so one that cannot be read ends the
engine and one that can stalls the batch. Here a bad adapter is an error of its own request, and a step
reads no file.
"""

from __future__ import annotations

from pathlib import Path
from weakref import WeakValueDictionary

from mini_vllm.config.checks import CheckpointError
from mini_vllm.lora.lora_model import LoRAModel, Shapes
from mini_vllm.lora.request import LoadedLoRARequest, LoRARequest


class LoRARegistry:
    """By name, the adapter that is loaded now.

    It keeps none alive: requests do until they end, and after that the model runner, which keeps the last
    `max_cpu_loras` that it used. One that is gone is read from its folder again.

    Args:
        modules: what of the model may be adapted.
        max_lora_rank: the engine's.

    Attributes:
        num_loads: times that a folder was read.
    """

    def __init__(self, modules: Shapes, max_lora_rank: int) -> None:
        self.modules = modules
        self.max_lora_rank = max_lora_rank
        self.num_loads = 0
        self._loaded: WeakValueDictionary[str, LoadedLoRARequest] = WeakValueDictionary()

    def load(self, lora_request: LoRARequest) -> LoadedLoRARequest:
        """The adapter, from memory if one of this name, id and folder is there and `load_inplace` is not set.

        What is read anew is another version if its weights differ: requests under way keep theirs.
        Raises ValueError that names the adapter and what is wrong with it, TypeError for another object.
        """
        if not isinstance(lora_request, LoRARequest):
            raise TypeError(
                f"lora_request must be a LoRARequest, got {type(lora_request).__name__}"
            )
        if isinstance(lora_request, LoadedLoRARequest):
            return lora_request
        name = lora_request.lora_name
        loaded = self._find(lora_request)
        if loaded is not None and not lora_request.load_inplace:
            return loaded
        try:
            model = LoRAModel.from_local_checkpoint(
                Path(lora_request.lora_path), self.modules, self.max_lora_rank
            )
        except CheckpointError as error:
            raise ValueError(f"lora_request {name!r}: {error}") from error
        self.num_loads += 1
        if loaded is not None and loaded.version == model.version:
            return loaded
        loaded = LoadedLoRARequest(
            name,
            lora_request.lora_int_id,
            lora_request.lora_path,
            lora_request.base_model_name,
            model=model,
        )
        self._loaded[name] = loaded
        return loaded

    def holds(self, lora_request: LoRARequest) -> bool:
        """Whether the adapter is in memory: whether `load` would read no file."""
        return self._find(lora_request) is not None

    def _find(self, lora_request: LoRARequest) -> LoadedLoRARequest | None:
        loaded = self._loaded.get(lora_request.lora_name)
        if loaded is None or loaded.lora_int_id != lora_request.lora_int_id:
            return None
        return loaded if loaded.lora_path == lora_request.lora_path else None
