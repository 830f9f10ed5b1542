"""The kernels that the labs write, on a GPU: each lab's solution beside vLLM's kernel and a plain copy.

    python -m benchmarks.lab_kernels [--problem NAME ...] [--save]      on a GPU
    python -m benchmarks.lab_kernels --dry-run       without: tiny shapes, under Triton's interpreter

    decode, split-decode    labs 02-06 and 04-06, vLLM's Triton unified attention
    prefill                 lab 04-05, the same kernel of vLLM's
    w4a16                   lab 06-07, `awq_gemm_triton`
    fused-moe               lab 07-04, `fused_moe_kernel` with the tile of `get_default_config`
    gumbel                  lab 09-07, `gumbel_sample` of model runner V2
    lora                    lab 11-02, `lora_shrink` and `lora_expand`

All in float16, gumbel's logits in float32. Each call is recorded as a CUDA graph and replayed with a cold L2
cache; times are medians by CUDA events. `share` is a kernel's speed in the least bytes that the shape needs
against a copy's of as many bytes. `error` is against float64 or float32, in gumbel the share of rows that
draw another token than numpy does. A kernel that is wrong, or fails, is named and not timed, and the others
run on; the command then ends with status 1. Where vLLM is not installed its half is empty.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from benchmarks import attention_varlen as varlen
from benchmarks import machine, quantization
from benchmarks.attention import TOLERANCE, copy_leg, error_of, microseconds
from benchmarks.attention_legs import Case, NotHereError, make_inputs, vllm_triton

if TYPE_CHECKING:
    from torch import Tensor

ROOT = Path(__file__).parent.parent
LABS = {
    "decode": "phase-02-paged-attention/labs/lab-06-triton-paged-attn",
    "split-decode": "phase-04-attention-backends/labs/lab-06-split-kv-decode",
    "prefill": "phase-04-attention-backends/labs/lab-05-triton-flash-prefill",
    "w4a16": "phase-06-quantization/labs/lab-07-triton-w4a16",
    "fused-moe": "phase-07-gemm-and-moe/labs/lab-04-triton-fused-moe",
    "gumbel": "phase-09-sampling/labs/lab-07-triton-gumbel",
    "lora": "phase-11-multi-lora/labs/lab-02-triton-lora",
}
EXPERTS = (128, 8, 2048, 1536)  # experts, a token's, inputs, outputs: w13 of Qwen3-30B-A3B
FEW_EXPERTS = (8, 2, 96, 72)
OTHER_TOKENS = 0.02
"""Rows of gumbel's that may draw another token: a GPU's logarithm is not numpy's in the last bit."""

Leg = Callable[[], Callable[[], "Tensor"]]


@dataclass(frozen=True)
class Work:
    """One shape of one problem: the two ways to compute it, and what tells whether one is right."""

    shape: str
    moved: int  # the least bytes; 0 where a share of a copy's speed would say nothing
    error: Callable[[Tensor], float]
    tolerance: float
    lab: Leg
    vllm: Leg


def load_lab(problem: str) -> ModuleType:
    from course.learner.labs import load_module

    name = "kernel_" + problem.replace("-", "_")
    return load_module(ROOT / LABS[problem] / "solution.py", name)


def decode(problem: str, device: str, dry: bool) -> Iterator[Work]:
    """A batch of middling sequences, and one long sequence, which only a split spreads over the GPU."""
    cases = [Case(16, 4096, 128, 4, 16, "float16"), Case(1, 65536, 128, 4, 16, "float16")]
    lab = load_lab(problem)
    for case in [Case(2, 100, 64, 4, 16, "float16", 2)] if dry else cases:
        i = make_inputs(case, device)
        given = (i.query, i.key_cache, i.value_cache, i.block_table, i.seq_lens, i.scale)
        if problem == "split-decode":
            call = lambda given=given: lab.split_decode(*given, 32 if dry else 512)  # noqa: E731
        else:
            call = lambda given=given: lab.paged_decode(*given)  # noqa: E731
        yield Work(
            f"{case.batch} x {case.context}", case.least_bytes(), lambda out, i=i: error_of(out, i),
            TOLERANCE[case.dtype], lambda call=call: call, lambda i=i: vllm_triton(i),
        )  # fmt: skip


def prefill(problem: str, device: str, dry: bool) -> Iterator[Work]:
    """The first of the dry run's batches; on a GPU a prompt, and a chunk behind a longer context."""
    from mini_vllm.gpu.attention import paged_attention

    lab = load_lab(problem)
    batches = [
        varlen.Batch("prompt", (2048,), (2048,), 128, 4, 16, "float16"),
        varlen.Batch("chunk", (8192,), (512,), 128, 4, 16, "float16"),
    ]
    for batch in varlen.prefill_batches(dry=True)[:1] if dry else batches:
        i = varlen.make_varlen(batch, device)

        def error(out: Tensor, i: varlen.VarlenInputs = i) -> float:
            import torch

            expected = paged_attention(*i.positional, torch.float32)
            return float((out.float() - expected).abs().max())

        call = lambda i=i: lab.paged_prefill(*i.positional)  # noqa: E731
        yield Work(
            f"{batch.name} {batch.query_lens[0]} of {batch.seq_lens[0]}", 0, error,
            TOLERANCE[batch.dtype], lambda call=call: call, lambda i=i: varlen.vllm_triton(i),
        )  # fmt: skip


def w4a16(problem: str, device: str, dry: bool) -> Iterator[Work]:
    lab = load_lab(problem)
    name, size = ("a", quantization.TINY["a"]) if dry else ("o_proj", quantization.LAYERS["o_proj"])
    for rows in (5,) if dry else (1, 16, 64):
        shape = quantization.Shape(name, *size, rows)
        i = quantization.make_inputs(shape, device)

        def error(out: Tensor, i: quantization.Inputs = i) -> float:
            expected = i.product(4)
            return float((out.double() - expected).abs().max() / expected.abs().max())

        packed = i.packed(4)
        call = lambda i=i, packed=packed: lab.w4a16_gemm(i.x, packed, i.scale)  # noqa: E731
        yield Work(
            f"{name}, {rows} rows", shape.least_bytes(4), error, quantization.TOLERANCE,
            lambda call=call: call, lambda i=i: quantization.awq_triton(i),
        )  # fmt: skip


def fused_moe(problem: str, device: str, dry: bool) -> Iterator[Work]:
    """The first product of a layer; each token's experts are drawn."""
    import torch

    from course.kernels.problems import fused_moe as bench

    lab = load_lab(problem)
    experts, top_k, inputs, outputs = FEW_EXPERTS if dry else EXPERTS
    options: dict[str, Any] = {"device": device, "dtype": torch.float16}
    torch.manual_seed(0)
    w = torch.randn(experts, outputs, inputs, **options)
    for tokens in (1, 5) if dry else (1, 16, 256):
        x = torch.randn(tokens, inputs, **options)
        ids = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)]).int().to(device)
        block = 16 if tokens * top_k <= 16 * experts else 64
        listed = bench.align(ids, block, experts)

        def error(out: Tensor, x: Tensor = x, ids: Tensor = ids) -> float:
            flat, rows = ids.flatten(), x.repeat_interleave(top_k, 0).double()
            expected = torch.empty(len(flat), outputs, dtype=torch.float64, device=device)
            for expert in flat.unique().tolist():
                expected[flat == expert] = rows[flat == expert] @ w[expert].double().T
            return float((out.double() - expected).abs().max() / expected.abs().max())

        def theirs(x: Tensor = x, ids: Tensor = ids) -> Callable[[], Tensor]:
            from vllm.model_executor.layers.fused_moe.fused_moe import get_default_config

            tile = get_default_config(len(x), experts, outputs // 2, inputs, top_k, None)
            pairs, of_blocks, padded = bench.align(ids, tile["BLOCK_SIZE_M"], experts)
            given = {
                "x": x, "w": w, "topk_weights": None, "sorted_pairs": pairs, "block_experts": of_blocks,
                "num_padded": padded, "top_k": top_k, "block_size": tile["BLOCK_SIZE_M"],
            }  # fmt: skip

            def run() -> Tensor:
                with torch.device(device):  # where the bench's call makes its output
                    return bench.vllm(SimpleNamespace(inputs=given), 0, **tile)  # type: ignore[arg-type]

            return run

        call = lambda x=x, listed=listed, block=block: lab.moe_gemm(  # noqa: E731
            x, w, None, *listed, top_k, block
        )
        used = len(ids.unique()) * outputs * inputs
        moved = 2 * (used + tokens * (inputs + top_k * outputs))
        yield Work(
            f"{tokens} tokens, {top_k} of {experts}", moved, error, quantization.TOLERANCE,
            lambda call=call: call, theirs,
        )  # fmt: skip


def gumbel(problem: str, device: str, dry: bool) -> Iterator[Work]:
    """A decode step of 64 requests on Llama-3's vocabulary, every fourth of them greedy."""
    import numpy as np
    import torch

    from mini_vllm.sample.gumbel import gumbel_sample

    lab = load_lab(problem)
    for rows, vocabulary in [(6, 3000)] if dry else [(1, 128256), (64, 128256)]:
        rng = np.random.default_rng(0)
        logits = (rng.standard_normal((rows, vocabulary)) * 3).astype(np.float32)
        temperature = np.resize(np.float32([0.7, 1.0, 1.5, 0.0]), rows)
        seeds, positions = rng.integers(0, 2**63, rows), rng.integers(0, 5000, rows)
        drawn = logits, np.arange(rows, dtype=np.int32), temperature, seeds, positions
        given = [torch.from_numpy(one).to(device) for one in drawn]
        expected = gumbel_sample(logits, temperature, seeds, positions)

        def error(out: Tensor, expected: Any = expected) -> float:
            return float((out.cpu().numpy() != expected).mean())

        def theirs(given: list[Tensor] = given) -> Callable[[], Tensor]:
            from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample as of_vllm

            return lambda: of_vllm(*given, True)

        call = lambda given=given: lab.gumbel_sample(*given)  # noqa: E731
        yield Work(
            f"{rows} x {vocabulary}", logits.nbytes, error, OTHER_TOKENS,
            lambda call=call: call, theirs,
        )  # fmt: skip


def lora(problem: str, device: str, dry: bool) -> Iterator[Work]:
    """q, k and v of Llama-3-8B with eight adapters of rank 16; every ninth row has none."""
    import torch

    from course.kernels.problems import lora as bench

    lab = load_lab(problem)
    slots, rank = 8, 16
    inputs, widths = (64, [64, 16, 16]) if dry else (4096, [4096, 1024, 1024])
    options: dict[str, Any] = {"device": device, "dtype": torch.float16}
    torch.manual_seed(0)
    edges = torch.tensor([0, *widths]).cumsum(0).int().to(device)
    lora_a = torch.randn(3, slots, rank, inputs, **options) / inputs**0.5
    lora_b = torch.randn(slots, sum(widths), rank, **options)
    for rows in (1, 20) if dry else (1, 16, 64, 1024):
        slot_of = torch.arange(rows, dtype=torch.int32) % (slots + 1) - int(rows > slots)
        x, y = torch.randn(rows, inputs, **options), torch.randn(rows, sum(widths), **options)
        given = {
            "y": y, "x": x, "lora_a": lora_a, "lora_b": lora_b, "slice_starts": edges, "widths": widths,
            **bench.sort_rows(slot_of.to(device), slots),
        }  # fmt: skip

        def error(out: Tensor, given: dict[str, Any] = given) -> float:
            on_cpu = {n: t.cpu() if hasattr(t, "cpu") else t for n, t in given.items()}
            expected = bench.answer(on_cpu)[0]
            return float((out.cpu().double() - expected).abs().max() / expected.abs().max())

        def theirs(given: dict[str, Any] = given) -> Callable[[], Tensor]:
            start = bench.Starter(given)
            mid = torch.empty(3, len(given["x"]), rank, dtype=torch.float32, device=device)

            def run() -> Tensor:
                out: Tensor = given["y"].clone()
                start.shrink(mid)
                start.expand(mid, out)
                return out

            return run

        call = lambda given=given: lab.add_lora(*given.values())  # noqa: E731
        used = len(slot_of[slot_of >= 0].unique()) * rank * (3 * inputs + sum(widths))
        moved = 2 * (used + rows * (inputs + 4 * sum(widths)))
        yield Work(
            f"{rows} rows, {slots} adapters", moved, error, quantization.TOLERANCE,
            lambda call=call: call, theirs,
        )  # fmt: skip


MAKERS: dict[str, Callable[[str, str, bool], Iterator[Work]]] = {
    "decode": decode,
    "split-decode": decode,
    "prefill": prefill,
    "w4a16": w4a16,
    "fused-moe": fused_moe,
    "gumbel": gumbel,
    "lora": lora,
}


class WrongError(Exception):
    """A kernel's result is too far from the reference."""


def measure(
    work: Work, device: str, rounds: int, absent: dict[str, str], failed: list[str]
) -> dict[str, Any]:
    """One row. `absent` gets kernels that are not installed, `failed` a sentence on each that fails."""
    timed = device == "cuda"
    row: dict[str, Any] = {"shape": work.shape, "MB": work.moved / 1e6 or None}
    copied = None
    if timed and work.moved:
        copied = microseconds(copy_leg(work.moved, device), rounds)
        row |= {"copy us": copied, "copy GB/s": work.moved / copied / 1e3}
    elif timed:
        row |= {"copy us": None, "copy GB/s": None}
    for name, leg in {"lab": work.lab, "vLLM": work.vllm}.items():
        error = spent = None
        try:
            run = leg()
            error = work.error(run())
            if not error <= work.tolerance:
                raise WrongError(f"is wrong by {error:.1e}")
            spent = microseconds(run, rounds) if timed else None
        except (NotHereError, ImportError) as reason:
            absent[name] = str(reason).splitlines()[0]
        except Exception as reason:  # whatever one kernel does, the others are measured
            said = str(reason).splitlines() or [""]
            failed.append(f"{name}, {work.shape}: {type(reason).__name__}: {said[0]}")
        row[f"{name} error"] = error
        if timed:
            row |= {
                f"{name} us": spent,
                f"{name} share": copied / spent if copied and spent else None,
            }
    return row


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problem", choices=list(MAKERS), nargs="+", default=list(MAKERS))
    parser.add_argument("--rounds", type=int, default=30, help="replays of a kernel (30)")
    parser.add_argument("--dry-run", action="store_true", help="every kernel once, without a GPU")
    parser.add_argument("--save", action="store_true", help="write results/lab-kernels.json")
    args = parser.parse_args(argv)
    if args.dry_run:
        # Read when Triton and vLLM are imported; the empty string keeps vLLM's Triton kernels on.
        os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    import torch

    if not args.dry_run and not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device; --dry-run needs none")
    device = "cpu" if args.dry_run else "cuda"
    command = "python -m benchmarks.lab_kernels " + " ".join(argv or sys.argv[1:])
    command = command.replace(" --save", "").strip()
    gpu = machine.describe_gpu()
    rows: list[dict[str, Any]] = []
    absent, failed = dict[str, str](), list[str]()
    written = None
    for problem in args.problem:
        for work in MAKERS[problem](problem, device, args.dry_run):
            rows.append({"problem": problem} | measure(work, device, args.rounds, absent, failed))
            print(machine.table_with_errors(rows[-1:]), flush=True)
            if args.save and machine.may_save(args.dry_run):
                # After each row, so that a run that is broken off leaves what it has measured.
                more = {"gpu": gpu, "failed": failed}
                written = machine.save("lab-kernels", command, rows, **more)
    for name, reason in absent.items():
        print(f"left out: {name}: {reason}", file=sys.stderr)
    for sentence in failed:
        print(f"failed: {sentence}", file=sys.stderr)
    if written:
        print(written)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
