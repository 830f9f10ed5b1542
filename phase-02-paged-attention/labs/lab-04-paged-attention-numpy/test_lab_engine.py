"""Lab 02-04: your attention in the running engine."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.attention import AttentionMetadata
from mini_vllm.engine import EngineParts


def test_forward_writes_before_it_reads(lab: ModuleType) -> None:
    """A token sees itself: its K and V are in the cache before anybody attends."""
    attention = lab.PagedAttention()
    cache = np.full(attention.get_kv_cache_shape(3, 4, 1, 2), np.nan, np.float32)
    one = np.array([[[1.0, 2.0]]], np.float32)
    start, lens, table = (np.array(a, np.int32) for a in ([0, 1], [1], [[2]]))
    metadata = AttentionMetadata(start, lens, table, np.array([8]), 4)
    got = attention.forward(one, one, 5 * one, cache, metadata)
    assert got.shape == (1, 2), (
        f"the heads of a row are laid end to end: shape (1, 2), not {got.shape}"
    )
    assert got.dtype == np.float32, f"the engine computes in float32, yours answers in {got.dtype}"
    assert np.array_equal(got, [[5.0, 10.0]]), (
        f"a first token sees itself alone, so it gets its own V, [5, 10]; yours {got[0]}. NaN means that it "
        "was read before it was written"
    )


def run(parts: EngineParts) -> dict[str, list[int]]:
    """Tokens of three requests on nine blocks of four, prompts in chunks of at most six."""
    config = EngineConfig(
        block_size=4, num_gpu_blocks=10, max_model_len=32, max_num_batched_tokens=6, max_num_seqs=4
    )
    engine = LLMEngine(config=config, parts=parts)
    ada = list(range(20, 30))
    prompts: dict[str, Any] = {"ada": ada, "bo": [*ada[:8], 60, 61], "cy": list(range(70, 78))}
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    for name, ids in prompts.items():
        engine.add_request(name, {"prompt_token_ids": ids}, params)
    tokens = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens[output.request_id] = list(output.outputs[0].token_ids)
    return tokens


def test_the_engine_on_your_attention(lab: ModuleType) -> None:
    """Chunks, decodes, shared blocks and a preemption in one batch: the same tokens."""
    want = run(EngineParts())
    got = run(EngineParts(attention=lab.PagedAttention))
    for name in want:
        assert got[name] == want[name], (
            f"{name}'s tokens on mini_vllm's attention are {want[name]}, on yours {got[name]}. "
            "Prompts come in chunks of at most 6, Bo shares two of Ada's blocks, and Cy is preempted"
        )
