"""LoRA in plain torch: a frozen linear with a trained low-rank delta, and the PEFT files of it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from scripts.tiny_llama.model import Llama
from scripts.tiny_llama_adapters.styles import Style

BASE = Path(__file__).parents[2] / "mini_vllm" / "checkpoints" / "tiny-llama"


class LoraLinear(nn.Module):
    """`W x + scale * B (A x)`, where only A `[rank, in]` and B `[out, rank]` are trained."""

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        delta: Tensor = F.linear(F.linear(x, self.lora_A), self.lora_B)
        return self.base(x) + self.scale * delta


def scale_of(style: Style) -> float:
    """The factor of the delta."""
    return style.alpha / (math.sqrt(style.rank) if style.rslora else style.rank)


def load_base() -> Llama:
    """The shipped tiny Llama, frozen."""
    model = Llama()
    weights = load_file(BASE / "model.safetensors")
    model.load_state_dict({k.removeprefix("model."): v for k, v in weights.items()})
    return model.requires_grad_(False)


def adapt(model: Llama, style: Style) -> None:
    """Put an untrained delta on every target; it is zero, so the model says what it said."""
    for layer in model.layers:
        for part in layer.children():
            for name in style.targets:
                if (base := getattr(part, name, None)) is not None:
                    setattr(part, name, LoraLinear(base, style.rank, scale_of(style)))


def tensors_of(model: Llama) -> dict[str, Tensor]:
    """The deltas under PEFT's names."""
    return {
        f"base_model.model.model.{name}.weight": p.detach().clone().contiguous()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def save_adapter(model: Llama, style: Style, folder: Path) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": BASE.name,
        "r": style.rank,
        "lora_alpha": style.alpha,
        "target_modules": list(style.targets),
        "use_rslora": style.rslora,
        "use_dora": False,
        "bias": "none",
        "modules_to_save": None,
        "lora_dropout": 0.0,
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "adapter_config.json").write_text(text, encoding="utf-8")
    file = folder / "adapter_model.safetensors"
    save_file(tensors_of(model), file, metadata={"format": "pt"})
    file.chmod(0o644)
