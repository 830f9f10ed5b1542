"""The shapes and the legs of `benchmarks/attention.py`: each leg is a way to compute decode attention.

A leg takes a case's tensors and returns what is timed; it raises NotHereError where it cannot run.
torch is imported inside the functions, because the dry run sets the environment first.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

KV_HEADS = 8


class NotHereError(Exception):
    """A leg cannot run; the message says why."""


@dataclass(frozen=True)
class Case:
    """A shape. All sequences have `context` tokens; G query heads share each of `kv_heads` KV heads."""

    batch: int
    context: int
    head_size: int
    group: int
    block_size: int
    dtype: str
    kv_heads: int = KV_HEADS

    def least_bytes(self) -> int:
        from mini_vllm.gpu.attention import least_bytes

        lens = [self.context] * self.batch
        heads = self.group * self.kv_heads
        return least_bytes(lens, heads, self.kv_heads, self.head_size, self.block_size, 2)


@dataclass(frozen=True)
class Inputs:
    """A case's tensors, as `mini_vllm/gpu/attention.py` describes them."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_table: Tensor
    seq_lens: Tensor
    context: int

    @property
    def scale(self) -> float:
        return float(self.query.shape[-1] ** -0.5)


Leg = Callable[[Inputs], Callable[[], "Tensor"]]


def make_inputs(case: Case, device: str) -> Inputs:
    """Random numbers; the blocks of a sequence lie anywhere in the pool."""
    import torch

    generator = torch.Generator(device).manual_seed(0)
    dtype = getattr(torch, case.dtype)
    blocks = -(-case.context // case.block_size)
    pool = (case.batch * blocks, case.block_size, case.kv_heads, case.head_size)
    heads = (case.batch, case.group * case.kv_heads, case.head_size)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device, dtype=dtype)

    table = torch.randperm(case.batch * blocks, generator=generator, device=device)
    return Inputs(
        draw(*heads), draw(*pool), draw(*pool),
        table.view(case.batch, blocks).int(),
        torch.full((case.batch,), case.context, dtype=torch.int32, device=device), case.context,
    )  # fmt: skip


def ours(inputs: Inputs) -> Callable[[], Tensor]:
    from mini_vllm.gpu.kernels.paged_decode import paged_decode

    i = inputs
    return lambda: paged_decode(
        i.query, i.key_cache, i.value_cache, i.block_table, i.seq_lens, i.scale,
        max_seq_len=i.context,
    )  # fmt: skip


def vllm_triton(inputs: Inputs) -> Callable[[], Tensor]:
    """As vLLM's Triton backend calls it for decode: 16 segments where the batch is small."""
    import torch

    try:
        from vllm.v1.attention.backends.triton_attn import (
            MIN_LAUNCH_GRID_SIZE_2D,
            NUM_PAR_SOFTMAX_SEGMENTS,
        )
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    except ImportError as error:
        raise NotHereError(f"vLLM is not installed: {error}") from None
    i = inputs
    batch, heads, head_size = i.query.shape
    kv_heads = i.key_cache.shape[2]
    # Above the threshold vLLM does not split. Its buffers have a row for each sequence up to there.
    threshold = MIN_LAUNCH_GRID_SIZE_2D // kv_heads
    parts = (threshold, heads, NUM_PAR_SOFTMAX_SEGMENTS)
    device = i.query.device
    # The padded size is vLLM's rule; the benchmark's head sizes are powers of two already.
    segm_output = torch.empty((*parts, head_size), dtype=torch.float32, device=device)
    segm_max, segm_expsum = (
        torch.empty(parts, dtype=torch.float32, device=device) for _ in range(2)
    )
    out = torch.empty_like(i.query)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=device)

    def run() -> Tensor:
        unified_attention(
            q=i.query, k=i.key_cache, v=i.value_cache, out=out,
            cu_seqlens_q=starts, max_seqlen_q=1, seqused_k=i.seq_lens, max_seqlen_k=i.context,
            softmax_scale=i.scale, causal=True, window_size=(-1, -1), block_table=i.block_table,
            softcap=0.0, q_descale=None, k_descale=None, v_descale=None,
            seq_threshold_3D=threshold, num_par_softmax_segments=NUM_PAR_SOFTMAX_SEGMENTS,
            softmax_segm_output=segm_output, softmax_segm_max=segm_max,
            softmax_segm_expsum=segm_expsum,
        )  # fmt: skip
        return out

    return run


def flash_attention(inputs: Inputs) -> Callable[[], Tensor]:
    """vLLM's build of FlashAttention, else the package `flash_attn`; on the CPU a stand-in for vLLM's."""
    import torch

    i = inputs
    try:
        flash, version = flash_function(i.query.is_cuda)
    except ImportError:
        return _flash_attn_package(i)
    starts = torch.arange(len(i.seq_lens) + 1, dtype=torch.int32, device=i.query.device)
    out = torch.empty_like(i.query)

    def run() -> Tensor:
        flash(
            q=i.query, k=i.key_cache, v=i.value_cache, out=out, cu_seqlens_q=starts, max_seqlen_q=1,
            seqused_k=i.seq_lens, max_seqlen_k=i.context, softmax_scale=i.scale, causal=True,
            block_table=i.block_table, fa_version=version,
        )  # fmt: skip
        return out

    return run


def flash_function(on_gpu: bool) -> tuple[Callable[..., Any], int]:
    """vLLM's `flash_attn_varlen_func` and the version to ask for; on the CPU the stand-in."""
    if not on_gpu:
        return _stand_in(), 2
    from vllm.vllm_flash_attn import flash_attn_varlen_func as flash
    from vllm.vllm_flash_attn import is_fa_version_supported

    version = max((v for v in (2, 3) if is_fa_version_supported(v)), default=0)
    if not version:
        raise NotHereError("vLLM's FlashAttention does not support this GPU")
    return flash, version


def _flash_attn_package(i: Inputs) -> Callable[[], Tensor]:
    try:
        from flash_attn import flash_attn_with_kvcache as flash
    except ImportError:
        raise NotHereError("neither vllm.vllm_flash_attn nor flash_attn is installed") from None

    def run() -> Tensor:
        out: Tensor = flash(
            q=i.query[:, None], k_cache=i.key_cache, v_cache=i.value_cache, softmax_scale=i.scale,
            cache_seqlens=i.seq_lens, block_table=i.block_table, causal=True,
        )  # fmt: skip
        return out.view_as(i.query)

    return run


def _stand_in() -> Callable[..., None]:
    """Takes what vLLM's `flash_attn_varlen_func` takes, by its signature, and answers by the reference.

    The signature is read from its file, because the package does not import without its CUDA library.
    """
    from mini_vllm.gpu.attention import paged_attention

    vllm = importlib.util.find_spec("vllm")
    if vllm is None or vllm.origin is None:
        raise NotHereError(
            "vLLM is not installed, and FlashAttention's call is checked against its file"
        )
    path = Path(vllm.origin).parent / "vllm_flash_attn" / "flash_attn_interface.py"
    spec = importlib.util.spec_from_file_location("flash_attn_interface", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    signature = inspect.signature(module.flash_attn_varlen_func)

    def answer(**arguments: Any) -> None:
        given = signature.bind(**arguments).arguments
        names = "q", "k", "v", "block_table", "seqused_k", "cu_seqlens_q", "softmax_scale"
        given["out"].copy_(paged_attention(*(given[name] for name in names)))

    return answer


def gather_and_sdpa(inputs: Inputs) -> Callable[[], Tensor]:
    """What one would write without a paged kernel: copy K and V together, then torch's attention."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    i = inputs
    if i.query.is_cuda:
        free, _ = torch.cuda.mem_get_info()
        # Free memory that PyTorch keeps counts as well.
        free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        needed = 2 * i.key_cache.numel() * i.key_cache.element_size()
        if 1.1 * needed > free:
            raise NotHereError("no room for the copy")
    rows = i.block_table.long()

    def run() -> Tensor:
        # [batch, blocks, block_size, heads, D] -> [batch, heads, context, D]
        key = i.key_cache[rows].flatten(1, 2)[:, : i.context].transpose(1, 2)
        value = i.value_cache[rows].flatten(1, 2)[:, : i.context].transpose(1, 2)
        query = i.query[:, :, None]
        gqa = query.shape[1] != key.shape[1]
        out = scaled_dot_product_attention(query, key, value, scale=i.scale, enable_gqa=gqa)
        return out[:, :, 0]

    return run


LEGS: dict[str, Leg] = {
    "mini_vllm": ours,
    "vLLM Triton": vllm_triton,
    "FlashAttention": flash_attention,
    "gather + SDPA": gather_and_sdpa,
}
