"""What `num_stages` makes of the W4A16 kernel: how its loads run ahead, read from the machine code. No GPU.

    python tracks/pipeline.py [GPU]      in the second environment of SETUP.md

Compiles `mini_vllm/gpu/kernels/wna16.py` for GPU, an architecture as a number (80 if not given), at one row
and 4,096 by 4,096 weights in groups of 128, with 1 to 5 stages. `loads` and `copies` are the instructions of
the main loop that read global memory into registers (LDG) and straight into shared memory (LDGSTS, which PTX
calls `cp.async`); `may be late` is how many groups of copies may still be under way when a trip begins.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from course.kernels import sass
from course.kernels.compiled import TOOLS
from course.kernels.loading import stand_in_driver
from mini_vllm.gpu.kernels.wna16 import plan_wna16, wna16_gemm

ROWS, OUTPUTS, INPUTS, GROUP = 1, 4096, 4096, 128


def compile_with(num_stages: int, capability: int) -> Any:
    """The binary of the kernel with so many stages."""
    plan = plan_wna16(ROWS, OUTPUTS, INPUTS, GROUP, capability=capability, num_sms=108)
    found: list[Any] = []
    run = JITFunction.run

    def compile_only(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(run(kernel, *args, **(kwargs | {"warmup": True})))
        return found[-1]

    JITFunction.run = compile_only
    try:
        wna16_gemm(
            torch.empty(ROWS, INPUTS, dtype=torch.float16),
            torch.empty(OUTPUTS, INPUTS // 8, dtype=torch.int32),
            torch.empty(OUTPUTS, INPUTS // GROUP, dtype=torch.float16),
            plan=replace(plan, num_stages=num_stages, splits=1),
        )
    finally:
        JITFunction.run = run
    return found[0]


def describe(num_stages: int, capability: int) -> list[object]:
    """A row of the table."""
    binary = compile_with(num_stages, capability)
    resources, text = sass.disassemble(binary.asm["cubin"], TOOLS)
    code = sass.read(resources, text)
    waits = re.findall(r"DEPBAR\.LE SB0, (0x[0-9a-f]+)", text)
    late = max((int(one, 16) for one in waits), default=0)
    names = [name.split(".")[0] for name, times in code.loop.items() for _ in range(times)]
    return [
        num_stages,
        binary.metadata.shared,
        code.registers,
        names.count("LDG"),
        names.count("LDGSTS"),
        late,
    ]


def main(gpu: str = "80") -> None:
    stand_in_driver(int(gpu))
    print(
        ("{:>12}" * 6).format("num_stages", "shared", "registers", "loads", "copies", "may be late")
    )
    for num_stages in range(1, 6):
        print(("{:>12,}" * 6).format(*describe(num_stages, int(gpu))))


if __name__ == "__main__":
    main(*sys.argv[1:])
