"""Your kernel on the first product of a layer of Ilse's model, beside the products in float64.

    python show.py [--impl FILE] [--device cuda]

On the CPU Triton's interpreter runs it, on a much smaller layer, and no time is shown. On a GPU the whole
layer is timed, beside a loop over the experts in torch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from course.kernels.script import load, options

EXPERTS, TOP_K = 8, 2


def main() -> None:
    args = options(__doc__)  # for the CPU it sets TRITON_INTERPRET, before triton is imported
    lab = load(args.impl, Path(__file__).parent, "moe_kernel")
    import torch

    from course.kernels.problems.fused_moe import align

    small = args.device == "cpu"
    outputs, inputs = (128, 256) if small else (28672, 4096)  # gate and up of Mixtral's experts
    torch.manual_seed(0)
    w = torch.randn(EXPERTS, outputs, inputs, dtype=torch.float16, device=args.device)
    worst = 0.0
    for tokens in (1, 16) if small else (1, 16, 64, 1024):
        block = 16 if tokens <= 32 else 64
        x = torch.randn(tokens, inputs, dtype=torch.float16, device=args.device)
        ids = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(tokens)])
        ids = ids.int().to(args.device)
        listed = align(ids, block, EXPERTS)
        out = lab.moe_gemm(x, w, None, *listed, TOP_K, block)

        def by_expert(x: Any = x, ids: Any = ids, dtype: Any = None) -> Any:
            """A loop over the experts, each with the rows of its pairs."""
            of_pairs, flat = x.repeat_interleave(TOP_K, 0), ids.flatten()
            made = torch.empty(len(flat), outputs, dtype=dtype or x.dtype, device=x.device)
            for expert in flat.unique().tolist():
                mine = flat == expert
                made[mine] = of_pairs[mine].to(made.dtype) @ w[expert].to(made.dtype).T
            return made

        expected = by_expert(dtype=torch.float64)
        worst = max(worst, float((out.double() - expected).abs().max() / expected.abs().max()))
        if args.json:
            continue
        rows, chosen = int(listed[2]), len(ids.unique())
        print(
            f"{tokens:5} tokens, {rows} rows in blocks of {block}, {chosen} experts: error {worst:.0e}"
        )
        if not small:
            import triton

            def bench(run: Any) -> float:
                return 1000 * triton.testing.do_bench(run, return_mode="median")

            mine = bench(lambda: lab.moe_gemm(x, w, None, *listed, TOP_K, block))  # noqa: B023
            print(f"      yours {mine:.0f} us, a loop in torch {bench(by_expert):.0f} us")
    if args.json:
        print(json.dumps({"error": worst}))


if __name__ == "__main__":
    main()
