"""Prompts, chunks and mixed batches for `benchmarks/attention.py --what prefill` and `--what mixed`.

A batch is a list of sequences, each with so many tokens in the cache and so many of them new. Decodes come
first. In prefill the sequences are alike, and a leg's figure is TFLOP/s over visible keys (`least_flops`).
In a mixed batch some sequences decode beside a chunk, the figure is microseconds, and `mini_vllm, decodes
not named` shows what it costs to send everything through the prefill kernel, as one launch does.

torch is imported inside the functions, because the dry run sets the environment first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.attention_legs import KV_HEADS, NotHereError, flash_function

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Sequences of `seq_lens` tokens, the last `query_lens` of them new; G query heads share a KV head."""

    name: str
    seq_lens: tuple[int, ...]
    query_lens: tuple[int, ...]
    head_size: int
    group: int
    block_size: int
    dtype: str
    kv_heads: int = KV_HEADS

    @property
    def num_decodes(self) -> int:
        """Sequences at the front with one new token."""
        ones = [n == 1 for n in self.query_lens]
        return ones.index(False) if False in ones else len(ones)

    def flops(self) -> int:
        from mini_vllm.gpu.attention import least_flops

        heads = self.group * self.kv_heads
        return least_flops(self.seq_lens, self.query_lens, heads, self.head_size)

    def cache_bytes(self) -> int:
        return 4 * sum(self.seq_lens) * self.kv_heads * self.head_size


@dataclass(frozen=True)
class VarlenInputs:
    """A batch's tensors, as `mini_vllm/gpu/attention.py` describes them."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_table: Tensor
    seq_lens: Tensor
    query_start_loc: Tensor
    batch: Batch

    @property
    def scale(self) -> float:
        return float(self.batch.head_size**-0.5)

    @property
    def positional(self) -> tuple[Any, ...]:
        """The arguments that the kernels and the reference share."""
        return (
            self.query, self.key_cache, self.value_cache, self.block_table, self.seq_lens,
            self.query_start_loc, self.scale,
        )  # fmt: skip


Leg = Callable[[VarlenInputs], Callable[[], "Tensor"]]


def prefill_batches(dry: bool = False) -> list[Batch]:
    """Whole prompts, and chunks of 2,048 tokens behind longer and longer contexts."""
    if dry:
        return [
            Batch("prompt", (50, 50), (50, 50), 64, 4, 16, "float16", 2),
            Batch("chunk", (90,), (30,), 128, 1, 64, "float16", 1),
        ]
    shapes = [("prompt", 8, n, n) for n in (512, 2048)]
    shapes += [("prompt", 1, n, n) for n in (2048, 8192, 16384)]
    shapes += [("chunk", 1, 2048, 2048 + n) for n in (8192, 32768, 131072)]
    return [
        Batch(name, (length,) * count, (new,) * count, head_size, group, 16, dtype)
        for dtype in ("bfloat16", "float16")
        for head_size, group in ((128, 4), (128, 8), (128, 1), (64, 4))
        for name, count, new, length in shapes
    ]


def mixed_batches(dry: bool = False) -> list[Batch]:
    """Long chats that decode while somebody's prompt is computed."""
    if dry:
        return [Batch("2 decodes", (70, 33, 60), (1, 1, 40), 64, 4, 16, "float16", 2)]
    return [
        Batch(f"{count} decodes", (context,) * count + (4096,), (1,) * count + (new,), 128, 4, 16, dtype)
        for dtype in ("bfloat16", "float16")
        for count, context in ((1, 32768), (4, 4096), (32, 4096), (128, 4096))
        for new in (512, 2048)
    ]  # fmt: skip


def make_varlen(batch: Batch, device: str) -> VarlenInputs:
    """Random numbers; the blocks of a sequence lie anywhere in the pool."""
    import torch

    generator = torch.Generator(device).manual_seed(0)
    dtype = getattr(torch, batch.dtype)
    blocks = [-(-n // batch.block_size) for n in batch.seq_lens]
    pool = (sum(blocks), batch.block_size, batch.kv_heads, batch.head_size)
    heads = (sum(batch.query_lens), batch.group * batch.kv_heads, batch.head_size)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device, dtype=dtype)

    ids = torch.randperm(sum(blocks), generator=generator, device=device).int().split(blocks)
    table = torch.nn.utils.rnn.pad_sequence(list(ids), batch_first=True)
    starts = torch.tensor([0, *batch.query_lens], device=device).cumsum(0).int()
    lens = torch.tensor(batch.seq_lens, dtype=torch.int32, device=device)
    return VarlenInputs(draw(*heads), draw(*pool), draw(*pool), table, lens, starts, batch)


def ours(inputs: VarlenInputs, named: bool = True) -> Callable[[], Tensor]:
    """The entry; with `named` off the decodes go through the prefill kernel."""
    from mini_vllm.gpu.kernels.entry import attention

    batch = inputs.batch
    num_decodes = batch.num_decodes if named else 0
    return lambda: attention(
        *inputs.positional, num_decodes=num_decodes,
        max_query_len=max(batch.query_lens), max_seq_len=max(batch.seq_lens),
    )  # fmt: skip


def ours_unnamed(inputs: VarlenInputs) -> Callable[[], Tensor]:
    return ours(inputs, named=False)


def vllm_triton(inputs: VarlenInputs) -> Callable[[], Tensor]:
    """As vLLM's Triton backend calls it for a batch with a chunk in it: 2D, one launch."""
    import torch

    try:
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    except ImportError as error:
        raise NotHereError(f"vLLM is not installed: {error}") from None
    i, out = inputs, torch.empty_like(inputs.query)
    # At the pin the last tile reads the table to the tile's end, past the sequence's blocks.
    table = torch.nn.functional.pad(i.block_table, (0, 8))

    def run() -> Tensor:
        unified_attention(
            q=i.query, k=i.key_cache, v=i.value_cache, out=out, cu_seqlens_q=i.query_start_loc,
            max_seqlen_q=max(i.batch.query_lens), seqused_k=i.seq_lens,
            max_seqlen_k=max(i.batch.seq_lens), softmax_scale=i.scale, causal=True,
            window_size=(-1, -1), block_table=table, softcap=0.0, q_descale=None, k_descale=None,
            v_descale=None,
        )  # fmt: skip
        return out

    return run


def flash_attention(inputs: VarlenInputs) -> Callable[[], Tensor]:
    """vLLM's build of FlashAttention, over the paged cache; on the CPU a stand-in with its signature."""
    import torch

    i, out = inputs, torch.empty_like(inputs.query)
    flash, version = flash_function(i.query.is_cuda)

    def run() -> Tensor:
        flash(
            q=i.query, k=i.key_cache, v=i.value_cache, out=out, cu_seqlens_q=i.query_start_loc,
            max_seqlen_q=max(i.batch.query_lens), seqused_k=i.seq_lens,
            max_seqlen_k=max(i.batch.seq_lens), softmax_scale=i.scale, causal=True,
            block_table=i.block_table, fa_version=version,
        )  # fmt: skip
        return out

    return run


def sdpa(inputs: VarlenInputs) -> Callable[[], Tensor]:
    """torch's attention over K and V that lie together already: what there is without a cache in pages.

    The copy is not timed. Sequences must be alike, so a mixed batch has no such leg.
    """
    import torch
    from torch.nn.attention.bias import causal_lower_right
    from torch.nn.functional import scaled_dot_product_attention

    i, batch = inputs, inputs.batch
    if len({*batch.seq_lens}) > 1 or len({*batch.query_lens}) > 1:
        raise NotHereError("torch's attention takes no ragged batch")
    length, new, rows = batch.seq_lens[0], batch.query_lens[0], i.block_table.long()
    # [batch, blocks, block_size, heads, D] -> [batch, heads, length, D]
    key = i.key_cache[rows].flatten(1, 2)[:, :length].transpose(1, 2).contiguous()
    value = i.value_cache[rows].flatten(1, 2)[:, :length].transpose(1, 2).contiguous()
    key, value = (t.repeat_interleave(batch.group, 1) for t in (key, value))
    query = i.query.unflatten(0, (len(rows), new)).transpose(1, 2).contiguous()
    mask: Any = torch.ones(new, length, dtype=torch.bool).tril(length - new)
    if i.query.is_cuda:
        mask = causal_lower_right(new, length)

    def run() -> Tensor:
        if new == length:
            out = scaled_dot_product_attention(query, key, value, scale=i.scale, is_causal=True)
        else:
            out = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=i.scale)
        return out.transpose(1, 2).flatten(0, 1)

    return run


PREFILL_LEGS: dict[str, Leg] = {
    "mini_vllm": ours,
    "vLLM Triton": vllm_triton,
    "FlashAttention": flash_attention,
    "SDPA": sdpa,
}
MIXED_LEGS: dict[str, Leg] = {
    "mini_vllm": ours,
    "mini_vllm, decodes not named": ours_unnamed,
    "vLLM Triton": vllm_triton,
    "FlashAttention": flash_attention,
}
