"""What the compiler makes of the experts' product: lab 07-04's kernel beside vLLM's, for 1 to 4,096 tokens.

    python -m benchmarks.moe_kernel [--save] [--file FILE]

The product is the first of a layer, in float16: 2,048 inputs and 1,536 outputs as an expert of
Qwen3-30B-A3B has them, 8 experts, 2 a token. vLLM's `fused_moe_kernel` gets the tile that
`get_default_config` takes for so many tokens; the lab's gets the height of the same tile, and keeps its own
width. Both are compiled ahead of time for four architectures and not run: registers a thread, shared memory
a program in bytes, instructions that spill. No GPU is needed, only Triton, and vLLM for its half.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import machine

FILE = (
    Path(__file__).parent.parent / "phase-07-gemm-and-moe/labs/lab-04-triton-fused-moe/solution.py"
)
TOKENS = (1, 16, 64, 256, 1024, 4096)


def compile_at(tokens: int, file: Path) -> Iterator[dict[str, Any]]:
    """A row for each kernel and architecture."""
    from vllm.model_executor.layers.fused_moe.fused_moe import get_default_config

    from course.kernels.compiled import Compiled
    from course.kernels.loading import call, load_entry
    from course.kernels.problems import fused_moe as problem

    bench = Compiled(problem, vllm=False)
    experts, outputs, inputs = bench.case.inputs["w"].shape
    top_k = bench.case.inputs["top_k"]
    tile = get_default_config(tokens, experts, outputs // 2, inputs, top_k, None)
    bench.case = case = problem.shape(tokens, tile["BLOCK_SIZE_M"])
    entry = load_entry(file, problem.ENTRY)
    launches = {
        "the lab's": partial(call, entry, case.inputs, file),
        "vLLM's": partial(problem.vllm, case, 0, **tile),
    }
    for whose, launch in launches.items():
        for built in bench.build(whose, launch):
            yield {
                "tokens": tokens,
                "rows of a tile": tile["BLOCK_SIZE_M"],
                "kernel": whose,
                "GPU": f"sm_{built.capability}",
                "warps": built.warps,
                "registers": built.code.registers,
                "shared": built.shared,
                "spills": built.code.spills,
            }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", type=Path, default=FILE, help="the kernel (lab 07-04's solution)")
    parser.add_argument(
        "--save", action="store_true", help="write benchmarks/results/moe-kernel.json"
    )
    args = parser.parse_args(argv)
    for name in ("triton", "vllm"):
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed")
            return 1
    os.environ["CUDA_VISIBLE_DEVICES"] = (
        ""  # with a name of none, vLLM keeps Triton where no driver is
    )
    rows = [row for tokens in TOKENS for row in compile_at(tokens, args.file)]
    print(machine.table(rows))
    if args.save:
        print(machine.save("moe-kernel", "python -m benchmarks.moe_kernel", rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
