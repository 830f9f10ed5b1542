"""A window: a token attends to the last so many tokens, itself among them, and blocks before are not read."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from mini_vllm.attention import OnlineAttention, PagedAttention, TiledAttention
from mini_vllm.attention.paged import attend
from mini_vllm.attention.tiled import attend_by_vectors
from tests.engine.helpers.models.model_helpers import Step, make_step

BACKENDS = {
    "paged": PagedAttention,
    "tiled": partial(TiledAttention, attend),
    "tiled by vectors": partial(TiledAttention, attend_by_vectors),
}


def reference(step: Step, window: int) -> np.ndarray:
    """By the formula, in float64, query by query."""
    md = step.metadata
    cache = step.kv_cache.astype(np.float64)
    for token, slot in enumerate(md.slot_mapping):
        block, offset = divmod(int(slot), md.block_size)
        cache[block, offset, 0], cache[block, offset, 1] = step.key[token], step.value[token]
    outputs = []
    for i, length in enumerate(md.seq_lens.tolist()):
        start, end = md.query_start_loc[i : i + 2].tolist()
        for row in range(start, end):
            position = length - (end - row)
            seen = range(max(0, position - window + 1), position + 1)
            kv = np.array(
                [cache[md.block_table[i, p // md.block_size], p % md.block_size] for p in seen]
            )
            heads = step.query[row].astype(np.float64)
            group = len(heads) // kv.shape[2]
            for head, query in enumerate(heads):
                key, value = kv[:, 0, head // group], kv[:, 1, head // group]
                scores = np.exp(key @ query * len(query) ** -0.5)
                outputs.append(scores @ value / scores.sum())
    return np.array(outputs).reshape(len(step.query), -1)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 8, 13, 40, 1000])
@pytest.mark.parametrize("name", BACKENDS)
def test_every_query_sees_its_window(
    name: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mini_vllm.attention.tiled.QUERY_TILE", 5)
    monkeypatch.setattr("mini_vllm.attention.tiled.TILE_TOKENS", 16)
    seq_lens, query_lens = [1, 30, 9, 17, 4, 33, 12, 41], [1, 1, 1, 17, 2, 11, 1, 1]
    step = make_step(np.random.default_rng(window), seq_lens, query_lens)
    step.metadata.sliding_window = window
    found = step.run(BACKENDS[name]())
    assert np.abs(found - reference(step, window)).max() < 1e-5


@pytest.mark.parametrize("query_lens", [[1, 1], [6, 9]])
@pytest.mark.parametrize("name", BACKENDS)
def test_blocks_before_the_window_are_not_read(name: str, query_lens: list[int]) -> None:
    """Somebody else has them by now: here they hold NaN, and so do the slots before the window."""
    window, seq_lens = 6, [40, 31]
    step = make_step(np.random.default_rng(1), seq_lens, query_lens)
    md = step.metadata
    md.sliding_window = window
    expected = step.run(BACKENDS[name]())
    for i, (length, queries) in enumerate(zip(seq_lens, query_lens, strict=True)):
        first = length - queries - window + 1
        for position in range(first // md.block_size * md.block_size):
            md.block_table[i, position // md.block_size] = 10_000  # there is no such block
        for position in range(first // md.block_size * md.block_size, first):
            block = md.block_table[i, position // md.block_size]
            step.kv_cache[block, position % md.block_size] = np.nan
    assert np.array_equal(step.run(BACKENDS[name]()), expected)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_window_as_long_as_the_context_changes_nothing(name: str) -> None:
    step = make_step(np.random.default_rng(2), [40, 31, 7, 8], [1, 9, 7, 1])
    plain = step.run(BACKENDS[name]())
    step.metadata.sliding_window = 40
    assert np.abs(step.run(BACKENDS[name]()) - plain).max() < 1e-6


def test_who_supports_windows_says_so() -> None:
    assert PagedAttention.supports_sliding_window
    assert TiledAttention.supports_sliding_window
    assert not OnlineAttention.supports_sliding_window
