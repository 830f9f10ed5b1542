"""Phase 02's guide against real vLLM: the same blocks for Ada, Bo and Cy, step for step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from course.learner.labs import load_module
from course.parity.traces import Config

POOL = Path(__file__).resolve().parents[2] / "phase-02-paged-attention" / "pool.py"
CONFIG: Config = {
    "block_size": 4,
    "num_blocks": 10,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 4096,
    "long_prefill_token_threshold": 0,
    "enable_prefix_caching": True,
    "max_model_len": 32,
    "policy": "fcfs",
}


@pytest.mark.vllm
def test_the_guides_run_is_vllms() -> None:
    """Tables, the order of the free queue and the hashed blocks of all steps, from vLLM's scheduler."""
    from course.parity.record import vllm_parts

    pool: Any = load_module(POOL, "phase_02_pool")
    story = pool.story()
    tokenizer = pool.new_engine().tokenizer
    parts = vllm_parts(CONFIG)
    scheduler: Any = parts.scheduler
    blocks = scheduler.kv_cache_manager.block_pool
    living: dict[str, Any] = {}

    def ask(name: str) -> None:
        prompt = tokenizer.encode(pool.PROMPTS[name])
        asked = {"id": name, "step": 0, "prompt": prompt, "max_tokens": pool.WANTED}
        asked |= {"ignore_eos": True, "priority": 0, "abort": None}
        living[name] = parts.make_request(asked, len(living))
        scheduler.add_request(living[name])

    for name in ("ada", "bo", "cy"):
        ask(name)
    for after in story:
        if after.trace.index == pool.COMES_BACK:
            ask("again")
        plan = scheduler.schedule()
        ours = {part.request_id: part for part in after.trace.scheduled}
        assert plan.num_scheduled_tokens == {
            name: part.num_scheduled_tokens for name, part in ours.items()
        }
        sampled = [ours[name].new_token_ids for name in plan.num_scheduled_tokens]
        output = parts.make_output(list(plan.num_scheduled_tokens), sampled)
        scheduler.update_from_output(plan, output)
        tables = {name: ids for name in living if (ids := parts.block_ids(name))}
        assert tables == after.tables, f"step {after.trace.index}"
        queue = [block.block_id for block in blocks.free_block_queue.get_all_free_blocks()]
        assert queue == after.queue, f"step {after.trace.index}"
        kept = {block.block_id for block in blocks.blocks if block.block_hash is not None}
        assert kept == after.kept, f"step {after.trace.index}"
    assert len(story) == 18
    assert not scheduler.has_unfinished_requests()
