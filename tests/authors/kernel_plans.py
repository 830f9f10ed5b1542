"""Compiles the prefill kernel under its own plans, for GPUs that are not here.

    python tests/authors/kernel_plans.py

Prints a row of JSON for each plan: what was asked for, and what the compiler made of it. Needs torch and
Triton; must not run under the interpreter. A minute of processor time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

# dtype, head size, architectures, query tokens: a shorter chunk fills fewer rows.
SHAPES = [
    *[("float16", size, (75, 80, 90, 100), 2048) for size in (64, 96, 128, 256)],
    *[("float16", 128, (80, 90, 100), tokens) for tokens in (512, 8, 4)],
    ("bfloat16", 128, (80, 90), 2048),
    *[("float32", size, (75, 80, 90), 2048) for size in (64, 128)],
]


def main() -> None:
    import torch
    import triton
    from triton.runtime.jit import JITFunction

    from course.kernels import sass
    from course.kernels.compiled import TOOLS, StandIn
    from mini_vllm.gpu.kernels.paged_prefill import paged_prefill

    run = JITFunction.run
    for dtype, size, capabilities, tokens in SHAPES:
        # 32 query heads over 8 KV heads, one chunk at the end of 4,096 tokens.
        query = torch.zeros(tokens, 32, size, dtype=getattr(torch, dtype))
        key, value = torch.zeros(256, 2, 16, 8, size, dtype=query.dtype).unbind(1)
        table = torch.zeros(1, 256, dtype=torch.int32)
        lens, starts = (torch.tensor(x, dtype=torch.int32) for x in ([4096], [0, tokens]))
        for capability in capabilities:
            triton.runtime.driver.set_active(StandIn(capability))
            made: list[Any] = []

            def compile_only(kernel: Any, *args: Any, to: Any = made, **kw: Any) -> None:
                to.append((run(kernel, *args, **(kw | {"warmup": True})), kw["ROWS"]))

            JITFunction.run = compile_only
            try:
                paged_prefill(query, key, value, table, lens, starts, size**-0.5)
            finally:
                JITFunction.run = run
            [(binary, rows)] = made
            code = sass.read(*sass.disassemble(binary.asm["cubin"], TOOLS))
            row = {
                "GPU": capability, "dtype": dtype, "head": size, "tokens": tokens, "rows": rows,
                "registers": code.registers, "stack": code.stack, "spills": code.spills,
                "tensor core": code.tensor_core, "shared": binary.metadata.shared,
            }  # fmt: skip
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
