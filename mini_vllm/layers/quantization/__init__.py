"""Numbers in fewer bits: the grid, the files and the layers of quantised weights; the KV cache's formats.

Mirrors `vllm/model_executor/layers/quantization/` and the package compressed-tensors, whose names it
keeps. Storage is small; the arithmetic stays float32. numpy alone: torch has its place in `gpu/`.
The registry is here, and imports a config when a checkpoint names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mini_vllm.config.checks import CheckpointError
from mini_vllm.layers.quantization.base import NoQuantizationConfig, QuantizationConfig
from mini_vllm.utils.lazy import LazyClasses
from mini_vllm.utils.untrusted import shorten_repr

METHODS: Mapping[str, Any] = LazyClasses(
    {
        "awq": "mini_vllm.layers.quantization.config.AWQConfig",
        "compressed-tensors": "mini_vllm.layers.quantization.config.CompressedTensorsConfig",
        "gptq": "mini_vllm.layers.quantization.config.GPTQConfig",
    }
)
"""By `quant_method`, the configs that are read
(`vllm/model_executor/layers/quantization/__init__.py:109 get_quantization_config`)."""


def _spell(name: object) -> str:
    """A method's name as `METHODS` has it: files write it in capitals, and the library's as Python does.

    Source: `_normalize_quantization_config` of `vllm/transformers_utils/model_arch_config_convertor.py`.
    """
    return name.lower().replace("_", "-") if isinstance(name, str) else ""


def get_quantization_config(raw: Mapping[str, Any]) -> QuantizationConfig:
    """The config of a checkpoint from its `quantization_config`; an empty one means nothing is quantised
    (`vllm/model_executor/layers/quantization/__init__.py:109 get_quantization_config`).

    Raises CheckpointError for a method that is not known, and for what its config refuses.
    """
    if not raw:
        return NoQuantizationConfig()
    name = raw.get("quant_method", "unknown")
    if _spell(name) not in METHODS:
        raise CheckpointError(
            f"the checkpoint is quantised (quantization_config.quant_method {shorten_repr(name)}); "
            f"supported: {', '.join(METHODS)}, or weights in float32, float16, bfloat16"
        )
    config: QuantizationConfig = METHODS[_spell(name)].from_config(raw)
    return config
