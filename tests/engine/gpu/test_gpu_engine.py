"""The engine on torch: the tokens of numpy's, whatever the scheduler does to a request.

Each test runs on the CPU and, where there is one, on a GPU; the device is the only difference.
"""

from __future__ import annotations

from typing import Any

import pytest

from mini_vllm import LLM, EngineConfig, LLMEngine, SamplingParams
from mini_vllm.engine.parts import EngineParts
from tests.engine.core.sched.test_async_scheduling import TEXTS, TIGHT, mixed_params, said
from tests.engine.helpers.engine.engine_helpers import random_model
from tests.engine.helpers.engine.workloads import compare, drive, random_workload, sharing_jobs
from tests.engine.helpers.thorough import either

pytestmark = pytest.mark.torch
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def random_engine(device: str, **settings: Any) -> LLMEngine:
    """As `workloads.make_engine`, with the same random weights in torch."""
    from mini_vllm.gpu.backend import TorchAttention
    from tests.engine.helpers.gpu.torch_helpers import torch_model

    model = random_model(parts=EngineParts(attention=TorchAttention), model_cls=torch_model(device))
    settings = {"block_size": 4, "num_gpu_blocks": 200, "max_num_seqs": 8} | settings
    return LLMEngine(model, EngineConfig(attention="torch", **settings))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(300, either(303, 320)))
def test_random_workloads_give_the_right_tokens(seed: int, ahead: bool, device: str) -> None:
    """Arrivals, aborts, chunks, hits, preemptions, against attention by the formula in numpy."""
    jobs, settings = random_workload(seed)
    engine = random_engine(device, **settings, async_scheduling=ahead)
    compare(f"seed {seed}", engine, jobs, drive(engine, jobs)[0])


@pytest.mark.parametrize("device", DEVICES)
def test_shared_prefixes_are_found_and_right(device: str) -> None:
    jobs = sharing_jobs()
    engine = random_engine(device)
    tokens, cached = drive(engine, jobs)
    compare("sharing", engine, jobs, tokens)
    assert sum(hit or 0 for hit in cached) > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
def test_the_shipped_model_says_what_it_says_in_numpy(ahead: bool, device: str) -> None:
    """Penalties, seeds, `n`, logprobs of prompt and output, ends of each kind; short of blocks."""
    from tests.engine.helpers.gpu.torch_helpers import torch_engine

    llm = LLM(async_scheduling=ahead, **TIGHT)
    stop = "the"
    params = mixed_params(stop)
    prompts = [TEXTS[i % len(TEXTS)] for i in range(len(params))]
    expected = llm.generate(prompts, params, use_tqdm=False)
    assert llm.llm_engine.engine_core.scheduler.num_preemptions
    other = LLM(**TIGHT)
    other.llm_engine = torch_engine(device, async_scheduling=ahead, **TIGHT)
    found = other.generate(prompts, params, use_tqdm=False)
    assert said(found) == said(expected)
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours.outputs, theirs.outputs, strict=True):
            assert (a.cumulative_logprob is None) == (b.cumulative_logprob is None)
            if a.cumulative_logprob is not None:
                assert a.cumulative_logprob == pytest.approx(b.cumulative_logprob, abs=1e-3)


def test_a_loaded_model_is_held_against_the_setting() -> None:
    from tests.engine.helpers.gpu.torch_helpers import torch_model

    model = random_model(model_cls=torch_model("cpu"))
    with pytest.raises(ValueError, match=r"attention='numpy' is for .*gpu.llama.LlamaForCausalLM"):
        LLMEngine(model, EngineConfig())
    with pytest.raises(
        ValueError, match=r"attention='torch' is for .*mini_vllm.models.llama.Llama"
    ):
        LLMEngine(random_model(), EngineConfig(attention="torch"))


def test_more_blocks_than_memory_are_refused() -> None:
    from mini_vllm.gpu.forward import TorchForward
    from mini_vllm.sample.sampler import Sampler
    from mini_vllm.worker.model_runner import ModelRunner
    from tests.engine.helpers.gpu.torch_helpers import torch_model

    model = random_model(model_cls=torch_model("cpu"))
    config = EngineConfig(
        attention="torch", num_gpu_blocks=2**31 - 1, max_model_len=64, block_size=2**20
    )
    with pytest.raises(
        ValueError, match=r"num_gpu_blocks \(2147483647\).*more memory than there is"
    ):
        ModelRunner(model, config, Sampler(0), TorchForward)


def test_without_a_gpu_triton_says_how_it_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(ValueError, match=r"attention='triton' needs a GPU.*TRITON_INTERPRET=1"):
        LLM(attention="triton")


def test_the_engine_takes_the_name() -> None:
    llm = LLM(attention="torch")
    assert type(llm.llm_engine.model.attention).__name__ == "TorchAttention"
    prompt, params = "The scheduler", SamplingParams(temperature=0, max_tokens=12)
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    (expected,) = LLM().generate(prompt, params, use_tqdm=False)
    assert output.outputs[0].token_ids == expected.outputs[0].token_ids
