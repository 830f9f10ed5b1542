"""What the scheduler says and hears: a step's plan, what the worker sends back, each request's news.

Mirrors `vllm/v1/core/sched/output.py`. The two answers stand in files of their own upstream,
`ModelRunnerOutput` in `vllm/v1/outputs.py` and `EngineCoreOutput` in `vllm/v1/engine/__init__.py`;
here each is a few lines, and a step is easier to read with all five side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mini_vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from mini_vllm.core.request import Request
    from mini_vllm.lora.request import LoadedLoRARequest
    from mini_vllm.outputs import CUDAGraphStat
    from mini_vllm.sample.ops import LogprobsLists


@dataclass(slots=True)
class NewRequestData:
    """All that the worker must know of a request it has not seen
    (`vllm/v1/core/sched/output.py:31 NewRequestData`)."""

    req_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    block_ids: tuple[list[int], ...]  # its block table, a list for each KV cache group
    num_computed_tokens: int
    lora_request: LoadedLoRARequest | None = None

    @classmethod
    def from_request(cls, request: Request, block_ids: tuple[list[int], ...]) -> NewRequestData:
        return cls(
            req_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            sampling_params=request.sampling_params,
            block_ids=block_ids,
            num_computed_tokens=request.num_computed_tokens,
            lora_request=request.lora_request,
        )


@dataclass(slots=True)
class CachedRequestData:
    """What changed for requests the worker knows, as parallel lists
    (`vllm/v1/core/sched/output.py:112 CachedRequestData`).

    `new_block_ids[i]` is appended to the worker's table, or replaces it if the request was resumed
    after a preemption; None means nothing new. No token ids: the worker sampled them itself.
    `num_output_tokens`, with asynchronous scheduling only, tells how many of those hold.
    """

    req_ids: list[str]
    resumed_req_ids: set[str]
    new_block_ids: list[tuple[list[int], ...] | None]
    num_computed_tokens: list[int]
    num_output_tokens: list[int] = field(default_factory=list)


@dataclass(slots=True)
class SchedulerOutput:
    """One step's decisions (`vllm/v1/core/sched/output.py:181 SchedulerOutput`).

    `num_scheduled_tokens` is in scheduling order: running requests first, then those admitted.
    `reset_req_ids` is not upstream: its worker drops every request that a step leaves out, and finds
    the block table of one that returns among what it still knows; ours keeps the table in a row.
    """

    scheduled_new_reqs: list[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    preempted_req_ids: set[str]
    finished_req_ids: set[str]  # finished since the last step; the worker forgets them
    reset_req_ids: set[str] = field(
        default_factory=set
    )  # lost their blocks to `reset_prefix_cache`
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(
        default_factory=dict
    )  # drafts among the scheduled tokens, at their end; -1 where the worker alone knows them


@dataclass(slots=True)
class ModelRunnerOutput:
    """What the worker sends back (`vllm/v1/outputs.py`): per request no token or one, and with drafts
    those that were accepted before it.

    Logprobs come by request id, since only rows that have caught up are sampled here. `cudagraph_stats`
    says how the step ran, where there are graphs.
    """

    req_ids: list[str]
    req_id_to_index: dict[str, int]
    sampled_token_ids: list[list[int]]
    logprobs: dict[str, LogprobsLists] = field(default_factory=dict)
    prompt_logprobs_dict: dict[str, LogprobsLists] = field(default_factory=dict)
    cudagraph_stats: CUDAGraphStat | None = None


@dataclass(slots=True)
class DraftTokenIds:
    """What was drafted in a step for the next, as parallel lists (`vllm/v1/outputs.py:297 DraftTokenIds`)."""

    req_ids: list[str]
    draft_token_ids: list[list[int]]


@dataclass(slots=True)
class EngineCoreOutput:
    """One request's news from one step (`vllm/v1/engine/__init__.py`)."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    new_logprobs: LogprobsLists | None = None
    new_prompt_logprobs_tensors: LogprobsLists | None = None
    num_cached_tokens: int = 0
