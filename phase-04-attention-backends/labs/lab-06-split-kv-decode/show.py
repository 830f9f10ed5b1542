"""Your kernels on Ida's long chat and two short ones, beside attention over a gathered copy.

    python show.py [--impl FILE] [--device cuda]

On the CPU Triton's interpreter runs them, so no time is shown. On a GPU they are timed as well, on longer
sequences, with the keys in one split and in many.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from course.kernels.script import BLOCK_SIZE, HEAD_SIZE, HEADS, KV_HEADS, draw, load, options


def main() -> None:
    args = options(__doc__)  # for the CPU it sets TRITON_INTERPRET, before triton is imported
    lab = load(args.impl, Path(__file__).parent, "split_kernel", "merge_kernel")
    from mini_vllm.gpu.attention import least_bytes, paged_decode

    small = args.device == "cpu"
    lens, split = ([200, 37, 1], 64) if small else ([60_000, 3000, 10], 512)
    query, key, value, table, seq_lens = draw(lens, len(lens), args.device)
    call = (query, key, value, table, seq_lens, HEAD_SIZE**-0.5)
    out = lab.split_decode(*call, split)
    error = float((out.double() - paged_decode(*call)).abs().max())
    if args.json:
        print(json.dumps({"error": error}))
        return
    for length in lens:
        print(f"{length:6} tokens in {-(-length // split)} splits of {split}")
    print(f"largest difference to attention over a gathered copy: {error:.1e}")
    moved = least_bytes(lens, HEADS, KV_HEADS, HEAD_SIZE, BLOCK_SIZE, 2)
    print(f"bytes that any kernel must move: {moved:,}")
    if args.device == "cuda":
        import triton

        for keys in (max(lens), split):
            ms = triton.testing.do_bench(
                lambda keys=keys: lab.split_decode(*call, keys), return_mode="median"
            )
            print(f"{keys:6} keys a split: {1000 * ms:.0f} us, {moved / ms / 1e6:.0f} GB/s")


if __name__ == "__main__":
    main()
