"""vLLM's int8 product on a CPU, held against whole numbers: how many of its results are wrong.

    python phase-06-quantization/int8_saturation.py           as vLLM runs on this processor
    python phase-06-quantization/int8_saturation.py --avx2    as on one with AVX2 and no VNNI

With `--avx2` two questions are answered otherwise, before vLLM is loaded. Torch says there is no AVX-512,
so vLLM takes its extension `_C_AVX2`; and `ONEDNN_MAX_CPU_ISA` holds oneDNN to AVX2. Needs vLLM 0.22.1 built
for CPU, on x86.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np

ROWS, INPUTS, OUTPUTS = 24, 64, 64
CODES = (31, 63, 64, 65, 80, 96, 112, 127)
"""Largest weight codes. A checkpoint's rows reach 127, because that is how their scales are chosen."""


def load(avx2: bool) -> str:
    """Load vLLM's compiled functions into this process; say which file they are in."""
    if avx2:
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"  # read by oneDNN at its first product
        import torch.cpu

        torch.cpu._is_avx512_supported = lambda: False
    import vllm._custom_ops  # noqa: F401  # loads the extension that the platform chooses

    mapped = [Path(line) for line in Path("/proc/self/maps").read_text("utf-8").split()]
    [name] = {file.name for file in mapped if file.parent.name == "vllm" and file.match("_C*.so")}
    return name.split(".")[0]


def product(x: np.ndarray[Any, Any], weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What vLLM's int8 kernel makes of int8 codes, float64 `[rows, outputs]`.

    Args:
        x: activations, int8 `[rows, inputs]`.
        weight: int8 `[outputs, inputs]`, as a checkpoint holds it. All scales are 1.
    """
    import torch
    from vllm import _custom_ops as ops

    scales = torch.ones(
        len(weight)
    )  # the handler keeps its address, so this function has to keep it
    handler = ops.create_onednn_scaled_mm(
        torch.from_numpy(weight).t(), scales, torch.float32, dynamic_quant=True, use_azp=False
    )
    out = torch.empty(len(x), len(weight))
    ops.onednn_scaled_mm(handler, torch.from_numpy(x), out, torch.ones(len(x), 1), None, None, None)
    return out.numpy().astype(np.float64)


def errors(code: int) -> np.ndarray[Any, Any]:
    """vLLM's products less the exact ones, of random activations up to 127 and weights up to `code`."""
    rng = np.random.default_rng(code)
    x = rng.integers(-127, 128, (ROWS, INPUTS)).astype(np.int8)
    weight = rng.integers(-code, code + 1, (OUTPUTS, INPUTS)).astype(np.int8)
    return product(x, weight) - x.astype(np.int64) @ weight.astype(np.int64).T


def largest(code: int) -> int:
    """How much is missing where every activation is 127 and every weight is `code`."""
    x, weight = np.full((1, INPUTS), 127, np.int8), np.full((OUTPUTS, INPUTS), code, np.int8)
    return INPUTS * 127 * code - int(product(x, weight)[0, 0])


def predicted(code: int) -> int:
    """The same, if the activations were moved up by 128 and each two products were added in 16 bits."""
    return INPUTS // 2 * max(0, 2 * 255 * code - 32767)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--avx2", action="store_true", help="as on a processor with AVX2 alone")
    print(f"extension {load(parser.parse_args().avx2)}")
    print(
        f"{'largest':>7}  {'random: wrong':>14}  {'most':>6}  {'all 127: missing':>16}  {'predicted':>9}"
    )
    for code in CODES:
        off = np.abs(errors(code))
        wrong = f"{(off > 0).sum():,} of {off.size:,}"
        print(
            f"{code:7}  {wrong:>14}  {off.max():6,.0f}  {largest(code):16,}  {predicted(code):9,}"
        )


if __name__ == "__main__":
    main()
