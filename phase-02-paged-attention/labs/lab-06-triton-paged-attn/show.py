"""Your kernel on three sequences, beside attention over a gathered copy.

    python show.py [--impl FILE] [--device cuda]

On the CPU Triton's interpreter runs it, so no time is shown. On a GPU it is timed as well, on longer
sequences.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from course.kernels.script import BLOCK_SIZE, HEAD_SIZE, HEADS, KV_HEADS, draw, load, options


def main() -> None:
    args = options(__doc__)  # for the CPU it sets TRITON_INTERPRET, before triton is imported
    lab = load(args.impl, Path(__file__).parent, "decode_kernel")
    from mini_vllm.gpu.attention import least_bytes
    from mini_vllm.gpu.attention import paged_decode as reference

    lens = [100, 37, 1] if args.device == "cpu" else [60_000, 30_000, 10]
    query, key, value, table, seq_lens = draw(lens, len(lens), args.device)
    call = (query, key, value, table, seq_lens, HEAD_SIZE**-0.5)
    out = lab.paged_decode(*call)
    error = float((out.double() - reference(*call)).abs().max())
    moved = least_bytes(lens, HEADS, KV_HEADS, HEAD_SIZE, BLOCK_SIZE, 2)
    if args.json:
        print(json.dumps({"error": error}))
        return
    for length, row in zip(lens, table.tolist(), strict=True):
        count = -(-length // BLOCK_SIZE)
        more = " ..." if count > 7 else ""
        print(f"{length:6} tokens in blocks {' '.join(map(str, row[: min(count, 7)]))}{more}")
    print(f"largest difference to attention over a gathered copy: {error:.1e}")
    print(f"bytes that any kernel must move: {moved:,}")
    if args.device == "cuda":
        import torch
        import triton

        ms = triton.testing.do_bench(lambda: lab.paged_decode(*call), return_mode="median")
        copy = torch.empty(moved // 2, dtype=torch.int8, device="cuda")
        other = torch.empty_like(copy)
        copied = triton.testing.do_bench(lambda: other.copy_(copy), return_mode="median")
        print(f"{1000 * ms:.0f} us; a copy that moves as many bytes: {1000 * copied:.0f} us")


if __name__ == "__main__":
    main()
