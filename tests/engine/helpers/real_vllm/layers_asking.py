"""What vLLM's own attention layers tell the selector, as JSON: run by test_lab_04_04_vllm.py.

`Attention` and `MLAAttention` are built as a model builds them, on the platform of lab 04-04's stand-in. It
notes what it is asked, and answers nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

LAB = Path(__file__).parents[4] / "phase-04-attention-backends/labs/lab-04-backend-selection"


class Asked(Exception):
    """The question has been heard."""


def main() -> None:
    gpu = load_module(LAB / "cuda_stand_in.py", "layers_stand_in").stand_in()
    gpu.become((8, 0))
    import torch
    from vllm.config import AttentionConfig, CacheConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.attention import Attention, MLAAttention

    heard: list[Any] = []

    def hear(selected: Any, attn_selector_config: Any, num_heads: int | None = None) -> str:
        told = attn_selector_config._asdict() | {"num_heads": num_heads}
        told["dtype"] = str(told["dtype"]).removeprefix("torch.")
        told["attn_type"] = str(getattr(told["attn_type"], "value", told["attn_type"]))
        heard.append(told)
        raise Asked

    gpu.platform.get_attn_backend_cls = staticmethod(hear)

    def ask(
        layer: Any, dtype: Any, cache: dict[str, Any], non_causal: bool = False, **more: Any
    ) -> None:
        gpu.become((8, 0), batch_invariant=more.pop("batch_invariant", False))
        config = VllmConfig(
            cache_config=CacheConfig(**cache),
            attention_config=AttentionConfig(use_non_causal=non_causal),
        )
        torch.set_default_dtype(dtype)
        try:
            with set_current_vllm_config(config):
                layer(scale=1.0, cache_config=config.cache_config, prefix="layers.0.attn", **more)
        except Asked:
            return
        raise AssertionError("nobody was asked")

    window = {"num_heads": 40, "head_size": 128, "num_kv_heads": 10}
    window |= {"per_layer_sliding_window": 4096, "logits_soft_cap": 50.0}
    ask(Attention, torch.bfloat16, {}, **window)
    ask(Attention, torch.bfloat16, {"block_size": 16}, num_heads=32, head_size=128)
    sinks = {"num_heads": 32, "head_size": 64, "num_kv_heads": 8, "sinks": torch.zeros(32)}
    ask(Attention, torch.float16, {"cache_dtype": "fp8_e5m2"}, True, batch_invariant=True, **sinks)
    ask(Attention, torch.float16, {}, num_heads=8, head_size=80, attn_type="encoder_only")
    latent = {"num_heads": 16, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    latent |= {"q_lora_rank": None, "kv_lora_rank": 512, "kv_b_proj": None}
    ask(MLAAttention, torch.bfloat16, {"cache_dtype": "fp8", "block_size": 64}, **latent)
    ask(MLAAttention, torch.bfloat16, {}, True, use_sparse=True, batch_invariant=True, **latent)
    print("LAB " + json.dumps(heard))


if __name__ == "__main__":
    main()
