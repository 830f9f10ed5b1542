"""What the rules of releases are put on with: a scheduler's methods, and what several rules ask of it.

Left out: what `releases.py` leaves out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager
from mini_vllm.core.kv_cache_coordinator import HybridKVCacheCoordinator
from mini_vllm.core.kv_cache_utils import KVCacheBlock
from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.core.single_type_kv_cache_manager import SingleTypeKVCacheManager


def wrap(owner: object, name: str, around: Callable[..., Any]) -> None:
    """Let `around(inner, ...)` stand for this object's method, which it is given as `inner`."""
    replace(owner, name, partial(around, getattr(owner, name)))


def replace(owner: object, name: str, other: object) -> None:
    """Give this object an attribute of its own, which hides that of its class."""
    setattr(owner, name, other)


def groups_of(scheduler: Scheduler) -> Sequence[SingleTypeKVCacheManager]:
    """The managers of windows and groups; none where there is one group of full attention."""
    manager = scheduler.kv_cache_manager
    if isinstance(manager, HybridKVCacheManager):
        return manager.coordinator.single_type_managers
    return ()


def drafts_with_eagle(scheduler: Scheduler) -> bool:
    speculation = scheduler.config.speculation
    return speculation is not None and speculation.use_eagle()


def hybrid_coordinator(scheduler: Scheduler) -> HybridKVCacheCoordinator | None:
    coordinator = getattr(scheduler.kv_cache_manager, "coordinator", None)
    return coordinator if isinstance(coordinator, HybridKVCacheCoordinator) else None


def count_in_flight(scheduler: Scheduler) -> Counter[str]:
    """How many tokens of each request are in steps whose results are not in."""
    counted: Counter[str] | None = getattr(scheduler, "tokens_in_flight", None)
    if counted is not None:
        return counted
    tokens: Counter[str] = Counter()

    def schedule(inner: Callable[[], SchedulerOutput]) -> SchedulerOutput:
        output = inner()
        tokens.update(output.num_scheduled_tokens)
        return output

    def update(inner: Callable[..., Any], output: SchedulerOutput, *args: Any) -> Any:
        for req_id, num_tokens in output.num_scheduled_tokens.items():
            tokens[req_id] -= num_tokens
            if not tokens[req_id]:
                del tokens[req_id]
        return inner(output, *args)

    wrap(scheduler, "schedule", schedule)
    wrap(scheduler, "update_from_output", update)
    replace(scheduler, "tokens_in_flight", tokens)
    return tokens


def free_unhashed_first(pool: BlockPool, ordered_blocks: Iterable[KVCacheBlock]) -> None:
    first: list[KVCacheBlock] = []
    last: list[KVCacheBlock] = []
    for block in ordered_blocks:
        block.ref_cnt -= 1
        if not block.ref_cnt and not block.is_null:
            (first if block.block_hash is None else last).append(block)
    pool.free_block_queue.prepend_n(first)
    pool.free_block_queue.append_n(last)
