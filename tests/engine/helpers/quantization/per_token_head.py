"""vLLM's own kernel for the per-token-head kinds, in Triton's interpreter: bytes and scales as JSON."""

from __future__ import annotations

import json
import os

os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}

import torch
from vllm.v1.attention.ops.triton_reshape_and_cache_flash import (
    triton_reshape_and_cache_flash_per_token_head_quant,
)

SLOTS = [3, 17, 40, 41, 8]


def main() -> None:
    torch.manual_seed(0)
    key = torch.randn(5, 2, 32) * torch.tensor([1.0, 1e-3, 300.0, 0.0, 5.0])[:, None, None]
    value = torch.randn(5, 2, 32)
    codes = [torch.zeros(8, 16, 2, 32, dtype=torch.int8) for _ in "kv"]
    scales = [torch.zeros(8, 16, 2) for _ in "kv"]
    triton_reshape_and_cache_flash_per_token_head_quant(
        key, value, *codes, *scales, torch.tensor(SLOTS)
    )
    stored = [x.reshape(128, 2, -1)[SLOTS].tolist() for x in (*codes, *scales)]
    print("\n" + json.dumps({"key": key.tolist(), "value": value.tolist(), "stored": stored}))


if __name__ == "__main__":
    main()
