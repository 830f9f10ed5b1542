"""The rules of `releases.py` about windows: what falls out of one, and what of it stays to be hit.

Left out: what `releases.py` leaves out; of `prefix_cache_retention_interval`, all values but its default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager
from mini_vllm.core.kv_cache_coordinator import HybridKVCacheCoordinator, KVCacheCoordinator
from mini_vllm.core.kv_cache_utils import BlockHash
from mini_vllm.core.request import Request
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.release_hooks import (
    count_in_flight,
    drafts_with_eagle,
    free_unhashed_first,
    groups_of,
    replace,
    wrap,
)
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.core.single_type_kv_cache_manager import (
    Hits,
    SingleTypeKVCacheManager,
    SlidingWindowManager,
)
from mini_vllm.utils.math import cdiv


def free_windows_first(scheduler: Scheduler) -> None:
    pool = scheduler.kv_cache_manager.block_pool
    usual = pool.free_blocks

    def around(inner: Callable[..., None], *args: Any) -> None:
        replace(pool, "free_blocks", partial(free_unhashed_first, pool))
        try:
            inner(*args)
        finally:
            replace(pool, "free_blocks", usual)

    for group in groups_of(scheduler):
        wrap(group, "remove_skipped_blocks", around)
        if isinstance(group, SlidingWindowManager):
            wrap(group, "free", around)


def cache_nothing_of_one_token(scheduler: Scheduler) -> None:
    def count_only(
        group: SingleTypeKVCacheManager, request: Request, num_tokens: int, *args: object
    ) -> None:
        counted = group.num_cached_block.get(request.request_id, 0)
        group.num_cached_block[request.request_id] = max(counted, num_tokens // group.block_size)

    if drafts_with_eagle(scheduler):
        return
    for group in groups_of(scheduler):
        if isinstance(group, SlidingWindowManager) and group.sliding_window == 1:
            replace(group, "cache_blocks", partial(count_only, group))
            replace(group, "serves_hits", lambda *args: False)


def keep_windows_in_flight(scheduler: Scheduler) -> None:
    groups = groups_of(scheduler)
    if not groups:
        return
    tokens = count_in_flight(scheduler)

    def remove(inner: Callable[[str, int], None], request_id: str, num_computed: int) -> None:
        inner(request_id, max(0, num_computed - tokens[request_id]))

    config = scheduler.config
    most = config.token_budget * (2 if isinstance(scheduler, AsyncScheduler) else 1)
    for group in groups:
        wrap(group, "remove_skipped_blocks", remove)
        if group.max_admission_blocks_per_request is not None:
            cap = group.kv_cache_spec.max_admission_blocks_per_request
            group.max_admission_blocks_per_request = cap(most, config.max_model_len)


class _Checkpoints:
    """Which blocks of windows are published: the tails of hits that can be foreseen.

    One that the same prompt has when it comes again, and one at the junction where another prompt left what
    it shared with this one: full attention had a longer prefix there than the windows.

    Attributes:
        also_longer_prompts: with an EAGLE head, also the tail that this prompt is hit with as the beginning
            of a longer one, and both are a block earlier, since EAGLE gives up a block.
    """

    def __init__(self, coordinator: KVCacheCoordinator) -> None:
        self.coordinator = coordinator
        self.also_longer_prompts = False
        self._junctions: dict[str, int] = {}
        self._longest = 0

    def note_longest(
        self, group: SingleTypeKVCacheManager, inner: Callable[..., Hits], *args: Any
    ) -> Hits:
        found = inner(*args)
        self._longest = max(self._longest, len(found[0]) * group.block_size)
        return found

    def note_junction(
        self, inner: Callable[[Request], tuple[Any, int]], request: Request
    ) -> tuple[Any, int]:
        self._longest = 0
        hits, num_computed_tokens = inner(request)
        missed = self._longest > num_computed_tokens
        hybrid = isinstance(self.coordinator, HybridKVCacheCoordinator)
        self._junctions[request.request_id] = self._longest if missed and hybrid else 0
        return hits, num_computed_tokens

    def forget(self, inner: Callable[[Request], None], request: Request) -> None:
        self._junctions.pop(request.request_id, None)
        inner(request)

    def _boundaries(self, request: Request) -> list[int]:
        prompt, size = request.num_prompt_tokens, self.coordinator.lcm_block_size
        found = [prompt - 1]
        if self.also_longer_prompts and self.coordinator.use_eagle:
            found = [max(0, n // size * size - size) for n in (prompt - 1, prompt)]
        junction = self._junctions.get(request.request_id, 0)
        return [*found, junction] if junction else found

    def cache_blocks(
        self,
        group: SlidingWindowManager,
        request: Request,
        num_tokens: int,
        block_hashes: Sequence[BlockHash] | None = None,
        alignment_tokens: int = 1,
    ) -> None:
        size, align = group.block_size, self.coordinator.lcm_block_size
        start = group.num_cached_block.get(request.request_id, 0)
        end = num_tokens // size
        if start >= end:
            return
        gives_up = self.coordinator.use_eagle and isinstance(
            self.coordinator, HybridKVCacheCoordinator
        )
        needed = cdiv(group.sliding_window - 1, size) + gives_up
        block_mask = [False] * (end - start)
        for boundary in self._boundaries(request):
            last = boundary // align * align // size + gives_up
            for i in range(max(start, last - needed), min(end, last)):
                block_mask[i - start] = True
        group.block_pool.cache_full_blocks_of_group(
            request,
            group.req_to_blocks[request.request_id],
            start,
            end,
            group.kv_cache_group_id,
            request.block_hashes if block_hashes is None else block_hashes,
            block_mask,
        )
        group.num_cached_block[request.request_id] = end


def keep_checkpoints(scheduler: Scheduler) -> None:
    manager = scheduler.kv_cache_manager
    if not isinstance(manager, HybridKVCacheManager) or not manager.enable_caching:
        return
    windows = [group for group in groups_of(scheduler) if isinstance(group, SlidingWindowManager)]
    if not windows:
        return
    checkpoints = _Checkpoints(manager.coordinator)
    replace(manager, "checkpoints", checkpoints)
    for group in groups_of(scheduler):
        wrap(group, "find_longest_cache_hit", partial(checkpoints.note_longest, group))
    for window in windows:
        replace(window, "cache_blocks", partial(checkpoints.cache_blocks, window))
        replace(window, "serves_hits", lambda *args: False)
    wrap(manager, "get_computed_blocks", checkpoints.note_junction)
    wrap(manager, "free", checkpoints.forget)


def keep_checkpoints_of_longer_prompts(scheduler: Scheduler) -> None:
    checkpoints = getattr(scheduler.kv_cache_manager, "checkpoints", None)
    if checkpoints is not None:
        checkpoints.also_longer_prompts = True
