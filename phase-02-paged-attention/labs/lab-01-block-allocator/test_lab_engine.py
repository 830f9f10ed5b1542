"""Lab 02-01: the engine on your pool, block for block what it does on its own."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.engine.parts import EngineParts
from mini_vllm.model_loader import load_model

ADA = list(range(20, 30))
JOBS = {
    "ada": ADA,
    "bo": [*ADA[:8], 60, 61],
    "cy": list(range(70, 78)),
    "ada again": ADA,
}


def tables(parts: EngineParts, model: Any) -> tuple[list[dict[str, list[int]]], list[list[int]]]:
    """Block tables after every step, and the tokens, of four requests of which three come at once."""
    config = EngineConfig(
        block_size=4,
        num_gpu_blocks=10,
        max_model_len=32,
        max_num_batched_tokens=12,
        max_num_seqs=4,
    )
    engine = LLMEngine(model=model, config=config, parts=parts)
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    seen = []
    tokens = {}
    for name in list(JOBS)[:3]:
        engine.add_request(name, {"prompt_token_ids": JOBS[name]}, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens[output.request_id] = list(output.outputs[0].token_ids)
        manager = engine.engine_core.kv_cache_manager
        seen.append({name: manager.get_block_ids(name)[0] for name in JOBS})
        if len(seen) == 5:
            engine.add_request("ada again", {"prompt_token_ids": ADA}, params)
    return seen, [tokens[name] for name in JOBS]


def test_the_engine_on_your_pool(lab: ModuleType) -> None:
    """The engine on your pool gives the same tables in every step, and the same tokens, as on its own."""
    model = load_model(DEFAULT_MODEL)
    wanted, right = tables(EngineParts(), model)
    yours, tokens = tables(EngineParts(block_pool=lab.BlockPool), model)
    for step, (a, b) in enumerate(zip(wanted, yours, strict=False), 1):
        assert a == b, (
            f"step {step}: on mini_vllm's pool the tables are {a}, on yours {b}. The order in which "
            "blocks are freed and taken decides which ids come out"
        )
    assert len(wanted) == len(yours), (
        f"{len(wanted)} steps on mini_vllm's pool, {len(yours)} on yours"
    )
    assert right == tokens, (
        "the same tables and other tokens: a block was written that somebody reads"
    )
