"""The command `mini-vllm quantize`: write a checkpoint whose linear layers take 8 or 4 bits a weight."""

from __future__ import annotations

import argparse
from typing import Any, TextIO

from mini_vllm.utils.untrusted import one_line

_EPILOG = """\
methods; WxAy is weights in x bits and activations in y:
  int8              W8A16: a scale for each row
  int4              W4A16: a scale for each group, every weight rounded by itself
  gptq              W4A16, where later columns make up for the errors of earlier ones
  awq               W4A16, with finer steps for the weights that loud inputs meet
  w8a8              W8A8 in integers; activations are rounded as they come
  smoothquant-w8a8  W8A8 in integers, after loud activations have been made quieter
  fp8               W8A8 in 8-bit floats (E4M3)

vLLM 0.22.1 runs int4, gptq and awq on a CPU too if it has AVX-512, and w8a8 and smoothquant-w8a8
on any, but with wrong results if it lacks VNNI; for int8 and fp8 it has kernels on GPUs only.
mini-vllm runs all of them everywhere.

examples:
  mini-vllm quantize --method int4-g128 mini_vllm/checkpoints/tiny-llama tiny-int4
  mini-vllm generate --model tiny-int4 "The scheduler"
  mini-vllm quantize --method gptq --group-size 32 mini_vllm/checkpoints/tiny-llama /tmp/tiny-gptq
"""


def add_quantize_parser(commands: Any) -> None:
    """Register `quantize` with the subparsers of `mini-vllm`."""
    parser = commands.add_parser(
        "quantize",
        help="write a smaller checkpoint: weights in 8 or 4 bits",
        description="Write a copy of a Llama checkpoint whose linear layers take 8 or 4 bits a "
        "weight, in a layout that vLLM reads. Embedding, norms and lm_head are not quantised. "
        "DIR is only read; OUT appears whole, or not at all.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="DIR", help="a checkpoint that is not quantised yet")
    parser.add_argument("out", metavar="OUT", help="the folder to write: new, or empty")
    parser.add_argument(
        "--method", required=True, metavar="M",
        help="how to round; one of the methods below. Those in 4 bits may end in a group size, as "
        "int4-g128 does",
    )  # fmt: skip
    parser.add_argument(
        "--group-size", type=int, metavar="N",
        help="of the methods in 4 bits: how many neighbours in a row share a scale, or -1 for the "
        "whole row; must divide the inputs of every layer (128)",
    )  # fmt: skip
    parser.add_argument(
        "--calibration", metavar="FILE",
        help="of gptq, awq and smoothquant-w8a8: a JSON list of texts like those that the model will "
        "read (128 texts that suit the shipped checkpoint)",
    )  # fmt: skip
    parser.set_defaults(run=run_quantize)


def run_quantize(args: argparse.Namespace, out: TextIO) -> int:
    """The `quantize` command. Exit status 0; what cannot be done is a ValueError."""
    from mini_vllm.compress.quantize import quantize_checkpoint

    made = quantize_checkpoint(
        args.folder, args.out, args.method, args.group_size, args.calibration
    )
    out.write(
        f"{one_line(args.out)}: format {made.method.fmt}, {made.layers} linear layers, "
        f"{made.weights:,} weights\n"
        f"  layers  {made.bytes_before:>14,} bytes became {made.bytes_after:,}: "
        f"{made.bits_per_weight:.2f} bits a weight\n"
        f"  rest    {made.rest_bytes:>14,} bytes, not quantised\n"
    )
    return 0
