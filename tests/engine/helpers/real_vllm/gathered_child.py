"""vLLM's `_lora_expand` in Triton's interpreter, on shrunk rows of one rank, and of two gathered.

    TRITON_INTERPRET=1 CUDA_VISIBLE_DEVICES= python tests/engine/helpers/real_vllm/gathered_child.py

Prints how far each is from the product in float32. A process of its own, as Triton reads the variable once.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.lora.ops.triton_ops import lora_expand_op
from vllm.lora.ops.triton_ops.lora_kernel_metadata import LoRAKernelMeta
from vllm.utils import torch_utils

ROWS, RANK, OUTPUTS = 7, 16, 64


def main() -> None:
    to_device: Any = torch_utils.async_tensor_h2d
    to_device.__defaults__ = (False,)  # pinned memory takes a GPU
    no_driver: Any = lora_expand_op
    no_driver.supports_pdl = lambda device: False
    torch.manual_seed(0)
    slots = torch.tensor([1, 1, 1, -1, 0, -1, 1])
    meta = LoRAKernelMeta.make(2, ROWS, "cpu")
    meta.prepare_tensors(slots)
    b = torch.randn(2, 1, OUTPUTS, RANK).half()
    shrunk = torch.randn(1, ROWS, RANK).half().float()
    due = torch.zeros(ROWS, OUTPUTS)
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            due[row] = b[slot, 0].float() @ shrunk[0, row]
    for name, rows in (
        ("own", shrunk),
        ("gathered", torch.cat([shrunk, shrunk], -1)),
        ("gathered, the second half spoilt", torch.cat([shrunk, shrunk * 1000], -1)),
    ):
        y = torch.zeros(ROWS, OUTPUTS).half()
        lora_expand_op._lora_expand(rows, [b], y, *meta.meta_args(ROWS, False), 0, True)
        print(f"{name}: {float((y.float() - due).abs().max() / due.abs().max()):.4f}", flush=True)


if __name__ == "__main__":
    main()
