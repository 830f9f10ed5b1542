"""Text, streams and stop strings, where a step brings several tokens. On the shipped model, which drafts for
itself: every step brings as many as it can."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mini_vllm import LLM, AsyncLLM, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL, EngineConfig
from mini_vllm.metrics.reader import Counter, Vector
from mini_vllm.sampling_params import RequestOutputKind
from tests.engine.helpers.thorough import either

PROMPT = "The scheduler"
DRAFTS: dict[str, Any] = {
    "method": "draft_model",
    "model": str(DEFAULT_MODEL),
    "num_speculative_tokens": 3,
}


def make_llm(spec: dict[str, Any] | None, **settings: Any) -> LLM:
    return LLM(num_gpu_blocks_override=100, speculative_config=spec, **settings)


@pytest.fixture(scope="module")
def plain() -> LLM:
    """Nobody drafts."""
    return make_llm(None)


@pytest.fixture(scope="module")
def drafting() -> LLM:
    """The model drafts for itself."""
    return make_llm(DRAFTS, disable_log_stats=False)


def greedy(llm: LLM, **params: Any) -> Any:
    (output,) = llm.generate([PROMPT], SamplingParams(temperature=0, **params), use_tqdm=False)
    return output.outputs[0]


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_in_the_middle_of_a_step(plain: LLM, drafting: LLM, include: bool) -> None:
    """The text is cut where the string stands. The step's tokens past it stay in `token_ids`, as upstream."""
    text = greedy(plain, max_tokens=30).text
    for start in range(4, 12, either(3, 1)):
        stop = text[start : start + 3]
        params = {"max_tokens": 30, "stop": [stop], "include_stop_str_in_output": include}
        before, after = greedy(plain, **params), greedy(drafting, **params)
        assert (after.text, after.finish_reason, after.stop_reason) == (
            before.text, before.finish_reason, before.stop_reason,
        )  # fmt: skip
        assert after.text.endswith(stop) == include
        assert after.token_ids[: len(before.token_ids)] == before.token_ids
        assert len(after.token_ids) - len(before.token_ids) < 4


@pytest.mark.parametrize("most", range(1, 9))
def test_the_last_step_gives_no_more_than_was_asked_for(
    plain: LLM, drafting: LLM, most: int
) -> None:
    """Accepted drafts past `max_tokens` are dropped, and their logprobs."""
    before, after = (greedy(llm, max_tokens=most, logprobs=0) for llm in (plain, drafting))
    assert after.token_ids == before.token_ids
    assert len(after.logprobs) == most


@pytest.mark.parametrize("interval", [1, 3, 6])
def test_streams_give_each_token_once(plain: LLM, interval: int) -> None:
    """Deltas joined are the whole; with drafts a delta has several tokens."""
    llm = make_llm(DRAFTS, stream_interval=interval)
    params = SamplingParams(
        temperature=0, max_tokens=30, logprobs=1, output_kind=RequestOutputKind.DELTA
    )
    whole = greedy(plain, max_tokens=30, logprobs=1)
    deltas = [output.outputs[0] for output in llm.llm_engine.stream(PROMPT, params)]
    assert [t for delta in deltas for t in delta.token_ids] == whole.token_ids
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [len(delta.logprobs) for delta in deltas] == [len(delta.token_ids) for delta in deltas]
    least = max(interval, 4) if interval != 3 else 4
    assert all(len(delta.token_ids) >= least for delta in deltas[1:-1])


def test_async_llm_drafts(plain: LLM) -> None:
    """The engine in its thread, with asynchronous scheduling."""

    async def generate() -> str:
        config = EngineConfig(num_gpu_blocks=100, speculative_config=DRAFTS, async_scheduling=True)
        llm = AsyncLLM(LLMEngine(DEFAULT_MODEL, config))
        text = ""
        try:
            params = SamplingParams(temperature=0, max_tokens=30)
            async for output in llm.generate(PROMPT, params, "0"):
                text = output.outputs[0].text
        finally:
            llm.shutdown()
        return text

    assert asyncio.run(generate()) == greedy(plain, max_tokens=30).text


def test_metrics_by_vllms_names(drafting: LLM) -> None:
    """What `get_metrics` says of drafts, over all that ran before in this engine, is consistent."""
    greedy(drafting, max_tokens=9)
    counters = {m.name: m.value for m in drafting.get_metrics() if isinstance(m, Counter)}
    vectors = {m.name: m.values for m in drafting.get_metrics() if isinstance(m, Vector)}
    drafts = counters["vllm:spec_decode_num_drafts"]
    assert drafts > 0
    assert counters["vllm:spec_decode_num_draft_tokens"] == 3 * drafts
    assert counters["vllm:spec_decode_num_accepted_tokens"] == 3 * drafts
    assert vectors == {"vllm:spec_decode_num_accepted_tokens_per_pos": [drafts] * 3}
