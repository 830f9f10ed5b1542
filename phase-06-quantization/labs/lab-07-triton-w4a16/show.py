"""Your kernel on one layer of Noor's model, for one colleague and for many, beside the product in float64.

    python show.py [--impl FILE] [--device cuda]

On the CPU Triton's interpreter runs it, on a much smaller layer, and no time is shown. On a GPU the whole
layer is timed, beside torch's product with the same weights in 16 bits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from course.kernels.script import load, options

GROUP = 128


def draw(outputs: int, inputs: int, device: str) -> tuple[Any, Any, Any]:
    """int32 words, float16 scales and, in float16, the weights that they stand for; the same on every run."""
    import torch

    rng = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (outputs, inputs), generator=rng)
    scale = (0.005 + 0.01 * torch.rand(outputs, inputs // GROUP, generator=rng)).half()
    weight = ((codes - 8).float() * scale.float().repeat_interleave(GROUP, 1)).half()
    words = (codes.unflatten(1, (-1, 8)) << (4 * torch.arange(8))).sum(-1)
    packed = (words - (words >> 31 << 32)).int()
    return packed.to(device), scale.to(device), weight.to(device)


def main() -> None:
    args = options(__doc__)  # for the CPU it sets TRITON_INTERPRET, before triton is imported
    lab = load(args.impl, Path(__file__).parent, "unpack", "multiply_tile")
    import torch

    small = args.device == "cpu"
    outputs, inputs = (256, 512) if small else (4096, 14336)  # down_proj of Llama-3.1-8B
    packed, scale, weight = draw(outputs, inputs, args.device)
    exact = (codes_of(packed) - 8).double() * scale.double().repeat_interleave(GROUP, 1)
    rng = torch.Generator().manual_seed(1)
    worst = 0.0
    for rows in (1, 5) if small else (1, 8, 64):
        x = torch.randn(rows, inputs, generator=rng).half().to(args.device)
        out, expected = lab.w4a16_gemm(x, packed, scale), x.double() @ exact.T
        error = float((out.double() - expected).abs().max() / expected.abs().max())
        worst = max(worst, error)
        if args.json:
            continue
        moved = [t.numel() * t.element_size() for t in (packed, scale, x, out)]
        dense = 2 * weight.numel() + moved[2] + moved[3]
        print(f"{rows:3} rows of {inputs} inputs, {outputs} outputs: error {error:.0e}")
        fewer = dense / sum(moved)
        print(f"    {sum(moved):,} bytes at the least, {fewer:.2f} times fewer than in 16 bits")
        if not small:
            import triton

            def bench(run: Any) -> float:
                return 1000 * triton.testing.do_bench(run, return_mode="median")

            mine = bench(lambda x=x: lab.w4a16_gemm(x, packed, scale))
            other = bench(lambda x=x: x @ weight.T)
            print(
                f"    yours {mine:.0f} us, {sum(moved) / mine / 1e3:.0f} GB/s; 16 bits {other:.0f} us"
            )
    if args.json:
        print(json.dumps({"error": worst}))


def codes_of(packed: Any) -> Any:
    """The codes, 0 to 15, by torch."""
    import torch

    shift = 4 * torch.arange(8, dtype=torch.int32, device=packed.device)
    return ((packed[:, :, None] >> shift) & 15).flatten(1)


if __name__ == "__main__":
    main()
