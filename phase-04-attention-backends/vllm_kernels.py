"""vLLM's Triton kernels and its cascade rule, called alone: the topics of `vllm_attention.py` about kernels.

python phase-04-attention-backends/vllm_attention.py grid latent prefix
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from long_chat import DEEPSEEK, LLAMA

Say = Callable[[str], None]
HEADS, KV_HEADS, HEAD_SIZE = 4, 2, 32
"""The shipped model's."""


# --- grid ---


class _Launches:
    """A kernel that notes the grid it is launched with, and runs only where it is told to."""

    def __init__(self, kernel: Any, grids: list[Any]) -> None:
        self.kernel, self.grids = kernel, grids

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launched(*args: Any, **more: Any) -> None:
            self.grids.append((getattr(self.kernel, "__name__", "kernel"), grid, more))

        return launched


def grid(say: Say) -> None:
    """What vLLM's `unified_attention` launches, with Llama-3-8B's heads; and that both ways agree."""
    import torch
    from vllm.v1.attention.ops import triton_unified_attention as ops

    kernels = {name: getattr(ops, name) for name in ("kernel_unified_attention", "reduce_segments")}
    grids: list[Any] = []
    for name, kernel in kernels.items():
        setattr(ops, name, _Launches(kernel, grids))
    cases = {
        "Ida": [1],
        "16 like her": [1] * 16,
        "17 like her": [1] * 17,
        "Ida and Jon": [1, 4096],
        "Jon": [4096],
    }
    for name, lens in cases.items():
        grids.clear()
        _call(ops, lens, [4096] * len(lens), heads=32, kv_heads=8, head_size=128, run=False)
        (_, launched, given), *rest = grids
        tail = f", then {rest[0][0]} {rest[0][1]}" if rest else ""
        say(f"{name:12} {launched!s:14} tiles of {given['TILE_SIZE']} keys{tail}")
    for name, kernel in kernels.items():
        setattr(ops, name, kernel)
    results = [
        _call(ops, [1], [245], heads=HEADS, kv_heads=KV_HEADS, head_size=HEAD_SIZE, split=split)
        for split in (False, True)
    ]
    apart = (results[0] - results[1]).abs().max().item()
    assert 0 < apart < 1e-5
    assert not torch.equal(*results)
    say("245 keys, split and not: the same to five places, and not bit for bit")


def _call(
    ops: Any,
    lens: list[int],
    contexts: list[int],
    heads: int,
    kv_heads: int,
    head_size: int,
    split: bool = True,
    run: bool = True,
) -> Any:
    """Call `unified_attention` on random tensors, with the buffers for segments or without."""
    import torch

    draw = torch.Generator().manual_seed(0)
    blocks = sum(-(-context // 16) for context in contexts) if run else 1
    shape = (blocks, 16, kv_heads, head_size)
    dtype = torch.float32 if run else torch.float16
    key, value = (torch.randn(shape, generator=draw).to(dtype) for _ in range(2))
    query = torch.randn(sum(lens), heads, head_size, generator=draw).to(dtype)
    out = torch.empty_like(query)
    table = torch.arange(blocks, dtype=torch.int32)[None].expand(len(lens), -1).contiguous()
    buffers: dict[str, Any] = {}
    if split:
        part = (128 // kv_heads, heads, 16)
        buffers = {
            "seq_threshold_3D": 128 // kv_heads,
            "num_par_softmax_segments": 16,
            "softmax_segm_output": torch.empty(*part, head_size),
            "softmax_segm_max": torch.empty(part),
            "softmax_segm_expsum": torch.empty(part),
        }
    ops.unified_attention(
        q=query, k=key, v=value, out=out,
        cu_seqlens_q=torch.tensor(np.concatenate(([0], np.cumsum(lens))), dtype=torch.int32),
        max_seqlen_q=max(lens), seqused_k=torch.tensor(contexts, dtype=torch.int32),
        max_seqlen_k=max(contexts), softmax_scale=head_size**-0.5, causal=True,
        window_size=(-1, -1), block_table=table, softcap=0.0,
        q_descale=None, k_descale=None, v_descale=None, **buffers,
    )  # fmt: skip
    return out


# --- latent ---


def latent(say: Say) -> None:
    """The bytes of an MLA cache, and vLLM's MLA decode kernel against keys and values spelled out."""
    import torch
    from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

    bits = {"block_size": 1, "dtype": torch.bfloat16}
    mla: Any = MLAAttentionSpec(num_kv_heads=1, head_size=576, **bits)
    full: Any = FullAttentionSpec(num_kv_heads=8, head_size=128, **bits)
    say(f"a token of one layer: {mla.page_size_bytes} bytes; Llama-3-8B {full.page_size_bytes}")
    assert (mla.page_size_bytes, full.page_size_bytes) == (DEEPSEEK.token_bytes, LLAMA.token_bytes)

    heads, lora, rope, nope, context = 16, 512, 64, 128, 100
    draw = torch.Generator().manual_seed(0)
    cache = torch.randn(7, 16, lora + rope, generator=draw)
    cache[..., :lora] *= 0.1
    w_uk = torch.randn(heads, nope, lora, generator=draw) * 0.1
    w_uv = torch.randn(heads, lora, nope, generator=draw) * 0.1
    query = torch.randn(heads, nope + rope, generator=draw) * 0.1
    scale = (nope + rope) ** -0.5
    # forward_mqa: the matrix at the query, one key of 576 numbers for all heads
    absorbed = torch.cat([torch.einsum("hn,hnl->hl", query[:, :nope], w_uk), query[:, nope:]], -1)
    splits = 4
    out, lse = torch.zeros(1, heads, lora), torch.zeros(1, heads)
    buffer = cache.unsqueeze(2)
    decode_attention_fwd(
        absorbed[None], buffer, buffer[..., :lora], out, lse,
        torch.arange(7, dtype=torch.int32)[None], torch.tensor([context], dtype=torch.int32),
        torch.empty(1, heads, splits, lora + 1), splits, scale, 16, is_mla=True,
    )  # fmt: skip
    mqa = torch.einsum("hl,hlv->hv", out[0], w_uv)
    # forward_mha: keys and values of all heads from the latents
    latents, roped = cache.flatten(0, 1)[:context].split([lora, rope], -1)
    keys = torch.cat(
        [torch.einsum("tl,hnl->thn", latents, w_uk), roped[:, None].expand(-1, heads, -1)], -1
    )
    values = torch.einsum("tl,hlv->thv", latents, w_uv)
    scores = torch.einsum("hd,thd->ht", query.double(), keys.double()) * scale
    mha = torch.einsum("ht,thv->hv", scores.softmax(-1), values.double())
    apart = (mqa.double() - mha).abs().max() / mha.abs().max()
    assert apart < 1e-4, apart
    say(
        f"{heads} heads, {context} keys, {splits} splits: latents as keys, and keys from latents, agree"
    )
    try:
        from vllm.platforms import current_platform
        from vllm.v1.attention.selector import AttentionSelectorConfig

        current_platform.get_attn_backend_cls(
            None, AttentionSelectorConfig(576, torch.float16, "auto", None, use_mla=True)
        )
    except NotImplementedError as error:
        say(f"asked for on a CPU: {error}")


# --- prefix ---


def prefix(say: Say) -> None:
    """vLLM's rule for cascade attention, asked; and its merge of prefix and rest in the interpreter."""
    import torch
    from vllm.v1.attention.backends.flash_attn import use_cascade_attention
    from vllm.v1.attention.ops.triton_merge_attn_states import merge_attn_states

    def asks(people: int, shared: int, rows: int = 1) -> str:
        says = use_cascade_attention(
            shared, np.array([rows] + [1] * (people - 1)), 32, 8, False, False, False, 108, 1
        )
        return "yes" if says else "no"

    for people, shared in ((10, 2048), (20, 2048), (20, 240), (7, 2048)):
        say(f"{people:2} people decode, {shared:4} tokens in common: {asks(people, shared)}")
    say(f"10 people, one of them Jon with 64 rows: {asks(10, 2048, 64)}")

    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(10, HEADS, 300, generator=draw)
    values = torch.randn(300, HEADS, HEAD_SIZE, generator=draw)

    def part(begin: int, end: int) -> tuple[Any, Any]:
        some = scores[..., begin:end]
        out = torch.einsum("thk,khd->thd", some.softmax(-1), values[begin:end])
        return out.contiguous(), some.logsumexp(
            -1
        ).T.contiguous()  # [rows, heads, D], [heads, rows]

    merged = torch.empty(10, HEADS, HEAD_SIZE)
    merge_attn_states(merged, *part(0, 256), *part(256, 300))
    apart = (merged - part(0, 300)[0]).abs().max()
    assert apart < 1e-5
    say(
        "256 keys in common, 44 of one's own: two results and their logarithms of sums, merged, are the whole"
    )
