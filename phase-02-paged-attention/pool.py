"""Ada, Bo and Cy on nine blocks: what the pages of this phase run, so that the pages show results only.

Ada asks "The block", Bo "The bloom", Cy "A queue". With the token that begins a text these are 10, 10
and 8 tokens, and the first 8 of Ada's and Bo's are the same. Each wants 9 tokens of answer. Ada asks
the same again when five steps are over. A block holds 4 tokens.

The pages import this module by its name: start Python in this folder.

    python phase-02-paged-attention/pool.py          the run, step by step
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.request import Request
from mini_vllm.engine.parts import EngineParts
from mini_vllm.trace import TraceRecorder
from mini_vllm.trace.types import StepTrace

PROMPTS = {"ada": "The block", "bo": "The bloom", "cy": "A queue", "again": "The block"}
"""10, 10, 8 and 10 tokens. "again" is Ada's second visit."""
WANTED = 9
COMES_BACK = 6
"""The step before which Ada asks again."""
BLOCKS, BLOCK_SIZE = 9, 4


def answer(num_tokens: int = WANTED, **more: Any) -> SamplingParams:
    """The likeliest token each time, and exactly `num_tokens` of them."""
    given: dict[str, Any] = {"temperature": 0, "max_tokens": num_tokens, "ignore_eos": True}
    return SamplingParams(**(given | more))


def new_engine(parts: EngineParts | None = None, **settings: Any) -> LLMEngine:
    """An engine with nine usable blocks of 4 tokens."""
    given: dict[str, Any] = {
        "block_size": BLOCK_SIZE,
        "num_gpu_blocks": BLOCKS + 1,  # block 0 is the null block, which nobody gets
        "max_model_len": 32,
    }
    return LLMEngine(config=EngineConfig(**(given | settings)), parts=parts or EngineParts())


@dataclass(frozen=True)
class After:
    """A step, and how the pool stands after it.

    Attributes:
        trace: the step as the recorder saw it.
        tables: the blocks of everybody who holds any.
        queue: the free blocks, next to be given away first.
        kept: blocks that can be found by their hash.
    """

    trace: StepTrace
    tables: dict[str, list[int]]
    queue: list[int]
    kept: set[int]


def run(engine: LLMEngine) -> list[After]:
    """Ada, Bo and Cy at once, Ada again before step 6, each until the last token."""
    recorder = TraceRecorder(engine)
    manager = engine.engine_core.kv_cache_manager
    pool = manager.block_pool
    for name in ("ada", "bo", "cy"):
        engine.add_request(name, PROMPTS[name], answer())
    seen: list[After] = []
    while engine.has_unfinished_requests():
        if len(seen) + 1 == COMES_BACK:
            engine.add_request("again", PROMPTS["again"], answer())
        engine.step()
        tables = {name: ids for name in PROMPTS if (ids := manager.get_block_ids(name)[0])}
        queue = [block.block_id for block in pool.free_block_queue]
        kept = {block.block_id for block in pool.blocks if block.block_hash is not None}
        seen.append(After(recorder.steps[-1], tables, queue, kept))
    return seen


@functools.cache
def story() -> list[After]:
    """The run of the guide, made once."""
    return run(new_engine())


def show(first: int = 1, last: int = 18) -> None:
    """Print the tables after steps `first` to `last`, and how many blocks are free."""
    steps = story()[first - 1 : last]
    columns = [["step", *(str(after.trace.index) for after in steps)]]
    for name in PROMPTS:
        if any(name in after.tables for after in steps):
            cells = [" ".join(map(str, after.tables.get(name, "."))) for after in steps]
            columns.append([name, *cells])
    columns.append(["free", *(str(len(after.queue)) for after in steps)])
    wide = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        line = (cell.ljust(width) for cell, width in zip(row, wide, strict=True))
        print("  ".join(line).rstrip())


def queues(first: int = 1, last: int = 18) -> None:
    """Print the free blocks after steps `first` to `last`, next to be given away first."""
    for after in story()[first - 1 : last]:
        print(f"{after.trace.index:<4}  {' '.join(map(str, after.queue)) or 'none'}")


class HeadFirst(KVCacheManager):
    """A manager that gives back a request's first block first. (vLLM gives back the last first.)"""

    def free(self, request: Request) -> None:
        blocks = self.req_to_blocks.pop(request.request_id, [])
        self.num_cached_block.pop(request.request_id, None)
        self.block_pool.free_blocks(blocks)


def found_again(manager: type[KVCacheManager] = KVCacheManager) -> dict[str, int]:
    """Tokens that Cy, preempted, and Ada, on her second visit, find in the cache in step 10."""
    parts = EngineParts(kv_cache_manager=manager)
    step = run(new_engine(parts))[9].trace
    return {part.request_id: part.num_cached_tokens for part in step.scheduled}


def found(prompt: str, after: str) -> int:
    """Tokens of `prompt` that the cache holds when a request with the prompt `after` has ended."""
    engine = new_engine()
    engine.add_request("first", after, answer(1))
    while engine.has_unfinished_requests():
        engine.step()
    assert engine.tokenizer is not None
    ids = engine.tokenizer.encode(prompt)
    second = Request("second", ids, answer(1), block_size=BLOCK_SIZE)
    return engine.engine_core.kv_cache_manager.get_computed_blocks(second)[1]


def samples(n: int, **settings: Any) -> list[tuple[int, list[int]]]:
    """Ada's prompt with `n` answers, the first step: tokens computed for each, and its blocks."""
    engine = new_engine(**settings)
    recorder = TraceRecorder(engine)
    engine.add_request("ada", PROMPTS["ada"], answer(n=n, temperature=1.0, seed=0))
    engine.step()
    return [(part.num_scheduled_tokens, part.block_ids) for part in recorder.steps[0].scheduled]


if __name__ == "__main__":
    show()
    queues()
