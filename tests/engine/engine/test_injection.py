"""The engine takes its parts from outside: a substitute for each, and what shows that it ran.

Some substitutes are other implementations of the same interface (a pool over a plain list, the
attention slot by slot in float64), some take other decisions, which must not change a token either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from mini_vllm.attention import AttentionMetadata, PagedAttention, TiledAttention
from mini_vllm.config.engine import EngineConfig
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_vllm.core.kv_cache_utils import BlockHash, KVCacheBlock
from mini_vllm.core.request import Request
from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.parts import EngineParts
from mini_vllm.sample.sampler import Sampler, SamplerOutput
from mini_vllm.sampling_params import SamplingParams
from tests.engine.helpers.engine.engine_helpers import random_model
from tests.engine.helpers.engine.workloads import (
    DEFAULT_PARTS,
    Job,
    compare,
    drive,
    make_engine,
    prompts,
    sharing_jobs,
)

CALLS: list[str] = []


@pytest.fixture(autouse=True)
def _forget_calls() -> None:
    CALLS.clear()


# -- substitutes ----------------------------------------------------------------------------------


class ListQueue:
    """As much of the free queue as others read of it."""

    def __init__(self) -> None:
        self.free: list[KVCacheBlock] = []

    @property
    def num_free_blocks(self) -> int:
        return len(self.free)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        return list(self.free)


class ListBlockPool:
    """A block pool with a list for the free queue and a search for the hash index."""

    def __init__(self, num_gpu_blocks: int, enable_caching: bool = True) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.enable_caching = enable_caching
        self.blocks = [KVCacheBlock(i) for i in range(num_gpu_blocks)]
        self.null_block = self.blocks[0]
        self.null_block.is_null = True
        self.free_block_queue = ListQueue()
        self.free_block_queue.free = self.blocks[1:]
        self.published: list[KVCacheBlock] = []

    def get_cached_block(self, block_hash: BlockHash) -> KVCacheBlock | None:
        CALLS.append("get_cached_block")
        return next((b for b in self.published if b.block_hash == block_hash), None)

    def cache_full_blocks(
        self, request: Request, blocks: Sequence[KVCacheBlock], start: int, end: int
    ) -> None:
        for block, block_hash in zip(blocks[start:end], request.block_hashes[start:], strict=False):
            block.block_hash = block_hash
            self.published.append(block)

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        CALLS.append("get_new_blocks")
        free = self.free_block_queue.free
        if num_blocks > len(free):
            raise ValueError(f"Cannot get {num_blocks} of {len(free)} free blocks")
        taken, self.free_block_queue.free = free[:num_blocks], free[num_blocks:]
        for block in taken:
            if block in self.published:
                self.published.remove(block)
            block.block_hash = None
            block.ref_cnt = 1
        return taken

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_block_queue.free.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free_block_queue.free.append(block)

    def get_num_free_blocks(self) -> int:
        return len(self.free_block_queue.free)

    def get_usage(self) -> float:
        return 1 - self.get_num_free_blocks() / (self.num_gpu_blocks - 1)

    def reset_prefix_cache(self) -> bool:
        return False

    def check_invariants(self) -> None:
        free = {block.block_id for block in self.free_block_queue.free}
        assert free == {b.block_id for b in self.blocks[1:] if b.ref_cnt == 0}


class OneBlockHits(KVCacheManager):
    """A manager that reuses at most one block of a prefix: slower, and just as right."""

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        CALLS.append("get_computed_blocks")
        hits, num_tokens = super().get_computed_blocks(request)
        return KVCacheBlocks(hits.blocks[:1]), min(num_tokens, self.block_size)


class OneAtATime(Scheduler):
    """A scheduler that never runs two requests together."""

    def __init__(self, config: EngineConfig, kv_cache_manager: KVCacheManager) -> None:
        super().__init__(config, kv_cache_manager)
        self.max_num_running_reqs = 1

    def schedule(self) -> SchedulerOutput:
        CALLS.append("schedule")
        output = super().schedule()
        assert len(output.num_scheduled_tokens) <= 1
        return output


class SortingSampler:
    """Greedy by sorting every row whole."""

    def __init__(self, seed: int) -> None:
        CALLS.append(f"seed {seed}")

    def __call__(self, logits: np.ndarray, sampling_metadata: Any) -> SamplerOutput:
        CALLS.append("sample")
        return SamplerOutput(np.argsort(logits, axis=-1, kind="stable")[:, -1])


class SlotBySlotAttention:
    """Two caches in one array, all K before all V, read and written slot by slot, in float64."""

    def get_kv_cache_shape(self, blocks: int, block_size: int, heads: int, size: int) -> Any:
        return (2, blocks, block_size, heads, size)

    def forward(
        self, query: Any, key: Any, value: Any, kv_cache: Any, attn_metadata: AttentionMetadata
    ) -> Any:
        CALLS.append("attend")
        md = attn_metadata
        slots = kv_cache.reshape(2, -1, *kv_cache.shape[3:])
        for i, slot in enumerate(md.slot_mapping.tolist()):
            slots[0, slot], slots[1, slot] = key[i], value[i]
        group = query.shape[1] // key.shape[1]
        out = np.empty(query.shape)
        for i, seq_len in enumerate(md.seq_lens.tolist()):
            start, end = md.query_start_loc[i : i + 2].tolist()
            table = md.block_table[i].tolist()
            for row in range(start, end):
                past = range(seq_len - (end - row) + 1)
                mine = [table[p // md.block_size] * md.block_size + p % md.block_size for p in past]
                k, v = slots[:, mine].astype(np.float64).repeat(group, 2)
                scores = np.einsum("hd,phd->hp", query[row], k) * query.shape[2] ** -0.5
                weights = np.exp(scores - scores.max(1, keepdims=True))
                weights /= weights.sum(1, keepdims=True)
                out[row] = np.einsum("hp,phd->hd", weights, v)
        return out.reshape(len(query), -1).astype(np.float32)


SUBSTITUTES: dict[str, tuple[EngineParts, str]] = {
    "block_pool": (EngineParts(block_pool=ListBlockPool), "get_new_blocks"),  # type: ignore[arg-type]
    "kv_cache_manager": (EngineParts(kv_cache_manager=OneBlockHits), "get_computed_blocks"),
    "scheduler": (EngineParts(scheduler=OneAtATime), "schedule"),
    "sampler": (EngineParts(sampler=SortingSampler), "sample"),  # type: ignore[arg-type]
    "attention": (EngineParts(attention=SlotBySlotAttention), "attend"),
    "all of them": (
        EngineParts(ListBlockPool, OneBlockHits, OneAtATime, SortingSampler, SlotBySlotAttention),  # type: ignore[arg-type]
        "schedule",
    ),
}


@pytest.mark.parametrize("part", SUBSTITUTES)
def test_a_substitute_runs_and_the_tokens_stay(part: str) -> None:
    parts, call = SUBSTITUTES[part]
    jobs = sharing_jobs()
    engine = make_engine(parts, max_num_seqs=13, num_gpu_blocks=60)
    got, _ = drive(engine, jobs)
    for i, job in enumerate(jobs):
        assert got[i] == job.expected, f"with another {part}: request {i}"
    assert CALLS.count(call) >= len(jobs), f"the substitute for {part} was hardly asked"
    pool = engine.engine_core.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == 59
    pool.check_invariants()


def test_a_pool_over_a_list_hands_out_the_same_blocks_as_the_linked_queue() -> None:
    def tables(parts: EngineParts) -> list[object]:
        seen: list[object] = []
        engine = make_engine(parts, num_gpu_blocks=14, max_num_seqs=6)
        manager = engine.engine_core.kv_cache_manager
        engine.engine_core.step_observers.append(
            lambda record: seen.append(
                {i: manager.get_block_ids(i) for i in record.scheduler_output.num_scheduled_tokens}
            )
        )
        jobs = [
            Job(prompt, 12, arrive=i) for i, prompt in enumerate(prompts(9, 9, 12, 8, 15, 9, 4) * 2)
        ]
        drive(engine, jobs)
        assert engine.engine_core.scheduler.num_preemptions > 0
        return seen

    default = tables(DEFAULT_PARTS)
    assert tables(SUBSTITUTES["block_pool"][0]) == default
    assert len(default) > 40


def test_the_manager_that_hits_less_really_computes_more() -> None:
    def computed(parts: EngineParts) -> int:
        engine = make_engine(parts)
        total = [0]

        def count(record: Any) -> None:
            total[0] += record.scheduler_output.total_num_scheduled_tokens

        engine.engine_core.step_observers.append(count)
        (prompt,) = prompts(10, 21)
        drive(engine, [Job(prompt, 3), Job(prompt, 3)])
        return total[0]

    # Each samples 3 tokens, 2 of which are computed; the second finds 20 tokens, or just 4.
    assert computed(DEFAULT_PARTS) == 21 + 2 + 1 + 2
    assert computed(EngineParts(kv_cache_manager=OneBlockHits)) == 21 + 2 + 17 + 2


def test_a_substitute_is_made_as_the_default_is() -> None:
    """Each constructor gets what `EngineParts` promises, and the parts hold one another."""
    made: dict[str, tuple[Any, ...]] = {}

    def recording(name: str, make: Any) -> Any:
        def construct(*args: Any) -> Any:
            made[name] = args
            return make(*args)

        return construct

    parts = EngineParts(
        block_pool=recording("block_pool", BlockPool),
        kv_cache_manager=recording("kv_cache_manager", KVCacheManager),
        scheduler=recording("scheduler", Scheduler),
        sampler=recording("sampler", Sampler),
        attention=recording("attention", PagedAttention),
    )
    engine: LLMEngine = make_engine(parts, num_gpu_blocks=20, seed=7, max_model_len=100)
    core = engine.engine_core
    assert made["block_pool"] == (20, True)
    assert made["kv_cache_manager"][:4] == (20, 4, 100, True)
    assert made["kv_cache_manager"][4] is core.kv_cache_manager.block_pool
    assert made["scheduler"] == (core.config, core.kv_cache_manager)
    assert core.scheduler.kv_cache_manager is core.kv_cache_manager
    assert made["sampler"] == (7,)
    assert made["attention"] == ()
    assert core.model_runner.sampler is not None


def test_the_plain_attention_gives_the_default_ones_tokens() -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    texts = []
    for attention in (TiledAttention, PagedAttention):
        engine = LLMEngine(parts=EngineParts(attention=attention))
        assert type(engine.model.attention) is attention
        for number, prompt in enumerate(["The KV cache", "The scheduler", "A block"]):
            engine.add_request(str(number), prompt, params)
        last = {}
        while engine.has_unfinished_requests():
            last |= {output.request_id: output.outputs[0].token_ids for output in engine.step()}
        texts.append(last)
    assert texts[0] == texts[1]
    assert [len(tokens) for tokens in texts[0].values()] == [40, 40, 40]


def test_attention_for_a_loaded_model_is_refused() -> None:
    model = random_model()
    with pytest.raises(ValueError, match=r"parts.attention .*PagedAttention.*a loaded model keeps"):
        LLMEngine(model, parts=EngineParts(attention=PagedAttention))
    assert LLMEngine(model, parts=EngineParts(sampler=Sampler)).model is model


def test_a_sampler_decides_the_tokens() -> None:
    class AlwaysNine:
        def __init__(self, seed: int) -> None: ...

        def __call__(self, logits: np.ndarray, sampling_metadata: Any) -> SamplerOutput:
            return SamplerOutput(np.full(len(logits), 9))

    engine = make_engine(EngineParts(sampler=AlwaysNine))  # type: ignore[arg-type]
    engine.add_request("a", [3, 4, 5], SamplingParams(max_tokens=4))
    outputs = [output for _ in range(4) for output in engine.step()]
    assert outputs[-1].outputs[0].token_ids == [9, 9, 9, 9]
    assert not engine.has_unfinished_requests()


def test_the_default_parts_pass_the_same_comparison() -> None:
    jobs = sharing_jobs()
    engine = make_engine(DEFAULT_PARTS, max_num_seqs=13, num_gpu_blocks=60)
    compare("default parts", engine, jobs, drive(engine, jobs)[0])
