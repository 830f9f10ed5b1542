"""Your kernel on three sequences, beside attention over a gathered copy.

    python show.py [--impl FILE] [--device cuda]

On the CPU Triton's interpreter runs it, so no time is shown. On a GPU it is timed as well, on longer
sequences.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from course.learner.stubs import unwritten


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernel_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--impl", default="starter", help="starter (default), solution, or a file")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", action="store_true", help="the figures only, for a program")
    args = parser.parse_args()
    if args.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
    import torch

    from mini_vllm.gpu.attention import least_bytes
    from mini_vllm.gpu.attention import paged_decode as reference

    folder = Path(__file__).parent
    path = folder / f"{args.impl}.py" if args.impl in ("starter", "solution") else Path(args.impl)
    if "decode_kernel" in unwritten(path.read_text(encoding="utf-8")):
        raise SystemExit(
            "decode_kernel is not written yet. Finish it in starter.py, or run with --impl solution."
        )
    lab = load(path)
    lens = [100, 37, 1] if args.device == "cpu" else [60_000, 30_000, 10]
    heads, kv_heads, head_size, block_size = 8, 2, 64, 16
    rng = torch.Generator().manual_seed(0)
    blocks = [-(-n // block_size) for n in lens]
    ids = torch.randperm(sum(blocks) + 3, generator=rng).int()
    table = torch.zeros(len(lens), max(blocks), dtype=torch.int32)
    for row, count in enumerate(blocks):
        table[row, :count], ids = ids[:count], ids[count:]
    pool = (sum(blocks) + 3, block_size, kv_heads, head_size)
    query = torch.randn(len(lens), heads, head_size, generator=rng)
    tensors = [query, *(torch.randn(pool, generator=rng) for _ in "kv")]
    query, key, value = (t.half().to(args.device) for t in tensors)
    table, seq_lens = table.to(args.device), torch.tensor(lens).int().to(args.device)
    call = (query, key, value, table, seq_lens, head_size**-0.5)
    out = lab.paged_decode(*call)
    error = float((out.double() - reference(*call)).abs().max())
    moved = least_bytes(lens, heads, kv_heads, head_size, block_size, 2)
    if args.json:
        print(json.dumps({"error": error}))
        return
    for length, row, count in zip(lens, table.tolist(), blocks, strict=True):
        more = " ..." if count > 7 else ""
        print(f"{length:6} tokens in blocks {' '.join(map(str, row[: min(count, 7)]))}{more}")
    print(f"largest difference to attention over a gathered copy: {error:.1e}")
    print(f"bytes that any kernel must move: {moved:,}")
    if args.device == "cuda":
        import triton

        ms = triton.testing.do_bench(lambda: lab.paged_decode(*call), return_mode="median")
        copy = torch.empty(moved // 2, dtype=torch.int8, device="cuda")
        other = torch.empty_like(copy)
        copied = triton.testing.do_bench(lambda: other.copy_(copy), return_mode="median")
        print(f"{1000 * ms:.0f} us; a copy that moves as many bytes: {1000 * copied:.0f} us")


if __name__ == "__main__":
    main()
