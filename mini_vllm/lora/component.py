"""What adapters add to a step of the model runner.

Mirrors `vllm/v1/worker/lora_model_runner_mixin.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.lora.layers import add_lora_layers
from mini_vllm.lora.ops import LoRAMapping
from mini_vllm.lora.request import LoadedLoRARequest
from mini_vllm.lora.vocabulary import add_vocabulary_layers, tell_sampled_rows
from mini_vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.worker.forward import ModelForward
from mini_vllm.worker.gpu_input_batch import CachedRequestState, Ints


class LoRAComponent:
    """Adapters in slots, and each row's.

    Args:
        model: to which adapters are added; it is left as it is.
        config: the engine's.

    Attributes:
        model: the one to run.
    """

    def __init__(self, model: LlamaForCausalLM, config: ResolvedConfig) -> None:
        self.mapping = LoRAMapping()
        self.model, self.layers = add_lora_layers(model, self.mapping)
        self.embedding, self.head = add_vocabulary_layers(self.model, self.mapping)
        self.manager = LRUCacheWorkerLoRAManager[LoadedLoRARequest, LoadedLoRARequest](
            config.max_loras, config.num_cpu_loras, lambda request: request, self._set_slot
        )

    def wrap(self, make_forward: Callable[..., ModelForward]) -> Callable[..., ModelForward]:
        """What makes the same, whose logits have the adapters' part."""

        def make(*args: Any) -> ModelForward:
            forward = make_forward(*args)
            tell_sampled_rows(forward, self.mapping, self.head)
            return forward

        return make

    def set_active_loras(
        self,
        req_ids: Sequence[str],
        num_scheduled_tokens: Ints,
        requests: Mapping[str, CachedRequestState],
    ) -> None:
        """Bring the step's adapters into slots, and say which rows are whose
        (`vllm/v1/worker/lora_model_runner_mixin.py:73 LoRAModelRunnerMixin.set_active_loras`).

        The adapters come in the order of the step, in which running requests are first: what they use is
        touched before a request that is new takes a slot.
        """
        of_requests = [requests[req_id].lora_request for req_id in req_ids]
        wanted: dict[Hashable, LoadedLoRARequest] = {
            lora_request.slot_key: lora_request for lora_request in of_requests if lora_request
        }
        if not wanted:
            if self.mapping.runs:
                self.mapping.set_runs([])
            return
        self.manager.set_active_adapters(wanted)
        index = {key: i for i, key in enumerate(self.manager.lora_index_to_id)}
        slots = [index[lora.slot_key] if lora else None for lora in of_requests]
        self.mapping.set_rows(slots, num_scheduled_tokens.tolist())

    def add_lora(self, lora_request: LoadedLoRARequest) -> None:
        """Bring an adapter into memory and a slot ahead of its first request
        (`vllm/v1/worker/lora_model_runner_mixin.py:274 LoRAModelRunnerMixin.add_lora`)."""
        self.manager.add_adapter(lora_request.slot_key, lora_request)

    def list_loras(self) -> set[int]:
        """The ids of those in memory
        (`vllm/v1/worker/lora_model_runner_mixin.py:286 LoRAModelRunnerMixin.list_loras`)."""
        return {lora.lora_int_id for lora in self.manager.list_registered()}

    def _set_slot(self, index: int, lora_request: LoadedLoRARequest) -> None:
        for layer in self.layers:
            layer.set_lora(index, lora_request.model)
        self.embedding.set_lora(index, lora_request.model)
        self.head.set_lora(index, lora_request.model)
