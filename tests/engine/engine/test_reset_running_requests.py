"""`reset_prefix_cache(reset_running_requests=True)` from the front: all is computed again, to one end."""

from __future__ import annotations

import asyncio

import pytest

from mini_vllm import LLM, AsyncLLM, EngineConfig, LLMEngine, SamplingParams
from tests.engine.helpers.engine_helpers import random_model

PROMPTS = [[7] * 9, [8, 9] * 11, [3, 4, 5]]
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def outputs(reset_at: int | None, **settings: bool) -> list[list[int]]:
    config = EngineConfig(block_size=4, num_gpu_blocks=40, max_num_seqs=2, **settings)
    engine = LLMEngine(random_model(), config)
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(str(i), prompt, PARAMS)
    tokens: dict[str, list[int]] = {}
    turn = 0
    while engine.has_unfinished_requests():
        if turn == reset_at:
            assert not engine.reset_prefix_cache(), "requests hold blocks"
            assert engine.reset_prefix_cache(reset_running_requests=True)
        for output in engine.step():
            tokens[output.request_id] = list(output.outputs[0].token_ids)
        turn += 1
    return [tokens[str(i)] for i in range(len(PROMPTS))]


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("reset_at", [1, 2, 5])
def test_tokens_are_what_they_are_without_a_reset(reset_at: int, async_scheduling: bool) -> None:
    expected = outputs(None, async_scheduling=async_scheduling)
    assert outputs(reset_at, async_scheduling=async_scheduling) == expected


def test_there_is_no_connector_to_reset() -> None:
    llm = LLM()
    assert llm.reset_prefix_cache()
    assert llm.reset_prefix_cache(reset_running_requests=True)
    assert not llm.reset_prefix_cache(reset_connector=True)


def test_the_asynchronous_front_takes_the_same_arguments() -> None:
    async def both() -> tuple[bool, bool, list[int]]:
        engine = AsyncLLM()
        try:
            stream = engine.generate("The KV cache", PARAMS, "a")
            await anext(stream)
            held = await engine.reset_prefix_cache()
            forced = await engine.reset_prefix_cache(reset_running_requests=True)
            async for output in stream:
                last = output
            return held, forced, list(last.outputs[0].token_ids)
        finally:
            engine.shutdown()

    held, forced, token_ids = asyncio.run(both())
    assert not held
    assert forced
    assert token_ids == list(LLM().generate("The KV cache", PARAMS)[0].outputs[0].token_ids)
