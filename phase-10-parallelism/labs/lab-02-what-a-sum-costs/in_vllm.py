"""Given: your crossing beside the gate of vLLM's own kernel. Needs vLLM 0.22.1; `course grade` does not.

python in_vllm.py [solution | starter]

The gate is `CustomAllreduce.should_custom_ar`, asked on an object without a GPU; its limits are vLLM's table.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from course.learner.labs import load_module, need_vllm

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_10_02_support")


def make_gate(capability: str | None, world_size: int, fully_connected: bool = True) -> Any:
    """`CustomAllreduce` as it is after `__init__`, without buffers; a capability: symmetric memory is on."""
    from vllm.distributed.device_communicators.all_reduce_utils import CUSTOM_ALL_REDUCE_MAX_SIZES
    from vllm.distributed.device_communicators.custom_all_reduce import CustomAllreduce

    gate = CustomAllreduce.__new__(CustomAllreduce)
    gate.disabled = world_size not in CustomAllreduce._SUPPORTED_WORLD_SIZES
    gate.disabled |= world_size > 2 and not fully_connected
    gate.world_size, gate.fully_connected, gate._ptr = world_size, fully_connected, 0
    gate.max_size = 8192 * 1024
    if capability in CUSTOM_ALL_REDUCE_MAX_SIZES and not gate.disabled:
        gate.max_size = min(CUSTOM_ALL_REDUCE_MAX_SIZES[capability][world_size], gate.max_size)
    return gate


def is_let_through(gate: Any, nbytes: int) -> bool:
    """Whether the gate lets an array of so many bytes pass."""
    import torch

    return bool(gate.should_custom_ar(torch.empty(nbytes, dtype=torch.uint8)))


def main(which: str = "starter") -> None:
    need_vllm()
    lab = load_module(HERE / f"{which}.py", f"lab_10_02_{which}")
    row = support.BIG.hidden_size * 2
    print("ranks  requests that decode: your one shot, up to   the gate, up to: alone   H100")
    for ranks in (2, 4, 8):
        at = lab.crossing(support.NVLINK, ranks)
        mine = "any" if at == float("inf") else f"{int(at // row)}"
        most = []
        for capability in (None, "9.0"):
            gate = make_gate(capability, ranks)
            most.append(sum(is_let_through(gate, row * n) for n in range(1, 1025)))
        print(f"{ranks:5}{mine:>42}{most[0]:>25}{most[1]:7}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
