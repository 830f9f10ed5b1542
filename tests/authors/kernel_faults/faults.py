"""Faults that people put into paged decode kernels, each planted into a correct kernel beside this file.

A fault is a few textual replacements in one file. `judge` is the judge that must refuse it, `says` words
that one of its messages must hold. A judge that comes earlier must accept it: what reads K twice is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CORRECT = ("plain.py", "grouped.py", "split.py", "last_merges.py")
CORRECT_ONE = ("one.py",)


@dataclass(frozen=True)
class Fault:
    name: str
    base: str
    judge: str
    changes: tuple[tuple[str, str], ...]
    says: str = ""

    @property
    def problem(self) -> str:
        return "decode-one" if self.base in CORRECT_ONE else "decode"

    def text(self) -> str:
        """The kernel file with the fault in it."""
        text = (HERE / self.base).read_text(encoding="utf-8")
        for old, new in self.changes:
            assert old in text, f"{self.name}: {self.base} has no {old!r}"
            text = text.replace(old, new)
        return text


FAULTS: list[Fault] = []


def fault(name: str, base: str, judge: str, *changes: tuple[str, str], says: str = "") -> None:
    FAULTS.append(Fault(name, base, judge, changes, says))


MASKED = ", mask=inside[:, None], other=0.0)"

# -- right: which keys ----------------------------------------------------------------------------

fault(
    "no_tail_mask_on_v",
    "plain.py",
    "right",
    ("v_at[:, None] + dims[None, :]" + MASKED, "v_at[:, None] + dims[None, :])"),
    says="which no sequence has written",
)
fault(
    "no_tail_mask_at_all",
    "plain.py",
    "right",
    (MASKED, ")"),
    ('scores = tl.where(inside[None, :], scores, float("-inf"))', "pass"),
    says="which no sequence has written",
)
fault(
    "tail_scores_stay_zero",
    "plain.py",
    "right",
    ('scores = tl.where(inside[None, :], scores, float("-inf"))', "pass"),
    says="enter the softmax with score 0",
)
fault(
    "last_token_left_out",
    "grouped.py",
    "right",
    ("ok = pos < n", "ok = pos < n - 1"),
    says="the last token of each sequence is left out",
)
fault(
    "one_token_too_many",
    "grouped.py",
    "right",
    ("ok = pos < n", "ok = pos <= n"),
    says="which no sequence has written",
)
fault(
    "whole_last_block",
    "plain.py",
    "right",
    (
        "length = tl.load(lens_ptr + seq)",
        "length = tl.cdiv(tl.load(lens_ptr + seq), BLOCK) * BLOCK",
    ),
    says="which no sequence has written",
)
fault(
    "blocks_rounded_down",
    "plain.py",
    "right",
    (
        "length = tl.load(lens_ptr + seq)",
        "length = tl.maximum(tl.load(lens_ptr + seq) // BLOCK * BLOCK, 1)",
    ),
)

# -- right: where they lie ------------------------------------------------------------------------

fault(
    "table_not_followed",
    "plain.py",
    "right",
    (
        "tl.load(table_ptr + seq * table_seq + at // BLOCK, mask=inside, other=0).to(tl.int64)",
        "at // BLOCK",
    ),
    says="the table is not followed",
)
fault(
    "every_row_uses_the_first_table",
    "plain.py",
    "right",
    ("table_ptr + seq * table_seq + at // BLOCK", "table_ptr + at // BLOCK"),
)
fault(
    "block_is_the_tile",
    "plain.py",
    "right",
    ("at // BLOCK, mask", "start // TILE, mask"),
    ("TILE=16", "TILE=8"),
)
fault("slot_is_the_lane", "plain.py", "right", ("(at % BLOCK)", "offsets % BLOCK"))
fault(
    "strides_swapped",
    "plain.py",
    "right",
    ("(at % BLOCK) * k_slot + kv * k_head", "(at % BLOCK) * k_head + kv * k_slot"),
)
fault(
    "contiguous_cache_taken_for_granted",
    "plain.py",
    "right",
    (
        "*key_cache.stride()[:3]",
        "block_size * num_kv_heads * head_size, num_kv_heads * head_size, head_size",
    ),
)
fault(
    "contiguous_query_taken_for_granted",
    "plain.py",
    "right",
    ("query.stride(0), query.stride(1)", "num_heads * head_size, head_size"),
    says="between the rows of query",
)
fault(
    "table_read_behind_its_end",
    "grouped.py",
    "right",
    ("ids = tl.load(table + pos // BS, mask=ok)", "ids = tl.load(table + pos // BS)"),
    says="out of bounds",
)
fault(
    "table_indexed_by_token",
    "one.py",
    "right",
    ("table_ptr + at // BLOCK", "table_ptr + at"),
    says="out of bounds",
)
fault("values_read_from_the_keys", "plain.py", "right", ("tl.load(v_ptr", "tl.load(k_ptr"))

# -- right: whose heads ---------------------------------------------------------------------------

fault(
    "heads_dealt_in_turn",
    "plain.py",
    "right",
    ("heads = kv * GROUP + rows", "heads = rows * tl.num_programs(1) + kv"),
    (
        "out_at = (seq * tl.num_programs(1) * GROUP + heads[:, None])",
        "out_at = (seq * tl.num_programs(1) * GROUP + heads[:, None])",
    ),
    says="h % num_kv_heads",
)
fault(
    "query_head_taken_for_kv_head",
    "plain.py",
    "right",
    ("kv * k_head", "kv * GROUP * k_head"),
    ("kv * v_head", "kv * GROUP * v_head"),
)
fault(
    "one_program_for_all_heads", "one.py", "right", ("decode_one[(num_heads,)]", "decode_one[(1,)]")
)
fault(
    "group_must_be_a_power_of_two",
    "plain.py",
    "right",
    ("triton.next_power_of_2(group)", "group"),
    says="power of 2",
)

# -- right: the softmax ---------------------------------------------------------------------------

fault(
    "scores_not_scaled",
    "plain.py",
    "right",
    (".to(tl.float32) * scale", ".to(tl.float32)"),
    says="not multiplied by the scale",
)
fault(
    "scores_scaled_twice",
    "split.py",
    "right",
    ("tl.trans(k)) * scale", "tl.trans(k)) * scale * scale"),
)
fault(
    "accumulator_not_rescaled",
    "plain.py",
    "right",
    ("acc = acc * shrink[:, None] +", "acc = acc +"),
)
fault("sum_not_rescaled", "plain.py", "right", ("total = total * shrink +", "total = total +"))
fault(
    "maximum_not_subtracted",
    "plain.py",
    "right",
    ("new_top = tl.maximum(top, tl.max(scores, 1))", "new_top = tl.zeros_like(top)"),
)
fault(
    "maximum_starts_at_zero",
    "plain.py",
    "right",
    ('top = tl.full([ROWS], float("-inf"), tl.float32)', "top = tl.zeros([ROWS], tl.float32)"),
)
fault("not_divided_by_the_sum", "one.py", "right", ("acc / total", "acc"))
fault(
    "half_accumulator",
    "grouped.py",
    "right",
    ("acc = tl.zeros([M, D], tl.float32)", "acc = tl.zeros([M, D], tl.float16)"),
    ("alpha[:, None]", "alpha[:, None].to(tl.float16)"),
    ("acc += tl.dot(p.to(v.dtype), v)", "acc += tl.dot(p.to(v.dtype), v).to(tl.float16)"),
)
fault(
    "value_lanes_without_other",
    "grouped.py",
    "right",
    ("            mask=ok[:, None],\n            other=0.0,", "            mask=ok[:, None],"),
    says="without `other=`",
)

# -- right: the split -----------------------------------------------------------------------------

fault(
    "last_split_dropped",
    "split.py",
    "right",
    (
        "used = splits * per_split < length",
        "used = (splits * per_split < length) & (splits < SPLITS - 1)",
    ),
)
fault(
    "splits_overlap",
    "split.py",
    "right",
    (
        "last = tl.minimum(first + per_split, length)",
        "last = tl.minimum(first + per_split + 1, length)",
    ),
)
fault(
    "splits_merged_without_their_maxima",
    "split.py",
    "right",
    ("weight = tl.exp(top - tl.max(top, 0))", "weight = tl.where(used, 1.0, 0.0)"),
)
fault(
    "empty_splits_merged",
    "split.py",
    "right",
    ("used = splits * per_split < length", "used = splits < SPLITS"),
    says="where nothing has stored",
)

# -- right: what is no kernel's business ----------------------------------------------------------

fault(
    "query_scaled_in_place",
    "plain.py",
    "right",
    (
        "    top = tl.full([ROWS]",
        "    tl.store(q_ptr + q_at, q, mask=real[:, None])\n    top = tl.full([ROWS]",
    ),
    says="query is an input",
)
fault(
    "answered_by_torch",
    "plain.py",
    "right",
    (
        "    plain_decode[(num_seqs, num_kv_heads)](",
        "    out.copy_(gathered(query, key_cache, value_cache, block_table, seq_lens, scale))\n    return out\n    plain_decode[(num_seqs, num_kv_heads)](",
    ),
    (
        "def paged_decode(",
        """def gathered(query, key_cache, value_cache, block_table, seq_lens, scale):
    group = query.shape[1] // key_cache.shape[2]
    rows = []
    for row, length in enumerate(seq_lens.tolist()):
        at = torch.arange(length)
        block, slot = block_table[row, at // key_cache.shape[1]].long(), at % key_cache.shape[1]
        k = key_cache[block, slot].float().repeat_interleave(group, 1)
        v = value_cache[block, slot].float().repeat_interleave(group, 1)
        weights = (torch.einsum("hd,khd->hk", query[row].float(), k) * scale).softmax(1)
        rows.append(torch.einsum("hk,khd->hd", weights, v))
    return torch.stack(rows)


def paged_decode(""",
    ),
    says="no Triton kernel was started",
)

# -- races ----------------------------------------------------------------------------------------

fault(
    "store_without_mask",
    "plain.py",
    "races",
    ("acc / total[:, None], mask=real[:, None])", "acc / total[:, None])"),
)
fault(
    "two_programs_do_the_same",
    "plain.py",
    "races",
    ("plain_decode[(num_seqs, num_kv_heads)]", "plain_decode[(num_seqs, num_kv_heads, 2)]"),
)
fault("splits_share_a_row", "split.py", "races", ("* SPLITS + split\n", "* SPLITS\n"))
fault(
    "merged_in_the_same_launch",
    "last_merges.py",
    "races",
    ("arrived = tl.atomic_add(count_ptr + seq * tl.num_programs(1) + kv, 1)", "arrived = split"),
)
fault(
    "counter_not_looked_at",
    "last_merges.py",
    "races",
    ("if arrived == SPLITS - 1:", "if split == SPLITS - 1:"),
)
fault(
    "sum_added_without_an_atomic",
    "split.py",
    "races",
    (
        "        tl.store(total_ptr + row, total, mask=real)",
        "        tl.store(total_ptr + row, total, mask=real)\n"
        "        tl.store(seen_ptr, tl.load(seen_ptr) + 1)",
    ),
    ("part_ptr, top_ptr, total_ptr, scale,", "part_ptr, top_ptr, total_ptr, seen_ptr, scale,"),
    ("part, top, total, scale,", "part, top, total, torch.zeros(1), scale,"),
)

# -- bytes ----------------------------------------------------------------------------------------

fault(
    "keys_read_twice",
    "plain.py",
    "bytes",
    (
        "        scores = tl.sum(",
        "        k += 0 * tl.load(k_ptr + k_at[:, None] + dims[None, :]"
        + MASKED
        + "\n        scores = tl.sum(",
    ),
    says="key_cache: 2.00 times",
)
fault(
    "a_program_for_each_query_head",
    "plain.py",
    "bytes",
    ("kv * k_head", "kv // SHARE * k_head"),
    ("kv * v_head", "kv // SHARE * v_head"),
    ("TILE: tl.constexpr,\n):", "TILE: tl.constexpr, SHARE: tl.constexpr,\n):"),
    ("GROUP=group, ROWS=triton.next_power_of_2(group),", "GROUP=1, ROWS=1, SHARE=group,"),
    ("plain_decode[(num_seqs, num_kv_heads)]", "plain_decode[(num_seqs, num_heads)]"),
    says="4.00 times",
)
fault(
    "as_long_as_the_longest",
    "plain.py",
    "bytes",
    ("for start in range(0, length, TILE)", "for start in range(0, LONGEST, TILE)"),
    ("at // BLOCK, mask=inside, other=0)", "at // BLOCK, mask=at < LONGEST, other=0)"),
    (
        "k_at[:, None] + dims[None, :], mask=inside[:, None]",
        "k_at[:, None] + dims[None, :], mask=(at < LONGEST)[:, None]",
    ),
    ("TILE: tl.constexpr,\n):", "TILE: tl.constexpr, LONGEST: tl.constexpr,\n):"),
    ("TILE=16,", "TILE=16, LONGEST=block_table.shape[1] * block_size,"),
)
fault(
    "cache_made_contiguous_first",
    "plain.py",
    "bytes",
    ("    out = torch.empty(", "    key_cache = key_cache.contiguous()\n    out = torch.empty("),
    says="key_cache",
)

# -- compiled -------------------------------------------------------------------------------------

fault(
    "giant_tile_spills",
    "grouped.py",
    "compiled",
    ("N=32,", "N=128,"),
    ("num_warps=4", "num_warps=1"),
    says="spills",
)
fault(
    "too_much_shared_memory",
    "grouped.py",
    "compiled",
    ("N=32,", "N=128,"),
    ("num_stages=2", "num_stages=6"),
    says="shared memory",
)
fault(
    "strides_hidden_from_the_compiler",
    "split.py",
    "compiled",
    (
        "@triton.jit\ndef decode_part",
        '@triton.jit(do_not_specialize=["k_block", "k_slot", "k_head", "v_block", "v_slot", "v_head"])\ndef decode_part',
    ),
    says="small pieces",
)
fault(
    "element_by_element",
    "plain.py",
    "compiled",
    (
        "dims, offsets = tl.arange(0, ROWS), tl.arange(0, HEAD), tl.arange(0, TILE)",
        "dims, offsets = tl.arange(0, ROWS), tl.arange(0, HEAD), tl.arange(0, TILE)\n    dims = dims // 2 + dims % 2 * (HEAD // 2)",
    ),
    says="small pieces",
)
fault(
    "sum_starts_as_an_integer",
    "one.py",
    "compiled",
    ("total = 0.0", "total = 0"),
    says="does not compile",
)
fault(
    "break_in_the_loop",
    "one.py",
    "compiled",
    (
        "        at = start + offsets\n",
        "        at = start + offsets\n        if start >= length:\n            break\n",
    ),
    says="does not compile",
)
