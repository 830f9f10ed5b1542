"""Lab 01-03: the engine step by hand. Your work: `prepare_inputs`, and `sample_tokens` and `step` of
`HandEngine`.

The scheduler decides (`SchedulerOutput`), and it owns the requests. The worker has a memory of its
own (`update_states`), lays a step's tokens out as arrays (`prepare_inputs`), runs the model
(`execute_model`) and samples (`sample_tokens`). The front end makes text. `step` is where they
meet.

Everything around it is the engine's own: `mini_vllm`'s scheduler, model, sampler and output side.
"""

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
from mini_vllm.sample.metadata import SamplingMetadata, make_generator  # noqa: F401
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
    """Lay the tokens of one step end to end (`vllm/v1/worker/gpu_model_runner.py:1863`).

    Rows are the requests in the order of `output.num_scheduled_tokens` (request id to its number of
    tokens in this step), R of them with T tokens in all. `requests` holds other requests, too. A request
    computes its positions `num_computed_tokens`, `num_computed_tokens + 1`, … in this step.

    Args:
        requests: the worker's memory, already up to date with `output`.
        output: the scheduler's decisions, with at least one token.
        block_size: tokens in a block.

    Returns: `ModelInputs` with

        req_ids: the R ids.
        input_ids: int32 [T], each token's id. It may be an output token, not only the newest: a
            request that was preempted computes its outputs again.
        positions: int32 [T], its place in its own sequence.
        slot_mapping: int64 [T], where its K and V go: block id * block_size + place in the block.
            The block is that of its position in the request's own table.
        query_start_loc: int32 [R + 1]; request i has the rows from entry i to entry i + 1.
        seq_lens: int32 [R], tokens of the request in the cache when the step is over.
        block_table: int32 [R, N], the requests' tables, N the longest of them; 0 past the end.
        logits_indices: int32 [R], the row of each request's last token in this step.
        discard_request_mask: bool [R], True where the request has tokens that are not in the cache
            even after this step. What its last row predicts is a token that is already known.
    """
    raise NotImplementedError


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
        """One token for every request that has caught up, none for the others.

        What you have for it, rows being requests:

        - `self.model.compute_logits(hidden)`: [n, hidden_size] to float32 [n, vocab_size];
        - `SamplingMetadata.build(states, vocab_size)`: of the states of these n requests, row by
          row; `vocab_size` is the width of the logits;
        - `self.sampler(logits, metadata).sampled_token_ids`: int64 [n].

        What decides how you use it:

        - Requests without a seed draw from one random stream. vLLM also samples the rows whose
          token is not wanted, and then rewinds their generators. numpy's cannot be rewound as
          easily, so an unwanted row must not cost a random number here.
        - Logits are expensive: a row of them is a product with the whole vocabulary.
        - The scheduler never tells the worker what was sampled, and the next step takes it as
          input. So the worker remembers it, in the request's state.
        - The scheduler finds a request's tokens by `req_id_to_index`, and looks for every request
          of the step.

        Args:
            executed: None after an empty step.

        Returns: `ModelRunnerOutput(req_ids, req_id_to_index, sampled_token_ids)`: all R ids, each
        id's index among them, and for each of them a list of one token (a Python int) or of none.
        """
        raise NotImplementedError

    def step(self) -> list[RequestOutput]:
        """One step of the engine: decide, compute, sample, take in the results, tell the clients.

        The calls, alphabetically. You find the order in which they run; one is needed twice:

            self.execute_model(scheduler_output)                -> Executed | None
            self.output_processor.process_outputs(core_outputs) -> .request_outputs, .reqs_to_abort
            self.process_aborts_queue()
            self.sample_tokens(executed)                        -> model_output
            self.scheduler.finish_requests(ids, RequestStatus.FINISHED_ABORTED)
            self.scheduler.schedule()                           -> scheduler_output
            self.scheduler.update_from_output(scheduler_output, model_output) -> core_outputs

        "The order of things" in the README has the facts that decide it.

        Returns: `request_outputs`. If no client is left, an empty list, and the scheduler is not
            called.
        """
        raise NotImplementedError

    def run(self) -> dict[str, RequestOutput]:
        """Step until no request is left; returns each finished request's last output, by id."""
        finished: dict[str, RequestOutput] = {}
        while self.has_unfinished_requests():
            for output in self.step():
                if output.finished:
                    finished[output.request_id] = output
        return finished
