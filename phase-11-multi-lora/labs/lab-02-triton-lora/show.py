"""Your kernels on q, k and v of a layer of Noor's model, beside the deltas in float64.

    python show.py [--impl FILE] [--device cuda]

On the CPU Triton's interpreter runs them, on a much smaller layer, and no time is shown. On a GPU they
are timed, beside a loop over the adapters in torch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from course.kernels.script import load, options

SLOTS, RANK = 8, 16


def main() -> None:
    args = options(__doc__)  # for the CPU it sets TRITON_INTERPRET, before triton is imported
    lab = load(args.impl, Path(__file__).parent, "shrink_kernel", "expand_kernel")
    import torch

    from course.kernels.problems.lora import sort_rows

    small = args.device == "cpu"
    widths, inputs = ([128, 32, 32], 128) if small else ([4096, 1024, 1024], 4096)
    edges = [0, *torch.tensor(widths).cumsum(0).tolist()]
    torch.manual_seed(0)
    kind = {"dtype": torch.float16, "device": args.device}
    lora_a = torch.randn(3, SLOTS, RANK, inputs, **kind) / inputs**0.5
    lora_b = torch.randn(SLOTS, edges[-1], RANK, **kind) / RANK**0.5
    slice_starts = torch.tensor(edges, dtype=torch.int32, device=args.device)
    worst = 0.0
    for rows in (1, 24) if small else (1, 16, 64, 1024):
        x = torch.randn(rows, inputs, **kind)
        y = torch.randn(rows, edges[-1], **kind)
        slot_of = torch.randint(-1, SLOTS, (rows,), dtype=torch.int32)
        slot_of[0] = 3
        slot_of = slot_of.to(args.device)
        lists = sort_rows(slot_of, SLOTS)
        given = (y, x, lora_a, lora_b, slice_starts, widths, *lists.values())
        out = lab.add_lora(*given)

        def by_adapter(x: Any = x, y: Any = y, slot_of: Any = slot_of, dtype: Any = None) -> Any:
            """A loop over the adapters, each with its rows."""
            made = y.to(dtype or y.dtype, copy=True)
            for slot in slot_of.unique().tolist():
                mine = slot_of == slot
                for piece in range(3) if slot >= 0 else ():
                    a, b = lora_a[piece, slot], lora_b[slot, edges[piece] : edges[piece + 1]]
                    delta = x[mine].to(made.dtype) @ a.to(made.dtype).T @ b.to(made.dtype).T
                    made[mine, edges[piece] : edges[piece + 1]] += delta
            return made

        expected = by_adapter(dtype=torch.float64)
        worst = max(worst, float((out.double() - expected).abs().max() / expected.abs().max()))
        if args.json:
            continue
        none, adapters = int((slot_of < 0).sum()), len(slot_of[slot_of >= 0].unique())
        print(f"{rows:5} rows, {none} without, {adapters} adapters: error {worst:.0e}")
        if not small:
            import triton

            def bench(run: Any) -> float:
                return 1000 * triton.testing.do_bench(run, return_mode="median")

            mine = bench(lambda: lab.add_lora(*given))  # noqa: B023
            print(f"      yours {mine:.0f} us, a loop in torch {bench(by_adapter):.0f} us")
    if args.json:
        print(json.dumps({"error": worst}))


if __name__ == "__main__":
    main()
