"""Tiny random models as transformers writes them: Qwen 2 and 3, and three with experts.

    python -m tests.engine.helpers.models.moe_models KIND FOLDER

It needs transformers and torch, of the second environment. The tokenizer is the shipped model's.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from mini_vllm.config.engine import DEFAULT_MODEL

SIZES: dict[str, Any] = {
    "vocab_size": 264, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 8, "moe_intermediate_size": 64}
# By kind, the name of the classes and what is said besides `SIZES`. A layer of a Qwen's is dense.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 64}),
    "mixtral": ("Mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "qwen2moe": ("Qwen2Moe", {**EXPERTS, "num_experts_per_tok": 3, "shared_expert_intermediate_size": 96,
                              "mlp_only_layers": [1]}),
    "qwen3moe": ("Qwen3Moe", {**EXPERTS, "num_experts_per_tok": 2, "norm_topk_prob": True, "head_dim": 64,
                              "decoder_sparse_step": 2}),
}  # fmt: skip


def make(kind: str, folder: Path, seed: int = 0, **changes: Any) -> Any:
    """Write a checkpoint in float32, with weights that make attention pick out tokens; returns the model."""
    import torch
    import transformers

    torch.manual_seed(seed)
    name, more = KINDS[kind]
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **more, **changes})
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
        else:
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.to(torch.float32).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (DEFAULT_MODEL / name).exists():
            shutil.copy(DEFAULT_MODEL / name, folder / name)
    return model


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
