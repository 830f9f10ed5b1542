"""Paged attention: equal to its reference, and only the block table decides what it reads."""

from __future__ import annotations

import numpy as np
import pytest

from mini_vllm.attention import (
    AttentionMetadata,
    OnlineAttention,
    PagedAttention,
    TiledAttention,
    tiled,
)
from tests.engine.helpers.models.model_helpers import Step, make_step

TOLERANCE = 2e-5

Backend = type[PagedAttention]
every_backend = pytest.mark.parametrize(
    "backend", [PagedAttention, TiledAttention, OnlineAttention]
)


def reference(step: Step) -> np.ndarray:
    """The step by the textbook: store K and V slot by slot, collect each request's through its row
    of the table, and attend in float64."""
    md = step.metadata
    size = md.block_size
    cache = step.kv_cache.copy()
    for i, slot in enumerate(md.slot_mapping.tolist()):
        cache[slot // size, slot % size] = step.key[i], step.value[i]
    group = step.query.shape[1] // step.key.shape[1]
    rows = []
    for request, length in enumerate(md.seq_lens.tolist()):
        start, end = md.query_start_loc[request : request + 2].tolist()
        kv = [cache[md.block_table[request, p // size], p % size] for p in range(length)]
        k, v = np.stack(kv).astype(np.float64).repeat(group, 2).swapaxes(0, 1)
        scores = np.einsum("qhd,khd->hqk", step.query[start:end].astype(np.float64), k)
        scores *= step.query.shape[2] ** -0.5
        position = np.arange(length - (end - start), length)
        scores[:, np.arange(length)[None] > position[:, None]] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        rows.append(np.einsum("hqk,khd->qhd", p, v).reshape(end - start, -1))
    return np.concatenate(rows)


def assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: float = TOLERANCE) -> None:
    """Largest difference against the largest value."""
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all(), "a NaN or an infinity reached the result"
    error = np.abs(actual - expected).max() / np.abs(expected).max()
    assert error < tolerance, f"relative error {error:.2e}"


@pytest.mark.parametrize("seed", range(40))
def test_plain_and_tiled_equal_the_textbook(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    # Small tiles make a few tokens exercise what thousands do.
    monkeypatch.setattr(tiled, "TILE_TOKENS", int(rng.choice([16, 40, 2048])))
    monkeypatch.setattr(tiled, "QUERY_TILE", int(rng.choice([1, 3, 128])))
    seq_lens = rng.integers(1, 60, rng.integers(1, 9)).tolist()
    share = rng.choice([0.0, 0.5, 1.0])
    query_lens = [1 if rng.random() < share else int(rng.integers(1, n + 1)) for n in seq_lens]
    step = make_step(
        rng,
        seq_lens,
        query_lens,
        block_size=int(rng.choice([1, 3, 16])),
        num_kv_heads=int(rng.integers(1, 4)),
        group=int(rng.integers(1, 4)),
        canary=float(rng.choice([np.nan, 7.0])),
        contiguous=bool(rng.integers(2)),
    )
    plain = step.run(PagedAttention())
    assert_close(plain, reference(step))
    for attend in (tiled.attend, tiled.attend_by_vectors):
        assert_close(step.run(TiledAttention(attend)), plain)


@pytest.mark.parametrize("kernels", [True, False])
def test_who_has_no_small_matrix_kernels_attends_by_vectors(
    kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiled, "has_small_matrix_kernels", lambda: kernels)
    chosen = tiled.attend if kernels else tiled.attend_by_vectors
    assert tiled.choose_attend() is chosen


@every_backend
@pytest.mark.parametrize("seq_lens", [[17], [17, 4, 30]])
def test_scores_out_of_the_range_of_exp(backend: Backend, seq_lens: list[int]) -> None:
    step = make_step(np.random.default_rng(1), seq_lens, [1] * len(seq_lens), scale=15.0)
    expected = reference(step)
    assert np.abs(step.query).max() * np.abs(step.key).max() * 8**0.5 > 88  # exp would overflow
    assert_close(step.run(backend()), expected, 1e-3)
    # All scores far below zero: every weight would underflow without the maximum.
    step.query = -8 * np.abs(step.query)
    step.key = np.abs(step.key)
    past = ~np.isnan(step.kv_cache)
    step.kv_cache[past] = np.abs(step.kv_cache[past])
    assert_close(step.run(backend()), reference(step), 1e-3)


@every_backend
@pytest.mark.parametrize("query_lens", [[1, 1, 1], [6, 1, 9]])
def test_nothing_outside_the_table_is_read(backend: Backend, query_lens: list[int]) -> None:
    """Block tails, free blocks and the table's padding hold NaN, infinity or a huge value."""
    seq_lens = [6, 13, 9]
    results = []
    for canary in (np.nan, np.inf, -np.inf, 3e38, 0.0):
        step = make_step(np.random.default_rng(2), seq_lens, query_lens, canary=canary)
        results.append(step.run(backend()))
        assert_close(results[-1], reference(step))
    for result in results[:-1]:
        assert_close(result, results[-1])


@every_backend
def test_padding_of_the_table_may_be_no_block_at_all(backend: Backend) -> None:
    step = make_step(np.random.default_rng(3), [3, 30], [1, 1])
    expected = step.run(backend())
    step.metadata.block_table[0, 1:] = -1
    step.metadata.block_table[1, 8:] = 2**30
    np.testing.assert_array_equal(step.run(backend()), expected)


@every_backend
@pytest.mark.parametrize("query_len", [1, 5])
def test_every_entry_of_the_table_counts(backend: Backend, query_len: int) -> None:
    """table-only: swap one entry for a block of another request and the output changes."""
    step = make_step(np.random.default_rng(4), [14, 16], [query_len, 1], canary=0.5)
    table = step.metadata.block_table
    own = step.run(backend())
    for column in range((14 - query_len) // 4):
        right = table[0, column]
        table[0, column] = table[1, column]
        assert np.abs(step.run(backend())[:query_len] - own[:query_len]).max() > 1e-3
        table[0, column] = right


@every_backend
def test_a_wrong_slot_changes_the_output(backend: Backend) -> None:
    step = make_step(np.random.default_rng(5), [6, 7], [1, 1], canary=0.25)
    own = step.run(backend())
    step.metadata.slot_mapping[0] += 1  # one past the token's own slot: the next read misses it
    assert np.abs(step.run(backend())[0] - own[0]).max() > 1e-3
    assert_close(step.run(backend())[1], own[1])


@every_backend
def test_write_then_read_across_requests(backend: Backend) -> None:
    """A request sees what another request of the same step writes into a block that both hold."""
    rng = np.random.default_rng(6)
    step = make_step(rng, [8, 9], [8, 1], block_size=4)
    md = step.metadata
    md.block_table[1, :2] = md.block_table[0, :2]
    expected = reference(step)  # stores everything before it attends
    assert_close(step.run(backend()), expected)
    step.value[3] += 1.0  # token 3 of request 0
    assert np.abs(step.run(backend())[8] - expected[8]).max() > 1e-3


@every_backend
def test_stores_land_in_their_slots_and_nowhere_else(backend: Backend) -> None:
    step = make_step(np.random.default_rng(7), [5, 2, 9], [3, 1, 1], canary=-1.0)
    before = step.kv_cache.copy()
    md = step.metadata
    backend().forward(step.query, step.key, step.value, step.kv_cache, md)
    flat = step.kv_cache.reshape(-1, *step.kv_cache.shape[2:])
    np.testing.assert_array_equal(flat[md.slot_mapping, 0], step.key)
    np.testing.assert_array_equal(flat[md.slot_mapping, 1], step.value)
    flat[md.slot_mapping] = before.reshape(flat.shape)[md.slot_mapping]
    np.testing.assert_array_equal(step.kv_cache, before)


@every_backend
def test_causal_offset_the_future_does_not_matter(backend: Backend) -> None:
    """Query j of a chunk sees its own position and nothing after it."""
    step = make_step(np.random.default_rng(8), [11], [6])
    own = step.run(backend())
    for j in range(5):
        changed = make_step(np.random.default_rng(8), [11], [6])
        changed.key[j + 1 :] += 3.0
        changed.value[j + 1 :] -= 3.0
        result = changed.run(backend())
        assert_close(result[: j + 1], own[: j + 1])
        assert np.abs(result[j + 1] - own[j + 1]).max() > 1e-3


@every_backend
def test_batched_equals_alone_in_any_order(backend: Backend) -> None:
    rng = np.random.default_rng(9)
    seq_lens, query_lens = [21, 3, 40, 8, 1], [1, 3, 1, 5, 1]
    step = make_step(rng, seq_lens, query_lens)
    md = step.metadata
    together = np.split(step.run(backend()), np.cumsum(query_lens)[:-1])
    spans = [slice(*md.query_start_loc[i : i + 2].tolist()) for i in range(5)]
    for order in ([0], [1], [2], [3], [4], [3, 1, 4, 0, 2], [2, 0]):
        rows = np.concatenate([np.arange(spans[i].start, spans[i].stop) for i in order])
        starts = np.concatenate([[0], np.cumsum([query_lens[i] for i in order])])
        part = Step(
            step.query[rows],
            step.key[rows],
            step.value[rows],
            step.kv_cache,
            AttentionMetadata(
                starts.astype(np.int32),
                md.seq_lens[order],
                md.block_table[order],
                md.slot_mapping[rows],
                md.block_size,
            ),
        )
        assert_close(part.run(backend()), np.concatenate([together[i] for i in order]))


@every_backend
def test_block_size_does_not_matter(backend: Backend) -> None:
    results = []
    for block_size in (1, 2, 5, 16, 64):
        rng = np.random.default_rng(10)
        step = make_step(rng, [33, 7], [2, 1], block_size=block_size)
        fill = np.random.default_rng(11)
        past = fill.standard_normal((40, *step.kv_cache.shape[2:])).astype(np.float32)
        new = fill.standard_normal((3, 3, 4, 8)).astype(np.float32)
        for i, length in enumerate((31, 6)):
            for p in range(length):
                block = step.metadata.block_table[i, p // block_size]
                step.kv_cache[block, p % block_size] = past[(p + 17 * i) % 40]
        step.query, step.key, step.value = new[0], new[1][:, :2], new[2][:, :2]
        results.append(step.run(backend()))
    for result in results[1:]:
        assert_close(result, results[0])


@every_backend
def test_one_backend_serves_steps_of_any_shape(backend: Backend) -> None:
    shared = backend()
    for seed, seq_lens in enumerate([[70, 2], [3], [90], [1, 1, 1]]):
        step = make_step(np.random.default_rng(seed), seq_lens, [1] * len(seq_lens))
        assert_close(step.run(shared), reference(step))


def test_a_request_longer_than_a_tile_is_a_tile_of_its_own() -> None:
    lengths = [3000, 2049, 5, 4, 3]
    step = make_step(np.random.default_rng(12), lengths, [1, 1, 1, 3, 1], block_size=16, group=1)
    plan = tiled.make_plan(step.metadata)
    assert [len(tile.rows) for tile in plan.decode_tiles] == [1, 1, 2]
    assert_close(step.run(TiledAttention()), reference(step))


def test_metadata_fills_in_its_maxima() -> None:
    md = make_step(np.random.default_rng(13), [9, 4], [2, 4]).metadata
    assert (md.max_query_len, md.max_seq_len) == (4, 9)
