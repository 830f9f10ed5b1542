"""Attention on a GPU: `mini_vllm`'s kernels beside vLLM's, FlashAttention, torch and a plain copy.

    python -m benchmarks.attention [--what decode|prefill|mixed] [--save]      on a GPU
    python -m benchmarks.attention [--what …] --dry-run       without: tiny shapes, under Triton's interpreter

Decode is the default; `attention_varlen.py` says what prefill and mixed batches are. For every shape each
leg computes the same from the same paged cache, one after the other in one process. The copy moves as many
bytes as the shape needs at the least (`least_bytes`), half of them read and half written. A leg's share is
its speed in these bytes against the copy's: 0.85 means that decoding is 85 % as fast as copying. A leg is
recorded once as a CUDA graph, as vLLM does in decode, and replayed; before each replay the L2 cache is
overwritten. Times are medians by CUDA events.

Legs that are not installed, and shapes that do not fit into memory, are left out and named. The dry
run times nothing. It shows that every leg runs and agrees with the reference. FlashAttention has no
kernel for a CPU: its call is bound to the real signature, and a stand-in answers.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from benchmarks import attention_varlen as varlen
from benchmarks import machine
from benchmarks.attention_legs import LEGS, Case, Inputs, NotHereError, make_inputs

if TYPE_CHECKING:
    from torch import Tensor

BATCHES = (1, 8, 32, 64, 256)
CONTEXTS = (128, 1024, 4096, 16384, 65536, 131072)
HEAD_SIZES = (64, 128)
GROUPS = (1, 4, 8)
BLOCK_SIZES = (16, 64)
DTYPES = ("bfloat16", "float16")
MOST_FLOPS_CHECKED = 4e11
TOLERANCE = {"float16": 5e-3, "bfloat16": 4e-2}
"""Against the float32 reference: weights and result are rounded to 16 bits."""


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
            if not error <= TOLERANCE[case.dtype]:
                raise SystemExit(f"{name} is wrong by {error:.1e} at {case}: nothing is timed")
            spent = microseconds(run, rounds) if timed else None
        except (NotHereError, RuntimeError) as reason:
            missing[name] = str(reason).splitlines()[0]
            row.setdefault(f"{name} error", None)
        if copied:
            row |= {f"{name} us": spent, f"{name} share": copied / spent if spent else None}
    return row


def measure_batch(
    batch: varlen.Batch, device: str, rounds: int, missing: dict[str, str]
) -> dict[str, Any]:
    """One row of prefill or of a mixed batch: every leg's error and, on a GPU, its time."""
    from mini_vllm.gpu.attention import paged_attention

    inputs = varlen.make_varlen(batch, device)
    mixed = batch.num_decodes > 0
    new = batch.query_lens[-1]
    row: dict[str, Any] = {
        "batch": batch.name, "sequences": len(batch.seq_lens), "new": new, "of": batch.seq_lens[0],
        "head": batch.head_size, "GQA": batch.group, "dtype": batch.dtype,
    }  # fmt: skip
    expected = None
    if batch.flops() < MOST_FLOPS_CHECKED:  # float32 scores of a long prompt fit nowhere
        import torch

        expected = paged_attention(*inputs.positional, torch.float32)
    for name, leg in (varlen.MIXED_LEGS if mixed else varlen.PREFILL_LEGS).items():
        spent = None
        try:
            run = leg(inputs)
            out = run().float()
            # Where the reference is too large, the first leg stands for it.
            expected = out if expected is None else expected
            row[f"{name} error"] = error = float((out - expected).abs().max())
            if not error <= TOLERANCE[batch.dtype]:
                raise SystemExit(f"{name} is wrong by {error:.1e} at {batch}: nothing is timed")
            spent = microseconds(run, rounds) if device == "cuda" else None
        except (NotHereError, ImportError, RuntimeError) as reason:
            missing[name] = str(reason).splitlines()[0]
            row.setdefault(f"{name} error", None)
        if device == "cuda":
            row[f"{name} us"] = spent
            if not mixed:
                row[f"{name} TFLOP/s"] = batch.flops() / spent / 1e6 if spent else None
    return row


def cases(args: argparse.Namespace) -> Iterator[Case]:
    axes = args.batch, args.context, args.head_size, args.gqa, args.block_size, args.dtype
    for values in itertools.product(*axes):
        yield Case(*values)


def is_wanted(args: argparse.Namespace, batch: varlen.Batch) -> bool:
    """Whether a batch of prefill or a mixed one has a head size, a group and a type that were asked for."""
    return (
        batch.head_size in args.head_size and batch.group in args.gqa and batch.dtype in args.dtype
    )


def run_all(
    args: argparse.Namespace, wanted: Iterable[Case | varlen.Batch]
) -> list[dict[str, Any]]:
    import torch

    rows, missing = [], dict[str, str]()
    for case in wanted:
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        needed = case.least_bytes() if isinstance(case, Case) else case.cache_bytes()
        if 1.3 * needed > free:  # the copy needs as much again only where it fits
            print(f"does not fit: {case}", file=sys.stderr)
            continue
        try:
            if isinstance(case, Case):
                rows.append(measure(case, "cuda", args.rounds, missing))
            else:
                rows.append(measure_batch(case, "cuda", args.rounds, missing))
        except torch.cuda.OutOfMemoryError:
            print(f"does not fit: {case}", file=sys.stderr)
            continue
        print(machine.table(rows[-1:]), flush=True)
    for name, reason in missing.items():
        print(f"left out in places: {name}: {reason}", file=sys.stderr)
    return rows


def dry_run(what: str) -> list[dict[str, Any]]:
    """Every leg once on tiny shapes, on the CPU, in float16: bfloat16 can be wrong in the interpreter."""
    tiny = [Case(2, 100, 64, 4, 16, "float16", 2), Case(3, 70, 128, 1, 64, "float16", 1)]
    missing: dict[str, str] = {}
    if what == "decode":
        rows = [measure(case, "cpu", 0, missing) for case in tiny]
    else:
        batches = varlen.prefill_batches if what == "prefill" else varlen.mixed_batches
        rows = [measure_batch(batch, "cpu", 0, missing) for batch in batches(dry=True)]
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
    parser.add_argument("--what", choices=["decode", "prefill", "mixed"], default="decode")
    for name, default in axes.items():
        kind = type(default[0])
        parser.add_argument(
            f"--{name}", type=kind, nargs="+", default=default,
            help=f"{'' if name in ('head-size', 'gqa', 'dtype') else 'decode only: '}{default}",
        )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=30, help="replays of a leg (30)")
    parser.add_argument("--dry-run", action="store_true", help="every leg once, without a GPU")
    parser.add_argument("--save", action="store_true", help="write results/attention….json")
    args = parser.parse_args(argv)
    if args.dry_run:
        # Both are read when Triton and vLLM are imported. The empty string, because vLLM looks for a
        # driver where the variable is unset, and switches its Triton kernels off.
        os.environ["TRITON_INTERPRET"] = "1"
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        rows = dry_run(args.what)
        print(machine.table(rows))
    else:
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("torch sees no CUDA device; --dry-run needs none")
        wanted: Iterable[Case | varlen.Batch] = cases(args)
        if args.what != "decode":
            batches = varlen.prefill_batches if args.what == "prefill" else varlen.mixed_batches
            wanted = [batch for batch in batches() if is_wanted(args, batch)]
        rows = run_all(args, wanted)
    if args.save and machine.may_save(args.dry_run):
        command = "python -m benchmarks.attention " + " ".join(argv or sys.argv[1:])
        name = "attention" if args.what == "decode" else f"attention_{args.what}"
        print(machine.save(name, command.replace(" --save", ""), rows, gpu=machine.describe_gpu()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
