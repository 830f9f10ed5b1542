"""Holds `mini_vllm.sample.gumbel` against vLLM's kernel: `python -m ... NUMBERS/128 ROWS`; prints JSON.

A process of its own, with TRITON_INTERPRET=1, because Triton reads that once and vLLM takes Triton for
missing where there is no GPU, unless its driver module is there before.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
import triton.runtime.driver  # noqa: F401  before vLLM
from vllm.v1.worker.gpu.sample import gumbel

from mini_vllm.sample.gumbel import gumbel_noise, gumbel_sample

BLOCKS, WIDTH = 128, 1024


def count_other_numbers(n: int) -> int:
    """A block's maximum is its one token's noise, where all other logits are -inf."""
    rng = np.random.default_rng(0)
    seeds, positions = rng.integers(-(2**63), 2**63 - 1, n), rng.integers(0, 1 << 20, n)
    tokens = np.arange(BLOCKS) * WIDTH + rng.integers(0, WIDTH, (n, BLOCKS))
    logits = torch.full((n, BLOCKS * WIDTH), -torch.inf)
    logits.scatter_(1, torch.from_numpy(tokens), 0.0)
    argmax, largest = torch.zeros(n, BLOCKS, dtype=torch.int64), torch.zeros(n, BLOCKS)
    rows, ones = torch.arange(n, dtype=torch.int32), torch.ones(n)
    gumbel._gumbel_sample_kernel[(n, BLOCKS)](
        argmax, argmax.stride(0), largest, largest.stride(0), None, 0, None, logits, logits.stride(0),
        rows, torch.from_numpy(seeds), torch.from_numpy(positions), ones, BLOCKS * WIDTH,
        BLOCK_SIZE=WIDTH, APPLY_TEMPERATURE=True, USE_FP64=False,
    )  # fmt: skip
    assert np.array_equal(argmax.numpy(), tokens)
    pairs = zip(seeds.tolist(), positions.tolist(), tokens, strict=True)
    ours = np.stack([gumbel_noise(*pair) for pair in pairs])
    return int((largest.numpy() != ours).sum())


def count_other_tokens(n: int) -> int:
    """Whole rows, greedy ones among them, seeds of 64 bits."""
    rng = np.random.default_rng(1)
    logits = (rng.standard_normal((n, 3000)) * 3).astype(np.float32)
    seeds, positions = rng.integers(-(2**63), 2**63 - 1, n), rng.integers(0, 5000, n)
    temperature = rng.choice([0.0, 0.7, 1.0, 1.5], n).astype(np.float32)
    theirs = gumbel.gumbel_sample(
        torch.from_numpy(logits), torch.arange(n, dtype=torch.int32), torch.from_numpy(temperature),
        torch.from_numpy(seeds), torch.from_numpy(positions), True,
    )  # fmt: skip
    return int((theirs.numpy() != gumbel_sample(logits, temperature, seeds, positions)).sum())


if __name__ == "__main__":
    numbers, rows = int(sys.argv[1]), int(sys.argv[2])
    answer = {
        "numbers": numbers * BLOCKS, "other numbers": count_other_numbers(numbers),
        "rows": rows, "other tokens": count_other_tokens(rows),
    }  # fmt: skip
    print(json.dumps(answer))
