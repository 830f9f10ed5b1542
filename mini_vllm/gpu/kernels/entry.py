"""One call for the attention of any batch: which kernel, and how it is cut.

Mirrors the choice in `vllm/v1/attention/ops/triton_unified_attention.py:763 unified_attention` and the
threshold in `vllm/v1/attention/backends/triton_attn.py:130 TritonAttentionMetadataBuilder`. Shapes stand in
`mini_vllm/gpu/attention.py`; K and V of this step are in the cache already.

At the pin one kernel serves every mix, in one launch: 2D, a program for 16 rows and a KV head, which
walks over all keys, or segmented, 16 programs for each of those and a merge. Segments are used where every
sequence has one query token, there are few of them, and batch invariance is not asked for. One chunk in
the batch, and its decodes are not split either.

Here there are two kernels, and the batch is cut between them. The decodes, which come first, go
through the split-KV kernel, the chunks behind them through the prefill kernel, and both write into one
result. So a long chat keeps its splits beside another request's prompt, for two launches more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mini_vllm.gpu.kernels import paged_decode as decode
from mini_vllm.gpu.kernels import paged_prefill as prefill

MIN_LAUNCH_GRID_SIZE_2D = 128
"""With fewer programs decoding is segmented
(`vllm/v1/attention/backends/triton_attn.py:54 MIN_LAUNCH_GRID_SIZE_2D`)."""


def segmented(num_decodes: int, num_kv_heads: int) -> bool:
    """Whether vLLM's Triton backend would segment a batch of so many decodes and nothing else.

    Without segments a decode gets a program for each KV head, so few decodes leave a GPU idle. vLLM counts
    sequences alone and not keys, because the lengths change from step to step and a CUDA graph does not.
    Where it captures graphs it moves the threshold to the nearest size that it captures; that is left out.
    """
    return num_decodes <= MIN_LAUNCH_GRID_SIZE_2D // num_kv_heads


def attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
    *,
    num_decodes: int | None = None,
    max_query_len: int | None = None,
    max_seq_len: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Causal attention of each sequence's newest tokens to all tokens up to themselves
    (`vllm/v1/attention/ops/triton_unified_attention.py:763 unified_attention`).

    Args:
        query: `[num_tokens, num_heads, head_size]`; with the caches, `block_table`, `seq_lens` and
            `query_start_loc` as `mini_vllm/gpu/attention.py` says.
        scale: what a score is multiplied by, mostly `head_size ** -0.5`.
        num_decodes: so many sequences at the front have one query token each. None: all of them, if
            there are as many tokens as sequences, else 0, which is right for any batch, because the prefill
            kernel takes a chunk of one token too. The lengths lie on the GPU, so only the caller can know, as
            `vllm/v1/attention/backends/utils.py:533 split_decodes_and_prefills` does for other backends.
        max_query_len: the longest chunk, if the caller knows.
        max_seq_len: the longest sequence, if the caller knows.
        out: where the result goes; None: a new tensor.

    Returns:
        `[num_tokens, num_heads, head_size]` in the query's dtype: `out`, where it was given.
    """
    prefill.check_inputs(query, key_cache, value_cache, block_table, seq_lens, query_start_loc, out)
    num_seqs = len(seq_lens)
    if num_decodes is None:
        num_decodes = num_seqs if max_query_len == 1 or len(query) == num_seqs else 0
    if not 0 <= num_decodes <= min(num_seqs, len(query)):
        raise ValueError(
            f"num_decodes is from 0 to the {num_seqs} sequences and {len(query)} tokens, got {num_decodes}"
        )
    if out is None:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    n = num_decodes
    if n:
        longest = max_seq_len or block_table.shape[1] * key_cache.shape[1]
        plan = decode.plan_for(query[:n], key_cache, longest)
        if not segmented(n, key_cache.shape[2]):
            plan = plan.whole(longest)
        decode.paged_decode(
            query[:n], key_cache, value_cache, block_table[:n], seq_lens[:n], scale,
            plan=plan, out=out[:n],
        )  # fmt: skip
    if n < num_seqs:
        # The chunks' rows are counted from the first row of the batch, so `query` and `out` stay whole.
        prefill.paged_prefill(
            query, key_cache, value_cache, block_table[n:], seq_lens[n:], query_start_loc[n:], scale,
            max_query_len=max_query_len, max_seq_len=max_seq_len, out=out,
        )  # fmt: skip
    return out
