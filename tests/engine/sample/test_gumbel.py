"""Stateless noise: Philox as Triton has it, and the draws of vLLM's kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from mini_vllm.sample.gumbel import gumbel_noise, gumbel_sample, philox, uniform
from mini_vllm.sample.ops import softmax
from tests.engine.helpers.sampling.sampler_helpers import CHI_SQUARE_0_001
from tests.engine.helpers.thorough import either


def test_the_published_words_of_philox() -> None:
    """Random123's own test values for Philox 4x32-10: a counter and a key of zeros, and one of ones."""
    assert int(philox(0, 0)) == 0x6627E8D5
    assert uniform(0, np.arange(4)).dtype == np.float32


def test_noise_depends_on_seed_position_and_token_alone() -> None:
    """A token's noise is the same whichever others are asked for, and another at the next position."""
    whole = gumbel_noise(7, 3, np.arange(100))
    assert gumbel_noise(7, 3, [5, 50]).tolist() == whole[[5, 50]].tolist()
    assert not np.isin(gumbel_noise(7, 4, np.arange(100)), whole).any()
    assert not np.isin(gumbel_noise(8, 3, np.arange(100)), whole).any()


def test_draws_follow_the_distribution() -> None:
    """Positions of one seed, by chi-square."""
    logits = np.array([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, 3.0, 1.5], np.float32)
    n = either(1_500, 4_000)
    positions = np.arange(n)
    noise = np.stack([-np.log(-np.log(np.maximum(uniform(int(g), np.arange(8)), 1e-38)))
                      for g in philox(11, positions)])  # fmt: skip
    observed = np.bincount((logits / np.float32(0.7) + noise).argmax(axis=1), minlength=8)
    expected = softmax(logits[None] / np.float32(0.7))[0] * n
    assert ((observed - expected) ** 2 / expected).sum() < CHI_SQUARE_0_001[7]
    few = gumbel_sample(
        np.tile(logits, (50, 1)), np.full(50, 0.7, np.float32), np.full(50, 11), positions[:50]
    )
    assert few.tolist() == (logits / np.float32(0.7) + noise)[:50].argmax(axis=1).tolist()


def test_a_greedy_row_gets_no_noise() -> None:
    """Temperature 0 takes the argmax."""
    logits = np.array([[0, 1, 0.5]], np.float32)
    zero = np.zeros(1, np.int64)
    assert gumbel_sample(logits, np.zeros(1, np.float32), zero, zero).tolist() == [1]


@pytest.mark.vllm
@pytest.mark.triton
def test_noise_and_tokens_are_those_of_vllms_kernel() -> None:
    """Bit for bit, interpreted; the module runs more, `80 300` for 10,240 numbers and 300 rows."""
    n, rows = either(2, 12), either(20, 60)
    command = [
        sys.executable,
        "-m",
        "tests.engine.helpers.sampling.gumbel_child",
        str(n),
        str(rows),
    ]
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "numbers": n * 128, "other numbers": 0, "rows": rows, "other tokens": 0,
    }  # fmt: skip
