"""Sequences in a paged cache: what the problems about attention share.

A layout is drawn as an engine leaves it after a while: blocks in no order, some owned by nobody, last
blocks half full. Whatever no sequence has written is poisoned, for there an engine keeps what earlier
requests left.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch

from course.kernels.memory import guarded, spread
from course.kernels.problems.case import Case

EPSILON = {
    torch.float32: 2.0**-20,
    torch.float16: 2.0**-10,
}  # of results; float32 with room for sums
SPARE = 3  # blocks that belong to nobody; block 0 is one, the null block of vLLM's pool


@dataclass(frozen=True)
class Spec:
    """What a case is drawn from."""

    seq_lens: tuple[int, ...]
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    # "apart": two tensors, and in that of the values the heads of a block come before its tokens.
    # "together": one tensor [num_blocks, 2, ...], as vLLM's Triton backend makes it.
    # "heads first": in memory the heads of a block come before its tokens.
    # "far": as "together", but so far apart that the 16th block begins at element 2 ** 31.
    layout: str = "together"
    # "random"; "loud": scores far apart; "cold": every score about -120; "flat": equal scores, large values
    mood: str = "random"
    poison: float = float("nan")
    room: int = 2  # entries that the table's rows have more than the longest sequence needs
    seed: int = 0
    query_lens: tuple[int, ...] = ()  # query tokens of each sequence; (): one each
    scale: float = 0.0  # 0: one over the root of the head size
    # Of several roundings that do not know of each other, the tolerance takes the root of the squares: for
    # many keys it is narrow enough to see a few of them missing in float16.
    narrow: bool = False

    @property
    def label(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        over = f" over {self.kv_heads}" if self.heads != self.kv_heads else ""
        mood = f", {self.mood} scores" if self.mood != "random" else ""
        lens = " ".join(map(str, self.seq_lens))
        if self.query_lens:
            pairs = zip(self.query_lens, self.seq_lens, strict=True)
            lens = " ".join(f"{new}/{length}" for new, length in pairs)
        heads = f"{self.heads} heads{over} of {self.head_size}"
        what = "chunks" if self.query_lens else "lengths"
        return f"{kind}{mood}, {heads}, blocks of {self.block_size}, {what} {lens}"

    def other(self) -> Spec:
        """The same shape with other numbers: the sequences change places, or a single one ends elsewhere in
        its last block."""
        lens, new = self.seq_lens, self.query_lens
        if len(set(zip(lens, new or lens, strict=True))) > 1:
            lens, new = lens[1:] + lens[:1], new[1:] + new[:1]
        else:
            full = -(-lens[0] // self.block_size) * self.block_size
            length = full if full != lens[0] else lens[0] - (self.block_size > 1)
            lens = (length,) * len(lens)
        return replace(self, seq_lens=lens, query_lens=new, seed=self.seed + 1000)

    @property
    def starts(self) -> tuple[int, ...]:
        """The first query row of each sequence, and the number of all."""
        return (0, *accumulate(self.query_lens or (1,) * len(self.seq_lens)))


@dataclass
class Paged:
    """A drawn layout. `keys`, `values`: [num_blocks, block_size, kv_heads, head_size]."""

    query: torch.Tensor  # [num_tokens, heads, head_size]
    keys: torch.Tensor
    values: torch.Tensor
    table: torch.Tensor  # int32 [num_seqs, width]
    seq_lens: torch.Tensor  # int32 [num_seqs]
    scale: float
    narrow: bool = False

    @property
    def entries(self) -> tuple[int, ...]:
        """How many entries of its table's row each sequence needs."""
        size = self.keys.shape[1]
        return tuple(-(-length // size) for length in self.seq_lens.tolist())

    def flip(self) -> None:
        """Other keys and values, in place."""
        self.keys.neg_()
        self.values.neg_()


def draw(spec: Spec) -> Paged:
    """The layout that `spec` describes, the same for the same `spec`."""
    rng = torch.Generator().manual_seed(spec.seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float32)

    size, needed = spec.block_size, [-(-n // spec.block_size) for n in spec.seq_lens]
    num_blocks = sum(needed) + SPARE
    ids = 1 + torch.randperm(num_blocks - 1, generator=rng)
    nobody, ids = torch.cat([torch.tensor([0]), ids[: SPARE - 1]]), ids[SPARE - 1 :]
    # Behind its own blocks a row holds what it held before: blocks of nobody.
    width = max(needed) + spec.room
    table = nobody[torch.randint(SPARE, (len(needed), width), generator=rng)]
    keys = torch.full((num_blocks, size, spec.kv_heads, spec.head_size), spec.poison)
    values = keys.clone()
    query = normal(spec.starts[-1], spec.heads, spec.head_size)
    if spec.mood == "loud":
        query *= 12
    elif spec.mood == "cold":
        query = 1 + 0.05 * query
    elif spec.mood == "flat":
        query *= 1e-3
    for row, (length, blocks) in enumerate(zip(spec.seq_lens, needed, strict=True)):
        table[row, :blocks], ids = ids[:blocks], ids[blocks:]
        block, slot = table[row, torch.arange(length) // size], torch.arange(length) % size
        key, value = (normal(length, spec.kv_heads, spec.head_size) for _ in "kv")
        if spec.mood == "cold":
            key = (0.05 * key - 1) * 120 / spec.head_size**0.5
        elif spec.mood == "flat":
            value = value + 250
        keys[block, slot], values[block, slot] = key, value
    keys, values = _lay_out(keys.to(spec.dtype), values.to(spec.dtype), spec.layout)
    return Paged(
        _view_of_wider(query.to(spec.dtype)),
        keys,
        values,
        _view_of_wider(table.to(torch.int32)),
        guarded(torch.tensor(spec.seq_lens, dtype=torch.int32)),
        spec.scale or spec.head_size**-0.5,
        spec.narrow,
    )


def _lay_out(
    keys: torch.Tensor, values: torch.Tensor, layout: str
) -> tuple[torch.Tensor, torch.Tensor]:
    if layout == "far":
        with suppress(OSError):
            first, second = spread(keys, values, 2**27)
            return first, second
    if layout in ("together", "far"):
        both = guarded(torch.stack([keys, values], dim=1))
        return both[:, 0], both[:, 1]
    if layout == "heads first":
        first, second = (guarded(t.transpose(1, 2).contiguous()) for t in (keys, values))
        return first.transpose(1, 2), second.transpose(1, 2)
    return guarded(keys), guarded(values.transpose(1, 2).contiguous()).transpose(1, 2)


def _view_of_wider(tensor: torch.Tensor) -> torch.Tensor:
    """The same, as rows of a wider tensor: an engine's queries lie beside its keys and values, and its
    table has room for longer sequences. Between the rows stands poison."""
    rows, *rest = tensor.shape
    gap = torch.full((rows, 2, *rest[1:]), float("nan") if tensor.is_floating_point() else 0)
    wide = torch.cat([tensor, gap.to(tensor.dtype)], dim=1)
    return guarded(wide)[:, : rest[0]]


def answer(paged: Paged, **wrong: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode attention in float64, and a tolerance for each element; both [num_seqs, heads, head_size].

    `wrong` puts one mistake in (see `MISTAKES`), to recognise it in a kernel's output.
    """
    num_seqs, heads, head_size = paged.query.shape
    size, kv_heads = paged.keys.shape[1:3]
    scale = scale_of(paged, wrong)
    epsilon = EPSILON[paged.query.dtype]
    out = torch.zeros(num_seqs, heads, head_size, dtype=torch.float64)
    tolerance = torch.zeros_like(out)
    for row in range(num_seqs):
        length = int(paged.seq_lens[row]) + wrong.get("longer", 0)
        length -= wrong.get("drop", lambda n, size: 0)(length, size)
        if not length:
            out[row] = float("nan")
            continue
        at = torch.arange(length)
        its_row = (row + wrong.get("row", 0)) % num_seqs
        entry = (at // size + wrong.get("shift", 0)).clamp(0, paged.table.shape[1] - 1)
        block = at // size if wrong.get("no_table") else paged.table[its_row, entry].long()
        block = block % paged.keys.shape[0]
        key, value = (c[block, at % size].double() for c in (paged.keys, paged.values))
        for head in range(heads):
            kv = head % kv_heads if wrong.get("modulo") else head * kv_heads // heads
            scores = key[:, kv] @ paged.query[row, head].double() * scale
            zeros = wrong.get("zeros", lambda n: 0)(length)
            padded = torch.cat([scores, torch.zeros(zeros, dtype=torch.float64)])
            weights = padded.softmax(0)[: len(scores)]
            if "online" in wrong:
                weights = wrong["online"](scores)
            out[row, head] = weights @ value[:, kv]
            spread = weights @ value[:, kv].abs() + out[row, head].abs()
            if paged.narrow:
                spread = (
                    4 * (weights.square() @ value[:, kv].square()).sqrt() + out[row, head].abs()
                )
            tolerance[row, head] = epsilon * spread * (1 + scores.abs().max() / 4)
    return out, tolerance


def scale_of(paged: Paged, wrong: dict[str, Any]) -> float:
    """The scale, or what `wrong` makes of it and the head size."""
    found: float = wrong.get("scale", lambda scale, size: scale)(paged.scale, paged.query.shape[-1])
    return found


def least(spec: Spec) -> dict[str, int]:
    """Every live key and value once, the queries, the live part of the table, the lengths, the output."""
    item = torch.empty(0, dtype=spec.dtype).element_size()
    cache = sum(spec.seq_lens) * spec.kv_heads * spec.head_size * item
    rows = spec.starts[-1] * spec.heads * spec.head_size * item
    blocks = sum(-(-n // spec.block_size) for n in spec.seq_lens)
    return {
        "query": rows,
        "key_cache": cache,
        "value_cache": cache,
        "block_table": 4 * blocks,
        "seq_lens": 4 * len(spec.seq_lens),
        "out": rows,
    }


def batch_case(spec: Spec) -> Case:
    """A case of the problem `decode`."""
    paged = draw(spec)
    inputs = {
        "query": paged.query,
        "key_cache": paged.keys,
        "value_cache": paged.values,
        "block_table": paged.table,
        "seq_lens": paged.seq_lens,
        "scale": paged.scale,
    }
    return Case(
        spec.label, inputs, lambda: answer(paged), least(spec), live(spec, paged), {"paged": paged},
        other=lambda: batch_case(spec.other()), flip=paged.flip, entries=paged.entries,
    )  # fmt: skip


def live(spec: Spec, paged: Paged) -> dict[str, torch.Tensor]:
    """Which slots of the caches a sequence has written, [num_blocks, block_size] of bool each."""
    written = torch.zeros(paged.keys.shape[:2], dtype=torch.bool)
    for row, length in enumerate(spec.seq_lens):
        at = torch.arange(length)
        written[paged.table[row, at // spec.block_size].long(), at % spec.block_size] = True
    return {"key_cache": written, "value_cache": written}


def unified_attention(
    paged: Paged, segments: int, starts: torch.Tensor | None = None
) -> torch.Tensor:
    """vLLM's own Triton kernel; `segments` = 0 asks for its 2D grid, else for that many per sequence.

    `starts`, int32 [num_seqs + 1], are the first query rows; None: a token each.
    """
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention as vllm_attention

    num_tokens, heads, head_size = paged.query.shape
    num_seqs = len(paged.seq_lens)
    if starts is None:
        starts = torch.arange(num_tokens + 1, dtype=torch.int32)
    split: dict[str, Any] = {}
    if segments:
        shape = (num_seqs, heads, segments)
        split = {
            "seq_threshold_3D": num_seqs,
            "num_par_softmax_segments": segments,
            "softmax_segm_output": torch.zeros(*shape, head_size),
            "softmax_segm_max": torch.zeros(*shape),
            "softmax_segm_expsum": torch.zeros(*shape),
        }
    out = torch.empty(paged.query.shape, dtype=paged.query.dtype)
    vllm_attention(
        q=paged.query,
        k=paged.keys,
        v=paged.values,
        out=out,
        cu_seqlens_q=starts,
        max_seqlen_q=int(starts.diff().max()),
        seqused_k=paged.seq_lens,
        max_seqlen_k=int(paged.seq_lens.max()),
        softmax_scale=paged.scale,
        causal=True,
        window_size=(-1, -1),
        block_table=paged.table,
        softcap=0.0,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        **split,
    )
    return out
