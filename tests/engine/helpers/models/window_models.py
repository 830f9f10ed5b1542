"""Tiny random models with sliding windows, as transformers writes them: a Mistral, and a Gemma 3.

    python -m tests.engine.helpers.models.window_models mistral|gemma3 FOLDER

It needs transformers and torch, of the second environment. The tokenizer is the shipped model's.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from mini_vllm.config.engine import DEFAULT_MODEL

WINDOW = 32
SIZES: dict[str, Any] = {
    "vocab_size": 264, "hidden_size": 96, "intermediate_size": 160, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 32, "sliding_window": WINDOW,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip
# Two kinds of layers, and of one twice as many: three groups of two layers.
LAYER_TYPES = ["sliding_attention", "full_attention", "sliding_attention"] * 2


def make(kind: str, folder: Path, seed: int = 0, **changes: Any) -> None:
    """Write a checkpoint in float32, with weights that make attention pick out tokens."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig, MistralConfig, MistralForCausalLM

    torch.manual_seed(seed)
    if kind == "mistral":
        config: Any = MistralConfig(**{**SIZES, "num_hidden_layers": 3, **changes})
        model: Any = MistralForCausalLM(config)
    else:
        more = {
            "num_hidden_layers": len(LAYER_TYPES), "layer_types": LAYER_TYPES, "query_pre_attn_scalar": 24,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1_000.0},
            },
        }  # fmt: skip
        config = Gemma3TextConfig(**{**SIZES, **more, **changes})
        model = Gemma3ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if (
            "embed" in name and kind == "gemma3"
        ):  # times sqrt(hidden_size), and the layers should be heard
            torch.nn.init.normal_(parameter, std=0.03)
        elif parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
        else:
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.to(torch.float32).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (DEFAULT_MODEL / name).exists():
            shutil.copy(DEFAULT_MODEL / name, folder / name)


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
