"""Given: what vLLM's Triton backend cuts at 0.22.1. To read after your predictions: it answers three.

In vLLM the rule is at the end of `unified_attention` in vllm/v1/attention/ops/triton_unified_attention.py,
and the threshold in vllm/v1/attention/backends/triton_attn.py, as `MIN_LAUNCH_GRID_SIZE_2D`.
"""

from __future__ import annotations

from typing import NamedTuple


class Launch(NamedTuple):
    """How vLLM's Triton backend cuts the keys of a request.

    Attributes:
        segments: programs that share them, each with a piece; 1 for one program that reads all.
        tile: keys that a program takes at once.
    """

    segments: int
    tile: int


def launch(num_seqs: int, max_query_len: int, num_kv_heads: int, batch_invariant: bool) -> Launch:
    """What is chosen for a model in 16 or 32 bits on CUDA, without graphs.

    Args:
        num_seqs: requests in the step.
        max_query_len: the most rows that one of them has.
        num_kv_heads: KV heads on this GPU.
        batch_invariant: `VLLM_BATCH_INVARIANT=1`.
    """
    few = num_seqs <= 128 // num_kv_heads
    if max_query_len == 1 and few and not batch_invariant:
        return Launch(16, 16)
    return Launch(1, 32)


def keys_in_turn(seq_len: int, how: Launch) -> int:
    """Keys that the busiest program of a request reads one after the other, padding of its last tile
    included.

    Tiles are dealt out whole. All segments get the same number of tiles, the least that is enough, from
    the first on; so the last ones may have fewer, or none.
    """
    return -(-seq_len // (how.segments * how.tile)) * how.tile
