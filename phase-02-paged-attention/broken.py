"""A block pool with one part taken out at a time, for the deep dive: what goes wrong without it?

The answers are the shipped model's, greedy. Ada asks "The block", Bo "The bloom", Cy, for once at some
length, "A queue that has no end". Blocks have four tokens, and nine of them can be given out. The page
imports this module by its name: start Python in this folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import mini_vllm.core.request as request_module
from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.kv_cache_utils import BlockHash, KVCacheBlock, hash_block_tokens
from mini_vllm.core.request import Request
from mini_vllm.engine.parts import EngineParts
from mini_vllm.model_loader import load_model
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.tokenizer import Tokenizer

ADA, BO, CY = "The block", "The bloom", "A queue that has no end"


class Uncounted(BlockPool):
    """Who finds a block takes it along without leaving a mark, so its first user frees it."""

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        for block in blocks:
            if not block.ref_cnt:
                self.free_block_queue.remove(block)
                block.ref_cnt = 1


class Forgets(BlockPool):
    """A freed block loses its hash at once."""

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        blocks = list(ordered_blocks)
        super().free_blocks(blocks)
        self.evict_blocks({block.block_id for block in blocks if not block.ref_cnt})


class HeadFirst(KVCacheManager):
    """Blocks are freed in the order in which they were taken."""

    def free(self, request: Request) -> None:
        blocks = self.req_to_blocks.pop(request.request_id, [])
        self.num_cached_block.pop(request.request_id, None)
        self.block_pool.free_blocks(blocks)


@contextmanager
def unchained() -> Iterator[None]:
    """A block's hash says nothing about the blocks before it."""

    def alone(
        parent: BlockHash | None, token_ids: Sequence[int], extra: tuple[str, ...] | None = None
    ) -> BlockHash:
        return hash_block_tokens(None, token_ids, extra)

    request_module.hash_block_tokens = alone
    try:
        yield
    finally:
        request_module.hash_block_tokens = hash_block_tokens


@cache
def _loaded() -> tuple[LlamaForCausalLM, Tokenizer]:
    return load_model(DEFAULT_MODEL), Tokenizer.from_folder(DEFAULT_MODEL)


def engine(blocks: int = 9, **parts: object) -> LLMEngine:
    """An engine with so many usable blocks of four tokens, and `parts` in place of its own."""
    config = EngineConfig(block_size=4, num_gpu_blocks=blocks + 1, max_model_len=36, max_num_seqs=4)
    model, tokenizer = _loaded()
    made = EngineParts(**parts)  # type: ignore[arg-type]
    return LLMEngine(model, config, tokenizer=tokenizer, parts=made)


def ask(engine: LLMEngine, name: str, prompt: object, max_tokens: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    engine.add_request(name, prompt, params)  # type: ignore[arg-type]


def run(engine: LLMEngine, name: str) -> str:
    """Step until this one is finished. Returns its answer."""
    while True:
        for output in engine.step():
            if output.request_id == name and output.finished:
                return output.outputs[0].text


def bo_says(**parts: object) -> str:
    """Bo's answer. He shares two blocks with Ada, who soon ends; then Cy comes and needs room."""
    made = engine(**parts)
    ask(made, "ada", ADA, 4)
    ask(made, "bo", BO, 14)
    for _ in range(4):
        made.step()
    ask(made, "cy", CY, 8)
    return run(made, "bo")


def computed_again(others: int, **parts: object) -> int:
    """Tokens of Ada's prompt that are computed when she asks again, after others took blocks."""
    made = engine(**parts)
    ask(made, "ada", ADA, 1)
    run(made, "ada")
    if others:
        ask(made, "others", {"prompt_token_ids": list(range(100, 100 + 4 * others))}, 1)
        run(made, "others")
    ask(made, "ada again", ADA, 1)
    seen: list[int] = []
    made.engine_core.step_observers.append(
        lambda record: seen.append(record.scheduler_output.num_scheduled_tokens["ada again"])
    )
    run(made, "ada again")
    return sum(seen)


def second_block_first() -> str:
    """The answer to a prompt that begins with Ada's second block, after Ada was there."""
    made = engine()
    ask(made, "ada", ADA, 1)
    run(made, "ada")
    ids = made.tokenizer.encode(ADA)
    ask(made, "late", {"prompt_token_ids": [*ids[4:8], *ids[4:]]}, 14)
    return run(made, "late")


def bo_moves(move_memory: bool) -> str:
    """Bo's answer if his second block moves to block 9: in his table, and in memory or not."""
    made = engine()
    ask(made, "bo", BO, 14)
    made.step()
    runner = made.engine_core.model_runner
    batch = runner.input_batch
    row, table = batch.req_id_to_index["bo"], batch.block_table[0].table
    old, table[row, 1] = int(table[row, 1]), 9
    if move_memory:
        for kv_cache in runner.kv_caches:
            kv_cache[9] = kv_cache[old]
    return run(made, "bo")
