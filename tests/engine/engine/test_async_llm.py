"""`AsyncLLM`: streams equal the offline outputs, however they are consumed."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import LLM, EngineConfig, RequestOutput, RequestOutputKind, SamplingParams
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.engine.step_record import StepRecord
from tests.engine.helpers.engine.async_helpers import (
    DELTA,
    FINAL_ONLY,
    KINDS,
    collect,
    join,
    run,
    same,
    serving,
    with_kind,
)
from tests.engine.helpers.engine.invariants import check_state
from tests.engine.helpers.engine.text_helpers import (
    check_no_leak,
    greedy,
    text_engine,
    write_checkpoint,
)
from tests.engine.helpers.thorough import either

# -- streams and offline outputs ------------------------------------------------------------------

MIXED = [
    ("greedy", greedy(30, ignore_eos=True)),
    ("seeded", SamplingParams(temperature=0.8, seed=5, max_tokens=25)),
    ("a longer prompt, to be cut in chunks", SamplingParams(top_p=0.9, seed=6, max_tokens=20)),
    ("three of them", SamplingParams(n=3, seed=1, max_tokens=12, logprobs=1)),
    ("a stop string", SamplingParams(seed=2, max_tokens=200, stop=["e", "th", "a"])),
    ("one that stays", greedy(60, stop=["\x00", "q"], include_stop_str_in_output=True)),
    ("logprobs", greedy(15, logprobs=3, prompt_logprobs=2)),
    ("penalties", SamplingParams(seed=3, repetition_penalty=1.3, frequency_penalty=0.4)),
    ({"prompt_token_ids": [1, 50, 60], "cache_salt": "s"}, greedy(9, stop_token_ids=[77])),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("async") / "model")


@pytest.fixture(scope="module")
def offline(checkpoint: Path) -> list[list[tuple[Any, ...]]]:
    llm = LLM(checkpoint, num_gpu_blocks=64)
    prompts: list[Any] = [prompt for prompt, _ in MIXED]
    outputs = llm.generate(prompts, [params for _, params in MIXED], use_tqdm=False)
    return [join([output], FINAL_ONLY) for output in outputs]


@pytest.mark.parametrize("kind", KINDS)
def test_streams_equal_the_offline_outputs(
    checkpoint: Path, offline: list[list[tuple[Any, ...]]], kind: RequestOutputKind
) -> None:
    config = EngineConfig(num_gpu_blocks=64, max_num_batched_tokens=16, max_num_seqs=8)
    async_llm = AsyncLLM(model=checkpoint, config=config)

    async def main() -> list[list[RequestOutput]]:
        streams = [
            collect(async_llm.generate(prompt, with_kind(params, kind), f"r{i}"))  # type: ignore[arg-type]
            for i, (prompt, params) in enumerate(MIXED)
        ]
        return await asyncio.gather(*streams)

    try:
        streams = run(main())
    finally:
        async_llm.shutdown()
    for i, (outputs, expected) in enumerate(zip(streams, offline, strict=True)):
        same(join(outputs, kind), expected)
        prompt = MIXED[i][0] if isinstance(MIXED[i][0], str) else None
        assert {(output.request_id, output.prompt) for output in outputs} == {(f"r{i}", prompt)}
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        if kind is FINAL_ONLY:
            assert len(outputs) == 1
    assert streams[6][0].prompt_logprobs is not None
    assert len(streams[6][0].prompt_logprobs) == len("logprobs") + 1
    check_no_leak(async_llm.engine)


def test_requests_come_from_many_tasks_at_any_time() -> None:
    """Equal to each alone, under preemption, with I1 to I13 checked between all steps."""
    count = either(12, 40)
    prompts = [f"prompt {i} " * (1 + i % 3) for i in range(count)]
    alone = [
        join(
            list(text_engine(num_gpu_blocks=64).stream(p, greedy(24, ignore_eos=True))), FINAL_ONLY
        )
        for p in prompts
    ]
    engine = text_engine(num_gpu_blocks=40, block_size=4, max_num_seqs=12)
    rng = random.Random(1)

    def check(record: StepRecord) -> None:
        check_state(engine.engine_core.scheduler)

    async def one(async_llm: AsyncLLM, i: int) -> list[RequestOutput]:
        for _ in range(rng.randrange(20)):
            await asyncio.sleep(0)
        params = greedy(24, ignore_eos=True, output_kind=DELTA)
        return await collect(async_llm.generate(prompts[i], params, str(i)))

    async def main(async_llm: AsyncLLM) -> list[list[RequestOutput]]:
        return await asyncio.gather(*[one(async_llm, i) for i in range(count)])

    with serving(engine, stats=check) as async_llm:
        streams = run(main(async_llm))
    for outputs, expected in zip(streams, alone, strict=True):
        same(join(outputs, DELTA), expected)
    assert engine.engine_core.scheduler.num_preemptions > 0


# -- slow consumers -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_consumer_gets_merged_outputs_and_loses_nothing(kind: RequestOutputKind) -> None:
    params = SamplingParams(n=3, seed=4, max_tokens=30, ignore_eos=True, logprobs=2)
    params.output_kind = FINAL_ONLY
    expected = join(list(text_engine(num_gpu_blocks=64).stream("slow", params)), FINAL_ONLY)

    async def main(async_llm: AsyncLLM) -> list[RequestOutput]:
        stream = async_llm.generate("slow", with_kind(params, kind), "s")
        outputs = [await anext(stream)]
        await async_llm.drain()  # all 90 tokens are there before the second look
        return outputs + await collect(stream)

    with serving() as async_llm:
        outputs = run(main(async_llm))
    assert len(outputs) == (1 if kind is FINAL_ONLY else 2), "what piles up is one output"
    assert outputs[-1].finished
    assert len(outputs[-1].outputs) == 3, "one completion each, however many were merged"
    same(join(outputs, kind), expected)


def test_a_loop_short_of_time_is_woken_for_first_and_last_outputs_only() -> None:
    async def main(async_llm: AsyncLLM) -> list[list[RequestOutput]]:
        params = greedy(40, ignore_eos=True, output_kind=DELTA)
        outputs = []
        for _ in range(2):  # the first round uses the loop's time up for good
            streams = [async_llm.generate("hello", params, str(i)) for i in range(3)]
            outputs += await asyncio.gather(*map(collect, streams))
        return outputs

    with serving(max_loop_share=1e-9) as async_llm:
        for outputs in run(main(async_llm)):
            # One, where the reader was so late that the last output was put to the first.
            assert len(outputs) <= 2
            assert sum(len(o.outputs[0].token_ids) for o in outputs) == 40


@pytest.mark.parametrize("share", [0, -1, 1.5])
def test_a_share_of_time_is_a_share(share: float) -> None:
    with pytest.raises(ValueError, match=r"max_loop_share must be above 0 and at most 1"):
        AsyncLLM(text_engine(num_gpu_blocks=8), max_loop_share=share)


def test_the_loop_is_woken_once_a_step_for_all() -> None:
    calls = 0

    async def main(async_llm: AsyncLLM) -> None:
        loop = asyncio.get_running_loop()
        original = loop.call_soon_threadsafe

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            return original(*args, **kwargs)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        params = greedy(10, ignore_eos=True, output_kind=DELTA)
        streams = [async_llm.generate("hello", params, str(i)) for i in range(30)]
        await asyncio.gather(*map(collect, streams))

    with serving(max_loop_share=1) as async_llm:
        run(main(async_llm))
        assert 0 < calls <= async_llm.stats.num_steps
