"""Attention with a part left out, for the deep dive: what goes wrong without it.

The pages import this module by its name: start Python in this folder.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mini_vllm.attention import AttentionMetadata, PagedAttention
from mini_vllm.attention.backend import Array
from mini_vllm.attention.online import State
from mini_vllm.attention.tiled import Plan, TiledAttention, make_plan


class ReadsFirst(PagedAttention):
    """Attends over the cache as it was before this step's keys and values came."""

    def forward(
        self,
        query: Array,
        key: Array,
        value: Array,
        kv_cache: Array,
        attn_metadata: AttentionMetadata,
    ) -> Array:
        before = kv_cache.copy()
        super().forward(query, key, value, kv_cache, attn_metadata)
        nowhere = before[attn_metadata.block_table[0, :1]].copy()
        slots = np.arange(len(key)) % nowhere.shape[1]
        # The rows are written into a block that nobody reads, so `before` stays as it is.
        cache = np.concatenate([before, nowhere])
        metadata = replace(attn_metadata, slot_mapping=len(before) * nowhere.shape[1] + slots)
        return super().forward(query, key, value, cache, metadata)


class OneBehind(PagedAttention):
    """Is told the lengths of the step before: whoever decodes does not see the newest token."""

    def forward(
        self,
        query: Array,
        key: Array,
        value: Array,
        kv_cache: Array,
        attn_metadata: AttentionMetadata,
    ) -> Array:
        decodes = np.diff(attn_metadata.query_start_loc) == 1
        shorter = (attn_metadata.seq_lens - decodes).astype(np.int32)
        metadata = replace(attn_metadata, seq_lens=shorter, max_seq_len=0, plan=None)
        return super().forward(query, key, value, kv_cache, metadata)


class PlannedOnce(TiledAttention):
    """Plans a step of so many rows once, and runs each later step of as many rows by the same plan."""

    def __init__(self) -> None:
        super().__init__()
        self._plans: dict[int, Plan] = {}

    def forward(
        self,
        query: Array,
        key: Array,
        value: Array,
        kv_cache: Array,
        attn_metadata: AttentionMetadata,
    ) -> Array:
        plan = self._plans.setdefault(len(query), make_plan(attn_metadata))
        return super().forward(query, key, value, kv_cache, replace(attn_metadata, plan=plan))


def add_up(a: State, b: State) -> State:
    """A merge that forgets that the two have scaled their sums to maxima of their own."""
    return State(np.maximum(a.m, b.m), a.l + b.l, a.acc + b.acc)


def sees_ahead(first: int, rows: int, prefix: int) -> int:
    """Pairs of a row and a key behind it, if `rows` rows from position `first` on see all of a prefix."""
    return sum(max(0, prefix - 1 - position) for position in range(first, first + rows))
