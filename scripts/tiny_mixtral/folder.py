"""`config.json` of the tiny Mixtral; every other file of its folder is the tiny Llama's.

Attention, vocabulary, positions and norms are the tiny Llama's. Hidden and intermediate size are
multiples of 32, which vLLM's grouped kernel for CPUs asks for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts.tiny_llama import folder as llama

_MLP = ("intermediate_size", "mlp_bias", "attention_bias", "rope_scaling")
CONFIG: dict[str, Any] = {k: v for k, v in llama.CONFIG.items() if k not in _MLP} | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "intermediate_size": 128,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "router_aux_loss_coef": 0.01,
    "router_jitter_noise": 0.0,
    "output_router_logits": False,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
}


def write_files(folder: Path) -> None:
    """Write every file of the checkpoint but the weights and the log into `folder`."""
    llama.write_files(folder)
    text = json.dumps(CONFIG, indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
