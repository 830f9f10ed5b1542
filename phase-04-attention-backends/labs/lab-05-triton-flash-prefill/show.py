"""Your kernel on Jon's chunk and two more, beside attention over a gathered copy.

    python show.py [--impl FILE] [--device cuda]

On the CPU Triton's interpreter runs it, so no time is shown. On a GPU it is timed as well, on longer
chunks.
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

    from mini_vllm.gpu.attention import least_flops, paged_attention

    folder = Path(__file__).parent
    path = folder / f"{args.impl}.py" if args.impl in ("starter", "solution") else Path(args.impl)
    if "prefill_kernel" in unwritten(path.read_text(encoding="utf-8")):
        raise SystemExit(
            "prefill_kernel is not written yet. Finish it in starter.py, or run with --impl solution."
        )
    lab = load(path)
    small = args.device == "cpu"
    lens, queries = ([60, 90, 40], [60, 30, 1]) if small else ([2048, 6000, 3000], [2048, 2000, 1])
    heads, kv_heads, head_size, block_size = 8, 2, 64, 16
    rng = torch.Generator().manual_seed(0)
    blocks = [-(-n // block_size) for n in lens]
    ids = torch.randperm(sum(blocks) + 3, generator=rng).int()
    table = torch.zeros(len(lens), max(blocks), dtype=torch.int32)
    for row, count in enumerate(blocks):
        table[row, :count], ids = ids[:count], ids[count:]
    pool = (sum(blocks) + 3, block_size, kv_heads, head_size)
    query = torch.randn(sum(queries), heads, head_size, generator=rng)
    floats = [query, *(torch.randn(pool, generator=rng) for _ in "kv")]
    starts = torch.tensor([0, *queries]).cumsum(0)
    whole = [t.int().to(args.device) for t in (table, torch.tensor(lens), starts)]
    call = (*(t.half().to(args.device) for t in floats), *whole, head_size**-0.5)
    out = lab.paged_prefill(*call)
    error = float((out.double() - paged_attention(*call)).abs().max())
    if args.json:
        print(json.dumps({"error": error}))
        return
    for length, new in zip(lens, queries, strict=True):
        print(f"{new:5} tokens at positions {length - new} to {length - 1}")
    work = least_flops(lens, queries, heads, head_size)
    print(f"largest difference to attention over a gathered copy: {error:.1e}")
    print(f"multiplications and additions over visible keys: {work:,}")
    if args.device == "cuda":
        import triton

        ms = triton.testing.do_bench(lambda: lab.paged_prefill(*call), return_mode="median")
        print(f"{1000 * ms:.0f} us, {work / ms / 1e9:.1f} TFLOP/s")


if __name__ == "__main__":
    main()
