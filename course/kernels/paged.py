"""Sequences in a paged cache: what the problems about attention share.

A layout is drawn as an engine leaves it after a while: blocks in no order, some owned by nobody, last
blocks half full. Whatever no sequence has written is poisoned, for there an engine keeps what earlier
requests left.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch

from course.kernels.case import Case
from course.kernels.memory import guarded, spread_both

EPSILON = {
    torch.float32: 2.0**-20,
    torch.float16: 2.0**-10,
}  # of results; float32 with room for sums
GAP = 16  # numbers between two rows that are not dense; so many keep the compiler's loads wide
SPARE = 3  # blocks that no sequence has; block 0 is one, the null block of vLLM's pool
MANY = 140_000  # as `Spec.spare`: then half of all blocks have ids above 65,535
AGAIN = 500  # keys of a sequence in the second call, if it may have fewer: the first has shown its length


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
    # "gaps": nothing is dense, no stride of the keys is one of the values, the tokens of a query head lie
    # side by side, and behind its blocks a row of the table names some that do not exist.
    # "far": as "together", but so far apart that the 16th block begins at element 2 ** 31.
    layout: str = "together"
    # "random"; "loud": scores far apart; "cold": every score about -120; "flat": equal scores, large values;
    # "extreme": every score -100,000, and of every other head 100,000
    mood: str = "random"
    poison: float = float("nan")
    room: int = 2  # entries that the table's rows have more than the longest sequence needs
    spare: int = (
        SPARE  # blocks that no sequence has; with many of them, an id needs more than 16 bits
    )
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
        if len(self.seq_lens) > 8:
            lens = f"{min(self.seq_lens)} to {max(self.seq_lens)} of {len(self.seq_lens)} sequences"
        heads = f"{self.heads} head{'s' if self.heads > 1 else ''}{over} of {self.head_size}"
        what = "chunks" if self.query_lens else "lengths"
        return f"{kind}{mood}, {heads}, blocks of {self.block_size}, {what} {lens}"

    def other(self) -> Spec:
        """The same shape with other numbers: the sequences change places, or a single one ends elsewhere in
        its last block."""
        lens, new = self.seq_lens, self.query_lens
        spare, room = self.spare, self.room
        if len(set(zip(lens, new or lens, strict=True))) > 1:
            before = self.needed
            lens, new = tuple(min(n, AGAIN) for n in lens[1:] + lens[:1]), new[1:] + new[:1]
            after = replace(self, seq_lens=lens).needed  # the shapes stay as they are
            spare, room = spare + sum(before) - sum(after), room + max(before) - max(after)
        else:
            full = -(-lens[0] // self.block_size) * self.block_size
            length = full if full != lens[0] else lens[0] - (self.block_size > 1)
            lens = (length,) * len(lens)
        seed = self.seed + 1000
        return replace(self, seq_lens=lens, query_lens=new, seed=seed, spare=spare, room=room)

    @property
    def needed(self) -> list[int]:
        """How many blocks each sequence needs."""
        return [-(-n // self.block_size) for n in self.seq_lens]

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

    size, needed = spec.block_size, spec.needed
    num_blocks = sum(needed) + spec.spare
    ids = 1 + torch.randperm(num_blocks - 1, generator=rng)
    unowned, ids = torch.cat([torch.tensor([0]), ids[: SPARE - 1]]), ids[spec.spare - 1 :]
    if spec.layout == "gaps":
        unowned[-1] = num_blocks + SPARE
    # Behind its own blocks a row holds what it held before: blocks of no sequence, or ids that do not exist.
    width = max(needed) + spec.room
    table = unowned[torch.randint(SPARE, (len(needed), width), generator=rng)]
    keys = torch.full((num_blocks, size, spec.kv_heads, spec.head_size), spec.poison)
    values = keys.clone()
    query = normal(spec.starts[-1], spec.heads, spec.head_size)
    if spec.mood == "loud":
        query *= 12
    elif spec.mood == "cold":
        query = 1 + 0.05 * query
    elif spec.mood == "flat":
        query *= 1e-3
    elif spec.mood == "extreme":
        query = torch.full_like(query, 100)
    for row, (length, blocks) in enumerate(zip(spec.seq_lens, needed, strict=True)):
        table[row, :blocks], ids = ids[:blocks], ids[blocks:]
        block, slot = table[row, torch.arange(length) // size], torch.arange(length) % size
        key, value = (normal(length, spec.kv_heads, spec.head_size) for _ in "kv")
        if spec.mood == "cold":
            key = (0.05 * key - 1) * 120 / spec.head_size**0.5
        elif spec.mood == "flat":
            value = value + 250
        elif spec.mood == "extreme":
            sign = 1 - 2.0 * ((torch.arange(spec.kv_heads) + row + 1) % 2)
            key = (sign * 1000 / spec.head_size**0.5)[None, :, None].expand_as(key)
        keys[block, slot], values[block, slot] = key, value
    keys, values = _lay_out(keys.to(spec.dtype), values.to(spec.dtype), spec.layout, spec.poison)
    query = query.to(spec.dtype)
    if spec.layout == "gaps":
        query = _view_of_wider(query.transpose(0, 1), 1, GAP).transpose(0, 1)
    else:
        query = _view_of_wider(query, 2, GAP * (spec.layout != "heads first"))
    return Paged(
        query,
        keys,
        values,
        _view_of_wider(table.to(torch.int32), 2),
        guarded(torch.tensor(spec.seq_lens, dtype=torch.int32)),
        spec.scale or spec.head_size**-0.5,
        spec.narrow,
    )


def _lay_out(
    keys: torch.Tensor, values: torch.Tensor, layout: str, poison: float
) -> tuple[torch.Tensor, torch.Tensor]:
    if layout == "gaps":
        values = _view_of_wider(values.transpose(1, 2), 1, 1, 2 * GAP, fill=poison)
        return _view_of_wider(keys, 0, 1, GAP, fill=poison), values.transpose(1, 2)
    if layout == "far":
        with suppress(OSError):
            first, second = spread_both(keys, values, 2**27)
            return first, second
    if layout in ("together", "far"):
        both = guarded(torch.stack([keys, values], dim=1))
        return both[:, 0], both[:, 1]
    if layout == "heads first":
        first, second = (guarded(t.transpose(1, 2).contiguous()) for t in (keys, values))
        return first.transpose(1, 2), second.transpose(1, 2)
    return guarded(keys), guarded(values.transpose(1, 2).contiguous()).transpose(1, 2)


def _view_of_wider(tensor: torch.Tensor, *gaps: int, fill: float = float("nan")) -> torch.Tensor:
    """The same, as a part of a tensor that is so much wider in each axis but the first: an engine's queries
    lie beside its keys and values, and its table has room for longer sequences. In the gaps is `fill`."""
    shape = [tensor.shape[0], *(n + gap for n, gap in zip(tensor.shape[1:], gaps, strict=True))]
    wide = torch.full(shape, fill if tensor.is_floating_point() else 0, dtype=tensor.dtype)
    part = tuple(slice(n) for n in tensor.shape)
    wide[part] = tensor
    return guarded(wide)[part]


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
            tolerance[row, head] = share(epsilon, scores.abs().max()) * spread
    return out, tolerance


def share(epsilon: float, largest: torch.Tensor) -> torch.Tensor:
    """How far off a result may be for its size, by the largest score. A query may be multiplied by the scale
    in its own precision, for which scores up to 64 get room; the scores themselves are float32."""
    beyond = (largest - 64).clamp(min=0)
    return epsilon * (1 + largest.clamp(max=64) / 4) + EPSILON[torch.float32] * beyond / 4


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


Ends = tuple[float, float]
# The least and largest value of each quantity that a kernel must be right for, and that cases have.
OF_BATCHES: dict[str, Ends] = {
    "sequences": (1, 70),
    "query heads of a KV head": (1, 16),
    "entries behind the longest row": (0, 2),
}
ALLOWS: dict[str, Ends] = OF_BATCHES | {
    "KV heads": (1, 40),
    "head_size": (16, 256),
    "block_size": (1, 256),
    "seq_len": (1, 4120),
    "scale": (0.02, 1.5),
    "score": (-100_000, 100_000),
    "bytes of a number": (2, 4),
    # 0 is no, 1 yes.
    "a full last block": (0, 1),
    "one key in the last block": (0, 1),
    "an id above 65,535": (0, 1),
    "an offset above 31 bits": (0, 1),
    "query heads with gaps": (0, 1),
    "tokens of a query head side by side": (0, 1),
    "the heads of a block before its slots": (0, 1),
    "strides of the keys that the values have": (0, 3),
    "a finite number behind the end": (0, 1),
    "infinity behind the end": (0, 1),
}


def ends(values: Iterable[float]) -> Ends:
    """The least and the largest."""
    found = list(values)
    return min(found), max(found)


def measure(case: Case) -> dict[str, Ends]:
    """The least and largest value of each of `ALLOWS` in a case."""
    drawn: Paged = case.about["paged"]
    query, keys, values, table, lens = (
        drawn.query, drawn.keys, drawn.values, drawn.table, drawn.seq_lens
    )  # fmt: skip
    _, size, kv_heads, head_size = keys.shape
    group = query.shape[1] // kv_heads
    tokens = torch.tensor(case.about.get("starts", range(len(table) + 1))).diff()
    ids, scores = [], []
    for row, (n, mine) in enumerate(zip(lens.tolist(), query.split(tokens.tolist()), strict=True)):
        at = torch.arange(n)
        ids += table[row, : drawn.entries[row]].tolist()
        key = keys[table[row, at // size].long(), at % size].double().repeat_interleave(group, 1)
        scores.append(torch.einsum("qhd,khd->qhk", mine.double(), key).flatten() * drawn.scale)
    dead = torch.cat([c[~live] for c, live in zip((keys, values), case.live.values(), strict=True)])
    far = max(ids) * keys.stride(0) >= 2**31
    exact = {
        "sequences": len(table),
        "query heads of a KV head": group,
        "KV heads": kv_heads,
        "head_size": head_size,
        "block_size": size,
        "scale": drawn.scale,
        "entries behind the longest row": table.shape[1] - max(drawn.entries),
        "a full last block": (lens % size == 0).any(),
        "one key in the last block": size > 1 and (lens % size == 1).any(),
        "bytes of a number": query.element_size(),
        "an id above 65,535": max(ids) > 65_535,
        "an offset above 31 bits": far,
        "query heads with gaps": query.stride(1) > head_size,
        "tokens of a query head side by side": query.stride(0) < query.stride(1),
        "the heads of a block before its slots": keys.stride(1) < keys.stride(2),
        "strides of the keys that the values have": sum(
            one == other for one, other in zip(keys.stride()[:3], values.stride()[:3], strict=True)
        ),
        "a finite number behind the end": dead.isfinite().any(),
        "infinity behind the end": dead.isinf().any(),
    }
    return {name: (float(value), float(value)) for name, value in exact.items()} | {
        "seq_len": ends(lens.tolist()),
        "score": ends(torch.cat(scores).tolist()),
    }


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
