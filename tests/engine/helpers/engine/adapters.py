"""Adapters of random numbers, as PEFT writes them, and checkpoints with one merged into the weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.lora.request import LoRARequest

SHAPES = {
    "self_attn.q_proj": (128, 128), "self_attn.k_proj": (128, 64), "self_attn.v_proj": (128, 64),
    "self_attn.o_proj": (128, 128), "mlp.gate_proj": (128, 384), "mlp.up_proj": (128, 384),
    "mlp.down_proj": (384, 128),
}  # fmt: skip
"""Of the shipped model's linear layers: numbers in and out."""
NUM_LAYERS, VOCAB_SIZE = 4, 264
SOME = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj")


def make_tensors(
    seed: int, rank: int = 8, modules: Sequence[str] = SOME, scale: float = 0.09
) -> dict[str, Any]:
    """Enough of a change for other tokens."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    for layer in range(NUM_LAYERS):
        for module in modules:
            size_in, size_out = SHAPES[module]
            name = f"base_model.model.model.layers.{layer}.{module}"
            for half, shape in (("A", (rank, size_in)), ("B", (size_out, rank))):
                numbers = rng.standard_normal(shape) * scale
                tensors[f"{name}.lora_{half}.weight"] = numbers.astype(np.float32)
    return tensors


def make_vocabulary_tensors(seed: int, rank: int = 8, scale: float = 0.09) -> dict[str, Any]:
    """Of the embedding and of the head, with the base's embedding, which PEFT may write beside them."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Any:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    embedding = "base_model.model.model.embed_tokens"
    return {
        f"{embedding}.lora_embedding_A": draw(rank, VOCAB_SIZE),
        f"{embedding}.lora_embedding_B": draw(128, rank),
        f"{embedding}.base_layer.weight": draw(VOCAB_SIZE, 128),
        "base_model.model.lm_head.lora_A.weight": draw(rank, 128),
        "base_model.model.lm_head.lora_B.weight": draw(VOCAB_SIZE, rank),
    }


def write_adapter(
    folder: Path,
    seed: int,
    rank: int = 8,
    modules: Sequence[str] = SOME,
    tensors: Mapping[str, Any] | None = None,
    **config: Any,
) -> Path:
    """A folder with both files; `config` adds to the settings, or changes them."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "bias": "none",
        "target_modules": sorted({name.rsplit(".", 1)[-1] for name in modules}), "lora_dropout": 0.0,
        "modules_to_save": None, "use_dora": False, "use_rslora": False, "fan_in_fan_out": False,
        "rank_pattern": {}, "alpha_pattern": {},
    }  # fmt: skip
    text = json.dumps({**settings, **config})
    (folder / "adapter_config.json").write_text(text, encoding="utf-8")
    weights = make_tensors(seed, rank, modules) if tensors is None else dict(tensors)
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


def write_five(folder: Path) -> list[Path]:
    """Adapters of different ranks and modules, with packed ones adapted in part and whole, one rsLoRA."""
    of = [(8, SOME), (4, tuple(SHAPES)), (16, ("self_attn.v_proj",)),
          (1, ("mlp.up_proj", "self_attn.k_proj")), (9, tuple(SHAPES))]  # fmt: skip
    return [
        write_adapter(folder / f"ad{i}", i, rank, modules, use_rslora=i == 5)
        for i, (rank, modules) in enumerate(of, 1)
    ]


def ask(folder: Path, number: int, name: str | None = None, **others: Any) -> LoRARequest:
    return LoRARequest(name or folder.name, number, str(folder), **others)


def write_merged(
    folder: Path, adapter: Path, scaling: float = 2.0, base: Path = DEFAULT_MODEL
) -> Path:
    """The base with the adapter in its weights; an adapted head is tied no longer."""
    shutil.copytree(base, folder)
    weights = load_file(folder / "model.safetensors")
    tensors = load_file(adapter / "adapter_model.safetensors")
    if any("lm_head" in name for name in tensors):
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        text = json.dumps({**config, "tie_word_embeddings": False})
        (folder / "config.json").write_text(text, encoding="utf-8")
    for name in tensors:
        module, _, half = name.removeprefix("base_model.model.").partition(".lora_")
        if half in ("A.weight", "embedding_A"):
            other = f"B{half.removeprefix('A')}" if half[0] == "A" else "embedding_B"
            b = tensors[name.removesuffix(half) + other].astype(np.float64)
            delta = scaling * (b @ tensors[name].astype(np.float64))
            delta = delta.T if half == "embedding_A" else delta
            merged = weights[f"{module}.weight"].astype(np.float64) + delta
            weights[f"{module}.weight"] = merged.astype(np.float32)
    save_file(weights, folder / "model.safetensors")
    return folder
