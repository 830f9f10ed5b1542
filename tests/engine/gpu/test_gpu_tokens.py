"""The same greedy tokens from numpy, torch, Triton's kernels and real vLLM, on the shipped checkpoint.

Chunked prefill, prefix hits, preemption, and plans made ahead. Without a GPU torch computes on the CPU and
kernels run under Triton's interpreter. Each test also runs on a GPU, where there is one, and the
device is the only difference. Every engine has a process of its own.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from course.parity.tokens import compare, make_prompts, make_scenarios, report, run_comparison
from course.parity.tokens_run import Result, Scenario, run_engine, run_scenarios
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.model_loader import load_config
from mini_vllm.tokenizer import Tokenizer

MODEL = str(DEFAULT_MODEL)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cpu":
        # Empty, not unset: vLLM then keeps its Triton kernels although there is no driver.
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return str(request.param)


@functools.cache
def few() -> list[Scenario]:
    """As many requests as the interpreter can serve in some seconds."""
    encode = Tokenizer.from_folder(MODEL).encode
    prompts = make_prompts(encode, load_config(MODEL).vocab_size, 10, seed=1, longest=80)
    scenarios = make_scenarios(prompts, alone=2, max_tokens=2, pool=9)
    # vLLM wants room for one request of the greatest length, and 9 blocks hold 144 tokens.
    return [replace(s, settings=s.settings | {"max_model_len": 128}) for s in scenarios]


@functools.cache
def few_and_ahead() -> list[Scenario]:
    """The same, and the last once more with the plans made ahead."""
    last = few()[-1]
    ahead = replace(last, name="ahead", settings=last.settings | {"async_scheduling": True})
    return [*few(), ahead]


@functools.cache
def numpys() -> list[Result]:
    return run_scenarios(MODEL, few_and_ahead(), real=False)


@functools.cache
def tritons(device: str) -> list[Result]:
    return run_engine("mini_vllm", MODEL, few_and_ahead(), "triton")


def check(mini: list[Result], other: list[Result]) -> None:
    scenarios = few_and_ahead()[: len(other)]
    found = [compare(*each) for each in zip(scenarios, mini[: len(other)], other, strict=True)]
    assert all(c.equal for c in found), report(found)


def test_the_few_do_what_they_are_for() -> None:
    together, alone, preempted, ahead = numpys()
    assert any(c.num_cached_tokens for c in together.completions)
    assert any(c.num_cached_tokens for c in alone.completions)
    assert preempted.preemptions > 0
    assert ahead.preemptions > 0
    chunk = few()[0].settings["max_num_batched_tokens"]
    assert sum(map(len, few()[0].prompts)) > 2 * chunk, "no prompt is cut into chunks"


@pytest.mark.torch
@pytest.mark.triton
def test_triton_gives_numpys_tokens(device: str) -> None:
    check(tritons(device), numpys())


@pytest.mark.torch
@pytest.mark.triton
@pytest.mark.vllm
def test_all_four_give_the_same_tokens(device: str) -> None:
    real = run_engine("vllm", MODEL, few())
    check(numpys(), real)
    check(run_engine("mini_vllm", MODEL, few(), "torch"), real)
    check(tritons(device), real)


@pytest.mark.torch
@pytest.mark.vllm
def test_torch_gives_vllms_tokens_on_many_prompts(device: str) -> None:
    found = run_comparison(MODEL, count=100, alone=20, attention="torch")
    print(report(found))
    assert all(c.equal for c in found), report(found)
    together, alone, preempted = found
    assert (together.requests, alone.requests) == (100, 20)
    assert together.cached_tokens > 0
    assert alone.cached_tokens > 0
    assert preempted.preemptions[0] > 0
