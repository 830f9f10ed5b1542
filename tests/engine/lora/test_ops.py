"""The product of rows and adapters: plain, grouped, and one row at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mini_vllm.layers.linear import Linear
from mini_vllm.layers.quantization.base import NoQuantizationConfig
from mini_vllm.lora.layers import LinearWithLoRA
from mini_vllm.lora.lora_model import LoRALayerWeights, LoRAModel
from mini_vllm.lora.ops import LoRAMapping, Piece, Run, add_lora_by_run, add_lora_grouped


def make_case(seed: int) -> tuple[Any, Any, LoRAMapping, dict[int, list[Piece]], list[int | None]]:
    rng = np.random.default_rng(seed)
    size_in, sizes = int(rng.integers(1, 40)), rng.integers(1, 30, int(rng.integers(1, 4)))
    slots: dict[int, list[Piece]] = {}
    for slot in range(int(rng.integers(1, 6))):
        rank = int(rng.integers(1, 9))
        slots[slot] = [
            Piece(
                int(sizes[:i].sum()),
                rng.standard_normal((rank, size_in)).astype(np.float32),
                rng.standard_normal((size, rank)).astype(np.float32),
            )
            for i, size in enumerate(sizes)
            if rng.random() < 0.7
        ]
    num_reqs = int(rng.integers(1, 20))
    of_reqs = [None if (s := int(rng.integers(-1, len(slots)))) < 0 else s for _ in range(num_reqs)]
    counts = rng.integers(1, 9, num_reqs)
    mapping = LoRAMapping()
    mapping.set_rows(of_reqs, counts.tolist())
    x = rng.standard_normal((int(counts.sum()), size_in)).astype(np.float32)
    y = rng.standard_normal((len(x), int(sizes.sum()))).astype(np.float32)
    rows = [slot for slot, count in zip(of_reqs, counts, strict=True) for _ in range(count)]
    return x, y, mapping, slots, rows


def by_row(x: Any, y: Any, slots: dict[int, list[Piece]], rows: list[int | None]) -> Any:
    y = y.astype(np.float64)
    for i, slot in enumerate(rows):
        for piece in slots[slot] if slot is not None else ():
            delta = piece.lora_b.astype(np.float64) @ (piece.lora_a.astype(np.float64) @ x[i])
            y[i, piece.start : piece.start + len(delta)] += delta
    return y


@pytest.mark.parametrize("seed", range(200))
def test_both_forms_are_the_sum_row_by_row(seed: int) -> None:
    x, y, mapping, slots, rows = make_case(seed)
    expected = by_row(x, y, slots, rows)
    largest = np.abs(expected).max()
    for form in (add_lora_by_run, add_lora_grouped):
        got = y.copy()
        form(got, x, mapping, slots)
        assert np.abs(got - expected).max() <= 1e-5 * largest
        untouched = [i for i, slot in enumerate(rows) if slot is None]
        assert np.array_equal(got[untouched], y[untouched]), (
            "a row without an adapter is the base's"
        )


def test_neighbours_with_one_slot_are_one_run() -> None:
    mapping = LoRAMapping()
    mapping.set_rows([1, 1, None, 1, 0], [2, 3, 1, 4, 2])
    assert mapping.runs == [Run(0, 5, 1), Run(6, 10, 1), Run(10, 12, 0)]
    rows = mapping.groups[1]
    assert not isinstance(rows, slice)
    assert rows.tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert mapping.groups[0] == slice(10, 12)
    mapping.set_rows([None], [3])
    assert (mapping.runs, mapping.groups) == ([], {})


@pytest.mark.parametrize("seed", range(20))
def test_pieces_of_a_step_give_what_the_whole_gives(seed: int) -> None:
    x, y, mapping, slots, _ = make_case(seed)
    whole, pieces = y.copy(), y.copy()
    add_lora_by_run(whole, x, mapping, slots)
    before = mapping.runs
    for start in range(0, len(x), 5):
        with mapping.window(start, start + 5):
            add_lora_grouped(pieces[start : start + 5], x[start : start + 5], mapping, slots)
    assert mapping.runs == before
    assert np.allclose(whole, pieces, rtol=1e-5, atol=1e-4)


def test_a_packed_layer_adds_to_the_projections_that_the_adapter_has() -> None:
    rng = np.random.default_rng(0)
    weights = {f"{n}.weight": rng.standard_normal((4, 6)).astype(np.float32) for n in "qkv"}
    linear = Linear(weights, 6, dict.fromkeys("qkv", 4), False, NoQuantizationConfig())
    mapping = LoRAMapping()
    layer = LinearWithLoRA(linear, mapping)
    a, b = rng.standard_normal((2, 6)), rng.standard_normal((4, 2))
    pair = LoRALayerWeights(a.astype(np.float32), b.astype(np.float32))
    layer.set_lora(0, LoRAModel(2, {"v": pair}, b""))
    x = rng.standard_normal((3, 6)).astype(np.float32)
    base = linear(x)
    assert np.array_equal(layer(x), base)
    mapping.set_rows([0, None], [1, 2])
    got = layer(x)
    assert np.array_equal(got[:, :8], base[:, :8])
    assert np.array_equal(got[1:], base[1:])
    assert np.allclose(got[0, 8:] - base[0, 8:], b @ (a @ x[0]), atol=1e-4)
