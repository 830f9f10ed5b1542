"""Your kernels' noise and tokens beside numpy's, and on a GPU their time beside torch's.

    python show.py [--impl FILE] [--device cuda]

On the CPU Triton's interpreter runs them, on few tokens, and no time is shown. On a GPU a step of 64 seeded
requests over 128,256 tokens is timed, beside the same step as model runner V1 draws it in torch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from course.kernels.script import load, options


def measure_noise(lab: Any, device: str) -> tuple[int, int, float]:
    """How many noise numbers there are, how many are not numpy's, and the largest difference.

    Of each block one token is left, with 0 for a logit, so the block's best score is that token's noise.
    """
    import numpy as np
    import torch

    from mini_vllm.sample.gumbel import gumbel_noise

    rows, blocks, width = 16, 16, 16
    rng = np.random.default_rng(0)
    left = np.arange(blocks) * width + rng.integers(0, width, (rows, blocks))
    seeds, positions = rng.integers(-(2**63), 2**63, rows), rng.integers(0, 5000, rows)
    logits = np.full((rows, blocks * width), -np.inf, np.float32)
    np.put_along_axis(logits, left, 0, 1)
    given = (logits, np.arange(rows, dtype=np.int32), np.ones(rows, np.float32), seeds, positions)
    best = torch.empty(rows, blocks, device=device)
    token = torch.empty(rows, blocks, dtype=torch.int64, device=device)
    lab.block_kernel[(rows, blocks)](
        best, token, *(torch.from_numpy(one).to(device) for one in given),
        blocks * width, blocks * width, blocks, BLOCK=width,
    )  # fmt: skip
    keys = zip(seeds.tolist(), positions.tolist(), left, strict=True)
    apart = np.abs(best.cpu().numpy() - np.stack([gumbel_noise(*key) for key in keys]))
    return apart.size, int((apart != 0).sum()), float(apart.max())


def count_other_tokens(lab: Any, device: str) -> tuple[int, int]:
    """How many rows there are, and how many draw another token than numpy does."""
    import numpy as np
    import torch

    from mini_vllm.sample.gumbel import gumbel_sample

    rows, vocab_size = 24, 3000
    rng = np.random.default_rng(1)
    logits = (rng.standard_normal((rows, vocab_size)) * 3).astype(np.float32)
    slot, seeds = np.arange(rows), rng.integers(0, 2**63, rows)
    temperature = np.resize(np.float32([0.0, 0.7, 1.0, 1.5]), rows)
    positions = rng.integers(0, 5000, rows)
    given = (logits, slot.astype(np.int32), temperature, seeds, positions)
    drawn = lab.gumbel_sample(*(torch.from_numpy(one).to(device) for one in given))
    expected = gumbel_sample(logits, temperature, seeds, positions)
    return rows, int((drawn.cpu().numpy() != expected).sum())


def print_times(lab: Any) -> None:
    """On a GPU: both kernels, and the same draw as model runner V1 makes it."""
    import torch
    import triton

    rows, vocab_size = 64, 128256
    logits = torch.randn(rows, vocab_size, device="cuda")
    slot = torch.arange(rows, dtype=torch.int32, device="cuda")
    temperature = torch.full((rows,), 0.7, device="cuda")
    seeds, positions = slot.long(), slot.long()
    generators = [torch.Generator("cuda").manual_seed(row) for row in range(rows)]

    def race() -> Any:
        """As `random_sample` of vLLM's: a stream for each seeded row."""
        p = (logits / temperature[:, None]).softmax(-1)
        noise = torch.empty_like(p)
        for row, generator in enumerate(generators):
            noise[row].exponential_(generator=generator)
        return p.div_(noise).argmax(-1)

    def bench(run: Any) -> float:
        return 1000 * float(triton.testing.do_bench(run, return_mode="median"))

    mine = bench(lambda: lab.gumbel_sample(logits, slot, temperature, seeds, positions))
    print(f"{rows} seeded rows of {vocab_size:,} tokens: yours {mine:.0f} us", end=", ")
    print(f"a stream a row in torch {bench(race):.0f} us")


def main() -> None:
    args = options(__doc__)  # for the CPU it sets TRITON_INTERPRET, before triton is imported
    lab = load(args.impl, Path(__file__).parent, "block_kernel", "row_kernel")
    numbers, others, apart = measure_noise(lab, args.device)
    rows, wrong = count_other_tokens(lab, args.device)
    if args.json:
        print(json.dumps({"error": max(apart, wrong), "other numbers": others}))
        return
    print(
        f"noise: {others} of {numbers} numbers are not numpy's, the largest difference is {apart:.0e}"
    )
    print(f"tokens: {wrong} of {rows} rows draw another one than numpy")
    if args.device == "cuda":
        print_times(lab)


if __name__ == "__main__":
    main()
