"""Decode attention on a GPU: `mini_vllm`'s kernel beside vLLM's, FlashAttention, torch and a plain copy.

    python -m benchmarks.attention [--save]        on a GPU
    python -m benchmarks.attention --dry-run       without: tiny shapes, under Triton's interpreter

For every shape each leg computes the same from the same paged cache, one after the other in one
process. The copy moves as many bytes as the shape needs at the least (`least_bytes`), half of them
read and half written. A leg's share is its speed in these bytes against the copy's: 0.85 means that
decoding is 85 % as fast as copying. A leg is recorded once as a CUDA graph, as vLLM does in decode,
and replayed; before each replay the L2 cache is overwritten. Times are medians by CUDA events.

Legs that are not installed, and shapes that do not fit into memory, are left out and named. The dry
run times nothing. It shows that every leg runs and agrees with the reference. FlashAttention has no
kernel for a CPU: its call is bound to the real signature, and a stand-in answers.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import itertools
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import machine

if TYPE_CHECKING:
    from torch import Tensor

BATCHES = (1, 8, 32, 64, 256)
CONTEXTS = (128, 1024, 4096, 16384, 65536, 131072)
HEAD_SIZES = (64, 128)
GROUPS = (1, 4, 8)
BLOCK_SIZES = (16, 64)
DTYPES = ("bfloat16", "float16")
KV_HEADS = 8
OURS, VLLM, FLASH, SDPA = "mini_vllm", "vLLM Triton", "FlashAttention", "gather + SDPA"
TOLERANCE = 5e-3
"""Against the float32 reference: weights and result are rounded to 16 bits."""


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


# -- the legs ---------------------------------------------------------------------------------------


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
    version = 2
    if not i.query.is_cuda:
        flash = _stand_in(i)
    else:
        try:
            from vllm.vllm_flash_attn import flash_attn_varlen_func as flash
            from vllm.vllm_flash_attn import is_fa_version_supported
        except ImportError:
            return _flash_attn_package(i)
        version = max((v for v in (2, 3) if is_fa_version_supported(v)), default=0)
        if not version:
            raise NotHereError("vLLM's FlashAttention does not support this GPU")
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


def _stand_in(i: Inputs) -> Callable[..., None]:
    """Takes what vLLM's `flash_attn_varlen_func` takes, by its signature, and answers by the reference.

    The signature is read from its file, because the package does not import without its CUDA library.
    """
    from mini_vllm.gpu.attention import paged_decode

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
        args = (
            given[name] for name in ("q", "k", "v", "block_table", "seqused_k", "softmax_scale")
        )
        given["out"].copy_(paged_decode(*args))

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
    OURS: ours,
    VLLM: vllm_triton,
    FLASH: flash_attention,
    SDPA: gather_and_sdpa,
}


# -- measuring --------------------------------------------------------------------------------------


def record(run: Callable[[], Any]) -> Callable[[], None]:
    """`run` as a CUDA graph, after three calls in which it compiles and allocates."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Callable[[], None] = graph.replay
    return replay


def microseconds(run: Callable[[], Any], rounds: int) -> float:
    """The median of `rounds` replays, each with a cold L2 cache."""
    import torch

    replay = record(run)
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    times = []
    for _ in range(rounds):
        flush.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        replay()
        end.record()
        times.append((begin, end))
    torch.cuda.synchronize()
    return 1000 * statistics.median(begin.elapsed_time(end) for begin, end in times)


def copy_leg(moved: int, device: str) -> Callable[[], Any]:
    """A copy on the device that moves `moved` bytes: half read, half written."""
    import torch

    source = torch.zeros(max(1, moved // 2), dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def error_of(out: Tensor, inputs: Inputs) -> float:
    """The largest difference to the float32 reference, in the first two sequences."""
    import torch

    from mini_vllm.gpu.attention import paged_decode

    i = inputs
    expected = paged_decode(
        i.query[:2], i.key_cache, i.value_cache, i.block_table[:2], i.seq_lens[:2], i.scale,
        torch.float32,
    )  # fmt: skip
    return float((out[:2].float() - expected).abs().max())


def measure(case: Case, device: str, rounds: int, missing: dict[str, str]) -> dict[str, Any]:
    """One row: every leg's error and, on a GPU, its time and its share of the copy's speed."""
    inputs = make_inputs(case, device)
    moved = case.least_bytes()
    row: dict[str, Any] = {
        "batch": case.batch, "context": case.context, "head": case.head_size, "GQA": case.group,
        "block": case.block_size, "dtype": case.dtype, "MB": moved / 1e6,
    }  # fmt: skip
    copy = copy_leg(moved, device)
    copy()
    timed = device == "cuda"
    copied = microseconds(copy, rounds) if timed else None
    if copied:
        row |= {"copy us": copied, "copy GB/s": moved / copied / 1e3}
    for name, leg in LEGS.items():
        spent = None
        try:
            run = leg(inputs)
            row[f"{name} error"] = error = error_of(run(), inputs)
            if error > TOLERANCE:
                raise SystemExit(f"{name} is wrong by {error:.1e} at {case}: nothing is timed")
            spent = microseconds(run, rounds) if timed else None
        except (NotHereError, RuntimeError) as reason:
            missing[name] = str(reason).splitlines()[0]
            row.setdefault(f"{name} error", None)
        if copied:
            row |= {f"{name} us": spent, f"{name} share": copied / spent if spent else None}
    return row


def cases(args: argparse.Namespace) -> Iterator[Case]:
    axes = args.batch, args.context, args.head_size, args.gqa, args.block_size, args.dtype
    for values in itertools.product(*axes):
        yield Case(*values)


def run_all(args: argparse.Namespace, wanted: Iterable[Case]) -> list[dict[str, Any]]:
    import torch

    rows, missing = [], dict[str, str]()
    for case in wanted:
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        if 1.3 * case.least_bytes() > free:  # the copy needs as much again only where it fits
            print(f"does not fit: {case}", file=sys.stderr)
            continue
        try:
            rows.append(measure(case, "cuda", args.rounds, missing))
        except torch.cuda.OutOfMemoryError:
            print(f"does not fit: {case}", file=sys.stderr)
            continue
        print(machine.table(rows[-1:]), flush=True)
    for name, reason in missing.items():
        print(f"left out in places: {name}: {reason}", file=sys.stderr)
    return rows


def describe_gpu() -> dict[str, Any]:
    """The device, its driver, and what torch was built for."""
    import torch

    device = torch.cuda.get_device_properties(0)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True).stdout.split("\n")[0].strip()
    except FileNotFoundError:
        driver = ""
    return {
        "name": device.name,
        "capability": f"{device.major}.{device.minor}",
        "multiprocessors": device.multi_processor_count,
        "memory": device.total_memory,
        "driver": driver or "unknown",
        "cuda": torch.version.cuda,
    }


def dry_run() -> list[dict[str, Any]]:
    """Every leg once on tiny shapes, on the CPU, in float16: bfloat16 is wrong in the interpreter."""
    tiny = [Case(2, 100, 64, 4, 16, "float16", 2), Case(3, 70, 128, 1, 64, "float16", 1)]
    missing: dict[str, str] = {}
    rows = [measure(case, "cpu", 0, missing) for case in tiny]
    for name, reason in missing.items():
        print(f"left out: {name}: {reason}", file=sys.stderr)
    for row in rows:
        row.update({k: f"{v:.0e}" for k, v in row.items() if k.endswith("error") and v is not None})
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    axes: dict[str, tuple[Any, ...]] = {
        "batch": BATCHES, "context": CONTEXTS, "head-size": HEAD_SIZES, "gqa": GROUPS,
        "block-size": BLOCK_SIZES, "dtype": DTYPES,
    }  # fmt: skip
    for name, default in axes.items():
        kind = type(default[0])
        parser.add_argument(f"--{name}", type=kind, nargs="+", default=default, help=f"{default}")
    parser.add_argument("--rounds", type=int, default=30, help="replays of a leg (30)")
    parser.add_argument("--dry-run", action="store_true", help="every leg once, without a GPU")
    parser.add_argument("--save", action="store_true", help="write results/attention.json")
    args = parser.parse_args(argv)
    if args.dry_run:
        # Both are read when Triton and vLLM are imported. The empty string, because vLLM looks for a
        # driver where the variable is unset, and switches its Triton kernels off.
        os.environ["TRITON_INTERPRET"] = "1"
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        print(machine.table(dry_run()))
        return 0
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device; --dry-run needs none")
    rows = run_all(args, cases(args))
    if args.save:
        command = "python -m benchmarks.attention " + " ".join(argv or sys.argv[1:])
        print(machine.save("attention", command.replace(" --save", ""), rows, describe_gpu()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
