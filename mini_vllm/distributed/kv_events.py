"""KV cache events: what enters the prefix cache and what leaves it, for an observer outside that keeps count.

Mirrors the events of `vllm/distributed/kv_events.py`. A router in front of several engines follows them, and
sends a request to the engine that has most of its prefix. `core/event_block_pool.py` makes them.

Left out: LoRA's two fields are always None; ZeroMQ, replay, and events of several workers. To be
told, pass a function (`EngineParts.kv_event_publisher`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MEDIUM_GPU = "GPU"
"""Where the engine's own blocks are, also on a CPU (`vllm/distributed/kv_events.py:46`)."""

ExternalBlockHash = int | bytes


@dataclass
class KVCacheEvent:
    """Something that happened to the prefix cache (`vllm/distributed/kv_events.py:36 KVCacheEvent`)."""


@dataclass
class BlockStored(KVCacheEvent):
    """Blocks that follow each other can be found from now on
    (`vllm/distributed/kv_events.py:49 BlockStored`).

    Attributes:
        block_hashes: of the blocks stored; those out of a window are left out.
        parent_block_hash: of the block before the first; None at the beginning of a sequence.
        token_ids: of the whole run, blocks that were left out included.
        block_size: tokens in a block.
        extra_keys: for each hash, what it holds beside tokens.
        group_idx: the KV cache group.
        kv_cache_spec_kind: its kind of attention; the manager knows it and the pool does not.
        kv_cache_spec_sliding_window: its window; None without one.
    """

    block_hashes: list[ExternalBlockHash]
    parent_block_hash: ExternalBlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


@dataclass
class BlockRemoved(KVCacheEvent):
    """Blocks can no longer be found (`vllm/distributed/kv_events.py:93 BlockRemoved`)."""

    block_hashes: list[ExternalBlockHash]
    medium: str | None
    group_idx: int | None = None


@dataclass
class AllBlocksCleared(KVCacheEvent):
    """The prefix cache is empty (`vllm/distributed/kv_events.py:108 AllBlocksCleared`)."""


@dataclass
class KVEventBatch:
    """A step's events (`vllm/distributed/kv_events.py:112 KVEventBatch`).

    Attributes:
        ts: seconds since 1970.
    """

    ts: float
    events: list[KVCacheEvent]
    data_parallel_rank: int | None = None


KVEventPublisher = Callable[[KVEventBatch], None]
"""Takes the events. Called in the engine's thread, between two steps."""


def publish_kv_events(publisher: KVEventPublisher, events: list[KVCacheEvent]) -> None:
    """Send what has happened since the last call, if anything has
    (`vllm/v1/core/sched/scheduler.py:1566 in Scheduler.update_from_output`)."""
    if events:
        publisher(KVEventBatch(time.time(), events))
