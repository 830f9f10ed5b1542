"""The engine's front end: it speaks text; the core (`core.py`) schedules and computes.

Mirrors `vllm/v1/engine/llm_engine.py` (`add_request` 209, `step` 287). Upstream the two halves are usually
two processes; here they are two objects, and the core's `step` runs when the front end's does.

The core's parts are handed in (`parts.py`), so that a learner's own scheduler or block pool can run in
the place of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mini_vllm.config.engine import DEFAULT_MODEL, EngineConfig
from mini_vllm.core.request import EngineCoreRequest
from mini_vllm.engine.arg_utils import EngineArgs
from mini_vllm.engine.build import get_engine_model, make_loras, resolve_config
from mini_vllm.engine.core import EngineCore
from mini_vllm.engine.core_client import EngineCoreClient, InprocClient
from mini_vllm.engine.input_processor import InputProcessor, PromptType
from mini_vllm.engine.output_processor import OutputProcessor, RequestState
from mini_vllm.engine.parts import DEFAULT_PARTS, EngineParts
from mini_vllm.engine.step_record import StepRecord
from mini_vllm.model_loader import find_model
from mini_vllm.models.interfaces_base import ModelForTextGeneration
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.tokenizer import Tokenizer
from mini_vllm.utils.surface import missing_attribute, reject_unsupported

if TYPE_CHECKING:
    from mini_vllm.lora.request import LoRARequest
    from mini_vllm.metrics.reader import EngineMetrics, Metric


class LLMEngine:
    """The synchronous engine: add requests at any time, call `step` until none is left.

    Args:
        model: a checkpoint folder (default: the shipped one), what else `find_model` knows, such as
            `smollm2` or a GGUF file, or a loaded model.
        config: the engine's settings.
        tokenizer: default: the folder's. None if `model` is a loaded model: then prompts are token
            ids and outputs have no text.
        parts: the engine's parts, for instance a learner's own.
        log_stats: count: `RequestOutput.metrics` and `get_metrics` have something to tell.

    Raises ValueError where folder, config or their combination is not usable.
    Source: `vllm/v1/engine/llm_engine.py:47 LLMEngine`.
    """

    def __init__(
        self,
        model: str | Path | ModelForTextGeneration = DEFAULT_MODEL,
        config: EngineConfig | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        parts: EngineParts = DEFAULT_PARTS,
        log_stats: bool = False,
    ) -> None:
        config = config or EngineConfig()
        name = str(model) if isinstance(model, str | Path) else ""
        folder = find_model(model) if isinstance(model, str | Path) else None
        self.model = model = get_engine_model(folder or model, config, parts)
        if tokenizer is None and folder is not None:
            tokenizer = Tokenizer.from_folder(folder)
        self.tokenizer = tokenizer
        self.config = resolve_config(config, model)
        if config.is_launched:
            from mini_vllm.engine.ranks import agree_on_blocks

            self.config = agree_on_blocks(model, self.config)
        self.core_client: EngineCoreClient = self._make_client(model, parts)
        self.input_processor = InputProcessor(
            self.config,
            model.config.vocab_size,
            tokenizer,
            model.config.eos_token_ids,
            make_loras(model, self.config),
        )
        self.output_processor = OutputProcessor(tokenizer, self.config.stream_interval)
        self.metrics: EngineMetrics | None = None
        if log_stats:
            from mini_vllm.metrics.reader import EngineMetrics

            core = self.engine_core
            self.metrics = EngineMetrics(core.config, core.scheduler, core.kv_cache_manager, name)
            core.step_observers.append(self._observe_step)
            if core.config.speculation is not None:
                from mini_vllm.spec_decode.metrics import SpecDecodingStatLogger

                self.metrics.stat_loggers.append(SpecDecodingStatLogger())

    @property
    def engine_core(self) -> EngineCore:
        """The core itself, for what looks into it: traces, metrics, tests, pages. The front end asks
        `core_client`. Of several engines it is what is known here of their cores."""
        core: EngineCore = self.core_client.engine_core
        return core

    def _make_client(self, model: ModelForTextGeneration, parts: EngineParts) -> EngineCoreClient:
        if self.config.data_parallel_size == 1:
            return InprocClient(EngineCore(model, self.config, parts, self.tokenizer))
        from mini_vllm.engine.dp_client import DPLBClient
        from mini_vllm.engine.ranks import ModelOnRanks

        assert isinstance(model, ModelOnRanks)
        return DPLBClient(model, self.config, parts)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **kwargs: Any) -> Self:
        """An engine from vLLM's form of the settings
        (`vllm/v1/engine/llm_engine.py:152 LLMEngine.from_engine_args`).

        `kwargs` are the constructor's others, such as `parts`.
        """
        log_stats = not engine_args.disable_log_stats
        config = engine_args.create_engine_config()
        return cls(engine_args.model, config, log_stats=log_stats, **kwargs)

    def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams,
        arrival_time: float | None = None,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
        **unused: Any,
    ) -> str:
        """Check a request and queue it; nothing is computed yet. Returns its id.

        With `n > 1` it becomes `n` requests in the core. `lora_request` names its adapter, which is
        read now if it is not in memory.

        Raises TypeError or ValueError, and has then changed nothing: a duplicate id, a prompt or
        parameter that is not valid, a request that the KV cache could never hold.
        """
        reject_unsupported(
            "generate",
            unused,
            "LLMEngine.add_request",
            ("priority", "arrival_time", "lora_request"),
        )
        return self.add_core_request(
            self.input_processor.process_inputs(
                request_id, prompt, params, arrival_time, priority, lora_request
            )
        )

    def add_core_request(self, core_request: EngineCoreRequest) -> str:
        """Queue a request that `InputProcessor.process_inputs` made. Returns its id.

        Raises ValueError, and has then changed nothing: an id in use, a request that the KV cache
        could never hold.
        """
        request_id, params = core_request.request_id, core_request.sampling_params
        parent, children = None, [(request_id, params)]
        if params.n > 1:
            from mini_vllm.engine.parallel_sampling import ParentRequest

            parent = ParentRequest(request_id, params)
            children = [parent.get_child_info(index) for index in range(params.n)]
        for taken in (request_id, *(child_id for child_id, _ in children)):
            if self.output_processor.is_taken(taken):
                raise ValueError(f"request id {taken!r} is already in use")
        for index, (child_id, child_params) in enumerate(children):
            child = replace(core_request, request_id=child_id, sampling_params=child_params)
            # If the core refuses, it refuses the first child: with ids known to be free, they
            # differ in nothing that it looks at.
            self.core_client.add_request(child)
            state = RequestState(
                child_id,
                core_request.prompt,
                core_request.prompt_token_ids,
                child_params,
                self.tokenizer,
                parent,
                index,
                core_request.lora_request,
            )
            if self.metrics is not None:
                state.stats = self.metrics.add_request(
                    child_id, core_request.arrival_time, len(core_request.prompt_token_ids)
                )
            self.output_processor.add_request(state)
        return request_id

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End requests at once and free their blocks; they give no further output.

        Raises ValueError naming the first id that is not known (never added, or finished), after
        the others have been aborted.
        """
        unknown = None
        for request_id in [request_ids] if isinstance(request_ids, str) else list(request_ids):
            if self.output_processor.has_request(request_id):
                child_ids = self.output_processor.abort_request(request_id)
                self.core_client.abort_requests(child_ids)
                if self.metrics is not None:
                    self.metrics.forget(child_ids)
            elif unknown is None:
                unknown = request_id
        if unknown is not None:
            raise ValueError(
                f"request id {unknown!r} is not known: it was never added or has finished"
            )

    def step(self) -> list[RequestOutput]:
        """One iteration: schedule, compute, sample, update, detokenize. The outputs it brought.
        Source: `vllm/v1/engine/llm_engine.py:287 LLMEngine.step`."""
        core_outputs = self.core_client.get_output()
        processed = self.output_processor.process_outputs(core_outputs)
        if processed.reqs_to_abort:  # a stop string was found: the core does not know yet
            self.core_client.abort_requests(processed.reqs_to_abort)
        if not self.has_unfinished_requests():
            self.core_client.drain()
        if self.metrics is not None:
            self.metrics.observe_outputs(processed.request_outputs)
        return processed.request_outputs

    def _observe_step(self, record: StepRecord) -> None:
        assert self.metrics is not None
        seconds = record.execute_time + record.update_time
        self.metrics.observe_step(
            record.scheduler_output, record.outputs, record.scheduler_stats, seconds
        )

    def get_metrics(self) -> list[Metric]:
        """Every number the engine counts (`vllm/v1/engine/llm_engine.py:369 LLMEngine.get_metrics`).

        Raises ValueError if it was told not to count; vLLM has an assertion there.
        """
        if self.metrics is None:
            raise ValueError("Stat logging disabled: start the engine with disable_log_stats=False")
        return self.metrics.snapshot()

    def get_tokenizer(self) -> Tokenizer | None:
        return self.tokenizer

    def has_unfinished_requests(self) -> bool:
        return self.output_processor.has_unfinished_requests()

    def get_num_unfinished_requests(self) -> int:
        return self.output_processor.get_num_unfinished_requests()

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """As `EngineCore.reset_prefix_cache`
        (`vllm/v1/engine/llm_engine.py:337 LLMEngine.reset_prefix_cache`)."""
        return self.core_client.reset_prefix_cache(reset_running_requests, reset_connector)

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read an adapter and bring it into a slot ahead of its first request. True, as upstream.

        Raises TypeError or ValueError, and has then changed nothing: an adapter that is not usable.
        Source: `vllm/v1/engine/llm_engine.py:394 LLMEngine.add_lora`.
        """
        return self.core_client.add_lora(self.input_processor.load_lora(lora_request))

    def list_loras(self) -> set[int]:
        """The ids of the adapters in memory (`vllm/v1/engine/llm_engine.py:402 LLMEngine.list_loras`)."""
        return self.core_client.list_loras()

    def stream(
        self, prompt: PromptType, params: SamplingParams, request_id: str = "0"
    ) -> Iterator[RequestOutput]:
        """Add a request and yield its outputs as they come; leaving the loop aborts it.

        For an engine that has nothing else to do: outputs of other requests are dropped.
        """
        self.add_request(request_id, prompt, params)
        states = self.output_processor.request_states
        # By object, not by id: the id may be free, and taken again, before this loop ends.
        mine = [s for s in states.values() if request_id in (s.request_id, s.external_id)]

        def alive() -> bool:
            return any(states.get(state.request_id) is state for state in mine)

        try:
            while alive():
                yield from (o for o in self.step() if o.request_id == request_id)
        finally:
            if alive():
                self.abort_request(request_id)

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise missing_attribute("LLMEngine", name)
