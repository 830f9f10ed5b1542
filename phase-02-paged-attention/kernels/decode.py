"""The problem `decode`: one new token for each of many sequences, over a paged cache.

    paged_decode(query, key_cache, value_cache, block_table, seq_lens, scale) -> out

`query` [num_seqs, num_heads, head_size]; the caches [num_blocks, block_size, num_kv_heads, head_size];
`block_table` int32 [num_seqs, width]; `seq_lens` int32 [num_seqs], this step's token included; `out` like
`query`. Strides are any but the last, which is 1. Slots that no sequence has written may hold anything, and
so may a row of the table behind a sequence's blocks. Query heads h*G to h*G+G-1 share KV head h. `head_size`
and `block_size` are powers of two, the numbers float16 or float32. `ALLOWS` has the limits of each quantity.
"""

from __future__ import annotations

import torch

from course.kernels import mistakes, paged
from course.kernels.case import Case
from course.kernels.paged import MANY, Spec

ENTRY = "paged_decode"
NEEDED = ("key_cache", "value_cache")
MOST_BYTES = 1.25

ALLOWS = paged.ALLOWS
measure = paged.measure

_CASES = (
    Spec((37, 1, 64, 16, 50)),
    Spec((33, 5, 20), heads=8, kv_heads=1, head_size=128, block_size=32, dtype=torch.float16,
         layout="heads first", seed=1),
    Spec((9, 4, 21), heads=6, head_size=32, block_size=4, layout="apart", poison=1e4, room=0,
         seed=2),
    Spec((70, 3), heads=3, kv_heads=3, mood="loud", seed=3),
    Spec((45, 130), heads=15, kv_heads=3, head_size=32, mood="cold", layout="heads first", seed=4),
    Spec((400, 17), heads=4, head_size=32, dtype=torch.float16, mood="flat", block_size=64, seed=5),
    Spec((500, 129, 1), heads=2, kv_heads=1, head_size=32, block_size=8, layout="gaps", seed=6),
    Spec((66, 9), heads=2, kv_heads=1, head_size=32, block_size=4, dtype=torch.float16, layout="far", seed=8),
    # The limits: 16 query heads a KV head, the most keys, a model's heads, scales that are no root.
    Spec((150, 33), heads=16, kv_heads=1, scale=0.02, seed=9),
    Spec((4120, 40), heads=2, kv_heads=1, head_size=16, seed=10),
    Spec((1500, 40), heads=4, kv_heads=1, head_size=32, dtype=torch.float16, block_size=32, narrow=True,
         seed=11),
    Spec((40, 17), heads=32, kv_heads=8, head_size=128, dtype=torch.float16, seed=12),
    Spec((70, 40), block_size=8, dtype=torch.float16, mood="extreme", seed=13),
    # One program, where there is one for each KV head; and more than a GPU has multiprocessors.
    Spec((257,), heads=1, kv_heads=1, head_size=256, block_size=256, dtype=torch.float16, layout="gaps",
         seed=14),
    Spec((5,), heads=40, kv_heads=40, head_size=16, block_size=2, scale=1.5, seed=15),
    Spec((2, 1, 3, 5, 1) * 14, heads=2, head_size=16, block_size=1, spare=MANY, poison=float("inf"), seed=16),
)  # fmt: skip
_TRAFFIC = Spec((1900, 300), heads=8, dtype=torch.float16, seed=7)
# A decode step of Llama-3-8B.
_SHAPE = Spec((4096, 4096), heads=32, kv_heads=8, head_size=128, dtype=torch.float16)


def cases() -> list[Case]:
    return [paged.batch_case(spec) for spec in _CASES]


def traffic() -> Case:
    return paged.batch_case(_TRAFFIC)


def shape() -> Case:
    return paged.batch_case(_SHAPE)


def vllm(case: Case, segments: int) -> torch.Tensor:
    return paged.unified_attention(case.about["paged"], segments)


def explain(case: Case, got: torch.Tensor) -> str | None:
    named = mistakes.extreme(case, got) or mistakes.explain(case.about["paged"], got)
    return named or mistakes.nearly(case, got)
