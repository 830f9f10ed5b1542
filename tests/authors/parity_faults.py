"""Schedulers with one mistake each, and what `course.parity` has to say about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mini_vllm.config.engine import EngineConfig
from mini_vllm.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.core.sched.scheduler import Scheduler


class LastIsFirst(Scheduler):
    """Preempts the head of the running list."""

    def _pop_victim(self) -> Request:
        return self.running.pop(0)


class OneSlotMore(Scheduler):
    """`<=` where `<` belongs: one request too many runs."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.max_num_running_reqs += 1


class OneTokenLess(Scheduler):
    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.max_num_scheduled_tokens -= 1


class NoGate(Scheduler):
    def __init__(self, config: EngineConfig) -> None:
        super().__init__(replace(config, scheduler_reserve_full_isl=False))


class NoThreshold(Scheduler):
    def __init__(self, config: EngineConfig) -> None:
        super().__init__(replace(config, long_prefill_token_threshold=0))


class NoPriority(Scheduler):
    def __init__(self, config: EngineConfig) -> None:
        super().__init__(replace(config, scheduling_policy="fcfs"))


class KeepsAborted(Scheduler):
    """Forgets to act on an abort."""

    def finish_requests(self, request_ids: Any, finished_status: RequestStatus) -> list[str]:
        return []


class LeaksBlocks(Scheduler):
    """Forgets the blocks of a finished request."""

    def _free_request(self, request: Request) -> None:
        self.finished_req_ids.add(request.request_id)
        del self.requests[request.request_id]


class OneTokenTooMany(Scheduler):
    """`>` where `>=` belongs in the length check."""

    def add_request(self, request: Request) -> None:
        request.max_tokens += 1
        super().add_request(request)


class NewcomersFirst(Scheduler):
    """Puts admitted requests at the head of the running list."""

    def schedule(self) -> SchedulerOutput:
        before = set(map(id, self.running))
        output = super().schedule()
        self.running.sort(key=lambda request: id(request) in before)
        return output


def _with_manager(manager: type[KVCacheManager]) -> Callable[[EngineConfig], Scheduler]:
    class WithManager(Scheduler):
        def __init__(self, c: EngineConfig) -> None:
            assert c.num_gpu_blocks is not None
            assert c.max_model_len is not None
            mine = manager(c.num_gpu_blocks, c.block_size, c.max_model_len, c.enable_prefix_caching)
            super().__init__(c, mine)

    return WithManager


class HeadFirst(KVCacheManager):
    """Frees a table from its beginning."""

    def free(self, request: Request) -> None:
        blocks = self.req_to_blocks.get(request.request_id)
        if blocks:
            blocks.reverse()
        super().free(request)


class NoHits(KVCacheManager):
    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        return self.empty_kv_cache_blocks, 0


class ShortHits(KVCacheManager):
    """Leaves one block of each hit unused."""

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        hits, num_tokens = super().get_computed_blocks(request)
        if not num_tokens:
            return hits, 0
        return KVCacheBlocks(hits.blocks[:-1]), num_tokens - self.block_size


class DropsTokens(Scheduler):
    """Never takes a sampled token in, so nothing ever ends."""

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> list[Any]:
        return []


FAULTS: dict[str, tuple[Any, str]] = {
    "victim": (LastIsFirst, "Victim: a running request that finds too few free blocks"),
    "slots": (OneSlotMore, "Slots: "),
    "budget": (OneTokenLess, "Budget: "),
    "gate": (NoGate, "Full-sequence gate: "),
    "threshold": (NoThreshold, "Threshold: no request gets more"),
    "priority": (NoPriority, "(priority, arrival time)"),
    "abort": (KeepsAborted, "Abort: "),
    "leak": (LeaksBlocks, "Free blocks: a block is free when no table holds it"),
    "stop": (OneTokenTooMany, "Stop: checked after each appended token"),
    "running order": (NewcomersFirst, "Running list: "),
    "free order": (_with_manager(HeadFirst), "Order of blocks: "),
    "no hits": (_with_manager(NoHits), "Hit length: "),
    "short hits": (_with_manager(ShortHits), "Hit length: "),
    "drops tokens": (DropsTokens, "Budget: running requests come first"),
}
