"""vLLM's own merge of parts and its 16 segments, under Triton's interpreter: no GPU needed.

python phase-04-attention-backends/labs/lab-03-flash-decoding-partitions/in_vllm.py

It needs vLLM (SETUP.md).
"""

from __future__ import annotations

import os

# Triton reads the first when it is imported. The second is empty and not unset: vLLM then keeps its Triton
# kernels although there is no driver.
os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "VLLM_LOGGING_LEVEL": "ERROR"}

import math
import warnings
from importlib.util import find_spec

NUM_HEADS, NUM_KV_HEADS, HEAD_SIZE, BLOCK_SIZE, SEGMENTS = 4, 2, 64, 16, 16


def segments_with_keys(seq_len: int) -> int:
    """In how many of its 16 segments vLLM's kernel leaves a maximum, for a request that decodes alone."""
    import torch
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    generator = torch.Generator().manual_seed(0)
    blocks = -(-seq_len // BLOCK_SIZE)
    query = torch.randn(1, NUM_HEADS, HEAD_SIZE, generator=generator)
    shape = (2, blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_SIZE)
    key_cache, value_cache = torch.randn(shape, generator=generator)
    largest = torch.full((1, NUM_HEADS, SEGMENTS), math.nan)
    unified_attention(
        q=query,
        k=key_cache,
        v=value_cache,
        out=torch.zeros_like(query),
        cu_seqlens_q=torch.tensor([0, 1], dtype=torch.int32),
        max_seqlen_q=1,
        seqused_k=torch.tensor([seq_len], dtype=torch.int32),
        max_seqlen_k=seq_len,
        softmax_scale=HEAD_SIZE**-0.5,
        causal=True,
        window_size=(-1, -1),
        block_table=torch.arange(blocks, dtype=torch.int32)[None],
        softcap=0.0,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        seq_threshold_3D=128 // NUM_KV_HEADS,
        num_par_softmax_segments=SEGMENTS,
        softmax_segm_output=torch.zeros(1, NUM_HEADS, SEGMENTS, HEAD_SIZE),
        softmax_segm_max=largest,
        softmax_segm_expsum=torch.zeros(1, NUM_HEADS, SEGMENTS),
    )
    return int(torch.isfinite(largest[0, 0]).sum())


def merged(
    out_a: list[float], lse_a: float, out_b: list[float], lse_b: float
) -> tuple[list[float], float]:
    """What vLLM's `merge_attn_states` makes of two parts of one row: the output and its log-sum-exp."""
    import torch
    from vllm.v1.attention.ops.triton_merge_attn_states import merge_attn_states

    out = torch.zeros(1, 1, len(out_a))
    lse = torch.zeros(1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's about inf - inf
        merge_attn_states(
            out,
            torch.tensor([[out_a]]),
            torch.tensor([[lse_a]]),
            torch.tensor([[out_b]]),
            torch.tensor([[lse_b]]),
            lse,
        )
    return out[0, 0].tolist(), lse.item()


def main() -> None:
    if find_spec("vllm") is None:
        raise SystemExit("vllm is not installed here; see SETUP.md")
    for seq_len in (203, 300, 4096):
        print(f"{seq_len:5,} tokens: keys in {segments_with_keys(seq_len)} of {SEGMENTS} segments")
    print()
    print("outputs 1 and 5, with lse    merged   lse")
    for lse_a, lse_b in (
        (0.0, math.log(3)),
        (9000.0, 9000.0),
        (math.inf, 2.0),
        (-math.inf, math.inf),
    ):
        [out], lse = merged([1.0], lse_a, [5.0], lse_b)
        print(f"{lse_a:8g} and {lse_b:8.4g}       {out:9g} {lse:8.5g}")


if __name__ == "__main__":
    main()
