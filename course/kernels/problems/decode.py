"""The problem `decode`: one new token for each of many sequences, over a paged cache.

    paged_decode(query, key_cache, value_cache, block_table, seq_lens, scale) -> out

`query` [num_seqs, num_heads, head_size]; the caches [num_blocks, block_size, num_kv_heads, head_size], of any
strides but the last, which is 1; `block_table` int32 [num_seqs, width]; `seq_lens` int32 [num_seqs], this
step's token included; `out` like `query`. Query heads h*G to h*G+G-1 share KV head h. G is any number from
1 to 16, `head_size` and `block_size` are powers of two.
"""

from __future__ import annotations

import torch

from course.kernels.problems import mistakes, paged
from course.kernels.problems.case import Case
from course.kernels.problems.paged import Spec

ENTRY = "paged_decode"
NEEDED = ("key_cache", "value_cache")
MOST_BYTES = 1.25

_CASES = (
    Spec((37, 1, 64, 16, 50)),
    Spec((33, 5, 20), heads=8, kv_heads=1, head_size=128, block_size=32, dtype=torch.float16,
         layout="heads first", seed=1),
    Spec((9, 4, 21), heads=6, head_size=32, block_size=4, layout="apart", poison=1e4, room=0,
         seed=2),
    Spec((70, 3), heads=2, mood="loud", seed=3),
    Spec((45, 130), kv_heads=1, head_size=32, mood="cold", layout="heads first", seed=4),
    Spec((400, 17), heads=4, head_size=32, dtype=torch.float16, mood="flat", block_size=64, seed=5),
    Spec((500, 129, 1), heads=2, kv_heads=1, head_size=32, layout="apart", seed=6),
    Spec((66, 9), heads=2, kv_heads=1, head_size=32, block_size=4, dtype=torch.float16, layout="far", seed=8),
    # The limits: 16 query heads a KV head, 4,096 keys, the heads of a model; and a scale that is no root.
    Spec((150, 33), heads=16, kv_heads=1, scale=0.2, seed=9),
    Spec((4096, 40), heads=2, kv_heads=1, head_size=32, seed=10),
    Spec((1500, 40), heads=4, kv_heads=1, head_size=32, dtype=torch.float16, block_size=32, narrow=True,
         seed=11),
    Spec((40, 17), heads=32, kv_heads=8, head_size=128, dtype=torch.float16, seed=12),
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
    return mistakes.explain(case.about["paged"], got) or mistakes.nearly(case, got)
