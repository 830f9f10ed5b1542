"""`reset_prefix_cache(reset_running_requests=True)` from the front: all is computed again, to one end."""

from __future__ import annotations

import asyncio

import pytest

from mini_vllm import LLM, AsyncLLM, EngineConfig, LLMEngine, SamplingParams
from tests.engine.helpers.engine.async_helpers import Gate, collect, run, serving
from tests.engine.helpers.engine.engine_helpers import random_model

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
    gate = Gate()
    gate.hold_at = 4  # in the middle of its life, however busy the machine is

    async def main(async_llm: AsyncLLM) -> tuple[bool, bool, list[list[int]]]:
        stream = async_llm.generate("hello", PARAMS, "a")
        outputs = asyncio.create_task(collect(stream))
        while not gate.reached.is_set():
            await asyncio.sleep(0.0005)
        held = asyncio.create_task(async_llm.reset_prefix_cache())
        forced = asyncio.create_task(async_llm.reset_prefix_cache(reset_running_requests=True))
        await asyncio.sleep(0)
        gate.open.set()
        without = await collect(async_llm.generate("hello", PARAMS, "b"))
        ends = [(await outputs)[-1], without[-1]]
        return await held, await forced, [[*end.outputs[0].token_ids] for end in ends]

    with serving(stats=gate) as async_llm:
        held, forced, (with_reset, without_reset) = run(main(async_llm))
    assert not held
    assert forced
    assert with_reset == without_reset
    assert len(with_reset) == PARAMS.max_tokens
