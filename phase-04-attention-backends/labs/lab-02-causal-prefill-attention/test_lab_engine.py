"""Lab 04-02: your loops as the attention of the running engine."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.attention import AttentionMetadata
from mini_vllm.engine.parts import EngineParts

support = load_support(__file__)


def test_forward_serves_the_batch(lab: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """`forward` serves a batch in which Ida decodes and Jon is in the middle of his prompt."""
    rng = np.random.default_rng(11)
    attention = lab.CausalAttention()
    attention.query_tile, attention.key_tile = 2, 3
    cache = np.full(attention.get_kv_cache_shape(8, 4, 3, 4), np.nan, np.float32)
    query = rng.normal(size=(6, 6, 4)).astype(np.float32)
    keys, values = rng.normal(size=(2, 15, 3, 4)).astype(np.float32)
    # Ida has 6 tokens, her last is new; Jon has 9, his last five are.
    table = np.array([[5, 2, 7], [3, 1, 6]], np.int32)
    slots = np.array(
        [4 * table[0, p // 4] + p % 4 for p in range(6)]
        + [4 * table[1, p // 4] + p % 4 for p in range(9)]
    )
    old, new = [0, 1, 2, 3, 4, 6, 7, 8, 9], [5, 10, 11, 12, 13, 14]
    cache[slots[old] // 4, slots[old] % 4] = np.stack([keys[old], values[old]], axis=1)
    start, lens = np.array([0, 1, 6], np.int32), np.array([6, 9], np.int32)
    metadata = AttentionMetadata(start, lens, table, slots[new].astype(np.int64), 4)
    reads: list[tuple[int, int]] = []
    right = lab.PagedKeys.read

    def watched(keys: Any, first: int, last: int) -> Any:
        reads.append((int(first), int(last)))
        return right(keys, first, last)

    monkeypatch.setattr(lab.PagedKeys, "read", watched)
    with np.errstate(all="ignore"):
        got = attention.forward(query, keys[new], values[new], cache, metadata)
    assert got.shape == (6, 24), f"a row holds its heads end to end: (6, 24), not {got.shape}"
    assert got.dtype == np.float32, f"the engine computes in float32, yours answers in {got.dtype}"
    stored = cache[table[1, 2], 0]
    assert np.array_equal(stored, [keys[14], values[14]]), (
        f"Jon's ninth token goes to the first place of block {table[1, 2]}, K and then V; there lies "
        f"{stored.tolist()}"
    )
    for name, rows, tokens, start_pos in (
        ("Ida", slice(0, 1), slice(0, 6), 5),
        ("Jon", slice(1, 6), slice(6, 15), 4),
    ):
        of = [array[tokens].swapaxes(0, 1).astype(float) for array in (keys, values)]
        want = support.dense(query[rows].astype(float), *of, start_pos, 0.5)
        mine = got[rows].reshape(want.shape).astype(float)
        wrong = support.what_is_wrong(mine, want, 1e-5)
        assert not wrong, (
            f"{name} has rows {rows.start} to {rows.stop - 1} of the batch, the first at position "
            f"{start_pos}, and a scale of 1/sqrt(4): {wrong}"
        )
    of_jon = [(0, 3), (3, 6), (0, 3), (3, 6), (6, 8), (0, 3), (3, 6), (6, 9)]
    assert sorted(reads) == sorted([(0, 3), (3, 6), *of_jon]), (
        "the attention was told query_tile = 2 and key_tile = 3. Ida's token reads keys (0, 3) and (3, 6), "
        f"Jon's 2, 2 and 1 tokens read {of_jon}; yours read {reads} in all"
    )
    alone = lab.attend_tile(query[:1], lab.PagedKeys(cache, table[0]), 5, 0.5, 3)
    assert alone.dtype == np.float32, (
        f"`attend_tile` answers in the query's dtype, float32, not in {alone.dtype}"
    )


def run(parts: EngineParts) -> dict[str, list[int]]:
    """Tokens of three requests, prompts in chunks of at most six, blocks that are shared and run out."""
    config = EngineConfig(
        block_size=4, num_gpu_blocks=10, max_model_len=32, max_num_batched_tokens=6, max_num_seqs=4
    )
    engine = LLMEngine(config=config, parts=parts)
    ida = list(range(20, 30))
    prompts: dict[str, Any] = {"ida": ida, "jon": [*ida[:8], 60, 61], "kim": list(range(70, 78))}
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    for name, ids in prompts.items():
        engine.add_request(name, {"prompt_token_ids": ids}, params)
    tokens = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens[output.request_id] = list(output.outputs[0].token_ids)
    return tokens


def test_the_engine_on_your_attention(lab: ModuleType) -> None:
    """The engine gives the same tokens on your loops, with chunks, decodes, a found prefix and a
    preemption.
    """
    want = run(EngineParts())
    got = run(EngineParts(attention=lab.CausalAttention))
    for name in want:
        assert got[name] == want[name], (
            f"{name}'s tokens on mini_vllm's attention are {want[name]}, on yours {got[name]}. Prompts "
            "come in chunks of at most 6, Jon begins behind two blocks of Ida's, and somebody is preempted"
        )
