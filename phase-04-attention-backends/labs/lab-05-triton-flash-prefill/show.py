"""Your kernel on Jon's chunk and two more, beside attention over a gathered copy.

    python show.py [--impl FILE] [--device cuda]

On the CPU Triton's interpreter runs it, so no time is shown. On a GPU it is timed as well, on longer
chunks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from course.kernels.script import HEAD_SIZE, HEADS, draw, load, options


def main() -> None:
    args = options(__doc__)  # for the CPU it sets TRITON_INTERPRET, before triton is imported
    lab = load(args.impl, Path(__file__).parent, "prefill_kernel")
    import torch

    from mini_vllm.gpu.attention import least_flops, paged_attention

    small = args.device == "cpu"
    lens, queries = ([60, 90, 40], [60, 30, 1]) if small else ([2048, 6000, 3000], [2048, 2000, 1])
    starts = torch.tensor([0, *queries]).cumsum(0).int().to(args.device)
    query, key, value, table, seq_lens = draw(lens, sum(queries), args.device)
    call = (query, key, value, table, seq_lens, starts, HEAD_SIZE**-0.5)
    out = lab.paged_prefill(*call)
    error = float((out.double() - paged_attention(*call)).abs().max())
    if args.json:
        print(json.dumps({"error": error}))
        return
    for length, new in zip(lens, queries, strict=True):
        print(f"{new:5} tokens at positions {length - new} to {length - 1}")
    work = least_flops(lens, queries, HEADS, HEAD_SIZE)
    print(f"largest difference to attention over a gathered copy: {error:.1e}")
    print(f"multiplications and additions over visible keys: {work:,}")
    if args.device == "cuda":
        import triton

        ms = triton.testing.do_bench(lambda: lab.paged_prefill(*call), return_mode="median")
        print(f"{1000 * ms:.0f} us, {work / ms / 1e9:.1f} TFLOP/s")


if __name__ == "__main__":
    main()
