"""The torch model under CUDA graphs: the same tokens in every mode, and padding that reaches nobody.

Without a GPU the graphs are the stand-in's. Each test also runs on a GPU, where there is one, with the
device as the only difference.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import LLM, EngineConfig, LLMEngine, SamplingParams
from mini_vllm.engine.parts import EngineParts
from tests.engine.core.sched.test_async_scheduling import TEXTS, TIGHT, mixed_params, said
from tests.engine.helpers.engine.engine_helpers import random_model
from tests.engine.helpers.engine.workloads import compare, drive, random_workload
from tests.engine.helpers.thorough import either

pytestmark = pytest.mark.torch
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
MODES = ["PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
SIZES = [1, 2, 4, 8, 16]


def graph_engine(device: str, mode: str, **settings: Any) -> LLMEngine:
    """Random weights in torch, under graphs."""
    from mini_vllm.gpu.backend import TorchAttention
    from tests.engine.helpers.gpu.torch_helpers import torch_model

    model = random_model(parts=EngineParts(attention=TorchAttention), model_cls=torch_model(device))
    settings = {"block_size": 4, "num_gpu_blocks": 200, "max_num_seqs": 8} | settings
    graphs: dict[str, Any] = {"cudagraph_mode": mode, "cudagraph_capture_sizes": SIZES}
    return LLMEngine(model, EngineConfig(attention="torch", **graphs, **settings))


def watched(engine: LLMEngine) -> Counter[str]:
    """Counts the engine's steps by the mode that they ran in."""
    ran: Counter[str] = Counter()
    engine.engine_core.step_observers.append(
        lambda step: (
            ran.update([step.model_runner_output.cudagraph_stats.runtime_mode])
            if step.model_runner_output.cudagraph_stats
            else None
        )
    )
    return ran


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(300, either(302, 306)))
def test_random_workloads_give_the_right_tokens(seed: int, mode: str, device: str) -> None:
    """Arrivals, aborts, chunks, hits, preemptions, against attention by the formula in numpy."""
    from mini_vllm.gpu.graph_standin import watch

    jobs, settings = random_workload(seed)
    engine = graph_engine(device, mode, **settings)
    with watch():
        compare(f"seed {seed}, {mode}", engine, jobs, drive(engine, jobs)[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
def test_the_shipped_model_says_what_it_says_in_numpy(ahead: bool, device: str) -> None:
    """Penalties, seeds, `n`, logprobs of prompt and output, ends of each kind; short of blocks."""
    from tests.engine.helpers.gpu.torch_helpers import torch_engine

    llm = LLM(async_scheduling=ahead, **TIGHT)
    params = mixed_params("the")
    prompts = [TEXTS[i % len(TEXTS)] for i in range(len(params))]
    expected = llm.generate(prompts, params, use_tqdm=False)
    other = LLM(**TIGHT)
    engine = torch_engine(
        device, async_scheduling=ahead, cudagraph_mode="FULL_AND_PIECEWISE",
        cudagraph_capture_sizes=SIZES, **TIGHT,
    )  # fmt: skip
    other.llm_engine = engine
    ran = watched(engine)
    found = other.generate(prompts, params, use_tqdm=False)
    assert said(found) == said(expected)
    assert min(ran["FULL"], ran["PIECEWISE"]) > 0, ran


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_runs_as_the_dispatcher_says(device: str) -> None:
    """Kim alone, then with Lou's prompt, then a prompt that is larger than every size."""
    engine = graph_engine(device, "FULL_AND_PIECEWISE", max_num_batched_tokens=64)
    runner: Any = engine.engine_core.model_runner
    steps: list[tuple[str, int, int]] = []

    def note(step: Any) -> None:
        if stat := step.model_runner_output.cudagraph_stats:
            steps.append((stat.runtime_mode, stat.num_unpadded_tokens, stat.num_padded_tokens))

    engine.engine_core.step_observers.append(note)
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    engine.add_request("kim", list(range(3, 10)), params)
    engine.step()
    engine.step()
    engine.add_request("lou", list(range(3, 5)), params)
    engine.step()
    engine.add_request("ada", list(range(40, 0, -1)), params)
    engine.step()
    engine.step()
    assert steps == [
        ("PIECEWISE", 7, 8), ("FULL", 1, 1), ("PIECEWISE", 3, 4), ("NONE", 42, 42), ("FULL", 2, 2),
    ]  # fmt: skip
    pieces = len(runner.model.layers) + 1
    # Five sizes in pieces; of the whole model the four that eight requests can have.
    assert runner.forward.num_graphs == 5 * pieces + 4


def test_the_mode_is_lowered_to_what_attention_can_bear(caplog: pytest.LogCaptureFixture) -> None:
    from mini_vllm.cudagraph import AttentionCGSupport, CUDAGraphMode
    from mini_vllm.gpu.backend import TorchAttention

    engine: Any = graph_engine("cpu", "FULL")
    runner = engine.engine_core.model_runner
    assert runner.forward.dispatcher.cudagraph_mode is CUDAGraphMode.FULL_AND_PIECEWISE
    assert (
        "FULL lowered to FULL_AND_PIECEWISE by the attention backend TorchAttention" in caplog.text
    )

    class Never(TorchAttention):
        cudagraph_support = AttentionCGSupport.NEVER

    model: Any = runner.model
    make_forward = type(runner.forward)
    model.attention = Never()
    config = EngineConfig(attention="torch", num_gpu_blocks=8, max_model_len=16, max_num_seqs=2)
    for mode, lowered in (("FULL_AND_PIECEWISE", "PIECEWISE"), ("FULL_DECODE_ONLY", "PIECEWISE")):
        made = make_forward(model, _with(config, mode), runner.kv_cache_config)
        assert str(made.dispatcher.cudagraph_mode) == lowered
    with pytest.raises(ValueError, match=r"FULL is not supported by .* Never \(support: NEVER\)"):
        make_forward(model, _with(config, "FULL"), runner.kv_cache_config)


def _with(config: EngineConfig, mode: str) -> EngineConfig:
    from dataclasses import replace

    return replace(config, cudagraph_mode=mode)


def test_a_part_for_numpys_kernels_is_refused() -> None:
    from mini_vllm.cudagraph import GraphRunner

    class Mine(GraphRunner):
        """Somebody's own."""

    parts = EngineParts(graph_runner=Mine)
    model = graph_engine("cpu", "NONE").model
    config = EngineConfig(attention="torch", cudagraph_mode="PIECEWISE", num_gpu_blocks=8)
    with pytest.raises(ValueError, match=r"parts.graph_runner runs numpy's kernels"):
        LLMEngine(model, config, parts=parts)


def test_a_wrapper_trusts_mode_and_key_and_refuses_what_it_cannot_do() -> None:
    import torch

    from mini_vllm.cudagraph import BatchDescriptor, CUDAGraphMode
    from mini_vllm.gpu import graph_standin as graphs
    from mini_vllm.gpu.cudagraph import CUDAGraphWrapper, ForwardContext

    context = ForwardContext()
    calls = []

    def double(x: Any) -> Any:
        calls.append(len(x))
        return x * 2

    full, pieces = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE
    with pytest.raises(ValueError, match="a wrapper is for FULL or PIECEWISE, got NONE"):
        CUDAGraphWrapper(double, CUDAGraphMode.NONE, context, graphs, None)
    wrapper = CUDAGraphWrapper(double, full, context, graphs, graphs.graph_pool_handle())
    x = torch.ones(4)
    key = BatchDescriptor(4, 4, True)
    assert wrapper(x).tolist() == [2] * 4  # no mode: called
    with context.step(pieces, key):
        assert wrapper(x).tolist() == [2] * 4  # another mode: called
    with context.step(full, key), pytest.raises(ValueError, match="no FULL graph was captured for"):
        wrapper(x)
    context.capturing_enabled = True
    with context.step(full, key):
        wrapper(x)
    context.capturing_enabled = False
    assert calls == [4, 4, 4]
    x.fill_(3)
    with context.step(full, key):
        assert wrapper(x).tolist() == [6] * 4
        with pytest.raises(ValueError, match=r"of its 1 inputs, number \[0\] has moved"):
            wrapper(x.clone())
    assert calls == [4, 4, 4], "a replay looks at no Python"


@pytest.mark.parametrize("device", DEVICES)
def test_pieces_are_the_model(device: str) -> None:
    """Cut at attention and joined again, without graphs, bit by bit."""
    import torch

    from mini_vllm.gpu.backend import AttentionMetadata
    from mini_vllm.gpu.split_llama import SplitLlama

    runner: Any = graph_engine(device, "NONE").engine_core.model_runner
    model = runner.model

    def tensor(*values: int, dtype: Any = torch.int32) -> Any:
        return torch.tensor(values, dtype=dtype, device=device)

    table = torch.tensor([[1, 0], [2, 3]], dtype=torch.int32, device=device)
    slots = tensor(4, 8, 9, 10, 11, 12, dtype=torch.int64)
    metadata = AttentionMetadata(tensor(0, 1, 6), tensor(1, 5), table, slots, 1, 5, 5)
    args = tensor(5, 6, 7, 8, 9, 10), tensor(0, 0, 1, 2, 3, 4), runner.kv_caches, metadata
    assert len(SplitLlama(model).pieces) == len(model.layers) + 1
    with torch.inference_mode():
        # Bit for bit: the pieces make the calls of the whole, with tensors of the same shapes.
        assert torch.equal(SplitLlama(model).forward(*args), model.forward(*args))


@pytest.mark.parametrize("device", DEVICES)
def test_decoding_with_fixed_shapes_is_the_reference(device: str) -> None:
    """Rows of padding come out as 0, and what lies in slots of nobody, NaN too, moves no result."""
    import torch

    from mini_vllm.gpu.attention import paged_decode, paged_decode_fixed

    made = torch.Generator().manual_seed(3)
    caches = torch.randn(2, 9, 4, 2, 8, generator=made)
    caches[:, 0] = torch.nan
    caches[:, 8] = torch.nan
    caches[:, 5, 2:] = torch.nan
    key, value = caches.to(device)
    query = torch.randn(4, 4, 8, generator=made).to(device)
    table = torch.tensor([[1, 2, 3], [5, 99, -7], [8, 0, 0], [4, 6, 8]], device=device).int()
    lens = torch.tensor([11, 2, 0, 7], device=device).int()
    found = paged_decode_fixed(query, key, value, table, lens, 0.3)
    live = [0, 1, 3]
    want = paged_decode(query[live], key, value, table[live], lens[live], 0.3, torch.float32)
    assert torch.allclose(found[live], want, atol=1e-6)
    assert found[2].tolist() == torch.zeros(4, 8).tolist()


def check_triton(device: str, *folder: str) -> None:
    """Run the child; every mode must give numpy's tokens, and run as what it says."""
    helpers = Path(__file__).parents[1] / "helpers" / "gpu"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    env.pop("TRITON_INTERPRET", None)
    if device == "cpu":
        env |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(helpers / "gpu_cudagraph_child.py"), device, *folder]
    ran = subprocess.run(command, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    results = json.loads(ran.stdout.splitlines()[-1])
    expected = results.pop("numpy")["tokens"]
    assert results.keys() == {"PIECEWISE", "FULL", "FULL_AND_PIECEWISE"}
    for mode, result in results.items():
        assert result["tokens"] == expected, mode
    assert results["FULL"]["ran"].keys() == {"FULL"}
    assert results["PIECEWISE"]["ran"].keys() == {"PIECEWISE"}
    assert results["FULL_AND_PIECEWISE"]["ran"].keys() == {"FULL", "PIECEWISE"}


@pytest.mark.triton
@pytest.mark.parametrize("device", DEVICES)
def test_triton_under_every_mode(device: str) -> None:
    """Kernels of ours inside of graphs, mixed batches too: FULL is not lowered. In a process of its own."""
    check_triton(device)
