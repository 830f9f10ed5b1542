"""From a step's decisions to arrays, through the model, to sampled tokens.

Mirrors `vllm/v1/worker/gpu_model_runner.py` (`_update_states`, `_prepare_inputs` 1863, `execute_model`
3955, `sample_tokens` 4320), `gpu_input_batch.py` and `block_table.py`.

The runner keeps its own copy of every request's tokens and block table and is told only what
changed, as upstream's worker is, which lives in another process. All requests of a step are laid end
to end in flat arrays; nothing is padded.

Left out: multi-modal inputs, LoRA, draft tokens, CUDA graphs, parallelism, async scheduling. Upstream
also samples rows that are still in the middle of their prompt and throws the token away; here only
rows that have caught up are sampled.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from mini_vllm.attention import AttentionMetadata
from mini_vllm.blas import blas_threads
from mini_vllm.config import EngineConfig
from mini_vllm.kv_cache_manager import cdiv
from mini_vllm.llama import LlamaForCausalLM
from mini_vllm.sampler import (
    LogprobsLists,
    Sampler,
    SamplingMetadata,
    compute_logprobs,
    gather_logprobs,
    make_generator,
)
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.sched_output import ModelRunnerOutput, NewRequestData, SchedulerOutput

SMALL_HIDDEN_SIZE = 1024
"""Below this width one thread computes the matrix products."""


class CachedRequestState:
    """What the worker remembers of a request
    (`vllm/v1/worker/gpu_input_batch.py:34 CachedRequestState`).

    `row` is its place in the runner's arrays; -1 while it is preempted.
    """

    __slots__ = (
        "generator",
        "output_token_ids",
        "prompt_logprobs",
        "prompt_token_ids",
        "req_id",
        "row",
        "sampling_params",
    )

    def __init__(self, req_id: str, prompt_token_ids: list[int], params: SamplingParams) -> None:
        self.req_id = req_id
        self.prompt_token_ids = prompt_token_ids
        self.sampling_params = params
        self.output_token_ids: list[int] = []
        self.generator = make_generator(params)
        self.row = -1
        self.prompt_logprobs: list[LogprobsLists] | None = (
            [] if params.prompt_logprobs is not None else None
        )


class ModelRunner:
    """Executes steps. Owns the KV cache arrays, one a layer.

    Args:
        model: the model; its attention backend decides the layout of the KV cache.
        config: `num_gpu_blocks` and `max_model_len` must be set.
        sampler: the sampler to use.

    Raises ValueError if the arrays are more than the machine's memory.
    """

    def __init__(self, model: LlamaForCausalLM, config: EngineConfig, sampler: Sampler) -> None:
        assert config.num_gpu_blocks is not None and config.max_model_len is not None
        self.model = model
        self.sampler = sampler
        self.block_size = config.block_size
        self.vocab_size = model.config.vocab_size
        shape = model.attention.get_kv_cache_shape(
            config.num_gpu_blocks,
            config.block_size,
            model.config.num_key_value_heads,
            model.config.head_dim,
        )
        rows = config.max_num_seqs
        max_blocks = cdiv(config.max_model_len, self.block_size)
        try:
            self.kv_caches = [
                np.zeros(shape, np.float32) for _ in range(model.config.num_hidden_layers)
            ]
            # The persistent batch: one row a request, reused when it leaves.
            self.token_ids = np.zeros((rows, config.max_model_len), np.int32)
            self.block_table = np.zeros((rows, max_blocks), np.int32)
        except (MemoryError, ValueError) as error:  # numpy says ValueError past 2**63 bytes
            raise ValueError(
                f"num_gpu_blocks ({config.num_gpu_blocks}) and max_num_seqs ({rows}) need more "
                f"memory than there is: {error}"
            ) from error
        # Threads wait for each other at the end of every product, and those of a small model take
        # microseconds (see `blas`). Whoever sets a thread count has decided otherwise.
        self._one_blas_thread = model.config.hidden_size < SMALL_HIDDEN_SIZE and not any(
            name in os.environ for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
        )
        self.requests: dict[str, CachedRequestState] = {}
        self.row_of: dict[str, int] = {}
        self._free_rows = list(range(rows))[::-1]
        self.num_tokens = np.zeros(rows, np.int32)
        self.num_computed_tokens = np.zeros(rows, np.int32)
        self.num_blocks = [0] * rows
        self._arange = np.arange(max(config.token_budget, rows) + 1, dtype=np.int32)
        self._wants_prompt_logprobs: set[str] = set()
        self._metadata: tuple[list[CachedRequestState], SamplingMetadata] | None = None

    # -- state ------------------------------------------------------------------------------------

    def _update_states(self, output: SchedulerOutput) -> None:
        """Apply what the scheduler says has changed
        (`vllm/v1/worker/gpu_model_runner.py:1116 GPUModelRunner._update_states`)."""
        for req_id in output.finished_req_ids:
            if req_id in self.requests:
                self._release_row(self.requests.pop(req_id))
                self._wants_prompt_logprobs.discard(req_id)
        for req_id in output.preempted_req_ids:
            self._release_row(self.requests[req_id])

        cached = output.scheduled_cached_reqs
        resumed = cached.resumed_req_ids
        for i, block_ids in enumerate(cached.new_block_ids):
            if block_ids is None:
                continue
            req_id = cached.req_ids[i]
            if req_id in resumed:
                self._take_row(self.requests[req_id])
            self._append_blocks(self.row_of[req_id], block_ids)
        if cached.req_ids:
            row_of = self.row_of
            rows = [row_of[req_id] for req_id in cached.req_ids]
            self.num_computed_tokens[rows] = cached.num_computed_tokens
        for new in output.scheduled_new_reqs:
            self._add_request(new)

    def _add_request(self, new: NewRequestData) -> None:
        state = CachedRequestState(new.req_id, new.prompt_token_ids, new.sampling_params)
        self.requests[new.req_id] = state
        if state.prompt_logprobs is not None:
            self._wants_prompt_logprobs.add(new.req_id)
        self._take_row(state)
        self._append_blocks(state.row, new.block_ids)
        self.num_computed_tokens[state.row] = new.num_computed_tokens

    def _take_row(self, state: CachedRequestState) -> None:
        """Give the request a row: its tokens, and a block table that is empty again."""
        row = state.row = self._free_rows.pop()
        self.row_of[state.req_id] = row
        tokens = state.prompt_token_ids + state.output_token_ids
        self.token_ids[row, : len(tokens)] = tokens
        self.num_tokens[row] = len(tokens)
        self.num_blocks[row] = 0

    def _release_row(self, state: CachedRequestState) -> None:
        if state.row >= 0:
            self._free_rows.append(state.row)
            del self.row_of[state.req_id]
            state.row = -1
            if state.prompt_logprobs:
                state.prompt_logprobs = []  # preempted in mid-prompt: it starts over

    def _append_blocks(self, row: int, block_ids: list[int]) -> None:
        start = self.num_blocks[row]
        self.num_blocks[row] = start + len(block_ids)
        self.block_table[row, start : start + len(block_ids)] = block_ids

    # -- one step ---------------------------------------------------------------------------------

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step and sample for every request that has caught up."""
        if not self._one_blas_thread:
            return self._execute_model(output)
        with blas_threads(1):
            return self._execute_model(output)

    def _execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self._update_states(output)
        req_ids = list(output.num_scheduled_tokens)
        index = {req_id: i for i, req_id in enumerate(req_ids)}
        if not req_ids:
            return ModelRunnerOutput([], {}, [])
        row_of = self.row_of
        rows = np.array([row_of[req_id] for req_id in req_ids])
        num_scheduled = np.array(list(output.num_scheduled_tokens.values()), np.int32)
        input_ids, positions, metadata = self._prepare_inputs(
            rows, num_scheduled, output.total_num_scheduled_tokens
        )
        hidden = self.model.forward(input_ids, positions, self.kv_caches, metadata)

        result = ModelRunnerOutput(req_ids, index, [])
        if self._wants_prompt_logprobs:
            self._gather_prompt_logprobs(req_ids, num_scheduled, metadata, hidden, result)
        caught_up = metadata.seq_lens == self.num_tokens[rows]
        if caught_up.all():
            sampled_rows, sampled_ids = rows, req_ids
            last = metadata.query_start_loc[1:] - 1
        else:
            sampled_rows = rows[caught_up]
            sampled_ids = [r for r, ready in zip(req_ids, caught_up.tolist(), strict=True) if ready]
            last = metadata.query_start_loc[1:][caught_up] - 1
        if not sampled_ids:
            result.sampled_token_ids = [[] for _ in req_ids]
            return result
        if len(last) != len(hidden):
            hidden = hidden[last]
        tokens = self._sample(self.model.compute_logits(hidden), sampled_ids, result)

        # Remember the new tokens: they are the next step's input.
        self.token_ids[sampled_rows, self.num_tokens[sampled_rows]] = tokens
        self.num_tokens[sampled_rows] += 1
        token_list = tokens.tolist()
        requests = self.requests
        for req_id, token in zip(sampled_ids, token_list, strict=True):
            requests[req_id].output_token_ids.append(token)
        if len(sampled_ids) == len(req_ids):
            result.sampled_token_ids = [[token] for token in token_list]
        else:
            by_id = dict(zip(sampled_ids, token_list, strict=True))
            result.sampled_token_ids = [[by_id[r]] if r in by_id else [] for r in req_ids]
        return result

    def _prepare_inputs(
        self, rows: np.ndarray, num_scheduled: np.ndarray, num_tokens: int
    ) -> tuple[np.ndarray, np.ndarray, AttentionMetadata]:
        """Lay the step's tokens end to end.

        Args:
            rows: [num_reqs], the requests' rows.
            num_scheduled: int32 [num_reqs].
            num_tokens: their sum.

        Returns `input_ids` and `positions`, int [num_tokens], and the attention metadata. A token at
        position p of a request goes to slot `table[p // block_size] * block_size + p % block_size`.
        """
        num_reqs = len(rows)
        computed = self.num_computed_tokens[rows]
        seq_lens = computed + num_scheduled
        max_query_len = int(num_scheduled.max())
        if max_query_len == 1:  # every request decodes: one token each
            query_start_loc = self._arange[: num_reqs + 1]
            positions, token_rows = computed, rows
        else:
            query_start_loc = np.zeros(num_reqs + 1, np.int32)
            np.cumsum(num_scheduled, out=query_start_loc[1:])
            offset = computed - query_start_loc[:-1]
            positions = self._arange[:num_tokens] + np.repeat(offset, num_scheduled)
            token_rows = np.repeat(rows, num_scheduled)
        block_size = self.block_size
        block, within = np.divmod(positions, block_size)
        slot_mapping = self.block_table[token_rows, block].astype(np.int64) * block_size + within
        max_seq_len = int(seq_lens.max())
        metadata = AttentionMetadata(
            query_start_loc=query_start_loc,
            seq_lens=seq_lens,
            block_table=self.block_table[rows, : cdiv(max_seq_len, block_size)],
            slot_mapping=slot_mapping,
            block_size=block_size,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
        )
        return self.token_ids[token_rows, positions], positions, metadata

    def _sample(
        self, logits: np.ndarray, req_ids: Sequence[str], result: ModelRunnerOutput
    ) -> np.ndarray:
        """Sample one token a row; int64 [len(req_ids)]. Adds the logprobs asked for to `result`."""
        states = [self.requests[req_id] for req_id in req_ids]
        if self._metadata is None or self._metadata[0] != states:
            self._metadata = (states, SamplingMetadata.build(states, self.vocab_size))
        out = self.sampler(logits, self._metadata[1])
        if out.logprobs is not None:
            lists = out.logprobs
            for i, state in enumerate(states):
                wanted = state.sampling_params.logprobs
                if wanted is not None:
                    columns = (self.vocab_size if wanted == -1 else wanted) + 1
                    result.logprobs[state.req_id] = LogprobsLists(
                        lists.logprob_token_ids[i : i + 1, :columns],
                        lists.logprobs[i : i + 1, :columns],
                        lists.sampled_token_ranks[i : i + 1],
                    )
        return out.sampled_token_ids

    def _gather_prompt_logprobs(
        self,
        req_ids: Sequence[str],
        num_scheduled: np.ndarray,
        metadata: AttentionMetadata,
        hidden: np.ndarray,
        result: ModelRunnerOutput,
    ) -> None:
        """Score the prompt tokens of this step's chunks, for requests that asked.

        The hidden state at position p scores the prompt token at p + 1. What chunks yield is kept
        until the prompt is done and then sent at once (`gpu_model_runner.py`, `_get_prompt_logprobs_dict`).
        """
        for i, req_id in enumerate(req_ids):
            state = self.requests[req_id]
            if state.prompt_logprobs is None:
                continue
            prompt = state.prompt_token_ids
            seq_len = int(metadata.seq_lens[i])
            first = seq_len - int(num_scheduled[i])
            last = min(seq_len, len(prompt) - 1)  # the last prompt token predicts an output
            if first < last:
                begin = int(metadata.query_start_loc[i])
                chunk = hidden[begin : begin + last - first]
                logprobs = compute_logprobs(self.model.compute_logits(chunk))
                wanted = state.sampling_params.prompt_logprobs
                assert wanted is not None
                targets = np.array(prompt[first + 1 : last + 1])
                state.prompt_logprobs.append(
                    gather_logprobs(logprobs, self.vocab_size if wanted == -1 else wanted, targets)
                )
            if seq_len >= len(prompt):
                if state.prompt_logprobs:
                    result.prompt_logprobs_dict[req_id] = LogprobsLists(
                        *(np.concatenate(part) for part in zip(*state.prompt_logprobs, strict=True))
                    )
                state.prompt_logprobs = None
                self._wants_prompt_logprobs.discard(req_id)
