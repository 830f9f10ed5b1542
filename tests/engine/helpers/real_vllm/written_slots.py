"""Real vLLM under pressure on the shipped model, with every slot that is written noted.

    python -m tests.engine.helpers.real_vllm.written_slots JOB ANSWER

A pool that is too small for all, prompts with common beginnings, exact repeats and `n=2`: what would need
a copy on write, if anything did. Blocks of 16, core and worker in this process, synchronous steps.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from mini_vllm.config.engine import DEFAULT_MODEL

SHARED = list(range(10, 42))
"""32 tokens, two full blocks."""
JOBS: list[tuple[str, list[int], dict[str, Any]]] = [
    ("first", [*SHARED, 60], {"max_tokens": 20}),
    ("repeat", SHARED, {"max_tokens": 20}),
    ("again", SHARED, {"max_tokens": 20}),
    ("own end", [*SHARED, 70, 71, 72], {"max_tokens": 20}),
    ("pair", [*SHARED, 80], {"max_tokens": 20, "n": 2, "seed": 5, "temperature": 1.5}),
    ("late", [*SHARED, 60], {"max_tokens": 20}),
]


def play(caching: bool, num_blocks: int) -> dict[str, Any]:
    """All jobs at once, but `late`, which comes when the others are done.

    Returns the tokens of every answer by name, what the first plan computes for each, how often a slot
    was written again while the block stayed with its owners, how often a block's count was not that
    of the tables it stands in, how many requests were preempted, and how many blocks in use, at
    most, had a hash that another block in use had too.
    """
    from vllm import LLM, SamplingParams
    from vllm.forward_context import get_forward_context
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    llm = LLM(
        str(DEFAULT_MODEL),
        dtype="float32",
        enforce_eager=True,
        block_size=16,
        max_num_seqs=8,
        max_model_len=64,
        num_gpu_blocks_override=num_blocks,
        enable_prefix_caching=caching,
        distributed_executor_backend=UniProcExecutor,
    )
    engine: Any = llm.llm_engine
    core = engine.engine_core.engine_core
    scheduler, tables = core.scheduler, core.scheduler.kv_cache_manager
    pool = tables.block_pool
    written: dict[int, set[int]] = {}
    found = {"rewritten": 0, "miscounted": 0, "preempted": 0, "twins": 0}
    first_plan: dict[str, int] = {}

    give = pool.get_new_blocks

    def given(num: int) -> Any:
        blocks = give(num)
        for block in blocks:
            written[block.block_id] = set()
        return blocks

    def note(_: Any, __: Any) -> None:
        for slot in next(iter(get_forward_context().slot_mapping.values())).tolist():
            block, place = divmod(slot, 16)
            found["rewritten"] += place in written[block]
            written[block].add(place)

    pool.get_new_blocks = given
    core.model_executor.driver_worker.worker.model_runner.model.register_forward_pre_hook(note)
    preempt = scheduler._preempt_request

    def preempted(*args: Any) -> None:
        found["preempted"] += 1
        preempt(*args)

    scheduler._preempt_request = preempted
    schedule = scheduler.schedule

    def planned() -> Any:
        plan = schedule()
        if not first_plan:
            first_plan.update(
                {name.partition("-")[0]: n for name, n in plan.num_scheduled_tokens.items()}
            )
        held = Counter(i for name in scheduler.requests for i in tables.get_block_ids(name)[0])
        found["miscounted"] += sum(b.ref_cnt != held[b.block_id] for b in pool.blocks[1:])
        hashes = [b.block_hash for b in pool.blocks if b.ref_cnt and b.block_hash is not None]
        found["twins"] = max(found["twins"], len(hashes) - len(set(hashes)))
        return plan

    scheduler.schedule = planned
    answers: dict[str, dict[int, list[int]]] = {}

    def run(jobs: list[tuple[str, list[int], dict[str, Any]]]) -> None:
        for name, prompt, wanted in jobs:
            params = SamplingParams(**({"temperature": 0, "ignore_eos": True} | wanted))
            engine.add_request(name, {"prompt_token_ids": prompt}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                tokens = {one.index: list(one.token_ids) for one in output.outputs}
                answers.setdefault(output.request_id, {}).update(tokens)

    run(JOBS[:-1])
    run(JOBS[-1:])
    return {"answers": answers, "first plan": first_plan, **found}


if __name__ == "__main__":
    job, answer = sys.argv[1:]
    results = [play(**situation) for situation in json.loads(Path(job).read_text())]
    Path(answer).write_text(json.dumps(results))
