"""A run that is recorded: three requests, and what they gave; the blocks that a trace tells of."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from mini_vllm import LLMEngine, RequestOutput
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.trace import StepTrace, Trace, TraceRecorder
from tests.engine.helpers.engine.engine_helpers import make_engine
from tests.engine.helpers.engine.text_helpers import finish, greedy

PROMPTS = {"a": list(range(10, 30)), "b": [*range(10, 26), 5, 5], "c": [7] * 9}


class Recorded(NamedTuple):
    engine: LLMEngine
    trace: Trace
    done: dict[str, RequestOutput]

    @property
    def steps(self) -> list[StepTrace]:
        return self.trace.steps


def record() -> Recorded:
    """Requests that share a prefix, in chunks, in a pool that forces preemption."""
    engine = make_engine(num_gpu_blocks=18, block_size=4, max_num_batched_tokens=12, max_num_seqs=4)
    recorder = TraceRecorder(engine, "A title", "What to look at.")
    for request_id, prompt in PROMPTS.items():
        engine.add_request(request_id, prompt, greedy(18, ignore_eos=True))
    done = finish(engine)
    trace = recorder.trace
    recorder.detach()
    engine.add_request("unseen", [5], greedy(2))
    finish(engine)
    return Recorded(engine, trace, done)


class Replay:
    """The blocks after each step, from what the trace says alone."""

    def __init__(self, trace: Trace) -> None:
        assert trace.free_at_start is not None
        self.queue = [b for first, last in trace.free_at_start for b in range(first, last + 1)]
        self.hashes = dict(zip(trace.cached_at_start, trace.hashes_at_start, strict=True))
        self.tables = {r.request_id: r.blocks_before for r in trace.requests if r.blocks_before}
        self.held: dict[str, list[int]] = {}  # while the last step ran
        self.free: list[int] = []  # the queue at the same time

    def play(self, step: StepTrace) -> None:
        for request_id in (*step.aborted, *step.preempted):
            self.tables.pop(request_id, None)
        self.tables |= {p.request_id: p.block_ids for p in step.scheduled}
        held = {block for table in self.tables.values() for block in table}
        stayed = [b for b in self.queue if b not in held.union(step.freed)]
        self.queue = stayed + step.freed
        self.held, self.free = dict(self.tables), [b for b in self.queue if b not in held]
        for part in step.scheduled:
            if part.finish_reason is not None:
                del self.tables[part.request_id]
        for block in step.evicted:
            del self.hashes[block]
        self.hashes |= dict(zip(step.published, step.hashes, strict=True))

    def check(self, pool: BlockPool) -> None:
        assert self.queue == [b.block_id for b in pool.free_block_queue.get_all_free_blocks()]
        hashed = {b.block_id: b.block_hash.hex()[:8] for b in pool.blocks if b.block_hash}
        assert self.hashes == hashed
        refs = Counter(block for table in self.tables.values() for block in table)
        assert refs == {b.block_id: b.ref_cnt for b in pool.blocks if b.ref_cnt and not b.is_null}
