"""Your kernels on Ida's long chat and two short ones, beside attention over a gathered copy.

    python show.py [--impl FILE] [--device cuda]

On the CPU Triton's interpreter runs them, so no time is shown. On a GPU they are timed as well, on longer
sequences, with the keys in one split and in many.
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

    from mini_vllm.gpu.attention import least_bytes, paged_decode

    folder = Path(__file__).parent
    path = folder / f"{args.impl}.py" if args.impl in ("starter", "solution") else Path(args.impl)
    if names := {"split_kernel", "merge_kernel"} & {*unwritten(path.read_text(encoding="utf-8"))}:
        raise SystemExit(
            f"{' and '.join(sorted(names))} not written yet. Finish starter.py, or run with --impl solution."
        )
    lab = load(path)
    small = args.device == "cpu"
    lens, split = ([200, 37, 1], 64) if small else ([60_000, 3000, 10], 512)
    heads, kv_heads, head_size, block_size = 8, 2, 64, 16
    rng = torch.Generator().manual_seed(0)
    blocks = [-(-n // block_size) for n in lens]
    ids = torch.randperm(sum(blocks) + 3, generator=rng).int()
    table = torch.zeros(len(lens), max(blocks), dtype=torch.int32)
    for row, count in enumerate(blocks):
        table[row, :count], ids = ids[:count], ids[count:]
    pool = (sum(blocks) + 3, block_size, kv_heads, head_size)
    query = torch.randn(len(lens), heads, head_size, generator=rng)
    floats = [query, *(torch.randn(pool, generator=rng) for _ in "kv")]
    whole = [t.int().to(args.device) for t in (table, torch.tensor(lens))]
    call = (*(t.half().to(args.device) for t in floats), *whole, head_size**-0.5)
    out = lab.split_decode(*call, split)
    error = float((out.double() - paged_decode(*call)).abs().max())
    if args.json:
        print(json.dumps({"error": error}))
        return
    for length in lens:
        print(f"{length:6} tokens in {-(-length // split)} splits of {split}")
    print(f"largest difference to attention over a gathered copy: {error:.1e}")
    moved = least_bytes(lens, heads, kv_heads, head_size, block_size, 2)
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
