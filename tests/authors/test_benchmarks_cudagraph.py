"""`benchmarks/cudagraph.py` without a GPU: every row is made, and graphs change no number."""

from __future__ import annotations

import numpy as np
import pytest
from benchmark_helpers import dry_run


@pytest.mark.torch
def test_every_row_is_made_and_right() -> None:
    printed = dry_run("cudagraph", "--batch", "1", "8")
    rows = [line.split() for line in printed if "  NONE  " in line or "_ONLY" in line
            or "  PIECEWISE  " in line]  # fmt: skip
    assert [row[:3] for row in rows] == [
        [model, batch, mode]
        for model in ("shipped", "random")
        for batch in ("1", "8")
        for mode in ("NONE", "PIECEWISE", "FULL_DECODE_ONLY")
    ]
    for _, _, mode, ran_as, _, error, _ in rows:
        assert ran_as == {"FULL_DECODE_ONLY": "FULL"}.get(mode, mode)
        assert float(error) < 1e-5, (mode, error)
    shipped = [row[-1] for row in rows[:3]]
    assert shipped == ["-", "119", "215"], "kernels of a decode: in pieces, and in the whole model"


@pytest.mark.torch
def test_without_a_gpu_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from benchmarks.cudagraph import main

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="--dry-run needs none"):
        main([])


def test_the_large_model_is_llama_1b() -> None:
    from benchmarks.cudagraph import LLAMA_1B, RandomWeights

    shapes = RandomWeights(LLAMA_1B).shapes
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 1_235_814_400


def test_a_decode_step_is_laid_out_as_the_runner_does() -> None:
    """One row a request, and no two requests in one block."""
    from benchmarks.cudagraph import CONTEXT, decode_step

    ids, positions, metadata = decode_step(3, 5, 97)
    assert len(ids) == len(positions) == len(metadata.seq_lens) == 3
    assert positions.tolist() == [CONTEXT + 5] * 3
    assert metadata.seq_lens.tolist() == [CONTEXT + 6] * 3
    assert len(set(metadata.block_table.ravel().tolist())) == metadata.block_table.size
    assert metadata.max_query_len == 1
    assert len(set(metadata.slot_mapping.tolist())) == 3
