"""A row that has seen nothing, in vLLM's own Triton kernel, under Triton's interpreter: no GPU needed.

    python phase-04-attention-backends/labs/lab-01-paged-attention-gather/in_vllm.py

A prompt of 64 tokens whose scores are all about the same, with a sliding window of 16 and without. The
kernel takes tiles of 32 keys, and 8 tokens at a time. Tokens 40 to 47 go together: token 40 sees keys 25 to
40, so the first tile is visited, and token 47 sees none of it.
"""

from __future__ import annotations

import os

# Triton reads the first when it is imported. The second is empty and not unset: vLLM then keeps its Triton
# kernels although there is no driver.
os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "VLLM_LOGGING_LEVEL": "ERROR"}

import warnings
from typing import Any

TOKENS, NUM_HEADS, NUM_KV_HEADS, HEAD_SIZE, BLOCK_SIZE = 64, 4, 2, 64, 16


def rows_that_are_not_numbers(score: float, window: int | None) -> list[int]:
    """The tokens of the prompt for which vLLM's kernel answers NaN.

    Args:
        score: what all scores lie near, at most 0.
        window: tokens that a token sees, itself included; None for all.
    """
    import torch
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    generator = torch.Generator().manual_seed(0)

    def near(value: float, *shape: int) -> Any:
        return value + 0.01 * torch.randn(shape, generator=generator)

    length = (-score * HEAD_SIZE**-0.5) ** 0.5
    query = near(length, TOKENS, NUM_HEADS, HEAD_SIZE)
    shape = (TOKENS // BLOCK_SIZE, BLOCK_SIZE, NUM_KV_HEADS, HEAD_SIZE)
    key_cache, value_cache = near(-length, *shape), near(1.0, *shape)
    out = torch.zeros_like(query)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's about 0 / 0, which is what this is about
        unified_attention(
            q=query,
            k=key_cache,
            v=value_cache,
            out=out,
            cu_seqlens_q=torch.tensor([0, TOKENS], dtype=torch.int32),
            max_seqlen_q=TOKENS,
            seqused_k=torch.tensor([TOKENS], dtype=torch.int32),
            max_seqlen_k=TOKENS,
            softmax_scale=HEAD_SIZE**-0.5,
            causal=True,
            window_size=(-1, -1) if window is None else (window - 1, 0),
            block_table=torch.arange(TOKENS // BLOCK_SIZE, dtype=torch.int32)[None],
            softcap=0.0,
            q_descale=None,
            k_descale=None,
            v_descale=None,
        )
    rows: list[int] = (~torch.isfinite(out)).flatten(1).any(1).nonzero().flatten().tolist()
    return rows


def main() -> None:
    print("scores near   window   tokens whose attention is NaN")
    for score in (-10.0, -110.0):
        for window in (None, 16):
            rows = rows_that_are_not_numbers(score, window)
            print(f"{score:11.0f}   {window or 'none':>6}   {rows or 'none'}")


if __name__ == "__main__":
    main()
