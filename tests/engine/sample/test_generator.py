"""The request's random stream: torch's own, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from mini_vllm.sample.generator import TorchGenerator
from tests.engine.helpers.thorough import either

KNOWN_EXPONENTIALS = [0.3276439309120178, 0.319783478975296, 1.981175422668457, 1.0691168308258057]
KNOWN_UNIFORMS = [0.9225293674529872, 0.8395453757623866]
SEEDS = (0, 7, 2**31 + 5, 2**32 - 1, 2**40 + 3, 2**64 - 1, -5)


def test_known_numbers() -> None:
    """What torch 2.11 draws on a CPU, so that a machine without torch has something to hold against."""
    generator = TorchGenerator(7)
    drawn = generator.standard_exponential(4)
    assert [float(x) for x in drawn] == KNOWN_EXPONENTIALS
    assert generator.random(2).tolist() == KNOWN_UNIFORMS


def test_pieces_make_the_same_stream_as_one_draw() -> None:
    """However small the pieces, and whatever was drawn ahead."""
    whole = TorchGenerator(3).random(20_000)
    rng, generator = np.random.default_rng(0), TorchGenerator(3)
    pieces: list[float] = []
    while len(pieces) < 15_000:
        pieces += generator.random(int(rng.choice([1, 7, 264, 2048, 3000]))).tolist()
    assert pieces == whole[: len(pieces)].tolist()


@pytest.mark.torch
@pytest.mark.parametrize("seed", SEEDS)
def test_the_stream_is_torchs(seed: int) -> None:
    """Exponentials and uniforms in turn, in pieces of any size."""
    import torch

    theirs = torch.Generator()
    theirs.manual_seed(seed)
    ours, rng = TorchGenerator(seed), np.random.default_rng(0)
    for _ in range(either(30, 300)):
        n = int(rng.choice([1, 3, 15, 16, 17, 264, 5000]))
        noise = torch.empty(n).exponential_(generator=theirs).numpy()
        assert np.array_equal(noise, ours.standard_exponential(n))
        uniform = torch.empty(n, dtype=torch.float64).uniform_(generator=theirs).numpy()
        assert np.array_equal(uniform, ours.random(n))
