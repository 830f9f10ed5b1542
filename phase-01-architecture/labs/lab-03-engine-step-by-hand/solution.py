"""Lab 01-03: the engine step by hand. The reference solution."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mini_vllm.attention import AttentionMetadata
from mini_vllm.config.engine import EngineConfig
from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.engine.build import resolve_config
from mini_vllm.engine.input_processor import InputProcessor, PromptType
from mini_vllm.engine.output_processor import OutputProcessor, RequestState
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.outputs import RequestOutput
from mini_vllm.sample.metadata import SamplingMetadata, make_generator
from mini_vllm.sample.sampler import Sampler
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.tokenizer import Tokenizer

# ---- given ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class CachedRequestState:
    """What the worker remembers of a request (`vllm/v1/worker/gpu_input_batch.py:34`).

    Attributes:
        prompt_token_ids: the prompt.
        sampling_params: how to sample for it.
        block_ids: its block table, in order. Block `i` holds positions `i * block_size` and on.
        num_computed_tokens: tokens whose K and V are in the cache before the step.
        output_token_ids: what it has sampled so far. The sampler reads this very list.
        generator: its own random stream, if it came with a seed.
    """

    req_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    block_ids: list[int]
    num_computed_tokens: int
    output_token_ids: list[int] = field(default_factory=list)
    generator: np.random.Generator | None = None

    def __post_init__(self) -> None:
        self.generator = make_generator(self.sampling_params)

    @property
    def token_ids(self) -> list[int]:
        """All its tokens, prompt and output; the token at position p is `token_ids[p]`."""
        return self.prompt_token_ids + self.output_token_ids

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)


class ModelInputs(NamedTuple):
    """One step as flat arrays: T tokens of R requests, laid end to end in scheduling order.

    `prepare_inputs` says what each holds.
    """

    req_ids: list[str]
    input_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    slot_mapping: npt.NDArray[np.int64]
    query_start_loc: npt.NDArray[np.int32]
    seq_lens: npt.NDArray[np.int32]
    block_table: npt.NDArray[np.int32]
    logits_indices: npt.NDArray[np.int32]
    discard_request_mask: npt.NDArray[np.bool_]


class Executed(NamedTuple):
    """What the forward pass leaves for the sampler: its inputs, and float32 [T, hidden_size]."""

    inputs: ModelInputs
    hidden: npt.NDArray[np.float32]


# ---- the worker's memory -------------------------------------------------------------------------


def update_states(requests: dict[str, CachedRequestState], output: SchedulerOutput) -> None:
    """Bring the worker's memory up to date with what the scheduler has decided.

    Block ids come as a list for each KV cache group, here one.
    """
    for req_id in output.finished_req_ids:
        requests.pop(req_id, None)  # the worker never saw a request that was aborted in the queue
    for new in output.scheduled_new_reqs:
        requests[new.req_id] = CachedRequestState(
            new.req_id,
            new.prompt_token_ids,
            new.sampling_params,
            list(new.block_ids[0]),
            new.num_computed_tokens,
        )
    cached = output.scheduled_cached_reqs
    for req_id, block_ids, num_computed_tokens in zip(
        cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
    ):
        state = requests[req_id]
        state.num_computed_tokens = num_computed_tokens
        if req_id in cached.resumed_req_ids:
            state.block_ids = list(block_ids[0]) if block_ids else []
        elif block_ids is not None:
            state.block_ids.extend(block_ids[0])


# ---- from decisions to arrays --------------------------------------------------------------------


def prepare_inputs(
    requests: Mapping[str, CachedRequestState], output: SchedulerOutput, block_size: int
) -> ModelInputs:
    """Lay the tokens of one step end to end."""
    req_ids = list(output.num_scheduled_tokens)
    states = [requests[req_id] for req_id in req_ids]
    num_scheduled = np.array(list(output.num_scheduled_tokens.values()), np.int32)
    computed = np.array([state.num_computed_tokens for state in states], np.int32)

    query_start_loc = np.zeros(len(req_ids) + 1, np.int32)
    query_start_loc[1:] = np.cumsum(num_scheduled)
    seq_lens = computed + num_scheduled

    rows = np.repeat(np.arange(len(req_ids)), num_scheduled)  # of each token: whose it is
    offsets = computed - query_start_loc[:-1]
    positions = np.arange(len(rows), dtype=np.int32) + offsets[rows]
    input_ids = np.array(
        [states[row].token_ids[p] for row, p in zip(rows, positions, strict=True)], np.int32
    )

    block_table = np.zeros((len(req_ids), max(len(s.block_ids) for s in states)), np.int32)
    for row, state in enumerate(states):
        block_table[row, : len(state.block_ids)] = state.block_ids
    block, offset = np.divmod(positions, block_size)
    slot_mapping = block_table[rows, block].astype(np.int64) * block_size + offset

    num_tokens = np.array([state.num_tokens for state in states], np.int32)
    return ModelInputs(
        req_ids,
        input_ids,
        positions,
        slot_mapping,
        query_start_loc,
        seq_lens,
        block_table,
        logits_indices=query_start_loc[1:] - np.int32(1),
        discard_request_mask=seq_lens < num_tokens,
    )


# ---- the engine ----------------------------------------------------------------------------------


class HandEngine:
    """`mini_vllm.LLMEngine` without its heart: the organs are there, but nothing calls them.

    Args:
        model: the model.
        config: the engine's settings.
        tokenizer: None if prompts are token ids and no text is wanted.

    Attributes:
        scheduler: decides; owns requests, block pool and counters.
        requests: request id to what the worker remembers of it. `execute_model` keeps it.
        kv_caches: one array per layer. A slot that was never written holds NaN.
        sampler: logits in, tokens out.
        output_processor: tokens in, `RequestOutput`s out.
        aborts_queue: ids that a client no longer wants, and that the core has not heard of yet.
    """

    def __init__(
        self, model: LlamaForCausalLM, config: EngineConfig, tokenizer: Tokenizer | None = None
    ) -> None:
        self.config = config = resolve_config(config, model)
        assert config.num_gpu_blocks is not None
        self.model = model
        c = model.config
        self.input_processor = InputProcessor(config, c.vocab_size, tokenizer, c.eos_token_ids)
        self.scheduler = Scheduler(config)
        self.requests: dict[str, CachedRequestState] = {}
        shape = model.attention.get_kv_cache_shape(
            config.num_gpu_blocks, config.block_size, c.num_key_value_heads, c.head_dim
        )
        self.kv_caches = [np.full(shape, np.nan, np.float32) for _ in range(c.num_hidden_layers)]
        self.sampler = Sampler(config.seed)
        self.output_processor = OutputProcessor(tokenizer)
        self.aborts_queue: deque[str] = deque()

    def add_request(
        self, request_id: str, prompt: PromptType, params: SamplingParams, priority: int = 0
    ) -> None:
        """Queue a request (`n` must be 1)."""
        request = self.input_processor.process_inputs(request_id, prompt, params, None, priority)
        block_size = self.config.block_size if self.config.enable_prefix_caching else None
        self.scheduler.add_request(Request.from_engine_core_request(request, block_size))
        self.output_processor.add_request(
            RequestState(
                request_id,
                request.prompt,
                request.prompt_token_ids,
                request.sampling_params,
                self.input_processor.tokenizer,
            )
        )

    def abort_request(self, request_id: str) -> None:
        """A client has gone. It may do so at any moment, while the model runs too."""
        self.aborts_queue.extend(self.output_processor.abort_request(request_id))

    def process_aborts_queue(self) -> None:
        """Tell the scheduler which requests have gone (`vllm/v1/engine/core.py:587`)."""
        aborted, self.aborts_queue = self.aborts_queue, deque()
        self.scheduler.finish_requests(aborted, RequestStatus.FINISHED_ABORTED)

    def has_unfinished_requests(self) -> bool:
        return self.scheduler.has_unfinished_requests()

    # -- the loop

    def execute_model(self, output: SchedulerOutput) -> Executed | None:
        """Update the worker's memory and run the step's tokens through the model."""
        update_states(self.requests, output)
        if not output.num_scheduled_tokens:
            return None
        inputs = prepare_inputs(self.requests, output, self.config.block_size)
        attn_metadata = AttentionMetadata(
            inputs.query_start_loc,
            inputs.seq_lens,
            inputs.block_table,
            inputs.slot_mapping,
            self.config.block_size,
        )
        hidden = self.model.forward(
            inputs.input_ids, inputs.positions, self.kv_caches, attn_metadata
        )
        return Executed(inputs, hidden)

    def sample_tokens(self, executed: Executed | None) -> ModelRunnerOutput:
        """One token for every request that has caught up, none for the others."""
        if executed is None:
            return ModelRunnerOutput([], {}, [])
        inputs, hidden = executed
        keep = ~inputs.discard_request_mask
        kept = np.flatnonzero(keep)
        states = [self.requests[inputs.req_ids[row]] for row in kept]
        logits = self.model.compute_logits(hidden[inputs.logits_indices[keep]])
        metadata = SamplingMetadata.build(states, logits.shape[1])
        tokens = self.sampler(logits, metadata).sampled_token_ids.tolist()

        sampled: list[list[int]] = [[] for _ in inputs.req_ids]
        for row, state, token in zip(kept, states, tokens, strict=True):
            state.output_token_ids.append(token)
            sampled[row].append(token)
        index = {req_id: row for row, req_id in enumerate(inputs.req_ids)}
        return ModelRunnerOutput(inputs.req_ids, index, sampled)

    def step(self) -> list[RequestOutput]:
        """One beat: schedule, execute, sample, update, make text."""
        self.process_aborts_queue()
        if not self.scheduler.has_unfinished_requests():
            return []
        scheduler_output = self.scheduler.schedule()
        executed = self.execute_model(scheduler_output)
        model_output = self.sample_tokens(executed)
        self.process_aborts_queue()
        core_outputs = self.scheduler.update_from_output(scheduler_output, model_output)
        processed = self.output_processor.process_outputs(core_outputs)
        self.scheduler.finish_requests(processed.reqs_to_abort, RequestStatus.FINISHED_ABORTED)
        return processed.request_outputs

    def run(self) -> dict[str, RequestOutput]:
        """Step until no request is left; returns each finished request's last output, by id."""
        finished: dict[str, RequestOutput] = {}
        while self.has_unfinished_requests():
            for output in self.step():
                if output.finished:
                    finished[output.request_id] = output
        return finished
