"""The problem `decode-one`: one new token of one sequence; the first step of lab 02-06.

    paged_decode_one(query, key_cache, value_cache, block_table, seq_len, scale) -> out

`query` [num_heads, head_size]; the caches [num_blocks, block_size, num_heads, head_size]; `block_table` int32
[blocks of this sequence]; `seq_len` an int, this step's token included; `out` like `query`. Strides are any
but the last, which is 1. Each query head has a KV head of its own. The rest is as in the problem `decode`.
"""

from __future__ import annotations

import torch

from course.kernels import mistakes, paged
from course.kernels.case import Case
from course.kernels.paged import MANY, Spec

ENTRY = "paged_decode_one"
NEEDED = ("key_cache", "value_cache")
MOST_BYTES = 1.25

ALLOWS = {name: ends for name, ends in paged.ALLOWS.items() if name not in paged.OF_BATCHES}

_CASES = (
    Spec((37,), heads=3, kv_heads=3),
    Spec((64,), heads=2, head_size=32, layout="apart", seed=1),
    Spec((21,), heads=4, kv_heads=4, block_size=4, dtype=torch.float16, layout="heads first", seed=2),
    Spec((70,), heads=2, mood="loud", layout="gaps", poison=1e4, seed=3),
    Spec((45,), heads=1, kv_heads=1, head_size=32, mood="cold", seed=4),
    Spec((400,), heads=2, head_size=32, dtype=torch.float16, mood="flat", block_size=64, seed=5),
    Spec((1,), heads=2, seed=6),
    Spec((66,), heads=2, head_size=32, block_size=4, dtype=torch.float16, layout="far", seed=8),
    # The limits: the longest sequence, the largest and the least blocks and heads, scales that are no root.
    Spec((129,), heads=2, block_size=128, scale=0.02, seed=9),
    Spec((4120,), heads=2, head_size=16, seed=10),
    Spec((1500,), heads=2, head_size=32, dtype=torch.float16, narrow=True, seed=11),
    Spec((40,), heads=40, kv_heads=40, head_size=128, dtype=torch.float16, seed=12),
    Spec((50,), heads=2, block_size=8, dtype=torch.float16, mood="extreme", seed=13),
    Spec((257,), heads=1, kv_heads=1, head_size=256, block_size=256, dtype=torch.float16, seed=14),
    Spec((20,), heads=2, head_size=16, block_size=1, scale=1.5, spare=MANY, poison=float("inf"), seed=16),
)  # fmt: skip
_TRAFFIC = Spec((1500,), heads=2, dtype=torch.float16, seed=7)
_SHAPE = Spec((4096,), heads=32, kv_heads=32, head_size=128, dtype=torch.float16)


def cases() -> list[Case]:
    return [_one(spec) for spec in _CASES]


def traffic() -> Case:
    return _one(_TRAFFIC)


def shape() -> Case:
    return _one(_SHAPE)


def vllm(case: Case, segments: int) -> torch.Tensor:
    return paged.unified_attention(case.about["paged"], segments)[0]


def explain(case: Case, got: torch.Tensor) -> str | None:
    named = mistakes.extreme(case, got) or mistakes.explain(case.about["paged"], got[None])
    return named or mistakes.nearly(case, got)


def measure(case: Case) -> dict[str, tuple[float, float]]:
    found = paged.measure(case)
    return {name: found[name] for name in ALLOWS}


def _one(spec: Spec) -> Case:
    case = paged.batch_case(spec)
    batch = case.answer
    given = case.inputs
    blocks = -(-spec.seq_lens[0] // spec.block_size)
    case.inputs = {
        "query": given["query"][0],
        "key_cache": given["key_cache"],
        "value_cache": given["value_cache"],
        "block_table": given["block_table"][0, :blocks],
        "seq_len": spec.seq_lens[0],
        "scale": given["scale"],
    }
    case.answer = lambda: tuple(one[0] for one in batch())
    case.other = lambda: _one(spec.other())
    del case.least["seq_lens"]
    return case
