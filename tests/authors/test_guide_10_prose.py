"""What phase 10's guide says in prose of Noor's cards and the tiny Llama's ranks, held against the code."""

from __future__ import annotations

from types import ModuleType

import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module
from mini_vllm.sim import make_ranked_cost, models, rank_calls

PHASE = ROOT / "phase-10-parallelism"
GUIDE = (PHASE / "00-guide.md").read_text("utf-8")


@pytest.fixture(scope="module")
def split() -> ModuleType:
    return load_module(PHASE / "split.py", "phase_10_split")


def test_what_a_step_of_noors_model_says() -> None:
    """161 sums; 512 KiB for 32 users, 32 MiB for a chunk of 2,048."""
    model = models()["llama-3-70b"]
    sizes = {}
    for tokens in (32, 2048):
        for (kind, _, nbytes), times in rank_calls(model, 4, 1, 0, tokens, 1).tensor.items():
            if kind == "all_reduce":
                assert times == 161
                sizes[tokens] = nbytes
    assert sizes == {32: 512 * 2**10, 2048: 32 * 2**20}
    assert "makes 161 sums" in GUIDE
    assert "or 512 KiB" in GUIDE
    assert "makes it 32 MiB" in GUIDE


def test_room_for_prompts(split: ModuleType) -> None:
    two, four = split.share(2).kv_tokens, split.share(4).kv_tokens
    assert two // 8192 == 6
    assert "52,000 tokens are six prompts of 8,192" in GUIDE
    assert round(two, -3) == 52_000
    assert 10 <= four / two < 11
    assert "room for ten times as many" in GUIDE


def test_shares_of_time_that_go_into_sums(split: ModuleType) -> None:
    chunk = split.prefill(2048, tp=4, link="pcie")
    assert 0.6 < chunk.speaking / chunk.ms < 0.7
    assert "a chunk spends two thirds of its time" in GUIDE
    far = split.decode(32, tp=4, link="100gbe")
    assert 0.6 < far.speaking / far.ms < 0.7
    near = split.decode(32, tp=4)
    assert f"spends {near.speaking} of {near.ms} ms" in GUIDE
    eight = split.prefill(2048, tp=8)
    assert 1 / 3 < eight.speaking / eight.ms < 0.4
    assert "more than a third of a chunk's time" in GUIDE


def test_a_lone_users_sums_are_latency() -> None:
    link = make_ranked_cost("llama-3-70b", "h100", None, 4).link
    assert f"{161 * link.latency_s * 1000:.2f}" == "0.55"
    assert f"{link.latency_s * 1e6:.1f} µs" in GUIDE
    assert f"{link.bandwidth / 1e9:.0f} GB/s in each direction" in GUIDE
    assert "161 · 3.4 µs are 0.55 ms" in GUIDE


def test_messages_of_both_splits(split: ModuleType) -> None:
    """48 hand-overs of a pipeline where tensor parallelism made 216 sums and 24 gathers."""
    prompts = ["Once upon a time", "The scheduler"]
    tensor = split.count_calls(prompts, 24, tensor_parallel_size=2)
    pipeline = split.count_calls(prompts, 24, pipeline_parallel_size=2)
    assert sum(calls for calls, _ in tensor.values()) == 240
    assert sum(calls for calls, _ in pipeline.values()) == 48
    assert "48 messages instead of 240" in GUIDE
    assert tensor["all_reduce"] == (24 * (2 * 4 + 1), 354_816)


def test_the_first_and_the_split_text_are_one(split: ModuleType) -> None:
    """The command at the head of the page: two processes write what one writes."""
    texts, _ = split.run_on_ranks(["The KV cache"], 24, tensor_parallel_size=2)
    llm = split.LLM()
    greedy = split.SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    assert texts == [llm.generate(["The KV cache"], greedy, use_tqdm=False)[0].outputs[0].text]
