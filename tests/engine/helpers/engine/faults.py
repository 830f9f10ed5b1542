"""Mistakes people make in a paging path, each a few lines over one part of the engine.

A fault is a function: it takes pytest's `monkeypatch` and returns the parts to run the engine with.
Those that sit in a part the engine takes by injection are subclasses; the rest patch the runner.
Its docstring names the mistake.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

import mini_vllm.core.request as request_module
from mini_vllm.attention import AttentionMetadata, TiledAttention
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_vllm.core.kv_cache_utils import BlockHash, KVCacheBlock, hash_block_tokens
from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.engine.parts import EngineParts
from mini_vllm.worker.gpu_input_batch import InputBatch
from mini_vllm.worker.model_runner import ModelRunner

Patch = pytest.MonkeyPatch
Fault = Callable[[Patch], EngineParts]
FAULTS: dict[str, Fault] = {}


def fault(function: Fault) -> Fault:
    FAULTS[function.__name__] = function
    return function


# -- the worker: slots, positions, tables ---------------------------------------------------------


def _patch_inputs(patch: Patch, change: Callable[[Any, Any, AttentionMetadata], Any]) -> None:
    prepare = ModelRunner._prepare_inputs

    def changed(self: ModelRunner, *args: Any) -> Any:
        return change(*prepare(self, *args))

    patch.setattr(ModelRunner, "_prepare_inputs", changed)


@fault
def slot_off_by_one_at_block_boundary(patch: Patch) -> EngineParts:
    """The last slot of a block is never used: its token goes into the slot before."""

    def change(ids: Any, positions: Any, md: AttentionMetadata) -> Any:
        md.slot_mapping = md.slot_mapping - (positions % md.block_size == md.block_size - 1)
        return ids, positions, md

    _patch_inputs(patch, change)
    return EngineParts()


@fault
def slot_from_the_first_block(patch: Patch) -> EngineParts:
    """A decode's token is stored in the request's first block, whatever its position."""

    def change(ids: Any, positions: Any, md: AttentionMetadata) -> Any:
        decodes = np.flatnonzero(np.diff(md.query_start_loc) == 1)
        rows = md.query_start_loc[decodes]
        md.slot_mapping = md.slot_mapping.copy()
        first = md.block_table[decodes, 0].astype(np.int64) * md.block_size
        md.slot_mapping[rows] = first + positions[rows] % md.block_size
        return ids, positions, md

    _patch_inputs(patch, change)
    return EngineParts()


@fault
def positions_restart_in_every_chunk(patch: Patch) -> EngineParts:
    """Positions count from the start of the chunk, not of the request: RoPE turns by too little."""

    def change(ids: Any, positions: Any, md: AttentionMetadata) -> Any:
        lengths = np.diff(md.query_start_loc)
        offset = np.where(lengths > 1, md.seq_lens - lengths, 0)
        return ids, positions - np.repeat(offset, lengths), md

    _patch_inputs(patch, change)
    return EngineParts()


@fault
def stale_table_after_preemption(patch: Patch) -> EngineParts:
    """A resumed request's new block ids are appended to its old table instead of replacing it."""
    remove, add = InputBatch.remove_request, InputBatch.add_request
    old_tables: dict[tuple[int, str], list[int]] = {}

    def keep(self: InputBatch, state: Any) -> None:
        if state.row >= 0:
            table = self.block_table[0]
            row = table.table[state.row, : table.num_blocks_per_row[state.row]]
            old_tables[id(self), state.req_id] = row.tolist()
        remove(self, state)

    def restore(self: InputBatch, state: Any) -> int:
        row = add(self, state)
        if state.output_token_ids:
            self.block_table[0].append_row(old_tables.get((id(self), state.req_id), []), row)
        return row

    patch.setattr(InputBatch, "remove_request", keep)
    patch.setattr(InputBatch, "add_request", restore)
    return EngineParts()


# -- attention: what may be seen ------------------------------------------------------------------


class _Attention(TiledAttention):
    """The default backend with other lengths: `lengths` gets the metadata, returns `seq_lens`."""

    lengths: Callable[[AttentionMetadata], np.ndarray]

    def forward(
        self, query: Any, key: Any, value: Any, kv_cache: Any, attn_metadata: AttentionMetadata
    ) -> Any:
        seq_lens = type(self).lengths(attn_metadata)
        changed = dataclasses.replace(attn_metadata, seq_lens=seq_lens, max_seq_len=0, plan=None)
        return super().forward(query, key, value, kv_cache, changed)


@fault
def sequence_one_token_short(patch: Patch) -> EngineParts:
    """A decode attends to the tokens before it and leaves out itself."""

    class Short(_Attention):
        @staticmethod
        def lengths(md: AttentionMetadata) -> np.ndarray:
            return np.maximum(md.seq_lens - 1, np.diff(md.query_start_loc)).astype(np.int32)

    return EngineParts(attention=Short)


@fault
def sequence_one_token_long(patch: Patch) -> EngineParts:
    """A decode attends to one slot past its last token, where there is room in the block."""

    class Long(_Attention):
        @staticmethod
        def lengths(md: AttentionMetadata) -> np.ndarray:
            return (md.seq_lens + (md.seq_lens % md.block_size > 0)).astype(np.int32)

    return EngineParts(attention=Long)


@fault
def causal_mask_without_the_chunks_offset(patch: Patch) -> EngineParts:
    """The mask takes a chunk's first query for the sequence's first token."""

    class FromZero(_Attention):
        @staticmethod
        def lengths(md: AttentionMetadata) -> np.ndarray:
            queries = np.diff(md.query_start_loc)
            return np.where(queries > 1, queries, md.seq_lens).astype(np.int32)

    return EngineParts(attention=FromZero)


# -- the block pool -------------------------------------------------------------------------------


@fault
def touch_leaves_the_block_in_the_free_queue(patch: Patch) -> EngineParts:
    """A revived block is counted as used and still stands in line to be given to others."""

    class Pool(BlockPool):
        def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
            for block in blocks:
                block.ref_cnt += 1

    return EngineParts(block_pool=Pool)


@fault
def hit_does_not_count_a_reference(patch: Patch) -> EngineParts:
    """A block that is shared keeps the count 1: the first to finish frees it for both."""

    class Pool(BlockPool):
        def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
            for block in blocks:
                if block.ref_cnt == 0:
                    self.free_block_queue.remove(block)
                    block.ref_cnt = 1

    return EngineParts(block_pool=Pool)


@fault
def eviction_leaves_the_hash_index(patch: Patch) -> EngineParts:
    """A block given to somebody new can still be found under what it held before."""

    class Pool(BlockPool):
        def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
            for block, _ in zip(self.free_block_queue, range(num_blocks), strict=False):
                block.block_hash = None
            return super().get_new_blocks(num_blocks)

    return EngineParts(block_pool=Pool)


@fault
def newest_free_block_first(patch: Patch) -> EngineParts:
    """Freed blocks join the front of the free queue: what was used last is evicted first."""

    class Pool(BlockPool):
        def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
            older = self.free_block_queue.popleft_n(self.get_num_free_blocks())
            super().free_blocks(ordered_blocks)
            self.free_block_queue.append_n(older)

    return EngineParts(block_pool=Pool)


# -- hashes ---------------------------------------------------------------------------------------


@fault
def hash_without_the_parent(patch: Patch) -> EngineParts:
    """A block's hash says what it holds, not what stands before it."""

    def unchained(parent: Any, token_ids: Sequence[int], extra: Any = None) -> BlockHash:
        return hash_block_tokens(None, token_ids, extra)

    patch.setattr(request_module, "hash_block_tokens", unchained)
    return EngineParts()


@fault
def hash_without_the_salt(patch: Patch) -> EngineParts:
    """Requests with different cache salts share a cache."""

    def unsalted(parent: Any, token_ids: Sequence[int], extra: Any = None) -> BlockHash:
        return hash_block_tokens(parent, token_ids)

    patch.setattr(request_module, "hash_block_tokens", unsalted)
    return EngineParts()


# -- the KV cache manager -------------------------------------------------------------------------


@fault
def freed_head_first(patch: Patch) -> EngineParts:
    """A request's blocks are freed in table order, so the part others could share goes first."""

    class Manager(KVCacheManager):
        def free(self, request: Request) -> None:
            blocks = self.req_to_blocks.get(request.request_id)
            if blocks is not None:
                blocks.reverse()
            super().free(request)

    return EngineParts(kv_cache_manager=Manager)


@fault
def freed_twice(patch: Patch) -> EngineParts:
    """A preempted request keeps its table, and so gives its blocks back a second time."""

    class Manager(KVCacheManager):
        def free(self, request: Request) -> None:
            blocks = self.req_to_blocks.get(request.request_id, [])
            super().free(request)
            if request.num_preemptions:
                self.block_pool.free_blocks(reversed(blocks))

    return EngineParts(kv_cache_manager=Manager)


@fault
def last_token_from_the_cache(patch: Patch) -> EngineParts:
    """A prompt that is cached entirely is a hit entirely: no token is left to make logits from."""

    class Manager(KVCacheManager):
        def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
            hits = []
            for block_hash in request.block_hashes if self.enable_caching else ():
                if (block := self.block_pool.get_cached_block(block_hash)) is None:
                    break
                hits.append(block)
            return KVCacheBlocks(hits), len(hits) * self.block_size

    return EngineParts(kv_cache_manager=Manager)


@fault
def prefix_hit_one_block_too_long(patch: Patch) -> EngineParts:
    """The walk stops one late: it takes the block that follows the last one that matched."""

    class Manager(KVCacheManager):
        def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
            hits, num_tokens = super().get_computed_blocks(request)
            blocks = list(hits.blocks)
            if blocks and num_tokens + self.block_size < request.num_tokens:
                for table in self.req_to_blocks.values():
                    following = table[len(blocks) : len(blocks) + 1]
                    if blocks[-1] in table and following and following[0].block_hash:
                        blocks += following
                        return KVCacheBlocks(blocks), num_tokens + self.block_size
            return hits, num_tokens

    return EngineParts(kv_cache_manager=Manager)


@fault
def shared_tail_block(patch: Patch) -> EngineParts:
    """A prompt that goes on where a running one ends shares its last block too, full or not: both
    write into it."""

    class Manager(KVCacheManager):
        prompts: dict[str, list[int]]

        def allocate_slots(self, request: Request, *args: Any, **kwargs: Any) -> Any:
            self.__dict__.setdefault("prompts", {})[request.request_id] = request.prompt_token_ids
            return super().allocate_slots(request, *args, **kwargs)

        def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
            hits, num_tokens = super().get_computed_blocks(request)
            blocks = list(hits.blocks)
            for other, table in self.req_to_blocks.items():
                prompt = self.prompts[other]
                n = len(prompt)
                if (
                    self.enable_caching
                    and num_tokens < n < request.num_tokens
                    and n // self.block_size == len(blocks) < len(table)
                    and request.all_token_ids[:n] == prompt
                ):
                    return KVCacheBlocks([*blocks, table[len(blocks)]]), n
            return hits, num_tokens

    return EngineParts(kv_cache_manager=Manager)


@fault
def published_before_it_is_full(patch: Patch) -> EngineParts:
    """A block is published once its tokens are known, though this chunk computes only some."""

    class Manager(KVCacheManager):
        def allocate_slots(self, request: Request, *args: Any, **kwargs: Any) -> Any:
            new_blocks = super().allocate_slots(request, *args, **kwargs)
            if new_blocks is not None and self.enable_caching:
                blocks = self.req_to_blocks[request.request_id]
                published = self.num_cached_block.get(request.request_id, 0)
                known = min(len(request.block_hashes), len(blocks))
                self.block_pool.cache_full_blocks(request, blocks, published, known)
                self.num_cached_block[request.request_id] = known
            return new_blocks

    return EngineParts(kv_cache_manager=Manager)


@fault
def free_hits_not_counted(patch: Patch) -> EngineParts:
    """Hit blocks that are free count as free: they are promised twice."""

    class Manager(KVCacheManager):
        def allocate_slots(self, request: Request, *args: Any, **kwargs: Any) -> Any:
            hits = kwargs.get("new_computed_blocks") or self.empty_kv_cache_blocks
            twice = sum(block.ref_cnt == 0 for block in hits.blocks)
            pool = self.block_pool
            free = pool.get_num_free_blocks() + twice
            pool.get_num_free_blocks = lambda: free  # type: ignore[method-assign]
            try:
                return super().allocate_slots(request, *args, **kwargs)
            finally:
                del pool.get_num_free_blocks

    return EngineParts(kv_cache_manager=Manager)


# -- the scheduler --------------------------------------------------------------------------------


@fault
def counter_survives_preemption(patch: Patch) -> EngineParts:
    """A preempted request keeps `num_computed_tokens`, as if its KV were still there."""

    class Keeps(Scheduler):
        def _preempt_request(self, request: Request) -> None:
            computed = request.num_computed_tokens
            super()._preempt_request(request)
            request.num_computed_tokens = computed

    return EngineParts(scheduler=Keeps)


@fault
def preemption_keeps_the_blocks(patch: Patch) -> EngineParts:
    """A preempted request's blocks are forgotten, not freed: they are nobody's for ever."""

    class Leaks(Scheduler):
        def _preempt_request(self, request: Request) -> None:
            manager = self.kv_cache_manager
            manager.req_to_blocks.pop(request.request_id, None)
            manager.num_cached_block.pop(request.request_id, None)
            super()._preempt_request(request)

    return EngineParts(scheduler=Leaks)


@fault
def abort_forgets_to_free(patch: Patch) -> EngineParts:
    """Ending a request from outside takes it off the queue and leaves its blocks allocated."""

    class Leaks(Scheduler):
        def _free_request(self, request: Request) -> None:
            if request.status is RequestStatus.FINISHED_ABORTED:
                self.finished_req_ids.add(request.request_id)
                del self.requests[request.request_id]
            else:
                super()._free_request(request)

    return EngineParts(scheduler=Leaks)
