"""Lab 06-06: ask ml_dtypes, compressed-tensors and vLLM, and write answers.json.

    python phase-06-quantization/labs/lab-06-fp8-and-fp4-by-bits/record.py

Needs ml_dtypes and vLLM 0.22.1. Nothing here is graded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).resolve().parent / "answers.json"
NAMES = {
    "E4M3": "float8_e4m3fn",
    "E5M2": "float8_e5m2",
    "E2M1": "float4_e2m1fn",
    "E8M0": "float8_e8m0fnu",
}
INF = np.float32(np.inf)


def floats_of(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """What to encode, by kind: `values` are the format's numbers."""
    rng = np.random.default_rng(6)
    # Adding 0.0 makes both zeros one number. Which of them a sort leaves in front, depends on the processor.
    numbers = np.unique(values[np.isfinite(values)] + np.float32(0))
    ties = ((numbers[1:].astype(np.float64) + numbers[:-1]) / 2).astype(np.float32)
    # The neighbours of each tie in float32, on either side.
    moved = np.concatenate([np.nextafter(ties, INF), np.nextafter(ties, -INF)])
    largest = float(numbers[-1])
    step = largest - float(numbers[-2])
    spread = np.exp2(rng.uniform(np.log2(numbers[numbers > 0].min()) - 2, np.log2(largest), 200))
    if name == "E8M0":
        first, more = 2.0**127 * 1.5, [3e38]
        numbers, ties = numbers[numbers >= 2.0**-126], ties[1:]
        moved = moved[moved >= 2.0**-126]
        spread = np.exp2(rng.uniform(-125, 127, 200))
    else:
        first, more = largest + step / 2, [largest + step, 2 * largest, 3e38]
        spread *= rng.choice([-1, 1], 200)
    around = np.nextafter(np.float32(first), [-INF, INF])
    past = np.array([first, *around, *more, np.inf])
    past = past if name == "E8M0" else np.concatenate([past, -past])
    kinds = {"numbers": numbers, "ties": ties, "beside ties": moved, "past the end": past}
    kinds["anything"] = spread
    kinds["zero"] = np.array([0.0, -0.0])
    if name != "E8M0":
        tiny = numbers[numbers > 0].min() / 2
        small = np.array([tiny, np.nextafter(tiny, INF), np.nextafter(tiny, -INF), 1e-45, 1e-30])
        kinds["below all numbers"] = np.concatenate([small, -small])
    if name != "E2M1":
        kinds["NaN"] = np.array([np.nan])
    return {kind: x.astype(np.float32) for kind, x in kinds.items()}


def ask_ml_dtypes(name: str) -> dict[str, Any]:
    """Numbers of all codes, as float32 bits; and per kind, float32 bits and their codes. All in hex."""
    import ml_dtypes

    dtype = getattr(ml_dtypes, NAMES[name])
    codes = np.arange(16 if name == "E2M1" else 256, dtype=np.uint8)
    values = codes.view(dtype).astype(np.float32)
    answer: dict[str, Any] = {"decode": values.astype(">f4").tobytes().hex(), "encode": {}}
    for kind, x in floats_of(name, values).items():
        with np.errstate(all="ignore"):
            got = x.astype(dtype).view(np.uint8)
        answer["encode"][kind] = [x.astype(">f4").tobytes().hex(), got.tobytes().hex()]
    return answer


def blocks_to_ask(size: int) -> np.ndarray:
    """float32 `[20, size]`: blocks of any size, six with a largest number that is planted."""
    rng = np.random.default_rng(size)
    x = rng.normal(size=(20, size)) * np.exp2(rng.integers(-12, 12, size=(20, 1)))
    x[0] = 0
    for row, largest in enumerate([7.0, 6.999, 8.0, 7.999, 0.875, 6.0], start=1):
        x[row] = np.clip(x[row], -1, 1) * largest / 2
        x[row, 3] = -largest
    return x.astype(np.float32)


def ask_mxfp4() -> dict[str, Any]:
    """compressed-tensors: the scale of a block's largest. The codes of the scaled block: by vLLM's cast."""
    import torch
    from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
    from compressed_tensors.quantization.utils.mxfp_utils import generate_mx_scales
    from vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils import cast_to_fp4

    x = torch.from_numpy(blocks_to_ask(32)[1:])  # it has no scale for a block of zeros
    scales = generate_mx_scales(x.abs().amax(-1))
    codes = cast_to_fp4(torch.clamp(x / 2.0 ** (scales - 127)[:, None], -6, 6))
    return {
        "x": x.numpy().astype(">f4").tobytes().hex(),
        "scales": [int(scale) for scale in scales],
        "packed": pack_fp4_to_uint8(codes).numpy().tobytes().hex(),
    }


def ask_nvfp4() -> dict[str, Any]:
    """vLLM's reference, with compressed-tensors' global scale."""
    import torch
    from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
    from compressed_tensors.quantization.utils.helpers import generate_gparam
    from vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils import ref_nvfp4_quant

    x = torch.from_numpy(blocks_to_ask(16)[:, :16])
    global_scale = generate_gparam(x.min(), x.max())
    codes, scales = ref_nvfp4_quant(x, global_scale[0], 16)
    return {
        "x": x.numpy().astype(">f4").tobytes().hex(),
        "global_scale": float(global_scale),
        "scales": scales.flatten().to(torch.float8_e4m3fn).view(torch.uint8).tolist(),
        "packed": pack_fp4_to_uint8(codes).numpy().tobytes().hex(),
    }


if __name__ == "__main__":
    answers: dict[str, Any] = {name: ask_ml_dtypes(name) for name in NAMES}
    answers |= {"MXFP4": ask_mxfp4(), "NVFP4": ask_nvfp4()}
    FILE.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
