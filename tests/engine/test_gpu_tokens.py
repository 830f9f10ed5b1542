"""The same greedy tokens from numpy, torch, Triton's kernels and real vLLM, on the shipped checkpoint.

Chunked prefill, prefix hits, preemption, and plans made ahead. Without a GPU torch computes on the CPU and
kernels run under Triton's interpreter. Each test also runs on a GPU, where there is one, and the
device is the only difference. Every engine has a process of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest

from course.parity.tokens import compare, make_prompts, make_scenarios, report, run_comparison
from course.parity.tokens_run import Result, Scenario, run_engine, run_scenarios
from mini_vllm.checkpoint import load_config
from mini_vllm.engine import DEFAULT_MODEL
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
    prompts = make_prompts(encode, load_config(MODEL).vocab_size, 12, seed=1, longest=90)
    return make_scenarios(prompts, alone=2, max_tokens=4, pool=10)


@functools.cache
def numpys(ahead: bool) -> list[Result]:
    return run_scenarios(MODEL, with_plans_ahead(few()) if ahead else few(), real=False)


def with_plans_ahead(scenarios: Sequence[Scenario]) -> list[Scenario]:
    return [
        Scenario(s.name, s.settings | {"async_scheduling": True}, s.prompts, s.max_tokens, s.alone)
        for s in scenarios
    ]


def check(scenarios: list[Scenario], mini: list[Result], other: list[Result]) -> None:
    found = [compare(*each) for each in zip(scenarios, mini, other, strict=True)]
    assert all(c.equal for c in found), report(found)


def test_the_few_do_what_they_are_for() -> None:
    together, alone, preempted = numpys(False)
    assert any(c.num_cached_tokens for c in together.completions)
    assert any(c.num_cached_tokens for c in alone.completions)
    assert preempted.preemptions > 0
    chunk = few()[0].settings["max_num_batched_tokens"]
    assert sum(map(len, few()[0].prompts)) > 2 * chunk, "no prompt is cut into chunks"


@pytest.mark.torch
@pytest.mark.triton
@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
def test_triton_gives_numpys_tokens(ahead: bool, device: str) -> None:
    scenarios = with_plans_ahead(few()) if ahead else few()
    check(scenarios, run_engine("mini_vllm", MODEL, scenarios, "triton"), numpys(ahead))


@pytest.mark.torch
@pytest.mark.triton
@pytest.mark.vllm
def test_all_give_vllms_tokens(device: str) -> None:
    real = run_engine("vllm", MODEL, few())
    check(few(), numpys(False), real)
    for attention in ("torch", "triton"):
        check(few(), run_engine("mini_vllm", MODEL, few(), attention), real)


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
