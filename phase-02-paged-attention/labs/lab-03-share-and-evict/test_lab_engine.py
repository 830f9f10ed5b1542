"""Lab 02-03: the engine on your manager, and random traffic against mini_vllm's own."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

from course.learner.assemble import adapt_kv_cache_manager
from course.learner.labs import load_support
from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.request import Request
from mini_vllm.engine.parts import EngineParts
from mini_vllm.model_loader import load_model

support = load_support(__file__)


def test_random_traffic_block_for_block(lab: ModuleType) -> None:
    """In 400 random calls on 20 blocks, your manager gives the same block ids as mini_vllm's."""
    rng = random.Random(3)
    ours, yours = KVCacheManager(20, 2, 40), lab.KVCacheManager(20, 2, 40)
    living: list[tuple[Request, Request]] = []
    for step in range(400):
        move = rng.random()
        if move < 0.45 or not living:
            prompt = [rng.choice((3, 4)) for _ in range(rng.randint(1, 14))]
            salt = rng.choice((None, "x"))
            pair = tuple(
                Request(
                    str(step), prompt, SamplingParams(max_tokens=9), block_size=2, cache_salt=salt
                )
                for _ in range(2)
            )
            new = rng.randint(1, len(prompt))
            gate = rng.random() < 0.5
            got = []
            for manager, request in zip((ours, yours), pair, strict=True):
                hits, num_hits = manager.get_computed_blocks(request)
                n = min(new, request.num_tokens - num_hits)
                blocks = support.grant(manager, request, n, num_hits, hits, gate)
                got.append(None if blocks is None else manager.get_block_ids(str(step))[0])
                request.num_computed_tokens = num_hits + n
            what = f"call {step}, a request of {len(prompt)} tokens"
            if got[0] is not None:
                living.append(pair)  # type: ignore[arg-type]
        elif move < 0.8:
            pair = rng.choice(living)
            got = []
            for manager, request in zip((ours, yours), pair, strict=True):
                if request.num_computed_tokens == request.num_tokens:
                    request.append_output_token_ids(3 + step % 2)
                blocks = support.grant(manager, request, 1)
                got.append(None if blocks is None else blocks.get_block_ids()[0])
                request.num_computed_tokens += blocks is not None
            what = f"call {step}, one token more"
        else:
            pair = living.pop(rng.randrange(len(living)))
            got = []
            for manager, request in zip((ours, yours), pair, strict=True):
                manager.free(request)
                got.append([b.block_id for b in manager.block_pool.free_block_queue])
            what = f"call {step}, the free queue after a departure"
        assert got[0] == got[1], f"{what}: {got[0]} on mini_vllm's manager, {got[1]} on yours"
        yours.check_invariants()


def run(parts: EngineParts, model: Any) -> tuple[list[list[list[int]]], list[list[int]]]:
    config = EngineConfig(
        block_size=4,
        num_gpu_blocks=10,
        max_model_len=32,
        max_num_batched_tokens=6,
        max_num_seqs=4,
    )
    engine = LLMEngine(model=model, config=config, parts=parts)
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    jobs = {"ada": support.ADA, "bo": support.BO, "cy": support.CY[:8], "ada again": support.ADA}
    seen, tokens = [], {}
    for name in ("ada", "bo", "cy"):
        engine.add_request(name, {"prompt_token_ids": jobs[name]}, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens[output.request_id] = list(output.outputs[0].token_ids)
        manager = engine.engine_core.kv_cache_manager
        seen.append([manager.get_block_ids(name)[0] for name in jobs])
        if len(seen) == 5:
            engine.add_request("ada again", {"prompt_token_ids": jobs["ada again"]}, params)
    return seen, [tokens[name] for name in jobs]


def test_the_engine_on_your_manager(lab: ModuleType) -> None:
    """The engine on your manager gives the same tables in every step, and the same tokens."""
    model = load_model(DEFAULT_MODEL)
    wanted, right = run(EngineParts(), model)
    yours = adapt_kv_cache_manager(lab.KVCacheManager)
    tables, tokens = run(EngineParts(kv_cache_manager=yours), model)
    for step, (a, b) in enumerate(zip(wanted, tables, strict=False), 1):
        assert a == b, f"step {step}: tables {a} on mini_vllm's manager, {b} on yours"
    assert len(wanted) == len(tables), (
        f"{len(wanted)} steps on mini_vllm's manager, {len(tables)} on yours"
    )
    assert right == tokens, (
        "the same tables and other tokens: something was published that it should not"
    )
