"""One request, from arrival to its last token, as the scheduler sees it.

Mirrors `vllm/v1/request.py` (`Request` 59, `RequestStatus` 315). Left out: pooling, multi-modal
features, streaming input, KV transfer.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from mini_vllm.core.kv_cache_utils import (
    BlockHash,
    generate_block_hash_extra_keys,
    hash_block_tokens,
)
from mini_vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from mini_vllm.lora.request import LoadedLoRARequest


class RequestStatus(enum.IntEnum):
    """Where a request is in its life. The order is logic: everything after PREEMPTED is finished.

    The blocked statuses, WAITING_FOR_…, are for abilities that make a request wait for something of its
    own (`core/sched/admission.py`).
    Source: `vllm/v1/request.py:315 RequestStatus`; the statuses of features that are left out are
    left out too.
    """

    WAITING = enum.auto()  # in a queue, to be admitted when there is room
    # Two blocked ones: its grammar is still being compiled, or its blocks are on their way from elsewhere.
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = enum.auto()
    WAITING_FOR_REMOTE_KVS = enum.auto()  # set by a connector
    RUNNING = enum.auto()  # admitted: it has blocks
    PREEMPTED = enum.auto()
    FINISHED_STOPPED = enum.auto()
    FINISHED_LENGTH_CAPPED = enum.auto()
    FINISHED_ABORTED = enum.auto()
    FINISHED_REPETITION = enum.auto()
    FINISHED_ERROR = enum.auto()  # its rule did not compile, or a token broke it

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def is_finished(status: RequestStatus) -> bool:
        return status > RequestStatus.PREEMPTED

    @staticmethod
    def is_blocked(status: RequestStatus) -> bool:
        """(`vllm/v1/core/sched/scheduler.py:1606 Scheduler._is_blocked_waiting_status`)"""
        return RequestStatus.WAITING < status < RequestStatus.RUNNING

    @staticmethod
    def get_finished_reason(status: RequestStatus) -> str | None:
        """`stop`, `length`, `abort`, `repetition` or `error`; None while the request lives
        (`vllm/v1/request.py:341 RequestStatus.get_finished_reason`)."""
        return _FINISHED_REASON_MAP.get(status)


_FINISHED_REASON_MAP = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH_CAPPED: "length",
    RequestStatus.FINISHED_ABORTED: "abort",
    RequestStatus.FINISHED_REPETITION: "repetition",
    RequestStatus.FINISHED_ERROR: "error",
}


@dataclass(slots=True)
class EngineCoreRequest:
    """A request that was checked, tokenized and given every default: what the core is sent.

    What makes it, in whatever thread, has done all that can fail for the request's own fault but
    two: its id may be in use, and the KV cache may be too small for it.
    Source: `vllm/v1/engine/__init__.py:81 EngineCoreRequest`.

    Attributes:
        prompt: the text, if that was given: the front end shows it again, and the core does not look.
        arrival_time: seconds.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    arrival_time: float
    priority: int = 0
    cache_salt: str | None = None
    lora_request: LoadedLoRARequest | None = None


class Request:
    """A request's tokens and its two counters.

    `num_tokens` counts the tokens that exist: prompt and output. `num_computed_tokens` counts those
    whose KV is in the cache (or will be at the end of the step in flight). Scheduling is nothing
    but letting the second catch up with the first. A request samples in a step when it has.

    A request holds no block table: the KV cache manager keeps those, by request id.

    Args:
        request_id: unique among the living.
        prompt_token_ids: at least one token id.
        sampling_params: what to sample and when to stop; `max_tokens` must be set.
        arrival_time: seconds; orders requests of equal priority. Default: now.
        priority: lower runs first (only under the `priority` policy).
        cache_salt: keeps this request's prefix cache apart from other salts'.
        block_size: tokens in a block, to hash full blocks; None if prefix caching is off.
        block_hasher: hashes them in another way (`get_request_block_hasher`), for this `block_size`.
        lora_request: its adapter.

    Source: `vllm/v1/request.py:59 Request`.
    """

    __slots__ = (
        "all_token_ids",
        "arrival_time",
        "block_hasher",
        "block_hashes",
        "block_size",
        "cache_salt",
        "eos_token_id",
        "is_prefill_chunk",
        "lora_request",
        "max_tokens",
        "min_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_output_placeholders",
        "num_preemptions",
        "num_prompt_tokens",
        "num_tokens",
        "output_token_ids",
        "priority",
        "prompt_token_ids",
        "repetition_detection",
        "request_id",
        "sampling_params",
        "skip_reading_prefix_cache",
        "spec_token_ids",
        "status",
        "stop_reason",
        "stop_token_ids",
        "structured_output_request",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        sampling_params: SamplingParams,
        arrival_time: float | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        block_size: int | None = None,
        block_hasher: Callable[[Request], list[BlockHash]] | None = None,
        lora_request: LoadedLoRARequest | None = None,
    ) -> None:
        if not prompt_token_ids:
            raise ValueError("The decoder prompt cannot be empty")
        if sampling_params.max_tokens is None:
            raise ValueError("max_tokens must be set by the time a Request is made, got None")
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.sampling_params = sampling_params
        self.arrival_time = time.time() if arrival_time is None else arrival_time
        self.priority = priority
        self.cache_salt = cache_salt
        self.lora_request = lora_request
        # Its rule, and then its grammar, where it has one (`structured_output/request.py`).
        self.structured_output_request: Any = None
        self.status = RequestStatus.WAITING
        self.stop_reason: int | str | None = None

        self.output_token_ids: list[int] = []
        self.all_token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = self.num_tokens = len(prompt_token_ids)
        self.num_computed_tokens = 0
        self.num_cached_tokens = -1  # prefix hits at the last admission before output
        self.num_preemptions = 0

        # Drafts that the next step is to check. Without speculation there are never any.
        self.spec_token_ids: list[int] = []

        # Of async scheduling (`AsyncScheduler`). With synchronous steps they keep these values.
        self.num_output_placeholders = 0  # tokens being sampled, whose results are not in yet
        self.is_prefill_chunk = False  # the last step that it was in samples nothing for it

        # Read once here rather than through two objects at every token.
        self.max_tokens: int = sampling_params.max_tokens
        self.min_tokens: int = sampling_params.min_tokens
        self.eos_token_id: int | None = sampling_params.eos_token_id
        self.stop_token_ids: frozenset[int] = frozenset(sampling_params.stop_token_ids or ())
        self.repetition_detection = sampling_params.repetition_detection
        self.skip_reading_prefix_cache = bool(sampling_params.skip_reading_prefix_cache)

        self.block_size = block_size
        self.block_hasher = block_hasher
        self.block_hashes: list[BlockHash] = []
        self.update_block_hashes()

    @classmethod
    def from_engine_core_request(cls, request: EngineCoreRequest, block_size: int | None) -> Self:
        """The core's own, with its full blocks hashed for `block_size`; None: prefix caching is off
        (`vllm/v1/request.py:190 Request.from_engine_core_request`)."""
        return cls(
            request.request_id,
            request.prompt_token_ids,
            request.sampling_params,
            arrival_time=request.arrival_time,
            priority=request.priority,
            cache_salt=request.cache_salt,
            block_size=block_size,
            lora_request=request.lora_request,
        )

    def append_output_token_ids(self, token_id: int) -> None:
        """Add one sampled token; hash the block it completes, if it completes one."""
        self.output_token_ids.append(token_id)
        self.all_token_ids.append(token_id)
        self.num_tokens += 1
        if self.block_size is not None and self.num_tokens % self.block_size == 0:
            self.update_block_hashes()

    def update_block_hashes(self) -> None:
        """Hash the full blocks that have no hash yet. Each block is hashed once in its life.
        Source: `vllm/v1/request.py:229 Request.update_block_hashes`.
        """
        if self.block_size is None:
            return
        if self.block_hasher is not None:
            self.block_hashes.extend(self.block_hasher(self))
            return
        start = len(self.block_hashes) * self.block_size
        while start + self.block_size <= self.num_tokens:
            parent = self.block_hashes[-1] if self.block_hashes else None
            extra_keys = generate_block_hash_extra_keys(self, start)
            token_ids = self.all_token_ids[start : start + self.block_size]
            self.block_hashes.append(hash_block_tokens(parent, token_ids, extra_keys))
            start += self.block_size

    @property
    def num_tokens_with_spec(self) -> int:
        """Tokens that exist, and drafts (`vllm/v1/request.py:243`)."""
        return self.num_tokens + len(self.spec_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)

    def is_finished(self) -> bool:
        return RequestStatus.is_finished(self.status)

    def get_finished_reason(self) -> str | None:
        return RequestStatus.get_finished_reason(self.status)

    def __lt__(self, other: Request) -> bool:
        """Priority order: lower priority value, then earlier arrival, then smaller id.

        Source: `vllm/v1/request.py:301 Request.__lt__`.
        """
        return (self.priority, self.arrival_time, self.request_id) < (
            other.priority,
            other.arrival_time,
            other.request_id,
        )

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.name}, "
            f"{self.num_computed_tokens}/{self.num_tokens} tokens computed)"
        )
