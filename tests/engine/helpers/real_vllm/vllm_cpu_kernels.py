"""What vLLM can multiply on this processor: `python vllm_cpu_kernels.py` prints it as JSON.

Its CPU build comes as several extensions, one for processors without AVX-512. Only the others hold the
4-bit kernel, so what is asked is the extension that was loaded. Its int8 product is the same code everywhere
and right only where the processor has VNNI, so there a product is computed.
"""

from __future__ import annotations

import json
from pathlib import Path

from course.learner.labs import load_module
from tests.engine.helpers.quantization.kv_cache_vllm import has_fp8_kernel

SCRIPT = Path(__file__).resolve().parents[4] / "phase-06-quantization" / "int8_saturation.py"


def main() -> None:
    import torch
    import vllm._custom_ops  # noqa: F401  # loads the extension that the platform chooses
    from vllm.platforms import current_platform

    found = {"four_bits": True, "exact_int8": True, "fp8_cache": True}
    if current_platform.is_cpu():
        saturation = load_module(SCRIPT, "int8_saturation_of_phase_06")
        found = {
            "four_bits": hasattr(torch.ops._C, "cpu_gemm_wna16"),
            "exact_int8": not saturation.errors(127).any(),
            "fp8_cache": has_fp8_kernel(),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
