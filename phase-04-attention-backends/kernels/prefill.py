"""The problem `prefill`: chunks of many sequences, over a paged cache.

    paged_prefill(query, key_cache, value_cache, block_table, seq_lens, query_start_loc, scale) -> out

`query` [num_tokens, num_heads, head_size], the chunks one behind the other; `seq_lens` int32 [num_seqs], the
chunk included; `query_start_loc` int32 [num_seqs + 1], from 0 to num_tokens: sequence i has the query rows
from entry i to entry i + 1, at least one, its last tokens in order; `out` like `query`. A token sees the
keys up to its own position. The rest is as in the problem `decode`.
"""

from __future__ import annotations

from typing import Any

import torch

from course.kernels import mistakes, paged
from course.kernels.case import Case
from course.kernels.memory import guarded
from course.kernels.paged import EPSILON, MANY, Paged, Spec

ENTRY = "paged_prefill"
NEEDED = ("key_cache", "value_cache")
MOST_BYTES = 1.25
TENSOR_CORE = True
FORMS = {"2D": 0}  # where a sequence has several query tokens, vLLM does not segment
ROWS = 32  # (token, head) pairs of a program, for the bytes that are thought of as needed
YARDSTICK = f"what programs of {ROWS} rows must ask for"

ALLOWS = paged.ALLOWS | {
    "sequences": (1, 33),
    "query tokens of a sequence": (1, 300),
    "longest chunk of a call": (1, 300),
    "tokens before a chunk": (0, 4115),
}

_CASES = (
    # A whole prompt, a chunk that starts mid-sequence, a decode, a chunk that starts on a block's first slot.
    Spec((37, 50, 23, 40), query_lens=(37, 19, 1, 8)),
    Spec((33, 70), query_lens=(20, 33), heads=8, kv_heads=1, head_size=128, block_size=32,
         dtype=torch.float16, layout="heads first", seed=1),
    Spec((21, 9, 4), query_lens=(17, 9, 2), heads=6, head_size=32, block_size=4, layout="apart",
         poison=1e4, room=0, seed=2),
    Spec((66, 34), query_lens=(66, 2), heads=3, kv_heads=3, mood="loud", seed=3),
    Spec((90,), query_lens=(35,), heads=7, kv_heads=1, head_size=32, mood="cold", layout="heads first",
         seed=4),
    Spec((150, 5), query_lens=(21, 5), head_size=32, dtype=torch.float16, mood="flat", block_size=64,
         seed=5),
    Spec((64, 129), query_lens=(32, 65), heads=2, kv_heads=1, head_size=32, block_size=8,
         layout="gaps", seed=6),
    Spec((66, 9), query_lens=(18, 3), heads=2, kv_heads=1, head_size=32, block_size=4,
         dtype=torch.float16, layout="far", seed=8),
    # The limits: 16 query heads a KV head, the most keys, a model's heads, scales that are no root.
    Spec((60, 40), query_lens=(9, 40), heads=16, kv_heads=1, scale=0.02, seed=9),
    Spec((4120, 40), query_lens=(5, 3), heads=2, kv_heads=1, head_size=16, seed=10),
    Spec((1000, 40), query_lens=(12, 33), heads=4, kv_heads=1, head_size=32, dtype=torch.float16,
         narrow=True, seed=11),
    Spec((40, 17), query_lens=(6, 9), heads=32, kv_heads=8, head_size=128, dtype=torch.float16, seed=12),
    Spec((70, 40), query_lens=(20, 40), block_size=8, dtype=torch.float16, mood="extreme", seed=13),
    Spec((300,), query_lens=(300,), heads=1, kv_heads=1, head_size=256, block_size=256,
         dtype=torch.float16, layout="gaps", seed=14),
    Spec((5,), query_lens=(3,), heads=40, kv_heads=40, head_size=16, block_size=2, scale=1.5, seed=15),
    # Tokens of many sequences and no chunk.
    Spec((2, 1, 5) * 11, query_lens=(1,) * 33, heads=1, kv_heads=1, head_size=16, block_size=1,
         spare=MANY, poison=float("inf"), seed=16),
)  # fmt: skip
_TRAFFIC = Spec((320, 250), query_lens=(320, 90), heads=8, dtype=torch.float16, seed=7)
# A chunk of Llama-3-8B, the second of a long prompt.
_SHAPE = Spec((4096,), query_lens=(2048,), heads=32, kv_heads=8, head_size=128, dtype=torch.float16)


def cases() -> list[Case]:
    return [_case(spec) for spec in _CASES]


def traffic() -> Case:
    return _case(_TRAFFIC)


def shape() -> Case:
    return _case(_SHAPE)


def vllm(case: Case, segments: int) -> torch.Tensor:
    return paged.unified_attention(
        case.about["paged"], segments, torch.tensor(case.about["starts"], dtype=torch.int32)
    )


def measure(case: Case) -> dict[str, tuple[float, float]]:
    drawn, new = case.about["paged"], torch.tensor(case.about["starts"]).diff()
    return paged.measure(case) | {
        "query tokens of a sequence": paged.ends(new.tolist()),
        "longest chunk of a call": paged.ends([int(new.max())]),
        "tokens before a chunk": paged.ends((drawn.seq_lens - new).tolist()),
    }


def _case(spec: Spec) -> Case:
    drawn = paged.draw(spec)
    starts = torch.tensor(spec.starts, dtype=torch.int32)
    inputs = {
        "query": drawn.query,
        "key_cache": drawn.keys,
        "value_cache": drawn.values,
        "block_table": drawn.table,
        "seq_lens": drawn.seq_lens,
        "query_start_loc": guarded(starts),
        "scale": drawn.scale,
    }
    once = paged.least(spec)
    return Case(
        spec.label, inputs, lambda: answer(drawn, spec.starts), least(spec), paged.live(spec, drawn),
        {"paged": drawn, "starts": spec.starts}, other=lambda: _case(spec.other()), flip=drawn.flip,
        entries=drawn.entries, distinct={name: once[name] for name in NEEDED}, first_axis="tokens",
    )  # fmt: skip


def least(spec: Spec) -> dict[str, int]:
    """Bytes that programs of `ROWS` rows ask for: each reads the keys up to its last token, once."""
    group = spec.heads // spec.kv_heads
    block_q = max(1, ROWS // group)
    keys = entries = programs = 0
    for length, new in zip(spec.seq_lens, spec.query_lens, strict=True):
        for first in range(0, new, block_q):
            end = length - new + min(first + block_q, new)
            keys += end
            entries += -(-end // spec.block_size)
            programs += 1
    item = torch.empty(0, dtype=spec.dtype).element_size()
    cache = keys * spec.kv_heads * spec.head_size * item
    return paged.least(spec) | {
        "key_cache": cache,
        "value_cache": cache,
        "block_table": 4 * entries * spec.kv_heads,
        "seq_lens": 4 * programs * spec.kv_heads,
        "query_start_loc": 8 * programs * spec.kv_heads,
    }


def answer(
    drawn: Paged, starts: tuple[int, ...], **wrong: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention in float64, and a tolerance for each element; both like the query.

    `wrong` puts one mistake in (see `MISTAKES`), to recognise it in a kernel's output.
    """
    size, kv_heads = drawn.keys.shape[1:3]
    heads = drawn.query.shape[1]
    scale, epsilon = paged.scale_of(drawn, wrong), EPSILON[drawn.query.dtype]
    of_head = torch.arange(heads) * kv_heads // heads
    if wrong.get("modulo"):
        of_head = torch.arange(heads) % kv_heads
    out = torch.zeros(drawn.query.shape, dtype=torch.float64)
    tolerance = torch.zeros_like(out)
    for i, length in enumerate(drawn.seq_lens.tolist()):
        rows = slice(starts[i], starts[i + 1])
        taken = slice(0, starts[i + 1] - starts[i]) if wrong.get("front") else rows
        query = drawn.query[taken].double()
        at = torch.arange(length + 1)  # one more, for who looks too far
        row = (i + wrong.get("row", 0)) % len(drawn.seq_lens)
        entry = (at // size + wrong.get("shift", 0)).clamp(0, drawn.table.shape[1] - 1)
        block = at // size if wrong.get("no_table") else drawn.table[row, entry].long()
        block = block % drawn.keys.shape[0]
        key, value = (c[block, at % size][:, of_head].double() for c in (drawn.keys, drawn.values))
        last = wrong.get("last", lambda j, n, s: s - n + j)(
            torch.arange(len(query)), len(query), length
        )
        hidden = at[None, :] > last[:, None]
        shown = ~hidden.all(0)  # no NaN from keys that nobody sees
        shown[0] = True
        key, value, hidden = key[shown], value[shown], hidden[:, shown]
        scores = torch.einsum("qhd,khd->hqk", query, key) * scale
        visible = scores.masked_fill(hidden, float("-inf"))
        weights = wrong["online"](visible) if "online" in wrong else visible.softmax(-1)
        if "zeros" in wrong:
            # So many keys more, of score 0 and V 0: they take their share of the sum.
            zeros = wrong["zeros"](torch.arange(len(query)), len(query), length)
            known = scores.masked_fill(hidden, float("-inf")).logsumexp(-1)
            all_keys = torch.logaddexp(known, zeros.double().log())
            weights = weights * (known - all_keys).exp()[..., None]
        # A key that was never written spoils the tokens that see it, and no others.
        spoilt = (~hidden & ~value.isfinite().flatten(1).all(1)).any(1)
        value = value.nan_to_num(0.0, 0.0, 0.0)
        out[rows] = torch.einsum("hqk,khd->qhd", weights, value)
        out[rows] = out[rows].masked_fill(spoilt[:, None, None], float("nan"))
        spread = torch.einsum("hqk,khd->qhd", weights, value.abs()) + out[rows].abs()
        if drawn.narrow:
            squares = torch.einsum("hqk,khd->qhd", weights.square(), value.square())
            spread = 4 * squares.sqrt() + out[rows].abs()
        largest = scores.masked_fill(hidden, 0).abs().amax(-1).T[:, :, None]
        tolerance[rows] = paged.share(epsilon, largest) * spread
    return out, tolerance


_BLOCKS = (2, 4, 8, 9, 10, 16, 21, 32, 64)  # tokens of a program, as one may choose them

# What an output looks like that one mistake has made: in words, and what `answer` does for it. `last` gives
# the last key that token j of a chunk of n in a sequence of s sees.
MISTAKES: list[tuple[str, dict[str, Any]]] = [
    (words, wrong)
    for words, wrong in mistakes.MISTAKES
    if {*wrong} & {"scale", "no_table", "modulo", "shift", "row"}
]
MISTAKES += [
    (
        "every token sees all keys of its sequence, those behind it too: the causal mask is missing",
        {"last": lambda j, n, s: torch.full_like(j, s - 1)},
    ),
    (
        "token j of a chunk is taken to stand at position j; it stands at seq_len - query_len + j, behind "
        "the tokens that the cache holds already",
        {"last": lambda j, n, s: j},
    ),
    (
        "a token does not see itself: its own key is in the cache, and counts (<=, not <)",
        {"last": lambda j, n, s: s - n + j - 1},
    ),
    (
        "the query's rows are counted from the front of the batch, not from the chunk's first row in "
        "query_start_loc",
        {"front": True},
    ),
    (
        "a token sees the token behind it (<=, not < or + 1)",
        {"last": lambda j, n, s: s - n + j + 1},
    ),
    (
        "the chunk's tokens see only what was there before the chunk",
        {"last": lambda j, n, s: torch.full_like(j, s - n - 1)},
    ),
]
MISTAKES += [
    (
        f"the tokens of a program share its frontier, so that {size} tokens at a time see what the last of "
        "them sees",
        {"last": lambda j, n, s, size=size: s - n + (j // size * size + size - 1).clamp(max=n - 1)},
    )
    for size in _BLOCKS
]
MISTAKES += [
    (
        f"the keys end where the first of {size} tokens sees no more; the tokens behind it see further",
        {
            "last": lambda j, n, s, size=size: s - n + j // size * size,
            "zeros": lambda j, n, s, size=size, tile=tile: _behind(
                s - n + j // size * size + 1, s - n + j, tile
            ),
        },
    )
    for size in _BLOCKS
    for tile in (1, 16, 32, 64)
]


def _behind(end: torch.Tensor, position: torch.Tensor, tile: int) -> torch.Tensor:
    """How many keys from `end` up to `position` lie in the last tile, loaded as 0 and not hidden."""
    tile_end = (end + tile - 1) // tile * tile
    return (torch.minimum(position + 1, tile_end) - end).clamp(min=0)


MISTAKES += mistakes.online_mistakes()


def explain(case: Case, got: torch.Tensor) -> str | None:
    """The one mistake that gives `got`, or None."""
    drawn, starts = case.about["paged"], case.about["starts"]
    if words := mistakes.extreme(case, got):
        return words
    for words, wrong in MISTAKES:
        expected, tolerance = answer(drawn, starts, **wrong)
        anything = expected.isnan()  # it read poison, or saw nothing
        near = (got.double() - expected).abs() <= 4 * tolerance
        tells = (expected - case.expected).abs() > 8 * tolerance
        if tells.any() and bool((near | anything).all()):
            return words
    return mistakes.nearly(case, got)
