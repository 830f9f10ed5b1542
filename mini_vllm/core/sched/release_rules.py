"""How the rules of `releases.py` are put on a scheduler: each function is one of them.

Left out: what `releases.py` leaves out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager
from mini_vllm.core.kv_cache_utils import (
    BlockHash,
    generate_block_hash_extra_keys,
    hash_block_tokens,
    make_block_hash_with_group_id,
)
from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.admission import AdmissionGate, AdmissionRule
from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.core.sched.release_hooks import (
    count_in_flight,
    drafts_with_eagle,
    free_unhashed_first,
    hybrid_coordinator,
    replace,
    wrap,
)
from mini_vllm.core.sched.request_queue import SchedulingPolicy
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.core.sched.step import Step
from mini_vllm.core.single_type_kv_cache_manager import (
    FullAttentionManager,
    SingleTypeKVCacheManager,
    SlidingWindowManager,
)
from mini_vllm.utils.math import cdiv

# -- blocks -----------------------------------------------------------------------------------------------


def free_all_unhashed_first(scheduler: Scheduler) -> None:
    pool = scheduler.kv_cache_manager.block_pool
    replace(pool, "free_blocks", partial(free_unhashed_first, pool))


def free_as_ever_without_caching(scheduler: Scheduler) -> None:
    pool = scheduler.kv_cache_manager.block_pool
    if not scheduler.config.enable_prefix_caching:
        replace(pool, "free_blocks", partial(type(pool).free_blocks, pool))


# -- drafts -----------------------------------------------------------------------------------------------


def look_ahead_at_admission(scheduler: Scheduler) -> None:
    def allocate_slots(inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if "new_computed_blocks" in kwargs:
            kwargs["num_lookahead_tokens"] = scheduler.num_lookahead_tokens
        return inner(*args, **kwargs)

    if scheduler.num_lookahead_tokens:
        wrap(scheduler.kv_cache_manager, "allocate_slots", allocate_slots)


class _PadAdmittedDecodes(AdmissionRule):
    """A request that is admitted with one token to compute gets placeholders for drafts, all of which are
    rejected, so that each row of a step of decodes is as long as the others and a full CUDA graph fits.

    Attributes:
        only_with_room: one that would pass the model's length is not padded; else it is not admitted.
        also_first: whether the first of a step is padded, too.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.step = Step(0)
        self.only_with_room = self.also_first = False
        self._padded: Request | None = None

    def limit_new_tokens(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        self._padded = None
        scheduler, running = self.scheduler, self.step.scheduled_running_reqs
        decodes = not any(other.is_prefill_chunk for other in running)
        starts = running or (self.also_first and num_computed_tokens > 0)
        if request.num_tokens - num_computed_tokens != 1 or not decodes or not starts:
            return num_new_tokens
        padded = 1 + scheduler.num_spec_tokens
        end = num_computed_tokens + padded + self.only_with_room
        if end > scheduler.max_model_len:
            return num_new_tokens if self.only_with_room else 0
        if padded > self.step.token_budget:
            return 0
        self._padded = request
        return min(padded, scheduler.long_prefill_token_threshold or padded)

    def admit(self, request: Request, num_external_tokens: int) -> None:
        if request is self._padded:
            drafts = [-1] * self.scheduler.num_spec_tokens
            self.step.scheduled_spec_decode_tokens[request.request_id] = drafts


def pad_admitted_decodes(scheduler: Scheduler) -> None:
    if not scheduler.num_spec_tokens:
        return
    padding = _PadAdmittedDecodes(scheduler)
    scheduler.admission = AdmissionGate((*scheduler.admission.rules, padding))

    def schedule_waiting(inner: Callable[[Step], None], step: Step) -> None:
        padding.step = step
        inner(step)

    wrap(scheduler, "_schedule_waiting", schedule_waiting)


def pad_with(name: str) -> Callable[[Scheduler], None]:
    def change(scheduler: Scheduler) -> None:
        for rule in scheduler.admission.rules:
            if isinstance(rule, _PadAdmittedDecodes):
                setattr(rule, name, True)

    return change


class _StepWithDraftRows(Step):
    """A step in which each request takes rows for its drafter from the budget, too."""

    __slots__ = ("_left", "_read", "_rows")

    def __init__(self, rows: int, token_budget: int) -> None:
        self._rows, self._left, self._read = rows, token_budget - rows, 0
        self.num_scheduled_tokens = {}
        super().__init__(self.token_budget)

    @property
    def token_budget(self) -> int:
        self._read = max(0, self._left - self._rows * len(self.num_scheduled_tokens))
        return self._read

    @token_budget.setter
    def token_budget(self, value: int) -> None:
        self._left += value - self._read


def count_draft_rows_by_request(scheduler: Scheduler) -> None:
    config = scheduler.config
    rows = config.speculation.max_num_new_slots_for_drafting if config.speculation else 0
    if rows:
        scheduler.max_num_scheduled_tokens = config.token_budget
        replace(scheduler, "step_class", partial(_StepWithDraftRows, rows))


def look_past_the_last_token(scheduler: Scheduler) -> None:
    coordinator = hybrid_coordinator(scheduler)
    if coordinator is not None:
        coordinator.looks_past_the_last_token = True


def cache_what_eagle_gives_up(scheduler: Scheduler) -> None:
    coordinator = hybrid_coordinator(scheduler)
    if coordinator is None or not coordinator.use_eagle:
        return
    lcm = coordinator.lcm_block_size

    def cache_blocks(request: Request, num_computed_tokens: int) -> None:
        end = num_computed_tokens // lcm * lcm
        for group in coordinator.single_type_managers:
            num_tokens = end
            if coordinator.use_eagle and end:  # no longer, once hashes cover the next token
                num_tokens = min(num_computed_tokens, end + group.block_size)
            hashes = coordinator.hashes_for(group.kv_cache_spec, request.block_hashes)
            group.cache_blocks(request, num_tokens, hashes, lcm)

    def serves_hits(
        group: SlidingWindowManager, inner: Callable[..., bool], position: int, alignment: int
    ) -> bool:
        if not coordinator.use_eagle:
            return inner(position, alignment)
        between = alignment // group.block_size
        needed = cdiv(group.sliding_window - 1, group.block_size) + 1
        if needed >= between:
            return True
        return position > 0 and (position - 1) % between >= between - needed

    replace(coordinator, "cache_blocks", cache_blocks)
    for group in coordinator.single_type_managers:
        if isinstance(group, SlidingWindowManager):
            wrap(group, "serves_hits", partial(serves_hits, group))


def publish_prompt_tails(scheduler: Scheduler) -> None:
    coordinator = hybrid_coordinator(scheduler)
    if coordinator is None or not coordinator.use_eagle:
        return
    size, pool = coordinator.block_size, scheduler.kv_cache_manager.block_pool

    def cache_blocks(
        group: SingleTypeKVCacheManager,
        inner: Callable[..., None],
        request: Request,
        num_tokens: int,
        *args: Any,
    ) -> None:
        blocks = group.req_to_blocks.get(request.request_id, [])
        end = request.num_prompt_tokens // size * size
        position = end // group.block_size
        has_tail = end % group.block_size > 0 and position < len(blocks)
        published = group.num_cached_block.get(request.request_id, 0)
        if has_tail and published <= position < num_tokens // group.block_size:
            pool.evict_blocks(
                {blocks[position].block_id}
            )  # it is full now, and gets its usual hash
        inner(request, num_tokens, *args)
        if has_tail and coordinator.use_eagle and end <= num_tokens:
            block = blocks[position]
            if block.block_hash is None and not block.is_null:
                key = make_block_hash_with_group_id(
                    request.block_hashes[end // size - 1], group.kv_cache_group_id
                )
                block.block_hash = key
                pool.cached_block_hash_to_block.insert(key, block)

    for group in coordinator.single_type_managers:
        if isinstance(group, FullAttentionManager) and group.block_size > size:
            wrap(group, "cache_blocks", partial(cache_blocks, group))


def hash_with_the_next_token(scheduler: Scheduler) -> None:
    config, manager = scheduler.config, scheduler.kv_cache_manager
    if not drafts_with_eagle(scheduler) or not config.enable_prefix_caching:
        return
    block_size = config.block_size

    def hasher(request: Request) -> list[BlockHash]:
        hashes: list[BlockHash] = []
        start = len(request.block_hashes) * block_size
        parent = request.block_hashes[-1] if request.block_hashes else None
        while start + block_size < request.num_tokens:
            token_ids = request.all_token_ids[start : start + block_size + 1]
            extra_keys = generate_block_hash_extra_keys(request, start)
            parent = hash_block_tokens(parent, token_ids, extra_keys)
            hashes.append(parent)
            start += block_size
        return hashes

    def add_request(inner: Callable[[Request], None], request: Request) -> None:
        request.block_hasher = hasher
        request.block_hashes = []
        inner(request)

    def get_computed_blocks(inner: Callable[[Request], Any], request: Request) -> Any:
        request.update_block_hashes()
        return inner(request)

    def cache_blocks(inner: Callable[..., None], request: Request, num_tokens: int) -> None:
        request.update_block_hashes()
        inner(request, min(num_tokens, len(request.block_hashes) * block_size))

    owner: Any = manager
    if isinstance(manager, HybridKVCacheManager):
        owner = manager.coordinator
    manager.use_eagle = owner.use_eagle = False
    wrap(scheduler, "add_request", add_request)
    wrap(manager, "get_computed_blocks", get_computed_blocks)
    wrap(owner, "cache_blocks", cache_blocks)


def publish_with_the_result(scheduler: Scheduler) -> None:
    manager, tokens = scheduler.kv_cache_manager, count_in_flight(scheduler)

    def update(
        inner: Callable[..., tuple[list[int], bool]], request: Request, new_token_ids: list[int]
    ) -> tuple[list[int], bool]:
        running = request.status is RequestStatus.RUNNING
        known_late = request.num_output_placeholders > 0 or scheduler.num_spec_tokens > 0
        usual = manager.cache_blocks
        replace(manager, "cache_blocks", lambda *args: None)
        try:
            kept, stopped = inner(request, new_token_ids)
        finally:
            replace(manager, "cache_blocks", usual)
        request.num_computed_tokens -= len(new_token_ids) - len(kept)
        if running and known_late:
            num_known = request.num_computed_tokens - tokens[request.request_id]
            manager.cache_blocks(request, num_known)
        return kept, stopped

    wrap(scheduler, "_update_request_with_output", update)


# -- the order of requests --------------------------------------------------------------------------------


def report_reset_as_preempted(scheduler: Scheduler) -> None:
    def schedule(inner: Callable[[], SchedulerOutput]) -> SchedulerOutput:
        output = inner()
        output.preempted_req_ids |= output.reset_req_ids
        return output

    wrap(scheduler, "schedule", schedule)


def no_threshold_alone(scheduler: Scheduler) -> None:
    def schedule(inner: Callable[[], SchedulerOutput]) -> SchedulerOutput:
        alone = (
            len(scheduler.running) + len(scheduler.waiting) + len(scheduler.skipped_waiting) <= 1
        )
        threshold = 0 if alone else scheduler.config.long_prefill_token_threshold
        scheduler.long_prefill_token_threshold = threshold
        return inner()

    if scheduler.config.long_prefill_token_threshold:
        wrap(scheduler, "schedule", schedule)


def recount_victims(scheduler: Scheduler) -> None:
    scheduler.recounts_victims = scheduler.policy is SchedulingPolicy.PRIORITY


def serve_behind_victims(scheduler: Scheduler) -> None:
    scheduler.serves_behind_victims = scheduler.policy is SchedulingPolicy.PRIORITY
