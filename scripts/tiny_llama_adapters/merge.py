"""Merge an adapter into the shipped tiny Llama: a whole checkpoint, made with numpy alone.

python -m scripts.tiny_llama_adapters.merge mini_vllm/checkpoints/tiny-llama-lora/telegram MERGED
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from mini_vllm.model_loader.safetensors_file import read_safetensors

CHECKPOINTS = Path(__file__).parents[2] / "mini_vllm" / "checkpoints"
BASE = CHECKPOINTS / "tiny-llama"
ADAPTERS = CHECKPOINTS / "tiny-llama-lora"
PREFIX, A, B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"

Tensors = dict[str, NDArray[Any]]


def scale_of(config: dict[str, Any]) -> float:
    """The factor of the delta, from `adapter_config.json`."""
    rank: int = config["r"]
    alpha: float = config["lora_alpha"]
    return alpha / (math.sqrt(rank) if config["use_rslora"] else rank)


def merged(weights: Tensors, adapter: Path) -> Tensors:
    """`W + scale * B @ A` for every linear of the adapter, in float32; the other tensors as they are."""
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    deltas = read_safetensors(adapter / "adapter_model.safetensors")
    made = dict(weights)
    for name in deltas:
        if name.endswith(A):
            linear = name.removesuffix(A)
            weight = linear.removeprefix(PREFIX) + ".weight"
            product = deltas[linear + B].astype(np.float64) @ deltas[name].astype(np.float64)
            made[weight] = (weights[weight] + scale_of(config) * product).astype(np.float32)
    return made


def write_merged(adapter: Path, folder: Path) -> Path:
    """Write the merged checkpoint to `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in BASE.glob("*.json"):
        if file.name != "training_log.json":
            shutil.copy(file, folder)
    weights = merged(read_safetensors(BASE / "model.safetensors"), adapter)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


if __name__ == "__main__":
    write_merged(Path(sys.argv[1]), Path(sys.argv[2]))
