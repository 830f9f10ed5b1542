"""Lab 09-07: a token for each row, drawn without a state, in Triton.

`block_kernel` and `row_kernel` are yours. The function that starts them is given. Lab 02-06's README
explains Triton, lab 09-02 the noise.

    logits         [rows, vocab_size], float32 or float16; the last axis has stride 1
    idx_mapping    int32 [rows], the slot of each row's request; rows may share one
    temperature    float32 [slots], of each request; 0 means greedy
    seeds          int64 [slots], of each request
    positions      int64 [rows], of each row's last computed token
    best, token    float32 and int64 [rows, num_blocks], what each program has found
    out            int64 [rows], the tokens

A row's token is the first largest of `logits / temperature + noise`, computed in float32. A greedy row's is
the first largest of its logits. Both must be what numpy's `argmax` over the whole row gives, bit for bit, for
any block size. The noise is `-log(-log(u))`. `tl.rand(key, offset)` gives u, float32 with 0 <= u < 1, for a
tile of offsets; `tl.randint(seed, position)` gives the key. Where u is below TINY, TINY takes its place.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TINY = tl.constexpr(2.0**-126)  # the smallest normal float32


@triton.jit
def block_kernel(
    best_ptr,
    token_ptr,
    logits_ptr,
    idx_mapping_ptr,
    temperature_ptr,
    seeds_ptr,
    positions_ptr,
    logits_stride,
    vocab_size,
    num_blocks,
    BLOCK: tl.constexpr,
):
    """The best score among the BLOCK tokens of one block of one row, and the id of its token.

    Program (row, block) has tokens block * BLOCK and following; in the last block some lanes may have none.
    Load the logits once, and nothing outside the row: anything may lie past its end. Find the row's request,
    and take temperature and noise as the module's docstring says. Store into entry (row, block) of best and
    token, which have no gaps.

    `if` takes a number, such as one loaded from a single address; a choice lane by lane is `tl.where`. A
    variable keeps its type through an `if`, so convert the logits where they are loaded. Use `/` and
    `tl.log`; in the interpreter both are numpy's. `tl.max(tile, axis=0, return_indices=True)` gives the
    largest and its lane. logits_stride counts elements from one row to the next. BLOCK is a power of two.
    """
    raise NotImplementedError


@triton.jit
def row_kernel(
    out_ptr,
    best_ptr,
    token_ptr,
    num_blocks,
    LANES: tl.constexpr,
):
    """The token of one row, from what the programs of its blocks have found.

    Program (row) takes one row. LANES is the first power of two from num_blocks on. A tile cannot be indexed,
    but a number can be loaded from a computed address. `tl.argmax(tile, axis=0)` gives the first largest.
    """
    raise NotImplementedError


def gumbel_sample(
    logits: Tensor,
    idx_mapping: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    positions: Tensor,
    block_size: int = 1024,
) -> Tensor:
    """Start both kernels: one program for each block of each row, then one for each row. Given."""
    rows, vocab_size = logits.shape
    num_blocks = triton.cdiv(vocab_size, block_size)
    best = logits.new_empty(rows, num_blocks, dtype=torch.float32)
    token = logits.new_empty(rows, num_blocks, dtype=torch.int64)
    out = logits.new_empty(rows, dtype=torch.int64)
    block_kernel[(rows, num_blocks)](
        best, token, logits, idx_mapping, temperature, seeds, positions,
        logits.stride(0), vocab_size, num_blocks, BLOCK=block_size, num_warps=4,
    )  # fmt: skip
    lanes = triton.next_power_of_2(num_blocks)
    row_kernel[(rows,)](out, best, token, num_blocks, LANES=lanes, num_warps=1)
    return out
