"""A correct `paged_decode` on tensor cores: the query heads of one KV head fill the rows of a tl.dot."""

import torch
import triton
import triton.language as tl


@triton.jit
def grouped_decode(
    out_ptr, q_ptr, k_ptr, v_ptr, table_ptr, lens_ptr, scale_log2,
    stride_qs, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh, stride_ts,
    G: tl.constexpr, M: tl.constexpr, D: tl.constexpr, BS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    kv = tl.program_id(0)
    s = tl.program_id(1)
    n = tl.load(lens_ptr + s)
    m_i = tl.arange(0, M)
    d_i = tl.arange(0, D)
    n_i = tl.arange(0, N)
    row_ok = m_i < G
    q_ptrs = q_ptr + s * stride_qs + (kv * G + m_i[:, None]) * stride_qh + d_i[None, :]
    q = tl.load(q_ptrs, mask=row_ok[:, None])
    row_max = tl.full([M], -1e30, tl.float32)
    row_sum = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    table = table_ptr + s * stride_ts
    for tile in range(tl.cdiv(n, N)):
        pos = tile * N + n_i
        ok = pos < n
        ids = tl.load(table + pos // BS, mask=ok).to(tl.int64)
        slot = pos % BS
        k = tl.load(
            k_ptr
            + ids[None, :] * stride_kb
            + slot[None, :] * stride_kt
            + kv * stride_kh
            + d_i[:, None],
            mask=ok[None, :],
            other=0.0,
        )
        s_ij = tl.where(ok[None, :], tl.dot(q, k, input_precision="ieee") * scale_log2, -1e30)
        new_max = tl.maximum(row_max, tl.max(s_ij, 1))
        alpha = tl.exp2(row_max - new_max)
        p = tl.exp2(s_ij - new_max[:, None])
        row_sum = row_sum * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = tl.load(
            v_ptr
            + ids[:, None] * stride_vb
            + slot[:, None] * stride_vt
            + kv * stride_vh
            + d_i[None, :],
            mask=ok[:, None],
            other=0.0,
        )
        acc += tl.dot(p.to(v.dtype), v, input_precision="ieee")
        row_max = new_max
    acc = acc / row_sum[:, None]
    o_ptrs = out_ptr + (s * tl.num_programs(0) * G + kv * G + m_i[:, None]) * D + d_i[None, :]
    tl.store(o_ptrs, acc.to(out_ptr.dtype.element_ty), mask=row_ok[:, None])


def paged_decode(query, key_cache, value_cache, block_table, seq_lens, scale):
    num_seqs, num_heads, head_size = query.shape
    group = num_heads // key_cache.shape[2]
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    grouped_decode[(key_cache.shape[2], num_seqs)](
        out, query, key_cache, value_cache, block_table, seq_lens, scale * 1.4426950408889634,
        query.stride(0), query.stride(1), *key_cache.stride()[:3], *value_cache.stride()[:3],
        block_table.stride(0),
        G=group, M=max(16, triton.next_power_of_2(group)), D=head_size, BS=key_cache.shape[1], N=32,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    return out
