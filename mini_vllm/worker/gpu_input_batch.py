"""The persistent batch: a row of arrays for each request that runs.

Mirrors `vllm/v1/worker/gpu_input_batch.py`. The worker keeps its own copy of every request's tokens and block
table and is told only what changed, as upstream's is, which lives in another process. Left out: rows moved
together when one is given back (steps pick rows by index here), what each row asks of the sampler
(`sample/metadata.py` builds that), inputs that are no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.sample.metadata import make_generator
from mini_vllm.sample.ops import LogprobsLists
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.utils.math import cdiv
from mini_vllm.utils.memory import allocate_zeros
from mini_vllm.worker.block_table import MultiGroupBlockTable

if TYPE_CHECKING:
    from mini_vllm.lora.request import LoadedLoRARequest

Ints = NDArray[np.integer[Any]]


class CachedRequestState:
    """What the worker remembers of a request
    (`vllm/v1/worker/gpu_input_batch.py:34 CachedRequestState`).

    `row` is its place in the batch; -1 while it is preempted.
    """

    __slots__ = (
        "generator",
        "lora_request",
        "output_token_ids",
        "prompt_logprobs",
        "prompt_token_ids",
        "req_id",
        "row",
        "sampling_params",
    )

    def __init__(
        self,
        req_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        lora_request: LoadedLoRARequest | None = None,
    ) -> None:
        self.req_id = req_id
        self.lora_request = lora_request
        self.prompt_token_ids = prompt_token_ids
        self.sampling_params = params
        self.output_token_ids: list[int] = []
        self.generator = make_generator(params)
        self.row = -1
        self.prompt_logprobs: list[LogprobsLists] = []  # of the chunks up to now


class InputBatch:
    """Tokens, counts and block tables of the requests that run, a row each, reused when one leaves
    (`vllm/v1/worker/gpu_input_batch.py:91 InputBatch`).

    Args:
        max_num_reqs: rows.
        max_model_len: tokens of a row at most.
        block_size: tokens a block.
        num_groups: KV cache groups.

    Attributes:
        token_ids: int32 `[max_num_reqs, max_model_len]`; behind a request's tokens its drafts, or anything.
        num_tokens: int32 `[max_num_reqs]`, without drafts.
        num_computed_tokens: int32 `[max_num_reqs]`.
        block_table: a table for each group.
        req_id_to_index: each request's row.

    Raises MemoryError where there is no room.
    """

    def __init__(
        self, max_num_reqs: int, max_model_len: int, block_size: int, num_groups: int
    ) -> None:
        self.token_ids = allocate_zeros((max_num_reqs, max_model_len), np.int32)
        self.num_tokens = np.zeros(max_num_reqs, np.int32)
        self.num_computed_tokens = np.zeros(max_num_reqs, np.int32)
        self.block_table = MultiGroupBlockTable(
            num_groups, block_size, max_num_reqs, cdiv(max_model_len, block_size)
        )
        self.req_id_to_index: dict[str, int] = {}
        self._free_rows = list(range(max_num_reqs))[::-1]

    def add_request(self, request: CachedRequestState) -> int:
        """Give the request a row: its tokens, and a block table that is empty again. Returns the row."""
        row = request.row = self._free_rows.pop()
        self.req_id_to_index[request.req_id] = row
        tokens = request.prompt_token_ids + request.output_token_ids
        self.token_ids[row, : len(tokens)] = tokens
        self.num_tokens[row] = len(tokens)
        return row

    def remove_request(self, request: CachedRequestState) -> None:
        """Take its row back, if it has one."""
        if request.row >= 0:
            self.block_table.clear_row(request.row)
            self._free_rows.append(request.row)
            del self.req_id_to_index[request.req_id]
            request.row = -1
            request.prompt_logprobs = []  # preempted in mid-prompt: it starts over

    def rows_of(self, req_ids: Iterable[str]) -> Ints:
        """Each request's row, `[len(req_ids)]`."""
        index = self.req_id_to_index
        return np.array([index[req_id] for req_id in req_ids], np.int64)

    def append_tokens(self, rows: Ints, token_ids: Sequence[Sequence[int]]) -> None:
        """Write new tokens behind those that each row has, over its drafts: they are the next step's input.

        Args:
            rows: `[n]`, each once.
            token_ids: n lists, none of them empty.
        """
        counts = np.array([len(ids) for ids in token_ids], np.int32)
        starts = self.num_tokens[rows]
        flat = [token_id for ids in token_ids for token_id in ids]
        if len(flat) == len(rows):  # one each, as without drafts
            self.token_ids[rows, starts] = flat
        else:
            # Counts [2, 3]: rows 0 0 1 1 1, and places 0 1 0 1 2 past what there was.
            offsets = np.arange(len(flat)) - np.repeat(np.cumsum(counts) - counts, counts)
            self.token_ids[np.repeat(rows, counts), np.repeat(starts, counts) + offsets] = flat
        self.num_tokens[rows] = starts + counts
