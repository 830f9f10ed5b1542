"""Linear layers with weights of 4, 8 and 16 bits on a GPU: `mini_vllm`'s kernel beside torch and vLLM's.

    python -m benchmarks.quantization [--save]       on a GPU
    python -m benchmarks.quantization --dry-run      without: tiny layers, under Triton's interpreter
    python -m benchmarks.quantization --paper        bytes and intensity alone, computed

The layers are those of Llama-3.1-8B, as an engine multiplies them (q, k and v in one product, gate and up in
one), groups of 128, float16, for 1 to 256 rows. Legs:

    16 bits             torch.mm
    W4A16, W8A16        mini_vllm/gpu/kernels/wna16.py, with a scale for each group
    Marlin W4, W8       vLLM's kernel for most NVIDIA GPUs
    Machete W4          vLLM's first choice on Hopper
    AWQ Triton W4       vLLM's Triton kernel, `awq_gemm_triton`, which rounds its sums to float16

On paper: least bytes are weights, scales, x and result, each once. Intensity is floating-point operations,
2 * rows * inputs * outputs, over these bytes. On a GPU each leg is recorded as a CUDA graph and replayed with
a cold L2 cache; `share` is a leg's speed in its own least bytes against a copy's of as many bytes. vLLM's
kernels are called as its layers call them, weights repacked before. What is not there is left out and
named.

The dry run times nothing. It shows that each leg runs and agrees with float64. Marlin and Machete have no
kernel for a CPU: their calls are bound to the real signatures, and a stand-in answers.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import machine
from benchmarks.attention import copy_leg, microseconds
from benchmarks.attention_legs import NotHereError

if TYPE_CHECKING:
    from torch import Tensor

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
GROUP = 128
# outputs, inputs of the layers of Llama-3.1-8B
LAYERS = {
    "qkv_proj": (6144, 4096),
    "o_proj": (4096, 4096),
    "gate_up_proj": (28672, 4096),
    "down_proj": (4096, 14336),
}
TINY = {"a": (160, 256), "b": (64, 384)}
TOLERANCE = 1e-2
"""Largest error against float64, as a share of the largest number. Marlin, AWQ and Machete round weights to
16 bits, AWQ's sums as well."""


@dataclass(frozen=True)
class Shape:
    """One product."""

    layer: str
    outputs: int
    inputs: int
    rows: int

    def least_bytes(self, bits: int) -> int:
        """Weights, their scales, x and the result, each once."""
        scales = 0 if bits == 16 else 2 * self.outputs * self.inputs // GROUP
        return (
            self.outputs * self.inputs * bits // 8
            + scales
            + 2 * self.rows * (self.inputs + self.outputs)
        )

    def intensity(self, bits: int) -> float:
        """Floating-point operations for each of these bytes."""
        return 2 * self.rows * self.inputs * self.outputs / self.least_bytes(bits)


@dataclass(frozen=True)
class Inputs:
    """A product's tensors. The 4-bit and the 8-bit layer have weights of their own, and the same scales."""

    x: Tensor  # float16 [rows, inputs]
    scale: Tensor  # float16 [outputs, groups]
    codes: dict[int, Tensor]  # by bits: int32 [outputs, inputs]

    def weight(self, bits: int) -> Tensor:
        """float32 [outputs, inputs]; with 16 bits the 4-bit weights, rounded to float16."""
        bits, rounded = (4, True) if bits == 16 else (bits, False)
        per_group = self.scale.float().repeat_interleave(GROUP, 1)
        weight = (self.codes[bits] - 2 ** (bits - 1)).float() * per_group
        return weight.half().float() if rounded else weight

    def packed(self, bits: int) -> Tensor:
        """int32 words [outputs, inputs * bits / 32], little end first."""
        import torch

        per = 32 // bits
        shift = bits * torch.arange(per, device=self.x.device)
        words = (self.codes[bits].long().unflatten(1, (-1, per)) << shift).sum(-1)
        return (words - (words >> 31 << 32)).int()

    def product(self, bits: int) -> Tensor:
        """What every leg with so many bits should give, float64."""
        return self.x.double() @ self.weight(bits).double().T


def make_inputs(shape: Shape, device: str) -> Inputs:
    import torch

    rng = torch.Generator(device).manual_seed(0)
    size = shape.outputs, shape.inputs
    options: dict[str, Any] = {"generator": rng, "device": device}
    scale = 0.005 + 0.01 * torch.rand(shape.outputs, shape.inputs // GROUP, **options)
    return Inputs(
        torch.randn(shape.rows, shape.inputs, **options).half(),
        scale.half(),
        {bits: torch.randint(0, 2**bits, size, dtype=torch.int32, **options) for bits in (4, 8)},
    )


Leg = Callable[[Inputs], Callable[[], "Tensor"]]


def dense(inputs: Inputs) -> Callable[[], Tensor]:
    import torch

    weight = inputs.weight(16).half().T
    return lambda: torch.mm(inputs.x, weight)


def ours(bits: int) -> Leg:
    def leg(inputs: Inputs) -> Callable[[], Tensor]:
        from mini_vllm.gpu.kernels.wna16 import wna16_gemm

        # As mini_vllm/gpu/quantization.py keeps them: scales of many outputs side by side.
        packed, scale = inputs.packed(bits), inputs.scale.T.contiguous().T
        return lambda: wna16_gemm(inputs.x, packed, scale, bits)

    return leg


def marlin(bits: int) -> Leg:
    """As `MarlinLinearKernel` does it, in vllm/model_executor/kernels/linear/mixed_precision/marlin.py."""

    def leg(inputs: Inputs) -> Callable[[], Tensor]:
        ops, utils, kinds = _vllm()
        if not inputs.x.is_cuda:
            _answer(ops, "gptq_marlin_repack", lambda given: given["b_q_weight"])
            _answer(ops, "marlin_gemm", lambda given: inputs.product(bits).half())
        else:
            _needs(ops, "marlin_gemm")
        import torch

        device = inputs.x.device
        outputs, size = len(inputs.scale), inputs.x.shape[1]
        none = utils.marlin_make_empty_g_idx(device)
        weight = ops.gptq_marlin_repack(
            inputs.packed(bits).T.contiguous(), perm=none, size_k=size, size_n=outputs, num_bits=bits,
            is_a_8bit=False,
        )  # fmt: skip
        scale = utils.marlin_permute_scales(
            inputs.scale.T.contiguous(),
            size_k=size,
            size_n=outputs,
            group_size=GROUP,
            is_a_8bit=False,
        )
        workspace = torch.zeros(1, dtype=torch.int)
        if inputs.x.is_cuda:
            workspace = utils.marlin_make_workspace_new(device)
        return lambda: utils.apply_gptq_marlin_linear(
            input=inputs.x, weight=weight, weight_scale=scale, weight_zp=none, g_idx=none,
            g_idx_sort_indices=none, workspace=workspace, wtype=kinds[bits],
            output_size_per_partition=outputs, input_size_per_partition=size, is_k_full=True,
        )  # fmt: skip

    return leg


def machete(inputs: Inputs) -> Callable[[], Tensor]:
    """As `MacheteLinearKernel` does it, in vllm/model_executor/kernels/linear/mixed_precision/machete.py."""
    import torch

    ops, _, kinds = _vllm()
    if not inputs.x.is_cuda:
        _answer(ops, "machete_prepack_B", lambda given: given["b_q_weight"])
        _answer(ops, "machete_mm", lambda given: inputs.product(4).half())
    else:
        if torch.cuda.get_device_capability() != (9, 0):
            raise NotHereError("Machete is for Hopper alone")
        _needs(ops, "machete_mm")
    words = inputs.packed(4).T.contiguous()  # [inputs / 8, outputs]
    half = torch.float16
    weight = ops.machete_prepack_B(
        words.T.contiguous().T, a_type=half, b_type=kinds[4], group_scales_type=half
    )
    scale = inputs.scale.T.contiguous()
    return lambda: ops.machete_mm(
        a=inputs.x, b_q=weight, b_type=kinds[4], b_group_zeros=None, b_group_scales=scale,
        b_group_size=GROUP,
    )  # fmt: skip


def awq_triton(inputs: Inputs) -> Callable[[], Tensor]:
    """As `vllm/model_executor/layers/quantization/awq.py` calls it under VLLM_USE_TRITON_AWQ: 8 splits."""
    import torch

    _vllm()
    from vllm.model_executor.layers.quantization.awq_triton import awq_gemm_triton

    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7], device=inputs.x.device)

    def pack_columns(codes: Tensor) -> Tensor:
        by_eight = codes.unflatten(1, (-1, 8))[:, :, order].long()
        words = (by_eight << (4 * torch.arange(8, device=codes.device))).sum(-1)
        return (words - (words >> 31 << 32)).int()

    weight = pack_columns(inputs.codes[4].T.contiguous())
    scale = inputs.scale.T.contiguous()
    zeros = pack_columns(torch.full_like(scale, 8).int())
    return lambda: awq_gemm_triton(inputs.x, weight, scale, zeros, 8)


def _vllm() -> tuple[Any, Any, dict[int, Any]]:
    """vLLM's operations, the helpers of Marlin, and its names of the two formats."""
    try:
        from vllm import _custom_ops as ops
        from vllm.model_executor.layers.quantization.utils import marlin_utils
        from vllm.scalar_type import scalar_types
    except ImportError as error:
        raise NotHereError(f"vLLM is not installed: {error}") from None
    return ops, marlin_utils, {4: scalar_types.uint4b8, 8: scalar_types.uint8b128}


def _needs(ops: Any, name: str) -> None:
    import torch

    if not hasattr(torch.ops._C, name):
        raise NotHereError(f"this build of vLLM has no {name}")


_SIGNATURES: dict[str, inspect.Signature] = {}


def _answer(ops: Any, name: str, answer: Callable[[dict[str, Any]], Any]) -> None:
    """Put a stand-in into the place of vLLM's operation. It takes what the operation takes, and no more."""
    signature = _SIGNATURES.setdefault(name, inspect.signature(getattr(ops, name)))
    setattr(ops, name, lambda *args, **named: answer(signature.bind(*args, **named).arguments))


LEGS: dict[str, tuple[int, Leg]] = {
    "16 bits": (16, dense),
    "W4A16": (4, ours(4)),
    "W8A16": (8, ours(8)),
    "Marlin W4": (4, marlin(4)),
    "Marlin W8": (8, marlin(8)),
    "Machete W4": (4, machete),
    "AWQ Triton W4": (4, awq_triton),
}


def paper(shape: Shape) -> dict[str, Any]:
    """What is known without a GPU."""
    row: dict[str, Any] = {"layer": shape.layer, "rows": shape.rows}
    for bits in (16, 8, 4):
        row[f"MB {bits}"] = shape.least_bytes(bits) / 1e6
        row[f"FLOP/B {bits}"] = shape.intensity(bits)
    return row


def measure(shape: Shape, device: str, rounds: int, missing: dict[str, str]) -> dict[str, Any]:
    """One row: what is known on paper, every leg's error and, on a GPU, its time and share."""
    inputs = make_inputs(shape, device)
    row = paper(shape)
    timed = device == "cuda"
    expected = {bits: inputs.product(bits) for bits in (16, 8, 4)}
    for name, (bits, leg) in LEGS.items():
        spent = None
        row[f"{name} error"] = None
        try:
            run = leg(inputs)
            off = (run().double() - expected[bits]).abs().max() / expected[bits].abs().max()
            row[f"{name} error"] = error = float(off)
            if not error <= TOLERANCE:
                raise SystemExit(f"{name} is wrong by {error:.1e} at {shape}: nothing is timed")
            spent = microseconds(run, rounds) if timed else None
        except (NotHereError, ImportError, RuntimeError) as reason:
            missing[name] = str(reason).splitlines()[0]
        if timed:
            copied = microseconds(copy_leg(shape.least_bytes(bits), device), rounds)
            row |= {f"{name} us": spent, f"{name} share": copied / spent if spent else None}
    if timed and row["W4A16 us"]:
        for other in ("16 bits", "Marlin W4", "Machete W4", "AWQ Triton W4"):
            spent = row[f"{other} us"]
            row[f"speed over {other}"] = spent / row["W4A16 us"] if spent else None
    return row


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES, help=f"rows: {BATCHES}")
    parser.add_argument("--layer", choices=LAYERS, nargs="+", default=list(LAYERS))
    parser.add_argument("--rounds", type=int, default=50, help="replays of a leg (50)")
    parser.add_argument("--paper", action="store_true", help="bytes and intensity, nothing run")
    parser.add_argument("--dry-run", action="store_true", help="every leg once, without a GPU")
    parser.add_argument("--save", action="store_true", help="write results/quantization.json")
    args = parser.parse_args(argv)
    shapes = [Shape(name, *LAYERS[name], rows) for name in args.layer for rows in args.batch]
    missing: dict[str, str] = {}
    if args.paper:
        print(machine.table([paper(shape) for shape in shapes]))
        return 0
    if args.dry_run:
        # Read when Triton and vLLM are imported; the empty string keeps vLLM's Triton kernels on.
        os.environ["TRITON_INTERPRET"] = "1"
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        tiny = [Shape(name, *size, rows) for name, size in TINY.items() for rows in (1, 5)]
        rows = [measure(shape, "cpu", 0, missing) for shape in tiny]
        print(machine.table_with_errors(rows))
    else:
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("torch sees no CUDA device; --dry-run needs none")
        rows = []
        for shape in shapes:
            rows.append(measure(shape, "cuda", args.rounds, missing))
            print(machine.table_with_errors(rows[-1:]), flush=True)
            torch.cuda.empty_cache()
    for name, reason in missing.items():
        print(f"left out: {name}: {reason}", file=sys.stderr)
    if args.save and machine.may_save(args.dry_run):
        command = "python -m benchmarks.quantization " + " ".join(argv or sys.argv[1:])
        done = machine.save(
            "quantization", command.replace(" --save", "").strip(), rows, gpu=machine.describe_gpu()
        )
        print(done)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
