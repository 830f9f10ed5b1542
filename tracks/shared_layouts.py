"""How a kernel's tiles lie in shared memory, as Triton's compiler decided: one line a tile. No GPU.

    python tracks/shared_layouts.py FILE PROBLEM [GPU]      in the second environment of SETUP.md

GPU is the architecture as a number, 80 if not given. The lines are those of Triton's GPU dialect that
allocate shared memory: shape and type of the tile, then how it is swizzled.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import torch
import triton
from triton.runtime.jit import JITFunction

from course.kernels.compiled import StandIn
from course.kernels.loading import call, load_entry
from course.kernels.problems import PROBLEMS

_LAYOUT = re.compile(r"^(#shared\d*) = (.*)$", re.M)
_TILE = re.compile(r"ttg\.local_alloc.*?memdesc<([\w]+), (#shared\d*)")


def describe_tiles(name: str, dialect: str) -> list[str]:
    """A line for each tile of the kernel `name`, from the text of its GPU dialect."""
    layouts = dict(_LAYOUT.findall(dialect))
    return [f"{name}  {tile:<12}  {layouts[layout]}" for tile, layout in _TILE.findall(dialect)]


def main(file: str, problem: str, gpu: str = "80") -> None:
    path, asked = Path(file), importlib.import_module(PROBLEMS[problem])
    run = JITFunction.run
    triton.runtime.driver.set_active(StandIn(int(gpu)))
    torch.cuda.get_device_capability = lambda device=None: divmod(int(gpu), 10)

    def compile_only(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        binary = run(kernel, *args, **(kwargs | {"warmup": True}))
        for line in describe_tiles(kernel.__name__, binary.asm["ttgir"]):
            print(line)
        return binary

    JITFunction.run = compile_only
    call(load_entry(path, asked.ENTRY), asked.shape().inputs, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
