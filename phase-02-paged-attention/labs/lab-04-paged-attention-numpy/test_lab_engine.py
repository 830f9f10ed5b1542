"""Lab 02-04: your attention in the running engine."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from course.learner.labs import load_support
from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.attention import AttentionMetadata
from mini_vllm.engine.parts import EngineParts

support = load_support(__file__)


def test_forward_writes_before_it_reads(lab: ModuleType) -> None:
    """A token sees itself, because its K and V are in the cache before any query attends."""
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
    stored = cache[2, 0, :, 0].tolist()
    assert stored == [[1.0, 2.0], [5.0, 10.0]], (
        f"axis 2 of the cache is K, then V: slot 8 holds [[1, 2], [5, 10]], yours {stored}"
    )


def test_forward_serves_the_batch(lab: ModuleType) -> None:
    """A chunk of three and a decode each use their own rows, table and length, and one scale."""
    rng = np.random.default_rng(11)
    attention = lab.PagedAttention()
    cache = np.full(attention.get_kv_cache_shape(6, 4, 1, 4), np.nan, np.float32)
    query = rng.normal(size=(4, 2, 4)).astype(np.float32)
    keys, values = rng.normal(size=(2, 11, 1, 4)).astype(np.float32)
    # Ada has tokens 0 to 4, her last three are new; Bo has 5 to 10, his last is.
    slots = np.array([12, 13, 14, 15, 4, 20, 21, 22, 23, 8, 9])
    old, new = [0, 1, 5, 6, 7, 8, 9], [2, 3, 4, 10]
    cache[slots[old] // 4, slots[old] % 4] = np.stack([keys[old], values[old]], axis=1)
    start, lens, table = (
        np.array(a, np.int32) for a in ([0, 3, 4], [5, 6], [[3, 1, 0], [5, 2, 0]])
    )
    metadata = AttentionMetadata(start, lens, table, slots[new], 3)
    got = attention.forward(query, keys[new], values[new], cache, metadata)
    factors = {"1": 2.0, "1/4": 0.5, "1/sqrt(8)": 0.5**0.5, "1/2": 1.0}
    for name, rows, tokens in (
        ("Ada", slice(0, 3), slice(0, 5)),
        ("Bo", slice(3, 4), slice(5, 11)),
    ):
        wants = {
            scale: support.dense(factor * query[rows], keys[tokens], values[tokens]).reshape(-1, 8)
            for scale, factor in factors.items()
        }
        mine = got[rows].astype(float)
        fits = [scale for scale, want in wants.items() if np.allclose(mine, want, 1e-4, 1e-5)]
        row = int(np.abs(mine - wants["1/2"]).max(axis=1).argmax())
        assert fits, (
            f"row {rows.start + row} of the batch is {name}'s: head 0 and then head 1 answer "
            f"{wants['1/2'][row].astype(float).round(2).tolist()}, yours {mine[row].round(2).tolist()}. "
            "Ada has rows 0 to 2 and Bo row 3, as `query_start_loc` says, each with a table and a length"
        )
        assert fits == ["1/2"], (
            f"heads have 4 numbers, so the scale is 1/sqrt(4) = 1/2; yours are the numbers of {fits[0]}"
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
    """The engine on your attention gives the same tokens, with chunks, shared blocks and a preemption."""
    want = run(EngineParts())
    got = run(EngineParts(attention=lab.PagedAttention))
    for name in want:
        assert got[name] == want[name], (
            f"{name}'s tokens on mini_vllm's attention are {want[name]}, on yours {got[name]}. "
            "Prompts come in chunks of at most 6, Bo shares two of Ada's blocks, and Cy is preempted"
        )
